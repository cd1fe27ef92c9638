package fuse

import (
	"errors"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// Read returns contents of a file. If they are of another size than the kernel was shown, the read
// fails with EIO and the kernel looks the file up again.
func (f *writable) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	n := worktree.Node(in.NodeId)
	if f.resized.wrong(n) {
		return nil, raw.EIO // logged when the fault was found
	}
	result, err := f.read(cancel, in, buf)
	if errors.Is(err, worktree.ErrResized) {
		f.lookUpAnew(n)
	}
	return result, f.fail(opRead, &in.InHeader, err)
}

// Write usually has no caller: the kernel writes its cache back. If mode bits are to be dropped
// there is one, which waits.
func (f *writable) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	round := f.writes.begin()
	defer f.writes.end(round)
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n, err := f.tree.Write(w, worktree.Node(in.NodeId), data, int64(in.Offset), in.WriteFlags&raw.WRITE_KILL_SUIDGID != 0)
	if errors.Is(err, worktree.ErrResized) {
		f.lookUpAnew(worktree.Node(in.NodeId))
	}
	return uint32(n), f.fail(opWrite, &in.InHeader, err)
}

// Flush is sent once. The kernel does without it what close(2) has to do: it writes back and
// reports errors (fs/fuse/file.c, fuse_flush).
func (f *writable) Flush(<-chan struct{}, *raw.FlushIn) raw.Status {
	return raw.ENOSYS
}

// fsyncDataOnly is FUSE_FSYNC_FDATASYNC of the kernel's uapi/linux/fuse.h.
const fsyncDataOnly = 1

// Fsync is sent after the kernel has written back all pages and times.
func (f *writable) Fsync(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opFsync, &in.InHeader, f.tree.Fsync(w, worktree.Node(in.NodeId), in.FsyncFlags&fsyncDataOnly != 0))
}

// FsyncDir returns when the entries of a directory are on disk.
func (f *writable) FsyncDir(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opFsyncDir, &in.InHeader, f.tree.FsyncDir(w, worktree.Node(in.NodeId)))
}

// ensureSize makes sure that the kernel has the size of a file that was opened only for writing,
// before an operation for which it does not request the size.
func (f *writable) ensureSize(w *waiter, n worktree.Node) error {
	if f.sizes.state(n) != sizeUnknown {
		return nil
	}
	_, err := f.sendSize(w, n)
	return err
}

// Fallocate reserves or releases a range of a file.
func (f *writable) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n := worktree.Node(in.NodeId)
	err := f.ensureSize(w, n)
	if err == nil {
		err = f.tree.Fallocate(w, n, in.Mode, int64(in.Offset), int64(in.Length))
	}
	return f.fail(opFallocate, &in.InHeader, err)
}

// CopyFileRange is sent after the kernel has written back both ranges (fs/fuse/file.c,
// __fuse_copy_file_range).
func (f *writable) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	from, to := worktree.Node(in.NodeId), worktree.Node(in.NodeIdOut)
	var copied int64
	err := f.ensureSize(w, to)
	if err == nil {
		// The reply has 32 bits for the number of bytes; the caller repeats the call for the rest.
		length := int64(min(in.Len, maxCopy))
		copied, err = f.tree.CopyRange(w, from, int64(in.OffIn), to, int64(in.OffOut), length)
	}
	return uint32(copied), f.fail(opCopyFileRange, &in.InHeader, err)
}

const maxCopy = 1 << 30 // bytes that one COPY_FILE_RANGE copies

// Lseek finds data and holes. The kernel sends it without writing back (fs/fuse/file.c,
// fuse_lseek), so its cache may hold data for a hole. Invalidating the pages writes them back first
// (fuse_reverse_inval_inode, fuse_launder_folio); those WRITEs are answered while Lseek waits.
func (f *writable) Lseek(cancel <-chan struct{}, in *raw.LseekIn, out *raw.LseekOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n := worktree.Node(in.NodeId)
	err := f.ensureSize(w, n)
	if err == nil {
		status := f.device.tellKernel(func() raw.Status { return f.server.InodeNotify(in.NodeId, 0, 0) })
		if status != raw.OK {
			err = syscall.Errno(status)
		}
	}
	var off int64
	if err == nil {
		off, err = f.tree.Seek(w, n, int64(in.Offset), int(in.Whence))
	}
	out.Offset = uint64(off)
	return f.fail(opLseek, &in.InHeader, err)
}
