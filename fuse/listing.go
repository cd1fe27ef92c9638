package fuse

import (
	"math"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// ReadDir lists the names, types and inode numbers of a directory, without further attributes.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opReadDir, &in.InHeader, f.list(w, in, func(e raw.DirEntry, _ bool) bool { return out.AddDirEntry(e) }))
}

// ReadDirPlus lists the entries of a directory with the attributes that are known.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *raw.ReadIn, out *raw.DirEntryList) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.listPlus(w, in, out, fillEntry)
}

// listPlus lists entries with attributes, which saves the kernel a LOOKUP for each entry. The function fill sets the
// attributes of one entry. listPlus does not wait for sizes: an entry whose size is unknown, or that the kernel must
// not cache yet, has node id 0, which means that the entry has no attributes.
func (f *fileSystem) listPlus(w *waiter, in *raw.ReadIn, out *raw.DirEntryList,
	fill func(*raw.EntryOut, worktree.Attr)) raw.Status {
	return f.fail(opReadDirPlus, &in.InHeader, f.list(w, in, func(e raw.DirEntry, dot bool) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		// The entry ".git" gets no attributes until git is ready, and none if it depends on the process. The entries "." and
		// ".." get none either, because the kernel ignores their attributes and counts no look-up for them
		// (fs/fuse/readdir.c, fuse_direntplus_link).
		if dir := worktree.Node(in.NodeId); f.git.guards(dir, e.Name) || f.git.isVaried(dir, e.Name) {
			return true
		}
		if a, ok := f.tree.KnownAttr(worktree.Node(e.Ino)); ok && !dot {
			fill(entry, a)
		}
		return true
	}))
}

// The kernel's offsets 1 and 2 belong to "." and "..", which the tree does not list. So the constant dots is added to a
// position in the tree below ownOffset to make it an offset. Positions of ownOffset and above are used as offsets
// without change; they must be below 1<<63.
const (
	dots      = 2
	ownOffset = 1 << 62
)

// offset converts the position of an entry in the tree to the kernel's offset.
func offset(next uint64) uint64 {
	if next < ownOffset {
		next += dots
	}
	return next
}

// list calls emit for each entry of a directory, beginning at in.Offset, until emit returns false because the reply is
// full. dot is true for the entries "." and "..".
func (f *fileSystem) list(w *waiter, in *raw.ReadIn, emit func(e raw.DirEntry, dot bool) bool) error {
	dir, from := worktree.Node(in.NodeId), in.Offset
	if from > math.MaxInt64 { // no reply has contained such an offset
		return nil
	}
	if from < 1 && !emit(raw.DirEntry{Name: ".", Ino: in.NodeId, Mode: syscall.S_IFDIR, Off: 1}, true) {
		return nil
	}
	if from < dots {
		parent, err := f.tree.Parent(dir)
		if err != nil || !emit(raw.DirEntry{Name: "..", Ino: uint64(parent), Mode: syscall.S_IFDIR, Off: dots}, true) {
			return err
		}
		from = dots
	}
	if from < ownOffset {
		from -= dots
	}
	return f.tree.ReadDir(w, dir, from, func(e worktree.Entry) bool {
		if f.git.isVaried(dir, e.Name) {
			e.Mode = 0 // the type is reported as DT_UNKNOWN, so programs that need the type look up the name
		}
		return emit(raw.DirEntry{Name: e.Name, Ino: uint64(e.Node), Mode: e.Mode, Off: offset(e.Next)}, false)
	})
}
