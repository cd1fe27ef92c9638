package worktree

import (
	"strings"
	"time"

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

// Monitor reports changes of the working tree: to git's file system monitor, and to the session agent, which makes checkpoints.
// Package fuse calls Written and Refreshed for the files that the kernel caches. The recorder guards the state.
type Monitor struct {
	gate    *gate
	changes *recorder
}

// Changes returns the paths whose contents, type, mode, mtime or name may have changed since a journal position. Changes of
// owners, access times and extended attributes are not recorded. A write through a shared mapping is reported when the kernel
// writes it back: after msync(2), close(2), or half a minute.
func (mon *Monitor) Changes(token string) (Changes, error) {
	if !mon.gate.enter() {
		return Changes{}, ErrClosed
	}
	defer mon.gate.leave()
	return mon.changes.changed(token), nil
}

// StartToken returns the journal position at which nothing differed from the base tree.
func (mon *Monitor) StartToken() string { return mon.changes.journal.Start() }

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
	r, ok := m.base.Table.Record(dir)
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

// Written records that a program begins to write to a file in the kernel's cache.
func (mon *Monitor) Written(n Node) {
	if mon.changes.journal == nil || !mon.gate.enter() {
		return
	}
	defer mon.gate.leave()
	mon.changes.journal.MakeRoom()
	mon.changes.writing.Add(n) // before the record, so that a query between the two steps finds the file
	var f journal.Flight
	mon.changes.note(&f, n)
	mon.changes.journal.Land(&f)
	mon.changes.notice()
}

// OnRecord reports whether the next result of Changes will contain the node anyway. It checks only the node's own record,
// which is cheap. It may return false although the record of a directory covers the node.
func (mon *Monitor) OnRecord(n Node) bool {
	var f journal.Flight
	defer mon.changes.journal.Land(&f)
	return mon.changes.journal.Covers(&f, uint64(n))
}

// Refreshed records that the kernel has dropped the attributes of nodes that Changes returned as Open. Files without a
// recent Written leave the set.
func (mon *Monitor) Refreshed(nodes []Node) {
	mon.changes.writing.Settle(nodes)
}

// Noticed returns a channel that receives a value when names, attributes or contents change, and holds at most one. Freeze
// empties the channel at the moment that it captures, unless DryRun is set.
func (mon *Monitor) Noticed() <-chan struct{} { return mon.changes.noticed }

// LastChange returns the time of the last change; the zero time if there was none since Open.
func (mon *Monitor) LastChange() time.Time {
	if at := mon.changes.lastChange.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Writers returns the files to which programs may be writing in the kernel's cache, so that the Tree is not called.
func (mon *Monitor) Writers() []Node {
	if mon.changes.journal == nil {
		return nil
	}
	return mon.changes.writing.List()
}
