package fetch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// PrefetchPolicy is a policy of prefetching.
type PrefetchPolicy string

const (
	PrefetchAuto PrefetchPolicy = "auto" // in the order of likely need, within a byte budget, without large media
	PrefetchAll  PrefetchPolicy = "all"  // all contents, in the order of likely need
	PrefetchNone PrefetchPolicy = "none"
)

const (
	// queueAhead bounds the prefetch wants in the queue, and so their memory.
	queueAhead = 2 * pipeline.MaxPrefetchBatch
	// prefetchPoll is how often the queue is checked for room.
	prefetchPoll = 20 * time.Millisecond
	// offlineWait is the pause after a failure of the remote.
	offlineWait = 3 * time.Second
	// wantPoll is how often a waiting Want counts. Each count walks the whole tree.
	wantPoll = 200 * time.Millisecond
)

// prefetchKey identifies a prefetch that mounts of the same tree share.
type prefetchKey struct {
	tree   object.ID
	policy PrefetchPolicy
	budget int64
}

// Prefetch prefetches the blobs of the tree until all are on this host, budget bytes have arrived (0: no limit), or ctx ends.
// It returns an error if some could not be fetched. Blobs are fetched class by class, most likely needed first, with one walk
// of the tree for each class; only the queue is kept in memory. If another mount is prefetching the same tree, Prefetch waits
// until that prefetch ends, and then fetches the blobs that are still missing.
func (v *RawView) Prefetch(ctx context.Context, policy PrefetchPolicy, budget int64) error {
	if policy == PrefetchNone || v.shown().IsZero() {
		return nil
	}
	start := v.store.bytesIn.Load()
	done, err := v.store.exclusively(ctx, prefetchKey{v.shown(), policy, budget})
	if err != nil {
		return err
	}
	defer done()
	lost := v.store.blobPipe.Lost()
	spent := func() bool { return budget > 0 && v.store.bytesIn.Load()-start >= budget }
	// The walk for one class counts the files of the others, so that no walk is made for a class without files.
	left := map[prioritize.Class]int{}
	for class := prioritize.Readahead + 1; class <= prioritize.Last; class++ {
		if policy == PrefetchAuto && class == prioritize.Media || class > prioritize.Readahead+1 && left[class] == 0 {
			continue
		}
		if err := v.prefetchClass(ctx, class, left, spent); err != nil {
			return err
		}
		// While the remote fails, the wants of the next classes would be given up as well.
		if _, err := v.store.blobPipe.Failure(); err != nil && v.store.blobPipe.Lost() > lost {
			return v.lostSince(lost)
		}
		if spent() {
			v.store.log.Info("prefetch budget spent", zap.Int64("bytes", budget))
			return nil
		}
	}
	if err := v.awaitPrefetched(ctx); err != nil {
		return err
	}
	return v.lostSince(lost)
}

// lostSince returns an error if contents were given up after the pipeline's method Lost had returned before.
func (v *RawView) lostSince(before int) error {
	if n := v.store.blobPipe.Lost() - before; n > 0 {
		return fmt.Errorf("fetch %d blobs: %w", n, v.store.requestFailure())
	}
	return nil
}

// exclusively waits until no other mount runs the same prefetch. Other callers wait until done is called. If ctx ends first,
// exclusively returns its error.
func (s *Store) exclusively(ctx context.Context, h prefetchKey) (done func(), err error) {
	for {
		s.mu.Lock()
		other, ok := s.prefetches[h]
		if !ok {
			mine := make(chan struct{})
			s.prefetches[h] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.prefetches, h)
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// prefetchClass queues the missing blobs of a class, and counts those of the others.
func (v *RawView) prefetchClass(ctx context.Context, class prioritize.Class, left map[prioritize.Class]int, spent func() bool) error {
	var wants []prioritize.Want
	var err error
	flush := func(room int) bool {
		v.store.blobPipe.Queue(wants)
		wants = nil
		err = v.awaitQueue(ctx, room)
		return err == nil && !spent()
	}
	_, walkErr := v.store.walkTree(ctx, v.shown(), "", func(f file) bool {
		if !v.missing(f.id) {
			return true
		}
		if c := classOf(f); c != class {
			// Files of other classes are only counted, so that the queue holds the class that is
			// most likely needed.
			left[c]++
			return true
		}
		wants = append(wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		return len(wants) < pipeline.FirstPrefetchBatch || flush(queueAhead)
	})
	if err == nil {
		err = walkErr
	}
	if err == nil {
		flush(queueAhead)
	}
	return err
}

// classOf returns the class of a file. Symlinks are first: they are few and tiny, and every path
// through them waits for the target.
func classOf(f file) prioritize.Class {
	if f.mode == object.ModeSymlink {
		return prioritize.Manifest
	}
	return prioritize.Classify(f.path, strings.Count(f.path, "/"))
}

// awaitQueue waits until at most room background wants are queued. While the remote fails it waits
// longer.
func (v *RawView) awaitQueue(ctx context.Context, room int) error {
	for {
		_, queued := v.store.blobPipe.Queued()
		wait, recovered := prefetchPoll, v.store.Recovered()
		if _, err := v.store.blobPipe.Failure(); err != nil {
			wait = offlineWait
		} else if queued <= room {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-recovered:
		case <-ctx.Done():
			return ctx.Err()
		}
		if wait == offlineWait && queued <= room {
			return nil // the next wants show whether the remote answers again
		}
	}
}

// awaitPrefetched waits until no blob that a prefetch wants is queued or in flight.
func (v *RawView) awaitPrefetched(ctx context.Context) error {
	for v.store.blobPipe.Prefetching() > 0 {
		select {
		case <-time.After(prefetchPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Want queues the files that match and counts them. With wait it blocks until all are on this host
// or the remote fails, and reports to progress.
func (v *RawView) Want(ctx context.Context, match func(path string) bool, wait bool, progress func(Counts)) (Counts, error) {
	// The user asks for these files: objects that were refused before are worth another request.
	v.store.Forgive()
	p := v.store.blobPipe
	reached := time.Now() // when the remote last answered
	for asked := false; ; asked = true {
		if p.Reachable() {
			reached = time.Now()
		}
		var wants []prioritize.Want
		h, err := v.count(ctx, match, func(f file) {
			wants = append(wants, prioritize.Want{ID: f.id, Class: prioritize.Readahead, Path: f.path})
		})
		if err != nil {
			return h, err
		}
		// The first round only queues the wants. Later rounds look at the results.
		if asked {
			progress(h)
			// The want was removed from the queue without an arrival, so it was given up.
			if len(wants) > 0 && !p.IsPending(wants[0].ID) && v.missing(wants[0].ID) {
				return h, fmt.Errorf("read %s: %w", wants[0].Path, v.store.contentsFailure(wants[0].ID))
			}
			if len(wants) > 0 && wait && time.Since(reached) > p.Deadline() { // as long as a read would wait
				_, cause := p.Failure()
				return h, fmt.Errorf("read %s: %w", wants[0].Path, p.DeadlineError(cause))
			}
		} else {
			p.Queue(wants)
		}
		if !wait || len(wants) == 0 {
			return h, nil
		}
		select {
		case <-time.After(wantPoll):
		case <-ctx.Done():
			return h, ctx.Err()
		}
	}
}

// Counts counts the files of a tree, their blobs, and the blobs on this host.
type Counts struct {
	Files, Blobs, Fetched int
	Bytes                 int64 // of the blobs on this host
}

// Counts counts the whole tree, or, while its trees are being fetched, those that have arrived. It
// never waits.
func (v *RawView) Counts(ctx context.Context) Counts { return v.store.countLocal(v.shown()) }

// countLocal counts the files of a tree as far as its trees are on this host.
func (s *Store) countLocal(tree object.ID) Counts {
	c := counter{store: s, seen: map[object.ID]struct{}{}, missing: func(file) {}}
	s.walkLocal(tree, "", func(f file) { c.add(f) })
	return c.Counts
}

// treeCount is the result of counting a tree.
type treeCount struct {
	Counts
	// began is the time at which the count began: contents that arrived later may be missing in it.
	began time.Time
}

// maxCounts bounds Store.counts.
const maxCounts = 256

// CountsSince returns a count that began after then, shared by all mounts of the tree: counting a
// large tree takes a tenth of a second. If ctx ends first it returns the previous count, and the
// new one continues for later callers.
func (v *RawView) CountsSince(ctx context.Context, then time.Time) Counts {
	s, tree := v.store, v.shown()
	for {
		s.mu.Lock()
		c := s.counts[tree]
		done := s.counting[tree]
		if done == nil && c.began.Before(then) {
			done = make(chan struct{})
			s.counting[tree] = done
			go s.recount(tree, done)
		}
		s.mu.Unlock()
		if !c.began.Before(then) {
			return c.Counts
		}
		select {
		case <-done:
		case <-ctx.Done():
			return c.Counts
		case <-s.stop:
			return c.Counts
		}
	}
}

// recount counts a tree and closes done. After Close of the store it only closes done.
func (s *Store) recount(tree object.ID, done chan struct{}) {
	began := time.Now()
	// end stores the count and wakes all that wait for it.
	end := func(h Counts, counted bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		// The map is cleared rather than aged: mounts that are polled count again within a tenth of
		// a second.
		if len(s.counts) >= maxCounts {
			clear(s.counts)
		}
		if counted {
			s.counts[tree] = treeCount{h, began}
		}
		delete(s.counting, tree)
		close(done)
	}
	if !s.background(func(context.Context) { end(s.countLocal(tree), true) }) {
		end(Counts{}, false)
	}
}

// counter counts files, and each blob once.
type counter struct {
	Counts
	store   *Store
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
	if n, ok := c.store.contentSize(f.id); ok {
		c.Fetched++
		c.Bytes += n
	} else {
		c.missing(f)
	}
}

// count counts the files that match and calls missing for each blob that is not on this host. It
// waits for trees.
func (v *RawView) count(ctx context.Context, match func(string) bool, missing func(file)) (Counts, error) {
	c := counter{store: v.store, seen: map[object.ID]struct{}{}, missing: missing}
	_, err := v.store.walkTree(ctx, v.shown(), "", func(f file) bool {
		if match(f.path) {
			c.add(f)
		}
		return true
	})
	return c.Counts, err
}
