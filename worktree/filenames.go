package worktree

import (
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// maxSearched is the maximum number of names that a nameSearch reads per second.
const maxSearched = 200_000

// nameSearch finds the paths of files whose contents are about to be overwritten. The removed.Set needs these paths.
// The overlay has no index from a node to its names, so a search reads the names of a directory, or of the whole
// overlay. The number of names that are read per second is limited. mu protects the fields below mu, and may be
// acquired while a view of the overlay is open.
type nameSearch struct {
	view    *view
	removed *removed.Set

	mu      sync.Mutex
	dir     Node
	names   map[Node]string // names of the nodes in the directory dir, found by the last search
	began   time.Time       // start of the second to which scanned refers
	scanned int             // number of names that were read in that second
}

// find returns the inode and the paths of a node if the removed.Set needs the node's contents. short is true if the
// limit did not allow a search of all names.
func (s *nameSearch) find(n Node) (in overlay.Inode, paths []string, short bool) {
	s.view.look(func(m merged) {
		var ok bool
		if in, ok = m.inode(n); ok && s.removed.Wants(&in) {
			paths, short = s.pathsOf(m, &in)
		}
	})
	return in, paths, short
}

// pathsOf returns at most maxNames paths of a file. It leaves out paths that checkpoints leave out. short is true if
// the limit did not allow a search of all names.
func (s *nameSearch) pathsOf(m merged, in *overlay.Inode) (paths []string, short bool) {
	add := func(dir Node, name string) bool {
		if at, ok := m.path(dir); ok && !s.removed.LeavesOut(at) {
			paths = append(paths, joined(at, strings.Clone(name)))
		}
		return len(paths) < maxNames
	}
	if in.Nlink == 1 && in.Parent != 0 {
		name, ok, short := s.nameIn(m, in.Node, in.Parent)
		if ok {
			add(in.Parent, name)
		}
		return paths, short
	}
	if r, ok := m.base.Table.Record(in.Node); ok {
		if _, p := m.Entry(r.Dir(), m.base.Table.Name(r)); p == overlay.Unknown {
			add(r.Dir(), m.base.Table.Name(r))
		}
	}
	looked := m.Names(in.Node, int64(s.left(0)), add)
	return paths, s.left(int(looked)) <= 0
}

// left adds n to the number of names that were read, and returns how many more may be read within this second.
func (s *nameSearch) left(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget(n)
}

// budget does the same as the method left. The caller holds s.mu.
func (s *nameSearch) budget(n int) int {
	if now := time.Now(); now.Sub(s.began) > time.Second {
		s.began, s.scanned = now, 0
	}
	s.scanned += n
	return maxSearched - s.scanned
}

// nameIn returns the name of the file n in the directory dir. Programs often change many files of one directory one
// after the other, so the names that a search has found are cached. short is true if the directory was not searched
// because too many names have been read within this second.
func (s *nameSearch) nameIn(m merged, n, dir Node) (name string, ok, short bool) {
	if r, ok := m.base.Table.Record(n); ok && r.Dir() == dir {
		name := m.base.Table.Name(r)
		if at, p := m.Entry(dir, name); p == overlay.Unknown || p == overlay.Present && at == n {
			return name, true, false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == dir {
		if name, ok := s.names[n]; ok {
			if at, p := m.Entry(dir, name); p == overlay.Present && at == n {
				return name, true, false
			}
		}
	}
	present, hidden := m.Entries(dir)
	if s.budget(present+hidden) < 0 {
		return "", false, true
	}
	s.dir, s.names = dir, make(map[Node]string, present)
	m.ReadDir(dir, 0, func(_ uint64, name string, is Node, p overlay.Presence) bool {
		if p == overlay.Present {
			s.names[is] = strings.Clone(name)
		}
		return true
	})
	name, ok = s.names[n]
	return name, ok, false
}
