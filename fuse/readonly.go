package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// readOnly answers requests for changes with EROFS, and requests for operations that the kernel can do alone with
// ENOSYS. On a read-only mount the kernel sends no requests for changes; EROFS protects a mount that was remounted
// writable.
type readOnly struct {
	raw.RawFileSystem
}

// The methods below answer requests for changes.

func (readOnly) SetAttr(<-chan struct{}, *raw.SetAttrIn, *raw.AttrOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Mknod(<-chan struct{}, *raw.MknodIn, string, *raw.EntryOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Mkdir(<-chan struct{}, *raw.MkdirIn, string, *raw.EntryOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Unlink(<-chan struct{}, *raw.InHeader, string) raw.Status {
	return raw.EROFS
}

func (readOnly) Rmdir(<-chan struct{}, *raw.InHeader, string) raw.Status { return raw.EROFS }

func (readOnly) Rename(<-chan struct{}, *raw.RenameIn, string, string) raw.Status {
	return raw.EROFS
}

func (readOnly) Link(<-chan struct{}, *raw.LinkIn, string, *raw.EntryOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Symlink(<-chan struct{}, *raw.InHeader, string, string, *raw.EntryOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Create(<-chan struct{}, *raw.CreateIn, string, *raw.CreateOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Tmpfile(<-chan struct{}, *raw.CreateIn, *raw.CreateOut) raw.Status {
	return raw.EROFS
}

func (readOnly) Write(<-chan struct{}, *raw.WriteIn, []byte) (uint32, raw.Status) {
	return 0, raw.EROFS
}

func (readOnly) Fallocate(<-chan struct{}, *raw.FallocateIn) raw.Status {
	return raw.EROFS
}

func (readOnly) CopyFileRange(<-chan struct{}, *raw.CopyFileRangeIn) (uint32, raw.Status) {
	return 0, raw.EROFS
}

// The methods below answer with ENOSYS, after which the kernel sends no more requests of this kind. The kernel itself
// checks permissions (default_permissions), and a read-only mount has nothing to write back.

func (readOnly) Access(<-chan struct{}, *raw.AccessIn) raw.Status {
	return raw.ENOSYS
}

func (readOnly) Flush(<-chan struct{}, *raw.FlushIn) raw.Status {
	return raw.ENOSYS
}

func (readOnly) Fsync(<-chan struct{}, *raw.FsyncIn) raw.Status {
	return raw.ENOSYS
}

func (readOnly) FsyncDir(<-chan struct{}, *raw.FsyncIn) raw.Status {
	return raw.ENOSYS
}

func (readOnly) Lseek(<-chan struct{}, *raw.LseekIn, *raw.LseekOut) raw.Status {
	return raw.ENOSYS
}

func (readOnly) Ioctl(<-chan struct{}, *raw.IoctlIn, []byte, *raw.IoctlOut, []byte) raw.Status {
	// Programs that use an ioctl to find out whether the file is a terminal expect ENOTTY, and would misinterpret ENOSYS.
	return raw.Status(syscall.ENOTTY)
}
