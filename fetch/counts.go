package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// counts keeps the results of walks through whole trees, which all mounts of a tree share: the numbers of files and the files that
// configure git. mu guards the maps, and is not held during a walk.
type counts struct {
	trees   *trees
	storage *storage
	tasks   *tasks

	mu          sync.Mutex
	known       map[object.ID]treeCount     // the last count of each tree
	counting    map[object.ID]chan struct{} // trees that are being counted; closed when the count has ended
	configFiles map[object.ID]configFiles   // of each tree
}

func newCounts(t *trees, s *storage, work *tasks) *counts {
	return &counts{
		trees: t, storage: s, tasks: work, known: map[object.ID]treeCount{}, counting: map[object.ID]chan struct{}{},
		configFiles: map[object.ID]configFiles{},
	}
}

// Counts counts the files of a tree, their blobs, and the blobs on this host.
type Counts struct {
	Files, Blobs, Fetched int
	Bytes                 int64 // of the blobs on this host
}

// Counts counts the whole tree, or, while its trees are being fetched, those that have arrived. It
// never waits.
func (v *RawView) Counts(ctx context.Context) Counts { return v.store.counts.count(v.shown()) }

// count counts the files of a tree as far as its trees are on this host.
func (cs *counts) count(tree object.ID) Counts {
	c := counter{storage: cs.storage, seen: map[object.ID]struct{}{}, missing: func(file) {}}
	cs.trees.walkLocal(tree, "", func(f file) { c.add(f) })
	return c.Counts
}

// treeCount is the result of counting a tree.
type treeCount struct {
	Counts
	// began is the time at which the count began: contents that arrived later may be missing in it.
	began time.Time
}

// maxCounts bounds counts.known.
const maxCounts = 256

// CountsSince returns a count that began after then, shared by all mounts of the tree: counting a
// large tree takes a tenth of a second. If ctx ends first it returns the previous count, and the
// new one continues for later callers.
func (v *RawView) CountsSince(ctx context.Context, then time.Time) Counts {
	return v.store.counts.since(ctx, v.shown(), then)
}

// since returns a count of a tree that began after then, as RawView.CountsSince does.
func (cs *counts) since(ctx context.Context, tree object.ID, then time.Time) Counts {
	for {
		cs.mu.Lock()
		c := cs.known[tree]
		done := cs.counting[tree]
		if done == nil && c.began.Before(then) {
			done = make(chan struct{})
			cs.counting[tree] = done
			go cs.recount(tree, done)
		}
		cs.mu.Unlock()
		if !c.began.Before(then) {
			return c.Counts
		}
		select {
		case <-done:
		case <-ctx.Done():
			return c.Counts
		case <-cs.tasks.stop:
			return c.Counts
		}
	}
}

// recount counts a tree and closes done. After Close of the store it only closes done.
func (cs *counts) recount(tree object.ID, done chan struct{}) {
	began := time.Now()
	// end stores the count and wakes all that wait for it.
	end := func(h Counts, counted bool) {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		// Clearing the map is simpler than recording the order of use, and a new count takes about a tenth of
		// a second.
		if len(cs.known) >= maxCounts {
			clear(cs.known)
		}
		if counted {
			cs.known[tree] = treeCount{h, began}
		}
		delete(cs.counting, tree)
		close(done)
	}
	if !cs.tasks.start(func(context.Context) { end(cs.count(tree), true) }) {
		end(Counts{}, false)
	}
}

// counter counts files and blobs. A blob that several files have is counted once.
type counter struct {
	Counts
	storage *storage
	seen    map[object.ID]struct{}
	missing func(file) // called for each blob that is not on this host
}

// add counts one file, and its blob if no other file had the same.
func (c *counter) add(f file) {
	c.Files++
	if _, again := c.seen[f.id]; again {
		return
	}
	c.seen[f.id] = struct{}{}
	c.Blobs++
	if n, ok := c.storage.contentSize(f.id); ok {
		c.Fetched++
		c.Bytes += n
	} else {
		c.missing(f)
	}
}
