package worktree

import (
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// Changes is the set of paths that may have changed since a journal position.
type Changes struct {
	// Token is the journal position to pass to the next call.
	Token string
	// All reports that every path may have changed: the position is of another epoch, or too old.
	All bool
	// Paths are relative to the root, in the form that git expects from a file system monitor: a path that ends in a slash
	// stands for everything below it, any other for itself and the listing of its directory. Git's untracked cache takes a
	// path with a slash for the name of the directory only; therefore "DIR/*" is added for each directory that exists
	// below.
	Paths []string
	// Open are those of the changed files that programs may still be writing to in the kernel's cache. Before a program looks
	// at the paths, the kernel must drop its cached attributes of these files (fuse.Server.Refresh). The first write after the
	// next stat then calls Written again. A write before that stat is visible in it, because the kernel itself keeps size and
	// mtime of a file that it has cached.
	Open []Node
}

// Changes returns the paths whose contents, type, mode, mtime or name may have changed since a journal position. Changes of
// owners, access times and extended attributes are not recorded. A write through a shared mapping is reported when the kernel
// writes it back: after msync(2), close(2), or half a minute.
func (t *Tree) Changes(token string) (Changes, error) {
	if !t.gate.enter() {
		return Changes{}, ErrClosed
	}
	defer t.gate.leave()
	c := Changes{Open: t.writing.List()}
	t.noteAll(c.Open)
	var known bool
	c.Token, c.Paths, known = t.since(token)
	c.All = !known
	t.view(func(m merged) { c.Paths = m.withDirs(c.Paths) })
	return c, nil
}

// since queries the journal, and resets the count of names that noteNames may search for one position.
func (t *Tree) since(token string) (next string, paths []string, known bool) {
	t.looked.Store(0)
	return t.journal.Since(token)
}

// StartToken returns the journal position at which nothing differed from the base tree.
func (t *Tree) StartToken() string { return t.journal.Start() }

// withDirs adds "DIR/*" for each directory below the paths that end in a slash, so that git's untracked cache drops its entry.
func (m merged) withDirs(paths []string) []string {
	for _, path := range paths[:len(paths):len(paths)] {
		dir, ok := strings.CutSuffix(path, "/")
		if !ok {
			continue
		}
		if n, ok := m.known(dir); ok {
			paths = m.addDirs(n, dir, paths)
		}
	}
	return paths
}

// known returns the directory at a path. It does not wait for trees, and returns false if one on the path was not read yet.
func (m merged) known(path string) (Node, bool) {
	n := Root
	for name := range strings.SplitSeq(path, "/") {
		b, _ := m.knownBlock(n)
		var ok bool
		if n, ok = m.entry(n, b, name); !ok {
			return 0, false
		}
	}
	in, ok := m.inode(n)
	return n, ok && isDir(&in)
}

// knownBlock returns the block of a directory if it was read.
func (m merged) knownBlock(dir Node) (inode.Block, bool) {
	r, ok := m.tree.Table.Record(dir)
	if !ok || r.Kind() != inode.KindDir {
		return inode.Block{}, false
	}
	return r.Block()
}

// addDirs appends "DIR/*" for the directory at path and for each directory below it that was read.
func (m merged) addDirs(dir Node, path string, to []string) []string {
	to = append(to, path+"/*")
	b, _ := m.knownBlock(dir)
	for n := b.First; n < b.First+Node(b.Count); n++ {
		if r := m.tree.Table.At(n); r.Kind().IsDir() {
			name := m.tree.Table.Name(r)
			if _, p := m.Entry(dir, name); p == overlay.Unknown {
				to = m.addDirs(n, path+"/"+name, to)
			}
		}
	}
	m.ReadDir(dir, 0, func(_ uint64, name string, n Node, p overlay.Presence) bool {
		if in, ok := m.inode(n); p == overlay.Present && ok && isDir(&in) {
			to = m.addDirs(n, path+"/"+name, to)
		}
		return true
	})
	return to
}

// Written records that a program begins to write to a file in the kernel's cache.
func (t *Tree) Written(n Node) {
	if t.journal == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	t.journal.MakeRoom()
	t.writing.Add(n) // before the record, so that a query between the two steps finds the file
	var f journal.Flight
	t.note(&f, n)
	t.journal.Land(&f)
	t.notice()
}

// OnRecord reports whether the next result of Changes will contain the node anyway. It checks only the node's own record,
// which is cheap. It may return false although the record of a directory covers the node.
func (t *Tree) OnRecord(n Node) bool {
	var f journal.Flight
	defer t.journal.Land(&f)
	return t.journal.Covers(&f, uint64(n))
}

// Refreshed records that the kernel has dropped the attributes of nodes that Changes returned as Open. Files without a
// recent Written leave the set.
func (t *Tree) Refreshed(nodes []Node) {
	t.writing.Settle(nodes)
}
