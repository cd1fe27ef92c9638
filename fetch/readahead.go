package fetch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Windows of neighbours, in blobs. The first read in a directory fetches a few of its files. A
// reader that waits in the order of the tree, skips nothing and looks at what the last window
// fetched is a crawler (grep, tar, find -size): its windows grow until the rest of the tree is
// requested at once. Builds jump, and scripts that read one file in each directory do not look at
// the others.
const (
	firstWindow = 32
	growth      = 4
	// wholeTree is the window above which the rest of the tree is requested at once. It is reached
	// soon, because requests of medium size cost a server most: few of its stored deltas can be
	// sent as they are.
	wholeTree = firstWindow * growth * growth
	// maxWindow bounds the window of a reader that stays in one large directory.
	maxWindow = 8192
	// alongside bounds how many blobs of a window share the request of the blob that is read.
	alongside = 512
	// crawlAhead bounds the queued wants of a crawler, and so their memory.
	crawlAhead = 2 * pipeline.MaxCrawlBatch
	// recent is how long a directory counts as being read.
	recent = time.Second
	// slack is how many missing blobs a crawler may skip between two waits.
	slack = 8
	// sampled is how many blobs of a window are watched to see whether the reader looks at them.
	sampled = 32
	// maxLook bounds, in files, the walk from one wait to the next.
	maxLook = 2048
	// readers bounds how many readers of one mount are followed at a time.
	readers = 4
	// neighbourTime bounds how long a want is delayed by the search for its neighbours.
	neighbourTime = 5 * time.Millisecond
)

// readahead follows the readers of one mount.
type readahead struct {
	mu      sync.Mutex
	at      []*position // the last miss of each reader, the latest first
	watched map[object.ID]*position
	last    time.Time       // time of the last miss
	dirs    map[string]bool // directories with a miss, each less than recent after the one before
}

// position is the position of one reader. readahead.mu guards all fields but path.
type position struct {
	path    string
	window  int // size of the reader's last window, in blobs
	watched int // number of blobs of that window that are watched
	looked  int // number of the watched blobs that a reader has looked at
}

// positions returns the positions of all readers.
func (r *readahead) positions() []*position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// looked records that a reader looked at a blob.
func (r *readahead) looked(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.watched[id]; ok {
		p.looked++
		delete(r.watched, id)
	}
}

// next returns the new position, with its window, of a reader that missed path after the position before; nil: path follows no
// reader. dirOnly reports that the window ends with the directory, because it is not known yet whether the reader continues
// behind it.
func (r *readahead) next(path string, before *position, now time.Time) (p *position, dirOnly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dirs == nil || now.Sub(r.last) > recent {
		r.dirs = map[string]bool{}
	}
	r.last = now
	dir := dirOf(path)
	known := r.dirs[dir]
	r.dirs[dir] = true
	crawls := before != nil && 2*before.looked >= before.watched
	p = &position{path: path}
	switch {
	case crawls:
		p.window = min(before.window*growth, maxWindow)
	case known: // the reader jumps, but has read in this directory before
		p.window = firstWindow * growth
	default:
		p.window = firstWindow
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
func (r *readahead) drop(i int) {
	if i < 0 {
		return // another miss has followed the same position meanwhile
	}
	for id, p := range r.watched {
		if p == r.at[i] {
			delete(r.watched, id)
		}
	}
	r.at = slices.Delete(r.at, i, i+1)
}

// watch records which blobs of a window a crawler would look at.
func (r *readahead) watch(p *position, wants []prioritize.Want) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[object.ID]*position{}
	}
	for _, w := range wants[:min(len(wants), sampled)] {
		r.watched[w.ID] = p
		p.watched++
	}
}

// neighbours returns the wants that share the request of the blob at path, most useful first; none
// if the blob is in flight already. The walk reads only trees on this host: a missing tree makes
// the window smaller.
func (v *RawView) neighbours(ctx context.Context, id object.ID, path string) pipeline.Neighbours {
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	before := v.readerBefore(ctx, path)
	c := pipeline.Neighbours{Patience: pipeline.HedgeAfter}
	if before != nil {
		c.Patience = pipeline.HedgeCrawl
	}
	if v.store.fetcher.pipe.IsInFlight(id) {
		return c
	}
	p, dirOnly := v.ahead.next(path, before, time.Now())
	window := p.window
	if window >= wholeTree && !dirOnly {
		v.crawl(path)
		window = alongside
	}
	add := func(f file) bool {
		if v.missing(f.id) && !(window == firstWindow && classOf(f) == prioritize.Media) {
			class := prioritize.Sibling
			if len(c.Wants) >= alongside {
				class = prioritize.Readahead
			}
			c.Wants = append(c.Wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		}
		return len(c.Wants) < window
	}
	if dirOnly {
		v.walkDir(ctx, path, add)
	} else {
		v.store.trees.walkFrom(ctx, v.shown(), path, add)
	}
	v.ahead.watch(p, c.Wants)
	return c
}

// walkDir visits the blobs of path's own directory that follow path.
func (v *RawView) walkDir(ctx context.Context, path string, visit func(file) bool) {
	dir := dirOf(path)
	entries, err := v.store.trees.directory(ctx, v.shown(), dir)
	if err != nil {
		return
	}
	passed := false
	for _, e := range entries {
		if passed && e.Mode.IsBlob() && !visit(file{e.ID, join(dir, e.Name), e.Mode}) {
			return
		}
		passed = passed || e.Name == path[strings.LastIndexByte(path, '/')+1:]
	}
}

// readerBefore returns the reader that path is next for: few missing blobs lie between its last
// wait and path.
func (v *RawView) readerBefore(ctx context.Context, path string) *position {
	for _, p := range v.ahead.positions() {
		if p.path == path {
			continue
		}
		found, missing, looked := false, 0, 0
		v.store.trees.walkFrom(ctx, v.shown(), p.path, func(f file) bool {
			if found = f.path == path; found {
				return false
			}
			looked++
			if v.missing(f.id) {
				missing++
			}
			return missing <= slack && looked <= maxLook
		})
		if found {
			return p
		}
	}
	return nil
}
