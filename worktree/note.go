package worktree

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// What changes is put on record in the journal before it is changed, at a moment at which no path can become another:
// within the overlay's Update that makes the change, or within a View before contents change.

// note puts all paths of a node on record, whose contents, mode or mtime are about to change.
func (m merged) note(f *journal.Flight, n Node) {
	j := m.tree.journal
	if j.Covers(f, uint64(n)) {
		return
	}
	in, ok := m.inode(n)
	switch {
	case !ok:
	case in.Nlink == 0: // it may be linked to a name before it has changed
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
	// maxNames is how many names of a file are put on record one by one. Of a file with more it is their directories, and
	// beyond as many of those the whole tree: the record of a change does not grow with the number of links.
	maxNames = 64
	// maxLooked is how many names of the overlay are looked at between two tokens, to find those that linked files have.
	// Beyond it the whole tree is put on record, which covers all that follows up to the next token.
	maxLooked = 1 << 22
)

// noteNames is note for a file with several names. They are looked for among all that the overlay has.
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
	if r, ok := m.tree.table.record(n); ok {
		dir, s := Node(r.parent), m.tree.table.name(r)
		if _, p := m.Entry(dir, s); p == overlay.Unknown {
			add(dir, s)
		}
	}
	left := maxLooked - m.tree.looked.Load()
	looked := m.Names(n, max(left, 0), add)
	m.tree.looked.Add(looked)

	key := uint64(n) // with the first record: no name is on record before that
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

// noteName puts a name on record that a directory gets or loses. in is what has it, in its state after the change, and n
// its node; 0: that is not to say that the name is on record.
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
	case !existed: // what existed is always noted where it comes to (package journal)
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

// covered reports whether a directory, or one above it, is on record with all below it. in, if not nil, is the inode of n,
// which then may be a file.
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

func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// recorded is how the journal has a path.
func recorded(path string, dir bool) string {
	if dir {
		path += "/"
	}
	return path
}

// noting calls change, which changes the contents of a file, as a flight.
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

func (t *Tree) note(f *journal.Flight, n Node) {
	if !t.journal.Covers(f, uint64(n)) {
		t.view(func(m merged) { m.note(f, n) })
	}
}

// noteAll puts nodes on record that may be changing. A node of the overlay does not know its name; where many are in one
// directory they are all found at once.
func (t *Tree) noteAll(nodes []Node) {
	in := make(map[Node][]Node) // by directory
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

// noteIn puts nodes on record that are in a directory and have no other name, and gives the rest.
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

// notePaths puts paths on record that are about to be changed by whoever calls. It is to be told that they are when land
// is called. One that ends in a slash is of a directory that changes with all that is below it.
func (t *Tree) notePaths(paths []string) (land func()) {
	var f journal.Flight
	for _, path := range paths {
		t.journal.MakeRoom()
		t.journal.Note(&f, 0, path)
	}
	return func() { t.journal.Land(&f) }
}
