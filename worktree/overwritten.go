package worktree

import (
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/overlay"
)

// Contents that no checkpoint contains are copied before they are overwritten. The cost of that grows with their length, so a
// file that is changed in place is copied only if it is small, and at most once a second. A file that is truncated to nothing
// is not copied: it gets a new contents file, and the old one is kept.
const (
	maxChanged  = 1 << 20 // maximum size of a file that is copied before it is changed in place, in bytes
	maxSearched = 200_000 // maximum number of names that are searched per second, to find the names of files
)

// loseChanged keeps the contents of n before p is written at an offset, if that overwrites bytes.
func (t *Tree) loseChanged(n Node, f *overlay.File, p []byte, off int64) {
	if !t.removed.on.Load() || f.CopiedWithin(massTime) {
		return
	}
	if size, err := f.Size(); err != nil || off >= size || size > maxChanged || !f.Overwrites(p, off) {
		return
	}
	t.loseSome(n, f)
}

// loseSome keeps a copy of the contents of a small file, before a part of them is overwritten or cut off.
func (t *Tree) loseSome(n Node, f *overlay.File) {
	t.loseContent(n, f, true, func(keep keeper) error { return f.KeepCopy(massTime, maxChanged, keep) })
}

// loseAll keeps the contents of a file that is about to be truncated to nothing.
func (t *Tree) loseAll(n Node, f *overlay.File) {
	t.loseContent(n, f, false, func(keep keeper) error { return f.SetAside(maxRemovedOne, keep) })
}

// keeper adds contents, identified by their number in the overlay and their size in bytes, to the kept files, as part of an
// update. It returns false if they are not to be kept.
type keeper = func(tx *overlay.Tx, number uint64, size int64) bool

// loseContent keeps the contents of a file under each of its names. by calls the keeper in an update of the overlay; copied
// states whether by makes a copy of the contents. If by returns an error, the contents count as lost, and the write is made
// all the same.
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
	if err != nil { // the write itself continues
		for _, k := range kept {
			r.undo(k)
		}
		r.mu.Lock()
		r.lost++
		r.mu.Unlock()
	}
}

// namesOf returns the paths of a file, without those that checkpoints leave out. It returns at most maxNames paths.
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
	if r, ok := m.tree.Table.Record(in.Node); ok {
		if _, p := m.Entry(r.Dir(), m.tree.Table.Name(r)); p == overlay.Unknown {
			add(r.Dir(), m.tree.Table.Name(r))
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

// dirNames caches the names of the nodes in one directory, as the last search found them, and counts searched names.
type dirNames struct {
	dir     Node
	names   map[Node]string
	began   time.Time // start of the second for which scanned counts
	scanned int       // number of names searched in that second
}

// budget adds n to the number of searched names, and returns how many more may be searched within this second.
func (c *dirNames) budget(n int) int {
	if now := time.Now(); now.Sub(c.began) > time.Second {
		c.began, c.scanned = now, 0
	}
	c.scanned += n
	return maxSearched - c.scanned
}

// nameIn returns the name of a file in a directory. Programs often change many files of one directory in turn, so the names
// found in a search are cached.
func (m merged) nameIn(n, dir Node) (string, bool) {
	if r, ok := m.tree.Table.Record(n); ok && r.Dir() == dir {
		name := m.tree.Table.Name(r)
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

// logUnkept logs that removed files stay in the overlay although a checkpoint contains them.
func (t *Tree) logUnkept(err error) {
	t.options.Log.Warn("a checkpoint has removed files, and the overlay keeps them", zap.Error(err))
}
