package fetch

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Windows of neighbours, in blobs. A first touch brings a few files of the same directory; a reader that keeps
// coming to where the last window ended is a crawler (grep, tar, find -size): its windows grow until the rest of
// the tree is asked for at once.
const (
	firstWindow = 32
	growth      = 16
	wholeTree   = firstWindow * growth * growth
	// alongside is how much of a window travels in the request of the blob that is waited for.
	alongside = foregroundBatch - 1
	// recent is how long a directory counts as being read.
	recent = time.Second
	// slack is how many missing blobs may lie between a window's end and the next wait for it to be in order.
	slack = 64
	// neighbourTime bounds how long a waiting reader's want is held back to find neighbours for it.
	neighbourTime = 5 * time.Millisecond
)

// readahead follows the waits of one View.
type readahead struct {
	mu     sync.Mutex
	window int             // size of the last window
	end    string          // path of the last blob of the last window, in walk order
	last   time.Time       // of the last wait
	dirs   map[string]bool // directories waited for, each soon after the one before
}

// next sizes the window for a wait at path. ordered says whether path is where the last window ended; dirOnly,
// whether the window stays in path's directory: the reader has not shown yet that it walks on.
func (r *readahead) next(path string, ordered bool, now time.Time) (window int, dirOnly bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dirs == nil || now.Sub(r.last) > recent {
		r.dirs = map[string]bool{}
	}
	r.last = now
	dir := dirOf(path)
	known := r.dirs[dir]
	r.dirs[dir] = true
	switch {
	case ordered:
		r.window = min(max(r.window, 1)*growth, wholeTree)
	case known: // it jumps, but in this directory it has been before
		r.window = firstWindow * growth
	default:
		r.window = firstWindow
	}
	return r.window, len(r.dirs) == 1 || !ordered
}

func (r *readahead) lastEnd() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end
}

func (r *readahead) setEnd(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end = path
}

// neighbours gives what should come along with the blob at path, best first; nothing if that is under way already.
// The walk reads trees that are here; one that has not arrived yet only makes the window smaller.
func (v *View) neighbours(ctx context.Context, id object.ID, path string) []prioritize.Want {
	if v.store.blobPipe.underWay(id) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	window, dirOnly := v.ahead.next(path, v.follows(ctx, path), time.Now())
	if window >= wholeTree && !dirOnly {
		v.crawl(path)
		window = alongside
	}
	var wants []prioritize.Want
	end := path
	add := func(f file) bool {
		if v.missing(f.id) && !(window == firstWindow && classOf(f) == prioritize.Media) {
			class := prioritize.Sibling
			if len(wants) >= alongside {
				class = prioritize.Readahead
			}
			wants = append(wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		}
		end = f.path
		return len(wants) < window
	}
	if dirOnly {
		v.walkDir(ctx, path, add)
	} else {
		v.store.walkFrom(ctx, v.root, path, add)
	}
	v.ahead.setEnd(end)
	return wants
}

// walkDir visits the blobs of path's own directory that come after path.
func (v *View) walkDir(ctx context.Context, path string, visit func(file) bool) {
	dir := dirOf(path)
	entries, err := v.store.directory(ctx, v.root, dir)
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

// follows says whether path comes right behind the end of the last window, with a little slack.
func (v *View) follows(ctx context.Context, path string) bool {
	end := v.ahead.lastEnd()
	if end == "" {
		return false
	}
	found, missing, visited := false, 0, 0
	v.store.walkFrom(ctx, v.root, end, func(f file) bool {
		found = f.path == path
		visited++
		if v.missing(f.id) {
			missing++
		}
		return !found && missing <= slack && visited <= wholeTree/4
	})
	return found
}

// missing says whether a blob's content is not on this host.
func (v *View) missing(id object.ID) bool {
	_, here := v.store.contentSize(id)
	return !here
}
