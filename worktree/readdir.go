package worktree

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// ownPosition is a bit that is set in the positions of entries that the base tree does not have. In a directory
// listing, position 0 is the start, and i+1 is the position after the i-th name that the directory has in the base
// tree. ownPosition|cookie is the position after an entry that the overlay has and the base tree does not have; the
// overlay assigns the cookie.
const ownPosition = 1 << 62

// listed is the maximum number of entries that are read at a time under the overlay's lock. The lock is released before
// the entries are emitted.
const listed = 128

// readDir implements Tree.ReadDir: it calls the function emit for the entries of a directory that follow the position
// in the parameter from.
func (v *view) readDir(ctx context.Context, dir Node, from uint64, emit func(Entry) bool) error {
	b, err := v.children(ctx, dir)
	if err != nil {
		return err
	}
	entries := make([]Entry, 0, listed)
	for more := true; more; {
		v.look(func(m merged) { entries, from, more = m.list(dir, b, from, entries[:0]) })
		for _, e := range entries {
			if !emit(e) {
				return nil
			}
		}
	}
	return nil
}

// list appends entries of a directory to the slice in the parameter to, up to the capacity of the slice. It begins
// after the position in the parameter from. b is the block of the directory: the children that the directory has in the
// base tree. next is the position from which to continue. more is true if more entries may follow.
func (m merged) list(dir Node, b inode.Block, from uint64, to []Entry) (entries []Entry, next uint64, more bool) {
	t := m.base.Table
	present, hidden := m.Entries(dir)
	for ; from < uint64(b.Count); from++ {
		if len(to) == cap(to) {
			return to, from, true
		}
		n := b.First + Node(from)
		r := t.At(n)
		name := t.Name(r)
		if present+hidden > 0 {
			switch at, p := m.Entry(dir, name); p {
			case overlay.Hidden:
				continue
			case overlay.Present:
				n = at
			}
		}
		if in, ok := m.inode(n); ok {
			to = append(to, Entry{name, n, in.Mode, from + 1})
		}
	}
	if present == 0 {
		return to, from, false
	}
	after := uint64(0)
	if from >= ownPosition {
		after = from - ownPosition
	}
	m.ReadDir(dir, after, func(cookie uint64, name string, n Node, p overlay.Presence) bool {
		if more = len(to) == cap(to); more {
			return false
		}
		from = ownPosition | cookie
		if p != overlay.Present {
			return true
		}
		if _, ok := t.Search(b, name); ok { // the entry was emitted at the position of its name in the base tree
			return true
		}
		if in, ok := m.inode(n); ok {
			to = append(to, Entry{strings.Clone(name), n, in.Mode, from})
		}
		return true
	})
	return to, from, more
}
