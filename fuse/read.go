package fuse

import (
	"errors"
	"fmt"
	"io"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Read copies. Splicing from the cache's files would save a copy, but a splice may come up short (a pipe takes fewer
// bytes when they straddle pages), go-fuse passes a short one on, and the kernel takes a short READ for the end of
// the file: a reader would miss the rest without any error.
func (f *fileSystem) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	f.ops.add(opRead)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	c, err := f.tree.Content(w, worktree.Node(in.NodeId))
	if errors.Is(err, worktree.ErrResized) {
		// The kernel learns the right size with its next GETATTR. Attributes only (offset -1): to invalidate pages
		// would wait for the one that this READ is to fill.
		f.server.InodeNotify(in.NodeId, -1, 0)
	}
	if err != nil {
		return nil, f.fail(opRead, &in.InHeader, err)
	}
	left := c.Size() - int64(in.Offset)
	n := int(min(int64(len(buf)), left))
	if n <= 0 {
		c.Release()
		return raw.ReadResultData(nil), raw.OK
	}
	defer c.Release()
	got, err := c.ReadAt(buf[:n], int64(in.Offset))
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, f.fail(opRead, &in.InHeader, fmt.Errorf("read %d bytes at %d: %w", n, in.Offset, err))
	}
	return raw.ReadResultData(buf[:n]), raw.OK
}
