package worktree

import (
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/journal"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// editor changes names and attributes. Each change is one update of the overlay, which excludes all other changes and records its
// paths in the change journal first. The trees that a change needs are read before the update, because an update must not wait.
// The overlay's lock guards everything that the editor changes; its own fields are constant after Open.
type editor struct {
	base     *basetree.Tree
	view     *view
	changes  *recorder
	removed  *removed.Set
	sealed   bool // the overlay cannot be changed until it is opened again
	readOnly bool // programs cannot change anything; true if sealed. Graft can still change the Tree unless it is sealed
}

// edit is a change in progress, within one update of the overlay. Reads through merged see the tree as it was before the
// change. Inodes are modified in memory and stored at the end, each of them once.
type edit struct {
	merged
	editor *editor
	tx     *overlay.Tx
	flight *journal.Flight // nil: the changed paths are on record already
	now    int64           // time of the change, in nanoseconds since 1970, by the clock that the kernel uses for file times
	inodes []*edited       // inodes that the change requested
	kept   *removed.File   // entry that the update adds to the kept files; nil: none
}

// edited is an inode that a change modifies, with its state before the change.
type edited struct {
	now, before overlay.Inode
}

// update makes a change as one atomic update of the overlay. If f returns an error, nothing is changed.
func (ed *editor) update(f func(e *edit) error) error {
	var flight journal.Flight
	defer ed.changes.journal.Land(&flight)
	return ed.updateIn(&flight, f)
}

// updateNoted makes a change of Graft as update does, but records nothing, because Graft has recorded the paths already.
func (ed *editor) updateNoted(f func(e *edit) error) error { return ed.updateIn(nil, f) }

// updateIn makes a change as update does. flight is nil if the changed paths are on record already. f may be called again, if
// the overlay had no room for the update.
func (ed *editor) updateIn(flight *journal.Flight, f func(e *edit) error) error {
	if ed.sealed || flight != nil && ed.readOnly {
		return syscall.EROFS
	}
	defer ed.changes.notice()
	ed.changes.journal.MakeRoom()
	var kept *removed.File
	err := ed.view.layer.Update(func(tx *overlay.Tx) (err error) {
		ed.removed.Undo(kept) // kept by a previous call of this function, which had no room
		e := &edit{merged: merged{tx.Reader, ed.base}, editor: ed, tx: tx, now: tx.Now(), flight: flight}
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

// promote stores the inode of a base node in the overlay, unchanged.
func (ed *editor) promote(n Node) error {
	return ed.update(func(e *edit) error { return e.promote(n) })
}

// setInode makes all changes of c except that of the size.
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

// release frees a base node that lost a name, if it has no other name and the kernel holds no reference to it. The overlay
// counts and releases own nodes itself.
func (ed *editor) release(n Node) {
	if r, ok := ed.base.Table.Record(n); ok && !n.Own() && !r.Known() {
		ed.view.layer.Release(n)
	}
}

// inode returns the inode of a node, which the change may modify. A base node whose inode is modified is promoted.
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

// latest returns the inode of a node including the changes made so far. The caller must not modify it.
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

// directory returns the inode of a directory, which the change may modify. A directory that was removed cannot get entries:
// the error is ErrNotExist.
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

// promote stores the present inode of a base node in the overlay, unless the overlay has one.
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

// place makes a node an entry of a directory, whose block is b. A base node at its original place needs no entry.
func (e *edit) place(dir Node, b inode.Block, name string, n Node) {
	if in, ok := e.latest(n); ok {
		e.editor.changes.noteName(e.merged, e.flight, dir, name, n, in, true)
		if old, ok := e.entry(dir, b, name); ok { // the record of a directory does not cover a file of that name, or vice versa
			if was, ok := e.latest(old); ok && isDir(was) != isDir(in) {
				e.editor.changes.noteName(e.merged, e.flight, dir, name, 0, was, false)
			}
		}
	}
	if at, ok := e.base.Table.Search(b, name); ok && at == n {
		e.tx.ClearEntry(dir, name)
		return
	}
	e.tx.SetEntry(dir, name, n)
}

// remove removes a name from a directory, whose block is b.
func (e *edit) remove(dir Node, b inode.Block, name string) {
	if n, ok := e.entry(dir, b, name); ok {
		if in, ok := e.latest(n); ok {
			e.editor.changes.noteName(e.merged, e.flight, dir, name, n, in, false)
			e.leave(in, dir)
		}
	}
	if _, ok := e.base.Table.Search(b, name); ok {
		e.tx.Hide(dir, name)
		return
	}
	e.tx.ClearEntry(dir, name)
}

// leave clears in.Parent if a file loses a name in that directory, because the directories of its other names are not known.
// Link and Rename set in.Parent again.
func (e *edit) leave(in *overlay.Inode, dir Node) {
	if !isDir(in) && in.Parent == dir {
		in.Parent = 0
	}
}

// drop decrements the link count of a file by one. A directory has only one name.
func (e *edit) drop(in *overlay.Inode) {
	in.Ctime = e.now
	if isDir(in) {
		in.Nlink = 0
	} else if in.Nlink > 0 {
		in.Nlink--
	}
}

// touch sets the times of a directory whose entries change, and adds subdirs to its link count.
func (e *edit) touch(dir *overlay.Inode, subdirs int) {
	dir.Mtime, dir.Ctime = e.now, e.now
	if dir.Node.Own() { // see Attr.Nlink
		dir.Nlink = uint32(int64(dir.Nlink) + int64(subdirs))
	}
}

// lose keeps the contents of a file that is about to lose a name in dir, if Set.Wants is true for the file and checkpoints do not
// leave out the directory.
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

// loseDir requests a checkpoint if files below a directory that is being removed are kept.
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
