package fetch

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// prefetches knows which prefetches are in progress, so that mounts of the same tree do not walk it at the same time.
type prefetches struct {
	mu      sync.Mutex
	running map[prefetchKey]chan struct{} // the channel is closed when the prefetch ends
}

// begin waits until no other mount runs the prefetch key. Other callers wait until done is called. If ctx ends first, begin returns
// its error.
func (p *prefetches) begin(ctx context.Context, key prefetchKey) (done func(), err error) {
	for {
		p.mu.Lock()
		other, ok := p.running[key]
		if !ok {
			mine := make(chan struct{})
			p.running[key] = mine
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.running, key)
				close(mine)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Prefetch prefetches the blobs of the tree until all are on this host, budget bytes have arrived (0: no limit), or ctx ends.
// It returns an error if some could not be fetched. Blobs are fetched class by class, most likely needed first, with one walk
// of the tree for each class; only the queue is kept in memory. If another mount is prefetching the same tree, Prefetch waits
// until that prefetch ends, and then fetches the blobs that are still missing.
func (v *RawView) Prefetch(ctx context.Context, policy PrefetchPolicy, budget int64) error {
	if policy == PrefetchNone || v.shown().IsZero() {
		return nil
	}
	start := v.store.fetcher.bytesIn.Load()
	done, err := v.store.prefetches.begin(ctx, prefetchKey{v.shown(), policy, budget})
	if err != nil {
		return err
	}
	defer done()
	lost := v.store.fetcher.pipe.Lost()
	spent := func() bool { return budget > 0 && v.store.fetcher.bytesIn.Load()-start >= budget }
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
		if _, err := v.store.fetcher.pipe.Health().Failure(); err != nil && v.store.fetcher.pipe.Lost() > lost {
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
	if n := v.store.fetcher.pipe.Lost() - before; n > 0 {
		return fmt.Errorf("fetch %d blobs: %w", n, v.store.fetcher.requestFailure())
	}
	return nil
}

// prefetchClass queues the missing blobs of a class, and counts those of the others.
func (v *RawView) prefetchClass(ctx context.Context, class prioritize.Class, left map[prioritize.Class]int, spent func() bool) error {
	var wants []prioritize.Want
	var err error
	flush := func(room int) bool {
		v.store.fetcher.pipe.Queue(wants)
		wants = nil
		err = v.awaitQueue(ctx, room)
		return err == nil && !spent()
	}
	_, walkErr := v.store.trees.walk(ctx, v.shown(), "", func(f file) bool {
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

// classOf returns the class of a file. Symlinks have the class that is prefetched first, because they are few and small, and every path
// through a symlink waits for its target.
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
		_, queued := v.store.fetcher.pipe.Queued()
		wait, recovered := prefetchPoll, v.store.Recovered()
		if _, err := v.store.fetcher.pipe.Health().Failure(); err != nil {
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
	for v.store.fetcher.pipe.Prefetching() > 0 {
		select {
		case <-time.After(prefetchPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Want queues the files for whose path match returns true, and counts them. If wait is true, it blocks until all are on this host
// or the remote fails, and calls progress with each new count.
func (v *RawView) Want(ctx context.Context, match func(path string) bool, wait bool, progress func(Counts)) (Counts, error) {
	// The user asks for these files, so objects that were refused before are requested again.
	v.store.Forgive()
	p := v.store.fetcher.pipe
	reached := time.Now() // when the remote last answered
	for asked := false; ; asked = true {
		if p.Health().Reachable() {
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
				return h, fmt.Errorf("read %s: %w", wants[0].Path, v.store.fetcher.contentsFailure(wants[0].ID))
			}
			if len(wants) > 0 && wait && time.Since(reached) > p.Health().Deadline() { // as long as a read would wait
				_, cause := p.Health().Failure()
				return h, fmt.Errorf("read %s: %w", wants[0].Path, p.Health().DeadlineError(cause))
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

// count counts the files that match and calls missing for each blob that is not on this host. It
// waits for trees.
func (v *RawView) count(ctx context.Context, match func(string) bool, missing func(file)) (Counts, error) {
	c := counter{storage: v.store.storage, seen: map[object.ID]struct{}{}, missing: missing}
	_, err := v.store.trees.walk(ctx, v.shown(), "", func(f file) bool {
		if match(f.path) {
			c.add(f)
		}
		return true
	})
	return c.Counts, err
}
