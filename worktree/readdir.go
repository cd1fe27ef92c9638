package worktree

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// ownPosition marks positions behind the block. In a directory listing, position 0 is the start, i+1 is behind the i-th
// name of the block, and ownPosition|cookie is behind an entry that only the overlay has, whose cookie the overlay assigns.
const ownPosition = 1 << 62

// listed is the number of entries that are read in one view; no lock is held while they are emitted.
const listed = 128

// readDir implements Tree.ReadDir.
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

// list appends the next entries of a directory to the slice, up to its capacity. It returns the position to continue from
// and whether there may be more entries.
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
		if _, ok := t.Search(b, name); ok { // was emitted at its position in the block
			return true
		}
		if in, ok := m.inode(n); ok {
			to = append(to, Entry{strings.Clone(name), n, in.Mode, from})
		}
		return true
	})
	return to, from, more
}
