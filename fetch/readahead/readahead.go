// Package readahead decides how many neighbours of a file are fetched together with it. A Tracker follows the readers of one mount:
// each time that one has to wait for contents, the Tracker returns its window, which is the number of blobs to fetch. The package
// reads no trees and sends no requests; its caller finds the neighbours.
//
// The first read in a directory fetches a few of its files. A reader that waits in the order of the tree, skips nothing and looks at
// what the last window fetched is a crawler (grep, tar, find -size): its windows grow until the rest of the tree is requested at once.
// Builds jump, and scripts that read one file in each directory do not look at the others.
package readahead

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// FirstWindow is the window of a reader of which nothing is known, in blobs.
	FirstWindow = 32
	growth      = 4
	// WholeTree is the window above which the rest of the tree is requested at once. It is reached
	// soon, because requests of medium size cost a server most: few of its stored deltas can be
	// sent as they are.
	WholeTree = FirstWindow * growth * growth
	// maxWindow bounds the window of a reader that stays in one large directory.
	maxWindow = 8192
	// recent is how long a directory counts as being read.
	recent = time.Second
	// sampled is how many blobs of a window are watched to see whether the reader looks at them.
	sampled = 32
	// readers bounds how many readers of one mount are followed at a time.
	readers = 4
)

// Tracker follows the readers of one mount. Its zero value follows none, and its methods may be called from any goroutine.
type Tracker struct {
	mu      sync.Mutex
	at      []*Position // the last miss of each reader, the latest first; a miss is a read that had to wait for contents
	watched map[object.ID]*Position
	last    time.Time       // time of the last miss
	dirs    map[string]bool // directories with a miss, each less than recent after the one before
}

// Position is the position of one reader. Path and Window do not change; Tracker.mu guards the other fields.
type Position struct {
	Path    string
	Window  int // size of the window that begins at Path, in blobs
	watched int // number of blobs of that window that are watched
	looked  int // number of the watched blobs that a reader has looked at
}

// Positions returns the positions of all readers.
func (r *Tracker) Positions() []*Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// Looked records that a reader looked at a blob.
func (r *Tracker) Looked(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.watched[id]; ok {
		p.looked++
		delete(r.watched, id)
	}
}

// Next returns the new position, with its window, of a reader that had to wait for path at the time now. before is the last position of
// this reader, or nil if path follows no known reader. dirOnly reports that the window ends with the directory, because it is not
// known yet whether the reader continues behind it.
func (r *Tracker) Next(path string, before *Position, now time.Time) (p *Position, dirOnly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dirs == nil || now.Sub(r.last) > recent {
		r.dirs = map[string]bool{}
	}
	r.last = now
	dir := path[:strings.LastIndexByte(path, '/')+1]
	known := r.dirs[dir]
	r.dirs[dir] = true
	crawls := before != nil && 2*before.looked >= before.watched
	p = &Position{Path: path}
	switch {
	case crawls:
		p.Window = min(before.Window*growth, maxWindow)
	case known: // the reader jumps, but has read in this directory before
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
	return p, len(r.dirs) == 1 || !crawls
}

// drop removes a position. The caller holds r.mu.
func (r *Tracker) drop(i int) {
	if i < 0 {
		return // another reader has followed the same position since
	}
	for id, p := range r.watched {
		if p == r.at[i] {
			delete(r.watched, id)
		}
	}
	r.at = slices.Delete(r.at, i, i+1)
}

// Watch records which blobs of a window a crawler would look at.
func (r *Tracker) Watch(p *Position, wants []prioritize.Want) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[object.ID]*Position{}
	}
	for _, w := range wants[:min(len(wants), sampled)] {
		r.watched[w.ID] = p
		p.watched++
	}
}
