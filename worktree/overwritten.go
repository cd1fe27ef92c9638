package worktree

import (
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/overlay"
)

// Before contents are overwritten that no checkpoint has, they are copied. That costs as much as they are long, so of a
// file that is changed in place only a small one is copied, once in a second at most. A file that is cut to nothing begins
// another content: that costs nothing.
const (
	maxChanged  = 1 << 20 // bytes of a file that is changed in place
	maxSearched = 200_000 // names that are looked at in a second, to find that of a file
)

// loseChanged is for a write at an offset.
func (t *Tree) loseChanged(n Node, f *overlay.File, p []byte, off int64) {
	if !t.removed.on.Load() || f.CopiedWithin(massTime) {
		return
	}
	if size, err := f.Size(); err != nil || off >= size || size > maxChanged || !f.Overwrites(p, off) {
		return
	}
	t.loseSome(n, f)
}

// loseSome keeps a copy of what a small file holds, before some of it is overwritten or cut off.
func (t *Tree) loseSome(n Node, f *overlay.File) {
	t.loseContent(n, f, true, func(keep keeper) error { return f.KeepCopy(massTime, maxChanged, keep) })
}

// loseAll keeps what a file holds that is about to be cut to nothing.
func (t *Tree) loseAll(n Node, f *overlay.File) {
	t.loseContent(n, f, false, func(keep keeper) error { return f.SetAside(maxRemovedOne, keep) })
}

// keeper adds what a content with a number and size holds to what is kept, in an update, unless it is unwanted.
type keeper = func(tx *overlay.Tx, number uint64, size int64) bool

// loseContent keeps what a file holds under all of its names, as a copy or not.
func (t *Tree) loseContent(n Node, f *overlay.File, copied bool, by func(keeper) error) {
	r := &t.removed
	if !r.on.Load() {
		return
	}
	var in overlay.Inode
	var paths []string
	at := time.Now()
	t.view(func(m merged) {
		var ok bool
		if in, ok = m.inode(n); ok && in.Content != 0 && in.Size != 0 && unsaved(&in, r.since.Load()) {
			paths = m.namesOf(&in)
		}
	})
	if len(paths) == 0 {
		return
	}
	var kept []*Removed
	err := by(func(tx *overlay.Tx, number uint64, size int64) bool {
		in.Content = number
		for _, path := range paths {
			k := &Removed{at: at}
			k.Path, k.Size = path, size
			if k.kind(in.Mode) && r.add(t, tx, k, &in, copied) {
				kept = append(kept, k)
			}
		}
		return len(kept) > 0
	})
	if err != nil { // the write itself goes on
		for _, k := range kept {
			r.undo(k)
		}
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
	}
}

// namesOf returns the paths of a file that checkpoints do not leave out.
func (m merged) namesOf(in *overlay.Inode) (paths []string) {
	add := func(dir Node, name string) bool {
		if at, ok := m.path(dir); ok && !m.tree.removed.leftOut(at) {
			paths = append(paths, joined(at, strings.Clone(name)))
		}
		return len(paths) < maxNames
	}
	if in.Nlink == 1 && in.Parent != 0 {
		if name, ok := m.nameIn(in.Node, in.Parent); ok {
			add(in.Parent, name)
		}
		return paths
	}
	if r, ok := m.tree.table.record(in.Node); ok {
		if _, p := m.Entry(Node(r.parent), m.tree.table.name(r)); p == overlay.Unknown {
			add(Node(r.parent), m.tree.table.name(r))
		}
	}
	r := &m.tree.removed
	r.mu.Lock()
	left := r.names.budget(0)
	r.mu.Unlock()
	looked := m.Names(in.Node, int64(left), add)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names.budget(int(looked)) <= 0 {
		r.lost++
	}
	return paths
}

// dirNames are the names of the overlay's nodes in one directory, as they were found last.
type dirNames struct {
	dir     Node
	names   map[Node]string
	began   time.Time // of the second in which so many were looked at
	scanned int
}

// budget counts names that are looked at, and returns how many more may be within this second.
func (c *dirNames) budget(n int) int {
	if now := time.Now(); now.Sub(c.began) > time.Second {
		c.began, c.scanned = now, 0
	}
	c.scanned += n
	return maxSearched - c.scanned
}

// nameIn finds the name of a file in a directory. Many files of one directory are looked for one after the other, so the
// names found on the way are kept.
func (m merged) nameIn(n, dir Node) (string, bool) {
	if r, ok := m.tree.table.record(n); ok && Node(r.parent) == dir {
		name := m.tree.table.name(r)
		if at, p := m.Entry(dir, name); p == overlay.Unknown || p == overlay.Present && at == n {
			return name, true
		}
	}
	r := &m.tree.removed
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.names
	if c.dir == dir {
		if name, ok := c.names[n]; ok {
			if at, p := m.Entry(dir, name); p == overlay.Present && at == n {
				return name, true
			}
		}
	}
	present, hidden := m.Entries(dir)
	if c.budget(present+hidden) < 0 {
		r.lost++
		return "", false
	}
	c.dir, c.names = dir, make(map[Node]string, present)
	m.ReadDir(dir, 0, func(_ uint64, name string, is Node, p overlay.Presence) bool {
		if p == overlay.Present {
			c.names[is] = strings.Clone(name)
		}
		return true
	})
	name, ok := c.names[n]
	return name, ok
}

func (t *Tree) logUnkept(err error) {
	t.options.Log.Warn("a checkpoint has removed files, and the overlay keeps them", zap.Error(err))
}
