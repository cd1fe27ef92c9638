package worktree

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/journal"
	"github.com/artifactfs/artifactfs/worktree/writers"
)

// A change is recorded in the journal before it is made, at a moment when no path can change: within the overlay's Update
// that makes the change, or within a View before contents change.

// recorder writes the paths of changes to the change journal, and signals that something has changed. The editor calls it within
// the overlay's Update that makes a change; contents calls it within a view, before the contents of a file change. A recorder
// has no lock of its own: the journal and the set of writers have theirs, and the other fields are atomic or a channel.
type recorder struct {
	view       *view
	journal    *journal.Journal // nil: no journal is kept; its methods do nothing then
	writing    writers.Set      // files that programs may be writing to in the kernel's cache
	looked     atomic.Int64     // names of the overlay that noteNames searched since the last returned journal position
	noticed    chan struct{}    // see Monitor.Noticed; capacity 1
	lastChange atomic.Int64     // nanoseconds since 1970; 0: no change since Open
}

// open opens the change journal and the set of files being written to, if the options have a journal. recovery is the state in
// which the overlay was found; took states whether the state of the previous process is continued. Files whose size differs
// from their size when the overlay was closed (Recovery.Shrunk) are recorded in the journal as changed.
func (rec *recorder) open(o Options, tablePath string, recovery *overlay.Recovery, took bool) error {
	if o.Journal == "" {
		return nil
	}
	boot, err := disk.BootUUID(o.FS)
	if err != nil {
		return err
	}
	if err := rec.writing.Open(o.FS, tablePath+".writing", took); err != nil {
		return err
	}
	shrunk := recovery.Shrunk
	rec.journal, err = journal.Open(o.Journal, journal.Options{
		FS: o.FS, Boot: boot, ReadOnly: o.OverlayReadOnly, TakeOver: took,
		// After a power loss the journal may contain records of changes that the overlay lost, because each is synced
		// separately.
		Anew:   recovery.Start == overlay.PowerLoss || len(shrunk) > 0 && o.OverlayReadOnly,
		Unused: func() bool { return rec.view.layer == nil || rec.view.layer.Changed() == 0 },
	})
	if err == nil && !o.OverlayReadOnly {
		rec.noteAll(shrunk)
	}
	return err
}

// noteAt records all paths of a node whose contents, mode or mtime are about to change. f is the flight of that change.
func (rec *recorder) noteAt(m merged, f *journal.Flight, n Node) {
	j := rec.journal
	if j.Covers(f, uint64(n)) {
		return
	}
	in, ok := m.inode(n)
	switch {
	case !ok:
	case in.Nlink == 0: // the file may be linked to a name before the change is made
		j.Hold(f)
	case !isDir(&in) && (in.Nlink > 1 || in.Parent == 0):
		rec.noteNames(m, f, n)
	case rec.covered(m, f, n, &in):
	default:
		path, ok := m.path(n)
		switch {
		case ok:
			j.Note(f, uint64(n), recorded(path, isDir(&in)))
		case isDir(&in):
			j.Hold(f)
		default:
			rec.noteNames(m, f, n)
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

// noteNames records, as noteAt does, the paths of a file with several names. It searches all names of the overlay for them.
func (rec *recorder) noteNames(m merged, f *journal.Flight, n Node) {
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
	if r, ok := m.base.Table.Record(n); ok {
		dir, s := r.Dir(), m.base.Table.Name(r)
		if _, p := m.Entry(dir, s); p == overlay.Unknown {
			add(dir, s)
		}
	}
	left := maxLooked - rec.looked.Load()
	looked := m.Names(n, max(left, 0), add)
	rec.looked.Add(looked)

	key := uint64(n) // passed with the first record only; before it, no path of the file is on record
	note := func(path string) {
		rec.journal.Note(f, key, path)
		key = 0
	}
	switch {
	case looked >= left, len(dirs) > maxNames:
		rec.journal.Note(f, uint64(Root), "/")
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
	rec.journal.Hold(f)
}

// noteName records that a directory gains (comes) or loses a name. in is the inode behind the name as it is after the change,
// and n is its node, or 0 if a record for that node does not cover this name.
func (rec *recorder) noteName(m merged, f *journal.Flight, dir Node, name string, n Node, in *overlay.Inode, comes bool) {
	j := rec.journal
	if j == nil || f == nil {
		return
	}
	switch _, existed := m.inode(n); {
	case !comes:
		if n != 0 && j.Covers(f, uint64(n)) || rec.covered(m, f, dir, nil) {
			return
		}
	case !existed: // a node that existed before is always recorded at its new path (package journal)
		if rec.covered(m, f, dir, nil) {
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
func (rec *recorder) covered(m merged, f *journal.Flight, n Node, in *overlay.Inode) bool {
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
	return rec.journal.Covers(f, keys...)
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
func (rec *recorder) noting(n Node, change func() error) error {
	defer rec.notice()
	if rec.journal == nil {
		return change()
	}
	rec.journal.MakeRoom()
	var f journal.Flight
	defer rec.journal.Land(&f)
	rec.note(&f, n)
	return change()
}

// note calls noteAt within a view, unless an existing record covers the change.
func (rec *recorder) note(f *journal.Flight, n Node) {
	if !rec.journal.Covers(f, uint64(n)) {
		rec.view.look(func(m merged) { rec.noteAt(m, f, n) })
	}
}

// noteAll records nodes that may be changing. The inode of an own node does not contain its name; the names of several
// nodes in one directory are found in one pass over the directory.
func (rec *recorder) noteAll(nodes []Node) {
	in := make(map[Node][]Node) // nodes by their directory
	for some := range slices.Chunk(nodes, listed) {
		rec.view.look(func(m merged) {
			for _, n := range some {
				if i, ok := m.inode(n); ok {
					in[i.Parent] = append(in[i.Parent], n)
				}
			}
		})
	}
	for dir, nodes := range in {
		rec.journal.MakeRoom()
		rec.view.look(func(m merged) {
			var f journal.Flight
			defer rec.journal.Land(&f)
			if len(nodes) > 1 {
				nodes = rec.noteIn(m, &f, dir, nodes)
			}
			for _, n := range nodes {
				rec.noteAt(m, &f, n)
			}
		})
	}
}

// noteIn records those of the nodes that are in the directory and have no other name, and returns the rest.
func (rec *recorder) noteIn(m merged, f *journal.Flight, dir Node, nodes []Node) (rest []Node) {
	at, ok := m.path(dir)
	if dir == 0 || !ok {
		return nodes
	}
	left := make(map[Node]bool, len(nodes))
	for _, n := range nodes {
		in, ok := m.inode(n)
		switch {
		case rec.journal.Covers(f, uint64(n)):
		case ok && n.Own() && in.Nlink == 1 && in.Parent == dir:
			left[n] = true
		default:
			rest = append(rest, n)
		}
	}
	if len(left) == 0 || rec.covered(m, f, dir, nil) {
		return rest
	}
	m.ReadDir(dir, 0, func(_ uint64, name string, n Node, _ overlay.Presence) bool {
		if left[n] {
			rec.journal.Note(f, uint64(n), joined(at, name))
		}
		return true
	})
	return rest
}

// notePaths records paths that the caller is about to change. The caller must call land when the changes are made. A path
// that ends in a slash stands for everything below it.
func (rec *recorder) notePaths(paths []string) (land func()) {
	var f journal.Flight
	for _, path := range paths {
		rec.journal.MakeRoom()
		rec.journal.Note(&f, 0, path)
	}
	return func() { rec.journal.Land(&f) }
}

// changed returns the changes since a journal position, as Monitor.Changes does.
func (rec *recorder) changed(token string) Changes {
	c := Changes{Open: rec.writing.List()}
	rec.noteAll(c.Open)
	var known bool
	c.Token, c.Paths, known = rec.since(token)
	c.All = !known
	rec.view.look(func(m merged) { c.Paths = m.withDirs(c.Paths) })
	return c
}

// since queries the journal, and resets the count of names that noteNames may search for one position.
func (rec *recorder) since(token string) (next string, paths []string, known bool) {
	rec.looked.Store(0)
	return rec.journal.Since(token)
}

// notice records the time of a change and signals Noticed.
func (rec *recorder) notice() {
	rec.lastChange.Store(time.Now().UnixNano())
	if len(rec.noticed) == 0 {
		select {
		case rec.noticed <- struct{}{}:
		default:
		}
	}
}
