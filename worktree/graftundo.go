package worktree

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// ErrPartial means that a graft has failed, and that its changes could not be taken back: some paths are changed, and
// others are not. A repetition of the graft completes it.
var ErrPartial = errors.New("graft is incomplete: some paths are changed, and others are not")

// errChanged means that a program has changed a path since the graft, so that the change of the graft cannot be taken
// back.
var errChanged = errors.New("a program has changed the path in the meantime")

// undo holds what is needed to reverse one update of a graft.
type undo struct {
	names  []changedName
	at     map[slot]int // position in names
	inodes []edited     // inodes before and after the update
}

// slot is a name in a directory, as a key of a map.
type slot struct {
	dir  Node
	name string
}

// changedName is a name whose entry in the overlay was changed, with the entry before and after the update.
type changedName struct {
	slot
	before, after entryState
}

// entryState is the entry of a name in the overlay.
type entryState struct {
	node     Node
	presence overlay.Presence
}

// note records that the entry of a name is changed by the update e. It does nothing if the update is not part of a
// graft.
func (e *edit) note(dir Node, name string, n Node, p overlay.Presence) {
	u := e.undo
	if u == nil {
		return
	}
	s := slot{dir, name}
	i, ok := u.at[s]
	if !ok {
		i, s.name = len(u.names), strings.Clone(name)
		was, presence := e.Entry(dir, name)
		u.at[s] = i
		u.names = append(u.names, changedName{slot: s, before: entryState{was, presence}})
	}
	u.names[i].after = entryState{n, p}
}

// update makes one change of the graft as one update of the overlay, and records how to reverse it.
func (g *grafting) update(f func(e *edit) error) error {
	var u undo
	err := g.editor.updateNoted(func(e *edit) error {
		u = undo{at: map[slot]int{}} // f may run a second time, because the overlay had no room for the update
		e.undo = &u
		if err := f(e); err != nil {
			return err
		}
		for _, in := range e.inodes {
			if in.now == in.before {
				continue
			}
			was := *in
			if was.before.Node == 0 { // the overlay had no inode for the node, because the node had no name
				was.before = was.now
				was.before.Nlink = 0
			}
			u.inodes = append(u.inodes, was)
		}
		return nil
	})
	if err == nil {
		u.at = nil
		g.undo = append(g.undo, u)
	}
	return err
}

// takeBack reverses all updates of the graft, the last one first. Afterwards each path has its previous node, contents,
// attributes and times. If takeBack returns an error, which wraps ErrPartial, it has reversed some of the updates.
func (g *grafting) takeBack() error {
	for i, u := range slices.Backward(g.undo) {
		err := g.editor.updateNoted(u.reverse)
		if err != nil {
			return fmt.Errorf("take back graft %s: %w: %w", g.id, ErrPartial, err)
		}
		g.undo = g.undo[:i]
		for _, in := range u.inodes {
			if in.before.Nlink == 0 {
				g.editor.release(in.now.Node)
			}
		}
	}
	return nil
}

// reverse reverses one update. It returns errChanged if a program has since changed a path that the update had created.
func (u undo) reverse(e *edit) error {
	for _, c := range u.names {
		if n, p := e.Entry(c.dir, c.name); (entryState{n, p}) != c.after {
			return errChanged
		}
	}
	for _, was := range u.inodes {
		in, err := e.inode(was.now.Node)
		if err != nil {
			return err
		}
		was.now.Flags = in.Flags // the update may have changed flags
		switch {
		case *in == was.now:
			size, content, flags := in.Size, in.Content, in.Flags
			*in = was.before
			in.Size, in.Content, in.Flags = size, content, flags
		case was.before.Nlink == 0:
			return errChanged
		default: // a program has the removed file open, or has changed another entry of the directory
			in.Nlink += was.before.Nlink - was.now.Nlink
			in.Parent = was.before.Parent
		}
	}
	for _, c := range u.names {
		switch c.before.presence {
		case overlay.Present:
			e.tx.SetEntry(c.dir, c.name, c.before.node)
		case overlay.Hidden:
			e.tx.Hide(c.dir, c.name)
		default:
			e.tx.ClearEntry(c.dir, c.name)
		}
	}
	return nil
}
