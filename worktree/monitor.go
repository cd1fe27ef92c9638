package worktree

import (
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Changes lists the paths that may have changed since a journal position.
type Changes struct {
	// Token is the journal position to pass to the next call of Monitor.Changes.
	Token string
	// All is true if every path may have changed, because the journal position is too old or belongs to another epoch of
	// the journal.
	All bool
	// Paths are relative to the root, in the form that git expects from a file system monitor. A path that ends in a slash
	// stands for everything below it. Any other path stands for the file and the listing of its directory. For git's
	// untracked cache, a path with a slash stands for the directory itself and not for everything below it, so Paths also
	// contains "DIR/*" for each directory that exists below such a path.
	Paths []string
	// The field Open contains the changed files that were written recently. Before the caller reads the paths, it must
	// make the kernel drop its cached attributes of these files (fuse.Server.Refresh). Then stat(2) returns the times of
	// all writes that were received before (see Writing).
	Open []Node
}

// Monitor reports changes of the working tree to git's file system monitor, and to the session agent, which creates
// checkpoints. Package fuse calls Writing for each write, and Refreshed. A Monitor needs no lock, because the recorder
// synchronizes access to the state.
type Monitor struct {
	gate    *gate
	changes *recorder
}

// Changes returns the paths whose contents, type, mode, mtime or name may have changed since the journal position
// token. Changes of owners, access times and extended attributes are not recorded. A write through a shared memory
// mapping is reported when the kernel writes the data back, which is after msync(2), after close(2), or after about 30
// seconds.
func (mon *Monitor) Changes(token string) (Changes, error) {
	if !mon.gate.enter() {
		return Changes{}, ErrClosed
	}
	defer mon.gate.exit()
	return mon.changes.changed(token), nil
}

// StartToken returns the journal position at which the working tree was equal to the base tree.
func (mon *Monitor) StartToken() string { return mon.changes.journal.Start() }

// withDirs appends to paths the pattern "DIR/*" for each directory below a path that ends in a slash. The pattern makes
// git's untracked cache drop its entry for the directory.
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

// known returns the directory at path. It does not wait for trees. If the tree of a directory on the way was not read
// yet, it returns false.
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

// knownBlock returns the children that a directory has in the base tree, and false if they were not read yet.
func (m merged) knownBlock(dir Node) (inode.Block, bool) {
	r, ok := m.base.Table.Record(dir)
	if !ok || r.Kind() != inode.KindDir {
		return inode.Block{}, false
	}
	return r.Block()
}

// addDirs appends the pattern "DIR/*" to the slice in the parameter to, for the directory dir at path and for each
// directory below dir whose tree was read.
func (m merged) addDirs(dir Node, path string, to []string) []string {
	to = append(to, path+"/*")
	b, _ := m.knownBlock(dir)
	for n := b.First; n < b.First+Node(b.Count); n++ {
		if r := m.base.Table.At(n); r.Kind().IsDir() {
			name := m.base.Table.Name(r)
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

// Writing records that a write(2) to a file was received. The kernel updates its cached attributes of the file only
// after the reply, so a stat(2) between a query of the changes and that update could return the old mtime. Changes
// therefore returns the file in Open until some time has passed. Package fuse calls Writing before it calls Tree.Write,
// which records the path.
func (mon *Monitor) Writing(n Node) {
	if mon.changes.journal == nil || !mon.gate.enter() {
		return
	}
	defer mon.gate.exit()
	mon.changes.writing.Add(n)
}

// Refreshed records that the kernel has dropped its cached attributes of the given nodes, which Changes has returned in
// Open. Files to which no program has written recently are removed from the set of open files.
func (mon *Monitor) Refreshed(nodes []Node) {
	mon.changes.writing.Settle(nodes)
}

// Noticed returns a channel that receives a value when names, attributes or contents change. The channel holds at most
// one value. Freeze removes the value at the moment of the freeze, unless FreezeOptions.DryRun is set.
func (mon *Monitor) Noticed() <-chan struct{} { return mon.changes.noticed }

// LastChange returns the time of the last change. It returns the zero time if nothing has changed since Open.
func (mon *Monitor) LastChange() time.Time {
	if at := mon.changes.lastChange.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Writers returns the files that were written recently, without a request to the file system.
func (mon *Monitor) Writers() []Node {
	if mon.changes.journal == nil {
		return nil
	}
	return mon.changes.writing.List()
}
