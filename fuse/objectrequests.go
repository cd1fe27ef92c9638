package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/object/loose"
	"github.com/artifactfs/artifactfs/worktree"
)

// The methods below answer the requests for the object directory, and pass all others on. A change of the object directory fails with
// EROFS. This includes a change of times, by which git marks an object that it is about to write as still in use: git then writes its
// own copy, and does not depend on contents that may exist only on the remote.

// reserved reports whether the name in a directory is that of the object directory.
func reserved(dir uint64, name string) bool {
	return dir == uint64(worktree.Root) && name == loose.DirName
}

func (o *objectDir) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	if reserved(h.NodeId, name) {
		w := o.f.wait(cancel, h)
		defer w.finish()
		o.fillEntry(w, out, objectsNode)
		return raw.OK
	}
	if !isObject(h.NodeId) {
		return o.RawFileSystem.Lookup(cancel, h, name, out)
	}
	w := o.f.wait(cancel, h)
	defer w.finish()
	node, keep, err := o.lookup(w, h.NodeId, name)
	if err != nil {
		return o.f.fail(opLookup, h, err)
	}
	if node == uint64(worktree.Root) {
		return o.RawFileSystem.Lookup(cancel, &raw.InHeader{NodeId: node, Caller: h.Caller}, ".", out)
	}
	if node != 0 {
		o.fillEntry(w, out, node)
	}
	out.SetEntryTimeout(keep)
	return raw.OK
}

// fillEntry fills a reply that contains an entry of the object directory.
func (o *objectDir) fillEntry(w *waiter, out *raw.EntryOut, node uint64) {
	a, keep := o.attr(w, node)
	out.NodeId, out.Attr = node, a
	out.SetEntryTimeout(forever)
	if keep {
		out.SetAttrTimeout(forever)
	}
}

func (o *objectDir) Forget(node, lookups uint64) {
	if !isObject(node) {
		o.RawFileSystem.Forget(node, lookups)
	}
}

// GetAttr waits for the contents of a file if the system call may use the size of the file.
func (o *objectDir) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	if !isObject(in.NodeId) {
		return o.RawFileSystem.GetAttr(cancel, in, out)
	}
	w := o.f.wait(cancel, &in.InHeader)
	defer w.finish()
	a, keep := o.attr(w, in.NodeId)
	if !keep && needsSize(in.Pid, a.Mode, o.f.cached) {
		size, err := o.sendSize(w, in.NodeId)
		if err != nil {
			return o.f.fail(opRead, &in.InHeader, err)
		}
		setSize(&a, size)
		keep = !o.f.cached
	}
	if keep {
		out.SetTimeout(forever)
	}
	out.Attr = a
	return raw.OK
}

func (o *objectDir) Read(cancel <-chan struct{}, in *raw.ReadIn, buf []byte) (raw.ReadResult, raw.Status) {
	if !isObject(in.NodeId) {
		return o.RawFileSystem.Read(cancel, in, buf)
	}
	w := o.f.wait(cancel, &in.InHeader)
	defer w.finish()
	form, release, err := o.open(w, in.NodeId)
	if err != nil {
		return nil, o.f.fail(opRead, &in.InHeader, err)
	}
	defer release()
	n := max(0, min(int64(len(buf)), form.Size()-int64(in.Offset)))
	if _, err := form.ReadAt(buf[:n], int64(in.Offset)); err != nil {
		return nil, o.f.fail(opRead, &in.InHeader, err)
	}
	return raw.ReadResultData(buf[:n]), raw.OK
}

func (o *objectDir) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	if !isObject(h.NodeId) {
		return o.RawFileSystem.Readlink(cancel, h)
	}
	w := o.f.wait(cancel, h)
	defer w.finish()
	id, err := o.blob(w, h.NodeId)
	if err != nil {
		return nil, o.f.fail(opReadlink, h, err)
	}
	return []byte("../" + contentsName + "/" + id.String()), raw.OK
}

func (o *objectDir) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	if !isObject(in.NodeId) {
		return o.RawFileSystem.ReadDir(cancel, in, out)
	}
	o.list(in, out.AddDirEntry)
	return raw.OK
}

func (o *objectDir) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	if !isObject(in.NodeId) {
		return o.RawFileSystem.ReadDirPlus(cancel, in, out)
	}
	o.list(in, func(e raw.DirEntry) bool { return out.AddDirLookupEntry(e) != nil })
	return raw.OK
}

func (o *objectDir) GetXAttr(cancel <-chan struct{}, h *raw.InHeader, name string, dest []byte) (uint32, raw.Status) {
	if isObject(h.NodeId) {
		return 0, raw.Status(syscall.ENODATA)
	}
	return o.RawFileSystem.GetXAttr(cancel, h, name, dest)
}

func (o *objectDir) ListXAttr(cancel <-chan struct{}, h *raw.InHeader, dest []byte) (uint32, raw.Status) {
	if isObject(h.NodeId) {
		return 0, raw.OK
	}
	return o.RawFileSystem.ListXAttr(cancel, h, dest)
}

func (o *objectDir) Lseek(cancel <-chan struct{}, in *raw.LseekIn, out *raw.LseekOut) raw.Status {
	if isObject(in.NodeId) {
		return raw.Status(syscall.EINVAL)
	}
	return o.RawFileSystem.Lseek(cancel, in, out)
}

func (o *objectDir) Fsync(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	if isObject(in.NodeId) {
		return raw.OK
	}
	return o.RawFileSystem.Fsync(cancel, in)
}

func (o *objectDir) FsyncDir(cancel <-chan struct{}, in *raw.FsyncIn) raw.Status {
	if isObject(in.NodeId) {
		return raw.OK
	}
	return o.RawFileSystem.FsyncDir(cancel, in)
}
