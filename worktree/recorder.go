package worktree

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/worktree/journal"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/writers"
)

// A change is recorded in the journal before it is made, at a moment at which no path can change: within the overlay's
// Update that makes the change, or, for contents, within a View of the overlay before the change.

// recorder writes the paths of changes to the change journal, and signals that something has changed. The editor calls
// the recorder within the overlay's Update that makes a change. Before contents are changed, the recorder is called
// within a View of the overlay. A recorder has no lock, because the journal and the set of writers have their own
// locks, and the other fields are atomic or a channel.
type recorder struct {
	view    *view
	journal *journal.Journal // nil if the Tree has no journal; the methods of a nil Journal do nothing
	writing writers.Set      // files that were written recently
	// number of names in the overlay that noteNames has searched since the last query of the journal
	looked     atomic.Int64
	noticed    chan struct{} // receives a value when something has changed (see Monitor.Noticed); capacity 1
	lastChange atomic.Int64  // time of the last change in nanoseconds since 1970; 0: no change since Open
}

// open opens the change journal and the set of files to which programs are writing, if the options name a journal.
// recovery is the state in which the overlay was found. The parameter took is true if this process continues the mount
// of another process. Files whose size differs from their size when the overlay was closed (Recovery.Shrunk) are
// recorded as changed.
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
		// The journal and the overlay are synced separately. After a power loss, the journal may contain records of changes
		// that the overlay has lost.
		Anew: recovery.Start == overlay.PowerLoss || len(shrunk) > 0 && o.OverlayReadOnly,
		Unused: func() bool { // adopted files do not count as changed, but the base tree does not have them
			l := rec.view.layer
			return l == nil || l.Changed() == 0 && l.Stats().Entries == 0
		},
	})
	if err == nil && !o.OverlayReadOnly {
		rec.noteAll(shrunk)
	}
	return err
}

// noteAt records all paths of node n, because its contents, mode or mtime are about to change. f identifies the change
// in the journal.
func (rec *recorder) noteAt(m merged, f *journal.Flight, n Node) {
	j := rec.journal
	if j.Covers(f, uint64(n)) {
		return
	}
	in, ok := m.inode(n)
	switch {
	case !ok:
	case in.Nlink == 0: // the file has no name, but may get a name before the change is made
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
	// maxNames is the maximum number of names of a changed file that are recorded one by one. For a file with more names,
	// the directories of the names are recorded; if there are more than maxNames directories, the whole tree is recorded.
	// Therefore the cost of a change does not grow with the number of names.
	maxNames = 64
	// maxLooked is the maximum number of names in the overlay that are searched between two journal positions, in order to
	// find the names of files with several names. If more names would have to be searched, the whole tree is recorded as
	// changed, and this record includes all further changes until the next position is returned.
	maxLooked = 1 << 22
)

// noteNames records the paths of a file with several names, as noteAt does. To find the names, it searches all names in
// the overlay.
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

	// the key is passed with the first record only, because from then on the journal considers the file recorded
	key := uint64(n)
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

// noteName records that a name is added to the directory dir (comes is true) or removed from it (comes is false). in is
// the inode of the name after the change. n is the node of this inode, or 0 if an existing record for the node does not
// cover the new name.
func (rec *recorder) noteName(m merged, f *journal.Flight, dir Node, name string, n Node,
	in *overlay.Inode, comes bool) {
	j := rec.journal
	if j == nil || f == nil {
		return
	}
	switch _, existed := m.inode(n); {
	case !comes:
		if n != 0 && j.Covers(f, uint64(n)) || rec.covered(m, f, dir, nil) {
			return
		}
	case !existed: // a node that exists already is always recorded with its new path (see package journal)
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

// covered reports whether the journal already has a record that includes everything below the directory n, or below a
// directory above n. If the parameter in is not nil, it is the inode of n, and n may be a file; covered then begins
// with the directory that contains n.
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

// joined returns the path of name in the directory dir; dir is "" for the root.
func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// recorded returns a path in the form in which the journal stores it: the path of a directory ends in a slash.
func recorded(path string, dir bool) string {
	if dir {
		path += "/"
	}
	return path
}

// noting records the paths of file n and then calls change, which changes the contents of the file. After that it marks
// the change as complete in the journal.
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

// note records the paths of node n, as noteAt does, unless the journal already has a record for n. It acquires the
// overlay's lock for reading.
func (rec *recorder) note(f *journal.Flight, n Node) {
	if !rec.journal.Covers(f, uint64(n)) {
		rec.view.look(func(m merged) { rec.noteAt(m, f, n) })
	}
}

// noteAll records the paths of nodes to which programs may be writing. The inode of a file that was created in the
// mount does not contain its name. Therefore the names of several nodes in one directory are found in one pass through
// the directory.
func (rec *recorder) noteAll(nodes []Node) {
	in := make(map[Node][]Node) // nodes with one name, by the directory that contains the name
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

// noteIn records the paths of those of the given nodes that are in the directory dir and have one name. It returns the
// rest of the nodes.
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

// notePaths records paths that the caller is about to change. A path that ends in a slash stands for everything below
// it. The caller must call land after it has changed the paths.
func (rec *recorder) notePaths(paths []string) (land func()) {
	var f journal.Flight
	for _, path := range paths {
		rec.journal.MakeRoom()
		rec.journal.Note(&f, 0, path)
	}
	return func() { rec.journal.Land(&f) }
}

// changed returns the changes since the journal position token, as Monitor.Changes does.
func (rec *recorder) changed(token string) Changes {
	c := Changes{Open: rec.writing.List()}
	rec.noteAll(c.Open)
	var known bool
	c.Token, c.Paths, known = rec.since(token)
	c.All = !known
	rec.view.look(func(m merged) { c.Paths = m.withDirs(c.Paths) })
	return c
}

// since returns the paths that were recorded since the journal position token, and the next position. known is false if
// the journal does not contain all changes since the position token. since also resets the limit for noteNames.
func (rec *recorder) since(token string) (next string, paths []string, known bool) {
	rec.looked.Store(0)
	return rec.journal.Since(token)
}

// notice records the time of a change, and sends a value to the channel noticed unless the channel contains a value.
func (rec *recorder) notice() {
	rec.lastChange.Store(time.Now().UnixNano())
	if len(rec.noticed) == 0 {
		signal.Send(rec.noticed)
	}
}
