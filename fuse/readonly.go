package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// readOnly answers what would change something with EROFS, and what the kernel can do alone with ENOSYS. On a
// read-only mount the kernel sends none of the former; they are the second lock for a mount that somebody
// remounted writable.
type readOnly struct {
	raw.RawFileSystem
	ops *counters
}

func (r *readOnly) refuse(o op) raw.Status {
	r.ops.add(o)
	return raw.EROFS
}

func (r *readOnly) SetAttr(<-chan struct{}, *raw.SetAttrIn, *raw.AttrOut) raw.Status {
	return r.refuse(opSetAttr)
}

func (r *readOnly) Mknod(<-chan struct{}, *raw.MknodIn, string, *raw.EntryOut) raw.Status {
	return r.refuse(opMknod)
}

func (r *readOnly) Mkdir(<-chan struct{}, *raw.MkdirIn, string, *raw.EntryOut) raw.Status {
	return r.refuse(opMkdir)
}

func (r *readOnly) Unlink(<-chan struct{}, *raw.InHeader, string) raw.Status {
	return r.refuse(opUnlink)
}

func (r *readOnly) Rmdir(<-chan struct{}, *raw.InHeader, string) raw.Status { return r.refuse(opRmdir) }

func (r *readOnly) Rename(<-chan struct{}, *raw.RenameIn, string, string) raw.Status {
	return r.refuse(opRename)
}

func (r *readOnly) Link(<-chan struct{}, *raw.LinkIn, string, *raw.EntryOut) raw.Status {
	return r.refuse(opLink)
}

func (r *readOnly) Symlink(<-chan struct{}, *raw.InHeader, string, string, *raw.EntryOut) raw.Status {
	return r.refuse(opSymlink)
}

func (r *readOnly) Create(<-chan struct{}, *raw.CreateIn, string, *raw.CreateOut) raw.Status {
	return r.refuse(opCreate)
}

func (r *readOnly) Tmpfile(<-chan struct{}, *raw.CreateIn, *raw.CreateOut) raw.Status {
	return r.refuse(opTmpfile)
}

func (r *readOnly) Write(<-chan struct{}, *raw.WriteIn, []byte) (uint32, raw.Status) {
	return 0, r.refuse(opWrite)
}

func (r *readOnly) Fallocate(<-chan struct{}, *raw.FallocateIn) raw.Status {
	return r.refuse(opFallocate)
}

func (r *readOnly) CopyFileRange(<-chan struct{}, *raw.CopyFileRangeIn) (uint32, raw.Status) {
	return 0, r.refuse(opCopyFileRange)
}

func (r *readOnly) Access(<-chan struct{}, *raw.AccessIn) raw.Status {
	r.ops.add(opAccess)
	return raw.ENOSYS
}

func (r *readOnly) Flush(<-chan struct{}, *raw.FlushIn) raw.Status {
	r.ops.add(opFlush)
	return raw.ENOSYS
}

func (r *readOnly) Fsync(<-chan struct{}, *raw.FsyncIn) raw.Status {
	r.ops.add(opFsync)
	return raw.ENOSYS
}

func (r *readOnly) FsyncDir(<-chan struct{}, *raw.FsyncIn) raw.Status {
	r.ops.add(opFsyncDir)
	return raw.ENOSYS
}

func (r *readOnly) Lseek(<-chan struct{}, *raw.LseekIn, *raw.LseekOut) raw.Status {
	r.ops.add(opLseek)
	return raw.ENOSYS
}

func (r *readOnly) Ioctl(<-chan struct{}, *raw.IoctlIn, []byte, *raw.IoctlOut, []byte) raw.Status {
	r.ops.add(opIoctl)
	return raw.Status(syscall.ENOTTY) // ENOSYS would be the answer to a program that asks whether it has a terminal
}
