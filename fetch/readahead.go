package fetch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Windows of neighbours, in blobs. A first touch brings a few files of the same directory. A reader that waits in
// walk order, leaves nothing out and looks at what the last window brought is a crawler (grep, tar, find -size): its
// windows grow until the rest of the tree is asked for at once. Builds jump, and scripts that read one file in each
// directory do not look at the others.
const (
	firstWindow = 32
	growth      = 4
	// wholeTree is the window from which on the rest of the tree is asked for at once. It comes soon: a server has most
	// of its work with middle-sized requests, where few of its stored deltas can be used again.
	wholeTree = firstWindow * growth * growth
	// maxWindow bounds the window of a reader that stays in one large directory.
	maxWindow = 8192
	// alongside is how much of a window travels in the request of the blob that is waited for.
	alongside = 512
	// crawlAhead bounds how many wants of a crawler wait in the queue, and so the memory they take.
	crawlAhead = 2 * maxCrawlBatch
	// recent is how long a directory counts as being read.
	recent = time.Second
	// slack is how many missing blobs a crawler may leave out between two waits.
	slack = 8
	// sampled is how many blobs of a window are watched to see whether the reader looks at them.
	sampled = 32
	// maxLook bounds the walk that looks for those, in files.
	maxLook = 2048
	// readers is how many readers of one mount are followed at the same time.
	readers = 4
	// neighbourTime bounds how long a waiting reader's want is held back to find neighbours for it.
	neighbourTime = 5 * time.Millisecond
)

// company is what travels with a want, and how long its reader waits for a background answer before the blob is
// asked for once more: a crawler is served best by the large answers that it has caused.
type company struct {
	wants    []prioritize.Want
	patience time.Duration
}

// readahead follows the waits of one View.
type readahead struct {
	mu      sync.Mutex
	at      []*position // where readers missed a blob last, the latest first
	watched map[object.ID]*position
	last    time.Time       // of the last miss
	dirs    map[string]bool // directories with a miss, each soon after the one before
}

// position is one reader's. All fields but path are guarded by readahead.mu.
type position struct {
	path    string
	window  int // size of its last window
	watched int // blobs of it that are watched
	seen    int // of these, looked at
}

// positions lists where readers are.
func (r *readahead) positions() []*position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// looked notes that somebody looked at a blob.
func (r *readahead) looked(id object.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.watched[id]; ok {
		p.seen++
		delete(r.watched, id)
	}
}

// next sizes the window for a miss at path, which comes behind the position before; nil: behind none. dirOnly says
// that the window stays in path's directory: the reader has not shown yet that it walks on.
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
	crawls := before != nil && 2*before.seen >= before.watched
	p = &position{path: path}
	switch {
	case crawls:
		p.window = min(before.window*growth, maxWindow)
	case known: // it jumps, but in this directory it has been before
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

// drop forgets a position; it needs mu.
func (r *readahead) drop(i int) {
	if i < 0 {
		return // another miss has come behind the same position meanwhile
	}
	for id, p := range r.watched {
		if p == r.at[i] {
			delete(r.watched, id)
		}
	}
	r.at = slices.Delete(r.at, i, i+1)
}

// watch looks out for readers of a window's first blobs.
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

// neighbours gives what should come along with the blob at path, best first: nothing if that is under way already.
// The walk reads trees that are here; one that has not arrived yet only makes the window smaller.
func (v *View) neighbours(ctx context.Context, id object.ID, path string) company {
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	before := v.before(ctx, path)
	c := company{patience: hedgeAfter}
	if before != nil {
		c.patience = hedgeCrawl
	}
	if v.store.blobPipe.underWay(id) {
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
			if len(c.wants) >= alongside {
				class = prioritize.Readahead
			}
			c.wants = append(c.wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		}
		return len(c.wants) < window
	}
	if dirOnly {
		v.walkDir(ctx, path, add)
	} else {
		v.store.walkFrom(ctx, v.shown(), path, add)
	}
	v.ahead.watch(p, c.wants)
	return c
}

// walkDir visits the blobs of path's own directory that come after path.
func (v *View) walkDir(ctx context.Context, path string, visit func(file) bool) {
	dir := dirOf(path)
	entries, err := v.store.directory(ctx, v.shown(), dir)
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

// before finds the reader that path is next for: hardly a missing blob lies between its last wait and path.
func (v *View) before(ctx context.Context, path string) *position {
	for _, p := range v.ahead.positions() {
		if p.path == path {
			continue
		}
		found, missing, looked := false, 0, 0
		v.store.walkFrom(ctx, v.shown(), p.path, func(f file) bool {
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

// missing says whether a blob's content is not on this host.
func (v *View) missing(id object.ID) bool {
	_, here := v.store.contentSize(id)
	return !here
}
