package fuse

import (
	"errors"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Lookup returns the entry of a name, with the size of the file. In a read-only mount it may wait for the size. The
// wait blocks other look-ups of new names in the directory, but no changes of the directory, since a read-only mount
// has none.
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

// find returns the attributes of the entry name in the directory of the request. The size is negative if it is not
// known. The names "." and ".." occur only if a file handle refers to a node that the kernel has forgotten; the node of
// the request may then be a file instead of a directory (fs/fuse/inode.c, fuse_get_dentry).
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

// absent answers a look-up that has failed with err. If the name does not exist, the status is OK and the reply has
// node id 0; if keep is true, the kernel caches that the name is absent. Any other error is converted to a status.
func (f *fileSystem) absent(h *raw.InHeader, err error, out *raw.EntryOut, keep bool) raw.Status {
	if errors.Is(err, worktree.ErrNotExist) {
		if keep {
			out.SetEntryTimeout(forever)
		}
		return raw.OK
	}
	return f.fail(opLookup, h, err)
}

// GetAttr returns the attributes of a node. If the size is not known yet, it waits for the size.
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

// Readlink returns the target of a symbolic link, which may have to be fetched.
func (f *fileSystem) Readlink(cancel <-chan struct{}, h *raw.InHeader) ([]byte, raw.Status) {
	w := f.wait(cancel, h)
	defer w.finish()
	target, err := f.tree.Readlink(w, worktree.Node(h.NodeId))
	return target, f.fail(opReadlink, h, err)
}

// fillEntry fills the reply to a look-up with the node that has the attributes a. The kernel may cache the entry and
// the attributes until they are invalidated.
func fillEntry(out *raw.EntryOut, a worktree.Attr) {
	out.NodeId = uint64(a.Node)
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	fillAttr(&out.Attr, a)
}

// fillAttr converts attributes to the kernel's form. An unknown size becomes 0.
func fillAttr(out *raw.Attr, a worktree.Attr) {
	*out = raw.Attr{
		Ino: uint64(a.Node), Size: uint64(max(a.Size, 0)), Blocks: uint64(max(a.Blocks, 0)), Mode: a.Mode, Nlink: a.Nlink,
		Owner: raw.Owner{Uid: a.UID, Gid: a.GID}, Rdev: a.Rdev,
	}
	out.Atime, out.Atimensec = split(a.Atime)
	out.Mtime, out.Mtimensec = split(a.Mtime)
	out.Ctime, out.Ctimensec = split(a.Ctime)
}

const nanosPerSecond = 1_000_000_000 // the number of nanoseconds in a second

// split converts a time in nanoseconds since 1970 to seconds, rounded down, and the remaining nanoseconds. For a time
// before 1970, sec is a negative number in two's complement, which the kernel expects although the type is unsigned.
func split(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/nanosPerSecond, ns%nanosPerSecond
	if n < 0 {
		s, n = s-1, n+nanosPerSecond
	}
	return uint64(s), uint32(n)
}

// join is the inverse of split. If 64 bits of nanoseconds cannot express the time, join returns the nearest time that
// they can express.
func join(sec uint64, nsec uint32) int64 {
	const most = 1<<63/nanosPerSecond - 1
	s := min(max(int64(sec), -most), most)
	return s*nanosPerSecond + int64(nsec)
}
