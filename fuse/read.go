package fuse

import (
	"errors"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Read returns a copy of a part of a file's contents. Splicing from the files of the cache would save the copy, but a
// splice may move fewer bytes than requested (a pipe has a limited number of pages). go-fuse would reply with these
// bytes only, and the kernel treats a short reply to a READ as the end of the file, so a program would miss the rest
// without an error.
func (f *fileSystem) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	result, err := f.read(cancel, in, buf)
	if errors.Is(err, worktree.ErrResized) {
		// This notice makes the kernel request the attributes again, which then have the right size. It invalidates
		// only attributes (offset -1), because invalidating pages would wait for the page that this READ is to fill.
		f.server.InodeNotify(in.NodeId, -1, 0)
	}
	return result, f.fail(opRead, &in.InHeader, err)
}

// read returns a part of a file's contents. If it returns fewer bytes than len(buf), the file ends there. The error is
// worktree.ErrResized if the file's size is not the size that was reported to the kernel.
func (f *fileSystem) read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, error) {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n, err := f.tree.Read(w, worktree.Node(in.NodeId), buf, int64(in.Offset))
	if err != nil {
		return nil, err
	}
	return raw.ReadResultData(buf[:n]), nil
}
