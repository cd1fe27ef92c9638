package worktree

import (
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/journal"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// editor changes the names and attributes of files. Each change is one update of the overlay. An update excludes all
// other changes. The changed paths are recorded in the change journal before the update takes effect. The trees that
// are needed for a change are read before the update, because an update must not wait. The overlay's lock protects
// everything that an editor changes. The fields of an editor do not change after Open.
type editor struct {
	base    *basetree.Tree
	view    *view
	changes *recorder
	removed *removed.Set
	sealed  bool // true if the overlay cannot be changed until it is opened again
	// readOnly is true if programs cannot change anything. If sealed is true, readOnly is true. If readOnly is true and
	// sealed is false, a graft can still change the Tree.
	readOnly bool
}

// edit is a change in progress, within one update of the overlay. The methods of merged read the tree as it was before
// the change. Inodes are modified in memory, and each modified inode is stored once at the end.
type edit struct {
	merged
	editor *editor
	tx     *overlay.Tx
	// flight identifies the change in the change journal. It is nil if the changed paths were recorded before the update.
	flight *journal.Flight
	now    int64         // time of the change in nanoseconds since 1970, by the clock that the kernel uses for file times
	inodes []*edited     // inodes that the change has read and may have modified
	kept   *removed.File // removed file whose contents this update keeps for a checkpoint; nil if it keeps no file
	undo   *undo         // records how to reverse the update; nil if the update is not part of a graft
}

// edited is an inode in an edit: its present state, and its state before the change.
type edited struct {
	now, before overlay.Inode
}

// update calls the function f, which makes a change, as one atomic update of the overlay. If f returns an error,
// nothing is changed.
func (ed *editor) update(f func(e *edit) error) error {
	var flight journal.Flight
	defer ed.changes.journal.Land(&flight)
	return ed.updateIn(&flight, f)
}

// updateNoted makes a change for a graft by calling f, as update does, but records no paths in the change journal,
// because the graft has recorded them already.
func (ed *editor) updateNoted(f func(e *edit) error) error { return ed.updateIn(nil, f) }

// updateIn calls the function f, which makes a change, as update does. flight is nil if the changed paths were recorded
// before the call. If the overlay has no room for the update, updateIn makes room and calls f again.
func (ed *editor) updateIn(flight *journal.Flight, f func(e *edit) error) error {
	if ed.sealed || flight != nil && ed.readOnly {
		return syscall.EROFS
	}
	defer ed.changes.notice()
	ed.changes.journal.MakeRoom()
	var kept *removed.File
	err := ed.view.layer.Update(func(tx *overlay.Tx) (err error) {
		ed.removed.Undo(kept) // f kept this file in the call before, for which the overlay had no room
		e := &edit{merged: merged{tx.Reader, ed.base}, editor: ed, tx: tx, now: overlay.Now(), flight: flight}
		err = f(e)
		if kept = e.kept; err != nil {
			return err
		}
		for _, in := range e.inodes {
			if in.now == in.before {
				continue
			}
			tx.PutInode(in.now)
			if flight != nil && (in.now.Mode != in.before.Mode || in.now.Mtime != in.before.Mtime && !isDir(&in.now)) {
				ed.changes.noteAt(e.merged, flight, in.now.Node)
			}
		}
		return nil
	})
	if err != nil {
		ed.removed.Undo(kept)
	}
	return err
}

// promote stores the inode of an unchanged node of the base tree in the overlay, without changing it.
func (ed *editor) promote(n Node) error {
	return ed.update(func(e *edit) error { return e.promote(n) })
}

// setInode changes the attributes of a node that are selected by c.Set, except the size.
func (ed *editor) setInode(n Node, c Change) error {
	return ed.update(func(e *edit) error {
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		c.apply(in, e.now)
		if c.Set&SetMode != 0 {
			return e.chmodACL(in)
		}
		return nil
	})
}

// release frees the node n, which has lost a name, if n belongs to the base tree, has no other name, and the kernel
// holds no reference to n. The overlay itself counts the references to nodes that it has created, and releases them.
func (ed *editor) release(n Node) {
	if r, ok := ed.base.Table.Record(n); ok && !n.Own() && !r.Known() {
		ed.view.layer.Release(n)
	}
}

// inode returns the inode of a node for modification. At the end of the change, the inode is stored in the overlay if
// it was modified.
func (e *edit) inode(n Node) (*overlay.Inode, error) {
	for _, in := range e.inodes {
		if in.now.Node == n {
			return &in.now, nil
		}
	}
	in, ok := e.merged.inode(n)
	if !ok {
		return nil, ErrNoNode
	}
	e.inodes = append(e.inodes, &edited{in, in})
	return &e.inodes[len(e.inodes)-1].now, nil
}

// latest returns the inode of a node as it is after the modifications made so far in this change. The caller must not
// modify it.
func (e *edit) latest(n Node) (*overlay.Inode, bool) {
	for _, in := range e.inodes {
		if in.now.Node == n {
			return &in.now, true
		}
	}
	in, ok := e.tx.Inode(n)
	if !ok {
		in, ok = e.merged.inode(n)
	}
	return &in, ok
}

// directory returns the inode of a directory for modification. It returns ErrNotExist if the directory was removed,
// because no entry can be added to a removed directory.
func (e *edit) directory(n Node) (*overlay.Inode, error) {
	in, err := e.inode(n)
	switch {
	case err != nil:
		return nil, err
	case !isDir(in):
		return nil, ErrNotDir
	case in.Nlink == 0:
		return nil, ErrNotExist
	}
	return in, nil
}

// promote stores the present inode of a base node (a node of the base tree) in the overlay. It does nothing if the
// overlay already has an inode for the node.
func (e *edit) promote(n Node) error {
	in, ok := e.merged.inode(n)
	if !ok {
		return ErrNoNode
	}
	if _, ok := e.Inode(n); !ok {
		e.tx.PutInode(in)
	}
	return nil
}

// place gives the node n a name in a directory. b is the block of the directory: the children that the directory has in
// the base tree. If n has this name in the base tree, the overlay needs no entry for the name.
func (e *edit) place(dir Node, b inode.Block, name string, n Node) {
	if in, ok := e.latest(n); ok {
		e.editor.changes.noteName(e.merged, e.flight, dir, name, n, in, true)
		// If a file replaces a directory, or the reverse, the journal needs a record of the old node, too: in the journal
		// the path of a directory ends in a slash, and the path of a file does not.
		if old, ok := e.entry(dir, b, name); ok {
			if was, ok := e.latest(old); ok && isDir(was) != isDir(in) {
				e.editor.changes.noteName(e.merged, e.flight, dir, name, 0, was, false)
			}
		}
	}
	if at, ok := e.base.Table.Search(b, name); ok && at == n {
		e.note(dir, name, 0, overlay.Unknown)
		e.tx.ClearEntry(dir, name)
		return
	}
	e.note(dir, name, n, overlay.Present)
	e.tx.SetEntry(dir, name, n)
}

// remove removes a name from a directory. b is the block of the directory: the children that the directory has in the
// base tree.
func (e *edit) remove(dir Node, b inode.Block, name string) {
	if n, ok := e.entry(dir, b, name); ok {
		if in, ok := e.latest(n); ok {
			e.editor.changes.noteName(e.merged, e.flight, dir, name, n, in, false)
			e.clearParent(in, dir)
		}
	}
	if _, ok := e.base.Table.Search(b, name); ok {
		e.note(dir, name, 0, overlay.Hidden)
		e.tx.Hide(dir, name)
		return
	}
	e.note(dir, name, 0, overlay.Unknown)
	e.tx.ClearEntry(dir, name)
}

// clearParent clears in.Parent if a file with several names loses a name in the directory dir, because the directories
// of its other names are not known. Link and Rename set in.Parent again.
func (e *edit) clearParent(in *overlay.Inode, dir Node) {
	if !isDir(in) && in.Parent == dir {
		in.Parent = 0
	}
}

// drop decrements the link count of a file by one. A directory has one name, so drop sets its link count to 0.
func (e *edit) drop(in *overlay.Inode) {
	in.Ctime = e.now
	if isDir(in) {
		in.Nlink = 0
	} else if in.Nlink > 0 {
		in.Nlink--
	}
}

// touch sets the times of a directory whose entries change, and adds subdirs to its link count. subdirs is the change
// of the number of subdirectories.
func (e *edit) touch(dir *overlay.Inode, subdirs int) {
	dir.Mtime, dir.Ctime = e.now, e.now
	if dir.Node.Own() { // the link count of a directory of the base tree does not include subdirectories, see Attr.Nlink
		dir.Nlink = uint32(int64(dir.Nlink) + int64(subdirs))
	}
}

// lose keeps the contents of a file that is about to lose its name in the directory dir, so that a checkpoint can store
// them. lose does nothing if the removed.Set does not need the file, or if checkpoints leave out the directory.
func (e *edit) lose(in *overlay.Inode, dir Node, name string, unlinked bool) {
	s := e.editor.removed
	if !s.Wants(in) {
		return
	}
	at, ok := e.path(dir)
	if !ok || s.LeavesOut(at) {
		return
	}
	var target string
	if in.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		target, _ = e.Target(in.Node)
	}
	if k := s.Remove(e.tx, in, joined(at, strings.Clone(name)), strings.Clone(target), unlinked); k != nil {
		e.kept = k
	}
}

// loseDir requests a checkpoint if a directory is removed while the removed.Set keeps files from below it.
func (e *edit) loseDir(dir Node, name string) {
	s := e.editor.removed
	if !s.Waits() {
		return
	}
	if at, ok := e.path(dir); ok {
		s.RemoveDir(joined(at, name))
	}
}

// isDir reports whether an inode is a directory.
func isDir(in *overlay.Inode) bool { return in.Mode&syscall.S_IFMT == syscall.S_IFDIR }
