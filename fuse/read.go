package fuse

import (
	"errors"
	"fmt"
	"io"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// fileContent is a content that lies in a file at an offset, to be spliced from there.
type fileContent interface {
	File() (fd uintptr, off int64)
}

// spliceMin is from how many bytes on a READ is spliced. Splicing spares a copy but takes five system calls where
// copying takes two.
const spliceMin = 64 << 10

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
	if file, ok := c.(fileContent); ok && n >= spliceMin && n <= f.spliceMax {
		fd, off := file.File()
		off += int64(in.Offset)
		if holds(fd, off+int64(n)) {
			return &splicedRead{c, fd, off, int64(in.Offset), n}, raw.OK
		}
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

// holds says whether a file is at least size bytes long. What a shortened file lacks must be an error: a short splice
// would tell the kernel that the content ends there.
func holds(fd uintptr, size int64) bool {
	var st unix.Stat_t
	return unix.Fstat(int(fd), &st) == nil && st.Size >= size
}

// splicedRead hands bytes from a file to the kernel without copying them through this process. go-fuse looks
// for the method Seekable and calls Done when the kernel has the bytes.
type splicedRead struct {
	content worktree.Content
	fd      uintptr
	fileOff int64 // where the bytes lie in the file
	off     int64 // where they lie in the content
	size    int
}

func (r *splicedRead) Seekable() (fd uintptr, off int64, size int) { return r.fd, r.fileOff, r.size }

func (r *splicedRead) Size() int { return r.size }

func (r *splicedRead) Done() { r.content.Release() }

// Bytes is for when splicing did not work. Fewer bytes than promised would be taken for the end of the file.
func (r *splicedRead) Bytes(buf []byte) ([]byte, raw.Status) {
	if len(buf) < r.size {
		return nil, raw.EIO
	}
	if n, _ := r.content.ReadAt(buf[:r.size], r.off); n < r.size {
		return nil, raw.EIO
	}
	return buf[:r.size], raw.OK
}
