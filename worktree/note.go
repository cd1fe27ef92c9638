package worktree

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// A change is recorded in the journal before it is made, at a moment when no path can change: within the overlay's Update
// that makes the change, or within a View before contents change.

// note records all paths of a node whose contents, mode or mtime are about to change. f is the flight of that change.
func (m merged) note(f *journal.Flight, n Node) {
	j := m.tree.journal
	if j.Covers(f, uint64(n)) {
		return
	}
	in, ok := m.inode(n)
	switch {
	case !ok:
	case in.Nlink == 0: // the file may be linked to a name before the change is made
		j.Hold(f)
	case !isDir(&in) && (in.Nlink > 1 || in.Parent == 0):
		m.noteNames(f, n)
	case m.covered(f, n, &in):
	default:
		path, ok := m.path(n)
		switch {
		case ok:
			j.Note(f, uint64(n), recorded(path, isDir(&in)))
		case isDir(&in):
			j.Hold(f)
		default:
			m.noteNames(f, n)
		}
	}
}

const (
	// maxNames is the number of names up to which the names of a changed file are recorded one by one. For a file with more
	// names their directories are recorded, and for more than maxNames directories the whole tree, so that the cost of a
	// change does not grow with the number of links.
	maxNames = 64
	// maxLooked is the number of names of the overlay that are searched between two journal positions, to find the names of
	// linked files. Beyond it the whole tree is recorded as changed, which covers all changes up to the next position.
	maxLooked = 1 << 22
)

// noteNames records, as note does, the paths of a file with several names. It searches all names of the overlay for them.
func (m merged) noteNames(f *journal.Flight, n Node) {
	type name struct {
		dir  Node
		name string
	}
	var names []name
	dirs := make(map[Node]bool)
	add := func(dir Node, s string) bool {
		dirs[dir] = true
		if len(names) <= maxNames {
			names = append(names, name{dir, strings.Clone(s)})
		}
		return len(dirs) <= maxNames
	}
	if r, ok := m.tree.Table.Record(n); ok {
		dir, s := r.Dir(), m.tree.Table.Name(r)
		if _, p := m.Entry(dir, s); p == overlay.Unknown {
			add(dir, s)
		}
	}
	left := maxLooked - m.tree.looked.Load()
	looked := m.Names(n, max(left, 0), add)
	m.tree.looked.Add(looked)

	key := uint64(n) // passed with the first record only; before it, no path of the file is on record
	note := func(path string) {
		m.tree.journal.Note(f, key, path)
		key = 0
	}
	switch {
	case looked >= left, len(dirs) > maxNames:
		m.tree.journal.Note(f, uint64(Root), "/")
		note("/")
	case len(names) > maxNames:
		for dir := range dirs {
			if at, ok := m.path(dir); ok {
				note(recorded(at, true))
			}
		}
	default:
		for _, name := range names {
			if at, ok := m.path(name.dir); ok {
				note(joined(at, name.name))
			}
		}
	}
	m.tree.journal.Hold(f)
}

// noteName records that a directory gains (comes) or loses a name. in is the inode behind the name as it is after the change,
// and n is its node, or 0 if a record for that node does not cover this name.
func (m merged) noteName(f *journal.Flight, dir Node, name string, n Node, in *overlay.Inode, comes bool) {
	j := m.tree.journal
	if j == nil || f == nil {
		return
	}
	switch _, existed := m.inode(n); {
	case !comes:
		if n != 0 && j.Covers(f, uint64(n)) || m.covered(f, dir, nil) {
			return
		}
	case !existed: // a node that existed before is always recorded at its new path (package journal)
		if m.covered(f, dir, nil) {
			return
		}
	}
	at, ok := m.path(dir)
	if !ok {
		j.Hold(f)
		return
	}
	var key uint64
	if comes && (isDir(in) || in.Nlink <= 1) {
		key = uint64(n)
	}
	j.Note(f, key, recorded(joined(at, name), isDir(in)))
}

// covered reports whether a directory, or one above it, has a record that stands for everything below it. If in is not nil,
// it is the inode of n, which may then be a file.
func (m merged) covered(f *journal.Flight, n Node, in *overlay.Inode) bool {
	var buf [32]uint64
	keys := buf[:0]
	if in != nil {
		if n == Root {
			return false
		}
		n = in.Parent
	}
	for range maxDepth {
		keys = append(keys, uint64(n))
		if n == Root {
			break
		}
		in, ok := m.inode(n)
		if !ok || in.Parent == n {
			break
		}
		n = in.Parent
	}
	return m.tree.journal.Covers(f, keys...)
}

// joined returns the path of a name in a directory, whose path is "" for the root.
func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// recorded returns the form in which the journal stores a path: that of a directory ends in a slash.
func recorded(path string, dir bool) string {
	if dir {
		path += "/"
	}
	return path
}

// noting records the paths of a file, calls change, which changes the contents of the file, and ends the flight of that
// change.
func (t *Tree) noting(n Node, change func() error) error {
	defer t.notice()
	if t.journal == nil {
		return change()
	}
	t.journal.MakeRoom()
	var f journal.Flight
	defer t.journal.Land(&f)
	t.note(&f, n)
	return change()
}

// note calls merged.note within a view, unless an existing record covers the change.
func (t *Tree) note(f *journal.Flight, n Node) {
	if !t.journal.Covers(f, uint64(n)) {
		t.view(func(m merged) { m.note(f, n) })
	}
}

// noteAll records nodes that may be changing. The inode of an own node does not contain its name; the names of several
// nodes in one directory are found in one pass over the directory.
func (t *Tree) noteAll(nodes []Node) {
	in := make(map[Node][]Node) // nodes by their directory
	for some := range slices.Chunk(nodes, listed) {
		t.view(func(m merged) {
			for _, n := range some {
				if i, ok := m.inode(n); ok {
					in[i.Parent] = append(in[i.Parent], n)
				}
			}
		})
	}
	for dir, nodes := range in {
		t.journal.MakeRoom()
		t.view(func(m merged) {
			var f journal.Flight
			defer t.journal.Land(&f)
			if len(nodes) > 1 {
				nodes = m.noteIn(&f, dir, nodes)
			}
			for _, n := range nodes {
				m.note(&f, n)
			}
		})
	}
}

// noteIn records those of the nodes that are in the directory and have no other name, and returns the rest.
func (m merged) noteIn(f *journal.Flight, dir Node, nodes []Node) (rest []Node) {
	at, ok := m.path(dir)
	if dir == 0 || !ok {
		return nodes
	}
	left := make(map[Node]bool, len(nodes))
	for _, n := range nodes {
		in, ok := m.inode(n)
		switch {
		case m.tree.journal.Covers(f, uint64(n)):
		case ok && n.Own() && in.Nlink == 1 && in.Parent == dir:
			left[n] = true
		default:
			rest = append(rest, n)
		}
	}
	if len(left) == 0 || m.covered(f, dir, nil) {
		return rest
	}
	m.ReadDir(dir, 0, func(_ uint64, name string, n Node, _ overlay.Presence) bool {
		if left[n] {
			m.tree.journal.Note(f, uint64(n), joined(at, name))
		}
		return true
	})
	return rest
}

// notePaths records paths that the caller is about to change. The caller must call land when the changes are made. A path
// that ends in a slash stands for everything below it.
func (t *Tree) notePaths(paths []string) (land func()) {
	var f journal.Flight
	for _, path := range paths {
		t.journal.MakeRoom()
		t.journal.Note(&f, 0, path)
	}
	return func() { t.journal.Land(&f) }
}
