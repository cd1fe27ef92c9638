package fetch

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/fetch/tasks"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
)

// counts caches the results of walks through whole trees: the numbers of files and blobs, and the .gitignore and
// .gitattributes files. All mounts of a tree share these results. mu protects the maps and is not held during a walk.
type counts struct {
	trees   *trees
	storage *storage
	tasks   *tasks.Group

	mu    sync.Mutex
	known map[object.ID]treeCount // last finished count of each tree
	// trees that are being counted; each channel is closed when the count of its tree has ended
	counting    map[object.ID]chan struct{}
	configFiles map[object.ID]configFiles // .gitignore and .gitattributes files, by tree
}

func newCounts(t *trees, s *storage, work *tasks.Group) *counts {
	return &counts{trees: t, storage: s, tasks: work, known: map[object.ID]treeCount{},
		counting: map[object.ID]chan struct{}{}, configFiles: map[object.ID]configFiles{}}
}

// Counts is the number of files of a tree, the number of their different blobs, and the number of these blobs that are
// on this host.
type Counts struct {
	Files, Blobs, Fetched int
	Bytes                 int64 // total size, in bytes, of the blobs on this host
}

// Counts counts the files of the tree that the mount shows. It leaves out the files below subtrees that have not been
// fetched yet. Counts never waits.
func (v *RawView) Counts(ctx context.Context) Counts { return v.store.counts.count(v.Shown()) }

// Blobs calls visit for every file of the tree that the mount shows with the id of its blob. It leaves out the files
// below subtrees that have not been fetched yet, and never waits.
func (v *RawView) Blobs(visit func(object.ID)) {
	v.store.trees.WalkLocal(v.Shown(), "", func(f treewalk.File) { visit(f.ID) })
}

// count counts the files of a tree. It skips subtrees that are not on this host.
func (cs *counts) count(tree object.ID) Counts {
	cs.storage.objects.Refresh() // after an error, the count covers the packs that were visible before
	c := counter{storage: cs.storage, seen: map[object.ID]struct{}{}, missing: func(treewalk.File) {}}
	cs.trees.WalkLocal(tree, "", func(f treewalk.File) { c.add(f) })
	return c.Counts
}

// treeCount is the result of counting a tree.
type treeCount struct {
	Counts
	// began is the time at which the count began. The count may not include contents that arrived later.
	began time.Time
}

// maxCounts is the maximum number of trees in the map counts.known.
const maxCounts = 256

// CountsSince returns a count of the shown tree that began at the time then or later. All mounts of the tree share a
// count, because counting a large tree takes about 100 ms. If ctx ends first, CountsSince returns the previous count,
// and the new count continues for later callers.
func (v *RawView) CountsSince(ctx context.Context, then time.Time) Counts {
	return v.store.counts.since(ctx, v.Shown(), then)
}

// since returns a count of a tree that began at the time then or later, as RawView.CountsSince does.
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
		case <-cs.tasks.Stopped():
			return c.Counts
		}
	}
}

// recount counts a tree, stores the result and closes done. If the store is closed, recount closes done without a
// count.
func (cs *counts) recount(tree object.ID, done chan struct{}) {
	began := time.Now()
	// end stores the count h if counted is true, and wakes all callers that wait for the count.
	end := func(h Counts, counted bool) {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		// Clearing the map is simpler than recording the order of use, and a new count takes only about 100 ms.
		if len(cs.known) >= maxCounts {
			clear(cs.known)
		}
		if counted {
			cs.known[tree] = treeCount{h, began}
		}
		delete(cs.counting, tree)
		close(done)
	}
	if !cs.tasks.Start(func(context.Context) { end(cs.count(tree), true) }) {
		end(Counts{}, false)
	}
}

// counter counts files and blobs. A blob that several files share is counted once.
type counter struct {
	Counts
	storage *storage
	seen    map[object.ID]struct{}
	missing func(treewalk.File) // called for one file of each blob that is not on this host
}

// add counts the file f, and counts the blob of f unless an earlier file had the same blob.
func (c *counter) add(f treewalk.File) {
	c.Files++
	if _, again := c.seen[f.ID]; again {
		return
	}
	c.seen[f.ID] = struct{}{}
	c.Blobs++
	if n, ok := c.storage.contentSize(f.ID); ok {
		c.Fetched++
		c.Bytes += n
	} else {
		c.missing(f)
	}
}
