package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// The methods below refuse changes of the object directory.

func (o *objectDir) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	if isObject(in.NodeId) {
		return raw.EROFS
	}
	return o.RawFileSystem.SetAttr(cancel, in, out)
}

func (o *objectDir) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	if isObject(in.NodeId) || reserved(in.NodeId, name) {
		return raw.EROFS
	}
	return o.RawFileSystem.Mknod(cancel, in, name, out)
}

func (o *objectDir) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	if isObject(in.NodeId) || reserved(in.NodeId, name) {
		return raw.EROFS
	}
	return o.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (o *objectDir) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	if isObject(h.NodeId) || reserved(h.NodeId, name) {
		return raw.EROFS
	}
	return o.RawFileSystem.Symlink(cancel, h, target, name, out)
}

func (o *objectDir) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	switch {
	case isObject(in.NodeId), reserved(in.NodeId, name):
		return raw.EROFS
	case isObject(in.Oldnodeid):
		return raw.Status(syscall.EXDEV)
	}
	return o.RawFileSystem.Link(cancel, in, name, out)
}

func (o *objectDir) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if isObject(h.NodeId) || reserved(h.NodeId, name) {
		return raw.EROFS
	}
	return o.RawFileSystem.Unlink(cancel, h, name)
}

func (o *objectDir) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if isObject(h.NodeId) || reserved(h.NodeId, name) {
		return raw.EROFS
	}
	return o.RawFileSystem.Rmdir(cancel, h, name)
}

func (o *objectDir) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	if isObject(in.NodeId) || isObject(in.Newdir) || reserved(in.NodeId, name) || reserved(in.Newdir, newName) {
		return raw.EROFS
	}
	return o.RawFileSystem.Rename(cancel, in, name, newName)
}

func (o *objectDir) Tmpfile(cancel <-chan struct{}, in *raw.CreateIn, out *raw.CreateOut) raw.Status {
	if isObject(in.NodeId) {
		return raw.EROFS
	}
	return o.RawFileSystem.Tmpfile(cancel, in, out)
}

func (o *objectDir) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	if isObject(in.NodeId) {
		return 0, raw.EROFS
	}
	return o.RawFileSystem.Write(cancel, in, data)
}

func (o *objectDir) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	if isObject(in.NodeId) {
		return raw.EROFS
	}
	return o.RawFileSystem.Fallocate(cancel, in)
}

// CopyFileRange makes the kernel copy the bytes itself if they are those of an object.
func (o *objectDir) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	switch {
	case isObject(in.NodeIdOut):
		return 0, raw.EROFS
	case isObject(in.NodeId):
		return 0, raw.Status(syscall.EXDEV)
	}
	return o.RawFileSystem.CopyFileRange(cancel, in)
}

func (o *objectDir) SetXAttr(cancel <-chan struct{}, in *raw.SetXAttrIn, name string, value []byte) raw.Status {
	if isObject(in.NodeId) {
		return raw.EROFS
	}
	return o.RawFileSystem.SetXAttr(cancel, in, name, value)
}

func (o *objectDir) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if isObject(h.NodeId) {
		return raw.EROFS
	}
	return o.RawFileSystem.RemoveXAttr(cancel, h, name)
}
