// Package readahead decides how many neighbours of a file are fetched together with it. A Tracker follows the readers
// of one mount. Each time a reader has to wait for contents, the Tracker returns a window: the number of blobs to
// fetch. Choose decides how the rest of a tree is requested for a crawler. Search recognises search programs by their
// arguments. The package reads no trees and sends no requests; its caller finds the neighbours.
//
// The first read in a directory fetches a few of its files. A crawler is a reader that waits in the order of the tree,
// forward or backward, skips nothing, and looks at the files that were fetched for the last window (grep, tar, find
// -size). The windows of a crawler grow until the rest of the tree is requested at once. Other readers do not get
// growing windows: builds jump between directories, and scripts that read one file in each directory do not look at the
// other files.
//
// A program whose threads take directories from each other (rg) also jumps between directories, but it reads nearly all
// files that were fetched in each of them. Only reads count here, because git status looks at the attributes of all
// files and reads few of them. When a series of misses shows such a program, the lowest directory that contains all
// misses is requested at once.
package readahead

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// FirstWindow is the window, in blobs, for a reader whose access pattern is not known yet.
	FirstWindow = 32
	growth      = 4
	// WholeTree is the size of a window, in blobs. For a window of at least this size, the rest of the tree is requested
	// at once. Windows reach this size after two steps, because requests of medium size are the most expensive for a
	// server, which can send few of its stored deltas unchanged.
	WholeTree = FirstWindow * growth * growth
	// maxWindow is the maximum window, in blobs, for a reader that stays in one large directory.
	maxWindow = 8192
	// recent is the maximum time between two misses in a series of misses (see Tracker.dirs). After a longer pause, a new
	// series begins.
	recent = time.Second
	// sampled is the maximum number of blobs of a window that are watched, to find out whether the reader looks at these
	// blobs.
	sampled = 32
	// leastSwept and leastDirs are the numbers of blobs and of directories that the readers of a series must have read
	// from to count as one program that reads everything.
	leastSwept = 2 * FirstWindow
	leastDirs  = 3
	// readers is the maximum number of readers of one mount that are followed at the same time. A search program has one
	// reader for each of its threads.
	readers = 8
)

// Tracker follows the readers of one mount. The zero value is a Tracker that follows no reader yet. The methods may be
// called from any goroutine.
type Tracker struct {
	mu sync.Mutex
	// The field at contains the position of the last miss of each reader, the latest miss first. A miss is a read that had
	// to wait for contents.
	at      []*Position
	watched map[object.ID]*watch
	last    time.Time // time of the last miss
	series  series
}

// series is a sequence of misses. It ends when no miss follows within the duration recent.
type series struct {
	dirs map[string]bool // directories of the misses, with a slash at the end; "" is the root
	// swept counts the blobs that readers have read, in windows that are not followed any more and whose reader has read
	// nearly all watched blobs. skipped counts the other such windows.
	swept, skipped int
}

// Position is the position of one reader in the tree. Path, Window and Scope do not change; Tracker.mu protects the
// other fields.
type Position struct {
	Path    string
	Window  int    // number of blobs to fetch from Path on
	Scope   string // directory to request if Window is at least WholeTree; "" is the root
	watched int    // number of blobs of the window whose first looks and reads are counted
	looked  int    // number of the watched blobs at which a reader has looked
	read    int    // number of the watched blobs that a reader has read
}

// continues reports whether the reader at this position uses the files that are fetched for it, so that its window may
// grow. For a reader that reads forward, looking at the files suffices. A reader that reads backward must have read
// them: git looks at all files and then reads .gitmodules before .gitignore. p is nil for a new reader.
func (p *Position) continues(o treewalk.Order) bool {
	switch {
	case p == nil:
		return false
	case o == treewalk.Backward:
		return 2*p.read >= p.watched
	}
	return 2*p.looked >= p.watched
}

// watch is a watched blob of the window at a position.
type watch struct {
	at     *Position
	looked bool // a reader has looked at the blob
}

// Positions returns the positions of all readers.
func (r *Tracker) Positions() []*Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// Looked records that a reader has looked at a blob.
func (r *Tracker) Looked(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(id)
}

// Read records that a reader reads a blob.
func (r *Tracker) Read(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.look(id); w != nil {
		w.at.read++
		delete(r.watched, id)
	}
}

// look records that a reader has looked at a blob, and returns the watched blob, or nil if it is not watched. The
// caller holds r.mu.
func (r *Tracker) look(id object.ID) *watch {
	w := r.watched[id]
	if w != nil && !w.looked {
		w.looked = true
		w.at.looked++
	}
	return w
}

// Next records that a reader had to wait for path at the time now, and returns the reader's new position with its
// window. The parameter before is the last position of this reader, or nil if the reader is not one of the known
// readers. o is the order in which the reader reads. If dirOnly is true, the window ends with the directory of path,
// because it is not known yet whether the reader will continue in the next directory. If it is false and the window has
// at least WholeTree blobs, the directory Position.Scope is to be requested.
func (r *Tracker) Next(path string, before *Position, o treewalk.Order, now time.Time) (p *Position, dirOnly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.series.dirs == nil || now.Sub(r.last) > recent {
		r.series = series{dirs: map[string]bool{}}
	}
	r.last = now
	dir := path[:strings.LastIndexByte(path, '/')+1]
	known := r.series.dirs[dir]
	r.series.dirs[dir] = true
	crawls := before.continues(o)
	p = &Position{Path: path}
	scope, sweeps := r.sweeps()
	switch {
	case sweeps:
		p.Window, p.Scope, crawls = WholeTree, scope, true
	case crawls && before.watched > 0:
		p.Window = min(before.Window*growth, maxWindow)
	// the last window contained only the file itself, so it shows nothing about the reader
	case crawls && before.Window > FirstWindow:
		p.Window = before.Window
	case known: // the reader jumps between directories, but has waited in this directory before
		p.Window = FirstWindow * growth
	default:
		p.Window = FirstWindow
	}
	if before != nil {
		r.drop(slices.Index(r.at, before))
	} else if len(r.at) == readers {
		r.drop(readers - 1)
	}
	r.at = slices.Insert(r.at, 0, p)
	return p, len(r.series.dirs) == 1 || !crawls
}

// Move records that the reader at the position before now waits for path, which is in flight, so that the reader is
// found again at its next wait. Its window does not change. Move does nothing if before is nil or not one of the known
// readers.
func (r *Tracker) Move(before *Position, path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.at, before)
	if before == nil || i < 0 {
		return
	}
	p := *before
	p.Path = path
	for _, w := range r.watched {
		if w.at == before {
			w.at = &p
		}
	}
	r.at = slices.Insert(slices.Delete(r.at, i, i+1), 0, &p)
}

// drop removes the position with index i in r.at. It does nothing if i is negative. The caller holds r.mu.
func (r *Tracker) drop(i int) {
	if i < 0 {
		return // another reader has continued from the same position since, so the position is not in the list any more
	}
	for id, w := range r.watched {
		if w.at == r.at[i] {
			delete(r.watched, id)
		}
	}
	r.series.judge(r.at[i])
	r.at = slices.Delete(r.at, i, i+1)
}

// Watch selects the blobs of the window at position p that are watched: the first elements of wants, at most sampled. A
// crawler will look at these blobs.
func (r *Tracker) Watch(p *Position, wants []prioritize.Want) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[object.ID]*watch{}
	}
	for _, w := range wants[:min(len(wants), sampled)] {
		r.watched[w.ID] = &watch{at: p}
		p.watched++
	}
}
