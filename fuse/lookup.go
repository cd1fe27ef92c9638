package fuse

import (
	"errors"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Lookup waits for the size: in a read-only mount no process waits for the directory meanwhile.
func (f *fileSystem) Lookup(cancel <-chan struct{}, h *raw.InHeader, name string, out *raw.EntryOut) raw.Status {
	w := f.wait(cancel, h)
	defer w.finish()
	keep, err := f.git.pass(w, worktree.Node(h.NodeId), name)
	if err != nil {
		return f.fail(opLookup, h, err)
	}
	a, err := f.find(w, h, name)
	if err == nil && a.Size < 0 {
		a, err = f.tree.Attr(w, a.Node)
	}
	if err != nil {
		return f.absent(h, err, out, keep)
	}
	fillEntry(out, a)
	if !keep {
		out.SetEntryTimeout(0)
	}
	return raw.OK
}

// find returns the attributes of a name in a directory. The kernel looks "." and ".." up only for a
// file handle of a node that it has forgotten, for which "." may also be a file (fs/fuse/inode.c,
// fuse_get_dentry).
func (f *fileSystem) find(w *waiter, h *raw.InHeader, name string) (worktree.Attr, error) {
	switch {
	case len(name) > object.MaxNameLen:
		return worktree.Attr{}, syscall.ENAMETOOLONG
	case name == ".":
		return f.tree.Reach(worktree.Node(h.NodeId))
	case name == "..":
		parent, err := f.tree.Parent(worktree.Node(h.NodeId))
		if err != nil {
			return worktree.Attr{}, err
		}
		return f.tree.Reach(parent)
	}
	return f.tree.Lookup(w, worktree.Node(h.NodeId), name)
}

// absent answers a look-up of a name that does not exist: with node id 0 the kernel may cache the
// absence too, if keep is true.
func (f *fileSystem) absent(h *raw.InHeader, err error, out *raw.EntryOut, keep bool) raw.Status {
	if errors.Is(err, worktree.ErrNotExist) {
		if keep {
			out.SetEntryTimeout(forever)
		}
		return raw.OK
	}
	return f.fail(opLookup, h, err)
}

func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	a, err := f.tree.Attr(w, worktree.Node(in.NodeId))
	if err != nil {
		return f.fail(opGetAttr, &in.InHeader, err)
	}
	out.SetTimeout(forever)
	fillAttr(&out.Attr, a)
	return raw.OK
}

func (f *fileSystem) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	w := f.wait(cancel, h)
	defer w.finish()
	target, err := f.tree.Readlink(w, worktree.Node(h.NodeId))
	return target, f.fail(opReadlink, h, err)
}

// fillEntry fills in the reply for a name, which the kernel may cache until it is invalidated.
func fillEntry(out *raw.EntryOut, a worktree.Attr) {
	out.NodeId = uint64(a.Node)
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	fillAttr(&out.Attr, a)
}

// fillAttr converts attributes; an unknown size is 0.
func fillAttr(out *raw.Attr, a worktree.Attr) {
	*out = raw.Attr{
		Ino: uint64(a.Node), Size: uint64(max(a.Size, 0)), Blocks: uint64(max(a.Blocks, 0)), Mode: a.Mode, Nlink: a.Nlink,
		Owner: raw.Owner{Uid: a.UID, Gid: a.GID}, Rdev: a.Rdev,
	}
	out.Atime, out.Atimensec = split(a.Atime)
	out.Mtime, out.Mtimensec = split(a.Mtime)
	out.Ctime, out.Ctimensec = split(a.Ctime)
}

const nanosPerSecond = 1_000_000_000 // in nanoseconds

// split returns the seconds of a time, rounded down, and the remaining nanoseconds. Seconds before
// 1970 are negative for the kernel too, although the type is unsigned.
func split(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/nanosPerSecond, ns%nanosPerSecond
	if n < 0 {
		s, n = s-1, n+nanosPerSecond
	}
	return uint64(s), uint32(n)
}

// join is the inverse of split; it returns the nearest time that 64 bits can hold.
func join(sec uint64, nsec uint32) int64 {
	const most = 1<<63/nanosPerSecond - 1
	s := min(max(int64(sec), -most), most)
	return s*nanosPerSecond + int64(nsec)
}
