package fuse

import (
	"errors"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Read copies contents. Splicing from the cache's files would save a copy, but a splice may be
// short (a pipe holds fewer bytes when they straddle pages), go-fuse passes a short one on, and the
// kernel takes a short READ for the end of the file: a reader would miss the rest without an error.
func (f *fileSystem) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	result, err := f.read(cancel, in, buf)
	if errors.Is(err, worktree.ErrResized) {
		// The kernel fetches the right size with its next GETATTR. Only attributes are invalidated
		// (offset -1): invalidating pages would wait for the one that this READ is to fill.
		f.server.InodeNotify(in.NodeId, -1, 0)
	}
	return result, f.fail(opRead, &in.InHeader, err)
}

func (f *fileSystem) read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, error) {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n, err := f.tree.Read(w, worktree.Node(in.NodeId), buf, int64(in.Offset))
	if err != nil {
		return nil, err
	}
	return raw.ReadResultData(buf[:n]), nil
}
