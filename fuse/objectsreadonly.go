package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"
)

// The methods below refuse changes in an objectDir, and pass all other requests to the file system that it wraps.

// refused returns the status for a change of the entry name in the directory dir, and OK if the entry is not part of
// the objectDir.
func (f objectDir) refused(dir uint64, name string) raw.Status {
	switch {
	case isObjects(dir):
		return raw.EROFS
	case f.isTop(dir, name):
		return raw.EBUSY // a mount point cannot be removed or replaced either
	}
	return raw.OK
}

func (f objectDir) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	if isObjects(in.NodeId) {
		return raw.EROFS
	}
	return f.RawFileSystem.SetAttr(cancel, in, out)
}

func (f objectDir) Mknod(cancel <-chan struct{}, in *raw.MknodIn, name string, out *raw.EntryOut) raw.Status {
	if s := f.refused(in.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Mknod(cancel, in, name, out)
}

func (f objectDir) Mkdir(cancel <-chan struct{}, in *raw.MkdirIn, name string, out *raw.EntryOut) raw.Status {
	if s := f.refused(in.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (f objectDir) Symlink(cancel <-chan struct{}, h *raw.InHeader, target, name string, out *raw.EntryOut) raw.Status {
	if s := f.refused(h.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Symlink(cancel, h, target, name, out)
}

func (f objectDir) Link(cancel <-chan struct{}, in *raw.LinkIn, name string, out *raw.EntryOut) raw.Status {
	if isObjects(in.Oldnodeid) {
		return raw.EROFS
	}
	if s := f.refused(in.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Link(cancel, in, name, out)
}

func (f objectDir) Unlink(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if s := f.refused(h.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Unlink(cancel, h, name)
}

func (f objectDir) Rmdir(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if s := f.refused(h.NodeId, name); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Rmdir(cancel, h, name)
}

func (f objectDir) Rename(cancel <-chan struct{}, in *raw.RenameIn, name, newName string) raw.Status {
	if s := f.refused(in.NodeId, name); s != raw.OK {
		return s
	}
	if s := f.refused(in.Newdir, newName); s != raw.OK {
		return s
	}
	return f.RawFileSystem.Rename(cancel, in, name, newName)
}

func (f objectDir) Tmpfile(cancel <-chan struct{}, in *raw.CreateIn, out *raw.CreateOut) raw.Status {
	if isObjects(in.NodeId) {
		return raw.EROFS
	}
	return f.RawFileSystem.Tmpfile(cancel, in, out)
}

func (f objectDir) Write(cancel <-chan struct{}, in *raw.WriteIn, data []byte) (uint32, raw.Status) {
	if isObjects(in.NodeId) {
		return 0, raw.EROFS
	}
	return f.RawFileSystem.Write(cancel, in, data)
}

func (f objectDir) Fallocate(cancel <-chan struct{}, in *raw.FallocateIn) raw.Status {
	if isObjects(in.NodeId) {
		return raw.EROFS
	}
	return f.RawFileSystem.Fallocate(cancel, in)
}

// CopyFileRange returns an error if one of the files is an object, after which the kernel reads and writes the bytes.
func (f objectDir) CopyFileRange(cancel <-chan struct{}, in *raw.CopyFileRangeIn) (uint32, raw.Status) {
	switch {
	case isObjects(in.NodeIdOut):
		return 0, raw.EROFS
	case isObjects(in.NodeId):
		return 0, raw.Status(syscall.EXDEV)
	}
	return f.RawFileSystem.CopyFileRange(cancel, in)
}

func (f objectDir) Lseek(cancel <-chan struct{}, in *raw.LseekIn, out *raw.LseekOut) raw.Status {
	if isObjects(in.NodeId) {
		return raw.Status(syscall.EINVAL)
	}
	return f.RawFileSystem.Lseek(cancel, in, out)
}

func (f objectDir) Fsync(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	if isObjects(in.NodeId) {
		return raw.OK
	}
	return f.RawFileSystem.Fsync(cancel, in)
}

func (f objectDir) FsyncDir(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	if isObjects(in.NodeId) {
		return raw.OK
	}
	return f.RawFileSystem.FsyncDir(cancel, in)
}

func (f objectDir) GetXAttr(cancel <-chan struct{}, h *raw.InHeader, attr string, dest []byte) (uint32, raw.Status) {
	if isObjects(h.NodeId) {
		return 0, raw.Status(syscall.ENODATA)
	}
	return f.RawFileSystem.GetXAttr(cancel, h, attr, dest)
}

func (f objectDir) ListXAttr(cancel <-chan struct{}, h *raw.InHeader, dest []byte) (uint32, raw.Status) {
	if isObjects(h.NodeId) {
		return 0, raw.OK
	}
	return f.RawFileSystem.ListXAttr(cancel, h, dest)
}

func (f objectDir) SetXAttr(cancel <-chan struct{}, in *raw.SetXAttrIn, attr string, data []byte) raw.Status {
	if isObjects(in.NodeId) {
		return raw.EROFS
	}
	return f.RawFileSystem.SetXAttr(cancel, in, attr, data)
}

func (f objectDir) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, attr string) raw.Status {
	if isObjects(h.NodeId) {
		return raw.EROFS
	}
	return f.RawFileSystem.RemoveXAttr(cancel, h, attr)
}
