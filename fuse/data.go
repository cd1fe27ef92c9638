package fuse

import (
	"errors"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree"
)

// Write writes data to a file. The process that calls write(2) waits for the reply. No process waits if the kernel
// writes back the pages of a mapping.
func (f *writable) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	round := f.writes.begin()
	defer f.writes.end(round)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	f.tree.Monitor().Writing(worktree.Node(in.NodeId))
	n, err := f.tree.Write(w, worktree.Node(in.NodeId), data, int64(in.Offset), in.WriteFlags&raw.WRITE_KILL_SUIDGID != 0)
	if errors.Is(err, worktree.ErrResized) {
		// Discard the attributes in the kernel, so that it requests the right size (see fileSystem.Read).
		f.server.InodeNotify(in.NodeId, -1, 0)
	}
	return uint32(n), f.fail(opWrite, &in.InHeader, err)
}

// Flush answers the first close(2) with ENOSYS, after which the kernel sends no more FLUSH. In a close(2) without
// FLUSH, the kernel still writes back its cache and reports errors of those writes (fs/fuse/file.c, fuse_flush).
func (f *writable) Flush(<-chan struct{}, *raw.FlushIn) raw.Status {
	return raw.ENOSYS
}

// fsyncDataOnly is FUSE_FSYNC_FDATASYNC of the kernel's uapi/linux/fuse.h.
const fsyncDataOnly = 1

// Fsync returns when a file's contents, attributes and names are on disk. The kernel sends FSYNC after it has written
// back all pages and times of the file.
func (f *writable) Fsync(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opFsync, &in.InHeader, f.tree.Fsync(w, worktree.Node(in.NodeId), in.FsyncFlags&fsyncDataOnly != 0))
}

// FsyncDir returns when the changes of a directory's entries are on disk.
func (f *writable) FsyncDir(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opFsyncDir, &in.InHeader, f.tree.FsyncDir(w, worktree.Node(in.NodeId)))
}

// Fallocate reserves or releases disk space for a range of a file. in.Mode is the mode of fallocate(2).
func (f *writable) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	err := f.tree.Fallocate(w, worktree.Node(in.NodeId), in.Mode, int64(in.Offset), int64(in.Length))
	return f.fail(opFallocate, &in.InHeader, err)
}

// CopyFileRange copies a range from one file to another and returns the number of bytes copied. The kernel sends the
// request after it has written back both ranges (fs/fuse/file.c, __fuse_copy_file_range).
func (f *writable) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	from, to := worktree.Node(in.NodeId), worktree.Node(in.NodeIdOut)
	// The reply has only 32 bits for the number of bytes, so a longer copy is shortened. The program then calls
	// copy_file_range(2) again for the remaining bytes.
	length := int64(min(in.Len, maxCopy))
	copied, err := f.tree.CopyRange(w, from, int64(in.OffIn), to, int64(in.OffOut), length)
	return uint32(copied), f.fail(opCopyFileRange, &in.InHeader, err)
}

const maxCopy = 1 << 30 // maximum number of bytes that one COPY_FILE_RANGE copies

// Lseek returns the next offset of data, or of a hole (SEEK_DATA, SEEK_HOLE). The kernel sends the request without
// writing back its cache (fs/fuse/file.c, fuse_lseek), which may contain data where the tree still has a hole. So if
// the tree has a hole, Lseek invalidates the pages, which makes the kernel write them back (fuse_reverse_inval_inode,
// fuse_launder_folio); the WRITEs for these pages are answered while Lseek waits. Without a hole in the tree it does
// not invalidate them, because a program such as grep, which looks for holes in each file, would have to read all pages
// again.
func (f *writable) Lseek(cancel <-chan struct{}, in *raw.LseekIn, out *raw.LseekOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n := worktree.Node(in.NodeId)
	off, err := f.tree.Seek(w, n, int64(in.Offset), int(in.Whence))
	a, known := f.tree.KnownAttr(n)
	whole := known && in.Whence == unix.SEEK_HOLE && off == a.Size || in.Whence == unix.SEEK_DATA &&
		off == int64(in.Offset)
	if err == nil && whole {
		out.Offset = uint64(off)
		return raw.OK
	}
	status := f.device.notifyKernel(func() raw.Status { return f.server.InodeNotify(in.NodeId, 0, 0) })
	if status != raw.OK {
		return f.fail(opLseek, &in.InHeader, syscall.Errno(status))
	}
	off, err = f.tree.Seek(w, n, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return f.fail(opLseek, &in.InHeader, err)
}
