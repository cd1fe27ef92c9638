package worktree

import (
	"syscall"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// edit is a change being made: it sees the tree as it was before. Inodes are changed in place and put at its end, so
// that each is put once.
type edit struct {
	merged
	tx     *overlay.Tx
	flight *journal.Flight // nil: what changes is on record already
	now    int64           // nanoseconds since 1970, as the kernel counts them for its own changes
	inodes []*edited
	kept   *Removed // what the update removes
}

type edited struct {
	now, before overlay.Inode
}

// readOnly reports whether nothing can be changed.
func (t *Tree) readOnly() bool { return t.sealed() || t.options.ReadOnly }

// sealed reports whether nothing can be changed but by a process that opens it anew. Otherwise Graft moves a Tree that is
// read-only for its users to another commit.
func (t *Tree) sealed() bool { return t.layer == nil || t.options.OverlayReadOnly }

// update makes a change, alone and as a whole. If f fails, nothing has changed.
func (t *Tree) update(f func(e *edit) error) error {
	var flight journal.Flight
	defer t.journal.Land(&flight)
	return t.updateIn(&flight, f)
}

// updateNoted is update for a change by Graft, which is on record already.
func (t *Tree) updateNoted(f func(e *edit) error) error { return t.updateIn(nil, f) }

func (t *Tree) updateIn(flight *journal.Flight, f func(e *edit) error) error {
	if t.sealed() || flight != nil && t.readOnly() {
		return syscall.EROFS
	}
	defer t.notice()
	t.journal.MakeRoom()
	var kept *Removed
	err := t.layer.Update(func(tx *overlay.Tx) (err error) {
		t.removed.undo(kept) // of an attempt that had no room
		e := &edit{merged: merged{tx.Reader, t}, tx: tx, now: tx.Now(), flight: flight}
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
				e.note(flight, in.now.Node)
			}
		}
		return nil
	})
	if err != nil {
		t.removed.undo(kept)
	}
	return err
}

// inode returns a node to be changed. A base node that comes out changed is promoted.
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

// latest returns a node as this update has it so far, only to look at.
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

// directory returns a directory to be changed; in one that was removed there is no place for anything.
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

// promote makes sure that the overlay has an inode, as it is now.
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

// place makes a node an entry of a directory, whose block is b. Back at its place in the base it needs no entry.
func (e *edit) place(dir Node, b block, name string, n Node) {
	if in, ok := e.latest(n); ok {
		e.noteName(e.flight, dir, name, n, in, true)
		if old, ok := e.entry(dir, b, name); ok { // a directory's record says nothing of a file there, nor the other way round
			if was, ok := e.latest(old); ok && isDir(was) != isDir(in) {
				e.noteName(e.flight, dir, name, 0, was, false)
			}
		}
	}
	if at, ok := e.tree.table.search(b, name); ok && at == n {
		e.tx.ClearEntry(dir, name)
		return
	}
	e.tx.SetEntry(dir, name, n)
}

// remove takes a name from a directory, whose block is b.
func (e *edit) remove(dir Node, b block, name string) {
	if n, ok := e.entry(dir, b, name); ok {
		if in, ok := e.latest(n); ok {
			e.noteName(e.flight, dir, name, n, in, false)
			e.leave(in, dir)
		}
	}
	if _, ok := e.tree.table.search(b, name); ok {
		e.tx.Hide(dir, name)
		return
	}
	e.tx.ClearEntry(dir, name)
}

// leave is for what loses a name in a directory. Another name that a file has is in one that is not known; place knows its
// own.
func (e *edit) leave(in *overlay.Inode, dir Node) {
	if !isDir(in) && in.Parent == dir {
		in.Parent = 0
	}
}

// drop takes one name's worth from a node; a directory has only one.
func (e *edit) drop(in *overlay.Inode) {
	in.Ctime = e.now
	if isDir(in) {
		in.Nlink = 0
	} else if in.Nlink > 0 {
		in.Nlink--
	}
}

// touch marks a directory's entries as changed, and its subdirectories as more or fewer.
func (e *edit) touch(dir *overlay.Inode, subdirs int) {
	dir.Mtime, dir.Ctime = e.now, e.now
	if dir.Node.Own() { // see Attr.Nlink
		dir.Nlink = uint32(int64(dir.Nlink) + int64(subdirs))
	}
}

func isDir(in *overlay.Inode) bool { return in.Mode&syscall.S_IFMT == syscall.S_IFDIR }
