package fetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/prioritize"
)

// PrefetchPolicy determines which contents of a mount are prefetched.
type PrefetchPolicy string

const (
	// PrefetchAuto prefetches contents in the order of probable need, within a budget of bytes. It leaves out large media
	// files.
	PrefetchAuto PrefetchPolicy = "auto"
	// PrefetchAll prefetches all contents in the order of probable need.
	PrefetchAll  PrefetchPolicy = "all"
	PrefetchNone PrefetchPolicy = "none"
)

const (
	// queueAhead is the maximum number of prefetch wants in the queue. It limits the memory for these wants.
	queueAhead = 2 * pipeline.MaxPrefetchBatch
	// prefetchPoll is the interval at which a prefetch checks whether the queue has room.
	prefetchPoll = 20 * time.Millisecond
	// searchGrace is the time between the prefetch of the first class and that of the next ones, in which a program that
	// reads everything may start: see awaitCrawl.
	searchGrace = 150 * time.Millisecond
	// crawlGrace is the time for which a prefetch still waits after the last request for a program that reads
	// everything, while the program reads the contents that have arrived.
	crawlGrace = time.Second
	// offlineWait is the interval at which a prefetch tries again while the remote fails.
	offlineWait = 3 * time.Second
	// wantPoll is the interval at which a call of Want that waits counts the missing blobs. Each count walks through the
	// whole tree.
	wantPoll = 200 * time.Millisecond
)

// prefetchKey identifies a prefetch. Prefetches of several mounts with the same key run one after the other.
type prefetchKey struct {
	tree   object.ID
	policy PrefetchPolicy
	budget int64
}

// Prefetch prefetches the blobs of the tree until all are on this host, budget bytes have arrived (0 means no limit),
// or ctx ends. It returns an error if a blob could not be fetched. Blobs are fetched class by class, in the order of
// probable need. Prefetch walks through the tree once for each class, so that it need not keep a list of all blobs in
// memory. If another mount is prefetching the same tree, Prefetch waits until that prefetch ends, and then fetches the
// blobs that are still missing.
func (v *RawView) Prefetch(ctx context.Context, policy PrefetchPolicy, budget int64) error {
	if policy == PrefetchNone || v.Shown().IsZero() {
		return nil
	}
	start := v.store.fetcher.bytesIn.Load()
	done, err := v.store.prefetches.Begin(ctx, prefetchKey{v.Shown(), policy, budget})
	if err != nil {
		return err
	}
	defer done()
	lost := v.store.fetcher.pipe.Lost()
	spent := func() bool { return budget > 0 && v.store.fetcher.bytesIn.Load()-start >= budget }
	// left has the number of missing files of each class. The walk for one class counts the missing files of the other
	// classes, so that classes without missing files are skipped.
	left := map[prioritize.Class]int{}
	for class := prioritize.Manifest; class <= prioritize.Last; class++ {
		if class == prioritize.Manifest+1 && policy == PrefetchAuto && !clock.Wait(ctx, searchGrace) {
			return ctx.Err()
		}
		if policy == PrefetchAuto && class == prioritize.Media || class > prioritize.Manifest && left[class] == 0 {
			continue
		}
		if err := v.prefetchClass(ctx, class, left, spent); err != nil {
			return err
		}
		// If the remote fails and wants were given up, the pipeline would also give up the wants of the next classes.
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

// lostSince returns an error if the pipeline has given up requests since Pipeline.Lost returned the number before.
func (v *RawView) lostSince(before int) error {
	if n := v.store.fetcher.pipe.Lost() - before; n > 0 {
		return fmt.Errorf("fetch %d blobs: %w", n, v.store.fetcher.requestFailure())
	}
	return nil
}

// prefetchClass queues the missing blobs of one class, and adds the numbers of missing files of the other classes to
// the map left. It stops when the function spent returns true, because the budget is used up.
func (v *RawView) prefetchClass(ctx context.Context, class prioritize.Class, left map[prioritize.Class]int,
	spent func() bool) error {
	var wants []prioritize.Want
	var err error
	flush := func(room int) bool {
		if err = v.awaitCrawl(ctx); err != nil {
			return false
		}
		wants = slices.DeleteFunc(wants, func(w prioritize.Want) bool { return !v.missing(w.ID) })
		v.store.fetcher.pipe.Queue(wants)
		wants = nil
		err = v.awaitQueue(ctx, room)
		return err == nil && !spent()
	}
	_, walkErr := v.store.trees.Walk(ctx, v.Shown(), "", func(f treewalk.File) bool {
		if err = v.awaitCrawl(ctx); err != nil {
			return false
		}
		if !v.missing(f.ID) {
			return true
		}
		if c := classOf(f); c != class {
			// A file of another class is counted, but its blob is not queued, so that the queue has room for the class that is
			// most likely needed.
			left[c]++
			return true
		}
		wants = append(wants, prioritize.Want{ID: f.ID, Class: class, Path: f.Path})
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

// awaitCrawl waits while a program reads everything (see crawl), and for the time crawlGrace after the last request for
// that program. Its contents are fetched with few large requests, which a server answers faster than requests that name
// the same blobs by id. Besides, a walk through the tree would take processor time from the program.
func (v *RawView) awaitCrawl(ctx context.Context) error {
	for v.crawling.Load() {
		for v.crawling.Load() {
			if !clock.Wait(ctx, prefetchPoll) {
				return ctx.Err()
			}
		}
		if !clock.Wait(ctx, crawlGrace) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// classOf returns the prefetch class of a file. Symlinks are in the class that is prefetched first, because they are
// few and small, and every access to a path through a symlink waits for the symlink's blob.
func classOf(f treewalk.File) prioritize.Class {
	if f.Mode == object.ModeSymlink {
		return prioritize.Manifest
	}
	return prioritize.Classify(f.Path, strings.Count(f.Path, "/"))
}

// awaitQueue waits until the number of queued background wants is at most room. While the remote fails, awaitQueue
// waits until the remote answers again or the time offlineWait has passed.
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
			return nil // continue, because the requests for the next wants will show whether the remote answers again
		}
	}
}

// awaitPrefetched waits until no want of a prefetch is pending (queued or in flight).
func (v *RawView) awaitPrefetched(ctx context.Context) error {
	for v.store.fetcher.pipe.Prefetching() > 0 {
		if !clock.Wait(ctx, prefetchPoll) {
			return ctx.Err()
		}
	}
	return nil
}

// Want queues the missing blobs of the files for whose path the function match returns true, and returns the counts of
// these files. If wait is true, Want blocks until all of these blobs are on this host or the remote fails, and calls
// the function progress with each new count.
func (v *RawView) Want(ctx context.Context, match func(path string) bool, wait bool,
	progress func(Counts)) (Counts, error) {
	// The user has asked for these files, so objects that were refused before are requested again.
	v.store.Forgive()
	p := v.store.fetcher.pipe
	reached := time.Now() // the last time at which the remote was known to be reachable
	for asked := false; ; asked = true {
		if p.Health().Reachable() {
			reached = time.Now()
		}
		var wants []prioritize.Want
		h, err := v.count(ctx, match, func(f treewalk.File) {
			wants = append(wants, prioritize.Want{ID: f.ID, Class: prioritize.Readahead, Path: f.Path})
		})
		if err != nil {
			return h, err
		}
		// The first iteration queues the wants. Later iterations check the results.
		if asked {
			progress(h)
			// The pipeline has given up a want whose blob is neither pending nor on this host.
			if len(wants) > 0 && !p.IsPending(wants[0].ID) && v.missing(wants[0].ID) {
				return h, fmt.Errorf("read %s: %w", wants[0].Path, v.store.fetcher.contentsFailure(wants[0].ID))
			}
			// the remote was unreachable for longer than a read waits
			if len(wants) > 0 && wait && time.Since(reached) > p.Health().Deadline() {
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

// count counts the files for whose path the function match returns true, and calls the function missing for each blob
// of these files that is not on this host. It waits for missing trees.
func (v *RawView) count(ctx context.Context, match func(string) bool, missing func(treewalk.File)) (Counts, error) {
	c := counter{storage: v.store.storage, seen: map[object.ID]struct{}{}, missing: missing}
	_, err := v.store.trees.Walk(ctx, v.Shown(), "", func(f treewalk.File) bool {
		if match(f.Path) {
			c.add(f)
		}
		return true
	})
	return c.Counts, err
}
