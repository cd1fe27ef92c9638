package fetch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Prefetch is a policy of background hydration.
type Prefetch string

const (
	PrefetchAuto Prefetch = "auto" // by likely need, within a byte budget, no large media
	PrefetchAll  Prefetch = "all"  // everything, by likely need
	PrefetchNone Prefetch = "none"
)

const (
	// queueAhead bounds how many background wants wait in the queue, and so the memory they take.
	queueAhead = 2 * maxHydrationBatch
	// hydratePoll is how often the hydrator looks whether the queue has room again.
	hydratePoll = 20 * time.Millisecond
	// offlineWait is the pause after the remote failed.
	offlineWait = 3 * time.Second
	// wantPoll is how often a waiting Want counts; each count walks the whole tree.
	wantPoll = 200 * time.Millisecond
)

// hydration is what mounts of the same tree do once.
type hydration struct {
	tree   object.ID
	policy Prefetch
	budget int64
}

// Hydrate brings the tree's blobs in the background until all are here, the budget (content bytes; 0 is
// unlimited) is spent, or ctx ends; an error says that some did not come. Classes go in order of likely need, so it
// walks the tree once a class of which something is missing, and keeps nothing but the queue in memory. Where another
// mount is at it, it waits, and then looks whether anything is left.
func (v *View) Hydrate(ctx context.Context, policy Prefetch, budget int64) error {
	if policy == PrefetchNone || v.shown().IsZero() {
		return nil
	}
	start := v.store.bytesIn.Load()
	done, err := v.store.alone(ctx, hydration{v.shown(), policy, budget})
	if err != nil {
		return err
	}
	defer done()
	lost := v.store.blobPipe.losses()
	spent := func() bool { return budget > 0 && v.store.bytesIn.Load()-start >= budget }
	left := map[prioritize.Class]int{}
	for class := prioritize.Readahead + 1; class <= prioritize.Last; class++ {
		if policy == PrefetchAuto && class == prioritize.Media || class > prioritize.Readahead+1 && left[class] == 0 {
			continue
		}
		if err := v.hydrateClass(ctx, class, left, spent); err != nil {
			return err
		}
		if _, err := v.store.blobPipe.health(); err != nil && v.store.blobPipe.losses() > lost {
			return v.lostSince(lost)
		}
		if spent() {
			v.store.log.Info("prefetch budget spent", zap.Int64("bytes", budget))
			return nil
		}
	}
	if err := v.settled(ctx); err != nil {
		return err
	}
	return v.lostSince(lost)
}

// lostSince is an error if contents were given up since there were so many.
func (v *View) lostSince(before int) error {
	if n := v.store.blobPipe.losses() - before; n > 0 {
		return fmt.Errorf("%d contents did not come: %w", n, v.store.failure())
	}
	return nil
}

// alone waits until nobody does the same; then others wait until it is done.
func (s *Store) alone(ctx context.Context, h hydration) (done func(), err error) {
	for {
		s.mu.Lock()
		other, ok := s.walks[h]
		if !ok {
			mine := make(chan struct{})
			s.walks[h] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.walks, h)
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

// hydrateClass asks for what is missing of a class, and counts what is missing of others.
func (v *View) hydrateClass(ctx context.Context, class prioritize.Class, left map[prioritize.Class]int, spent func() bool) error {
	var wants []prioritize.Want
	var err error
	flush := func(room int) bool {
		v.store.blobPipe.ask(wants)
		wants = nil
		err = v.drained(ctx, room)
		return err == nil && !spent()
	}
	_, walkErr := v.store.walkTree(ctx, v.shown(), "", func(f file) bool {
		if !v.missing(f.id) {
			return true
		}
		if c := classOf(f); c != class {
			left[c]++
			return true
		}
		wants = append(wants, prioritize.Want{ID: f.id, Class: class, Path: f.path})
		return len(wants) < firstHydrationBatch || flush(queueAhead)
	})
	if err == nil {
		err = walkErr
	}
	if err == nil {
		flush(queueAhead)
	}
	return err
}

// classOf ranks a file for hydration. Symlinks go first: they are few and tiny, and every path through them
// waits for their target.
func classOf(f file) prioritize.Class {
	if f.mode == object.ModeSymlink {
		return prioritize.Manifest
	}
	return prioritize.Classify(f.path, strings.Count(f.path, "/"))
}

// drained waits until at most room background wants are queued, and for better days while the remote fails.
func (v *View) drained(ctx context.Context, room int) error {
	for {
		_, queued := v.store.blobPipe.queued()
		wait, recovered := hydratePoll, v.store.Recovered()
		if _, err := v.store.blobPipe.health(); err != nil {
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
			return nil // the next wants find out whether the remote is back
		}
	}
}

// settled waits until nothing that the background wants is queued or under way.
func (v *View) settled(ctx context.Context) error {
	for v.store.blobPipe.kept() > 0 {
		select {
		case <-time.After(hydratePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Want raises the files that match and counts them. With wait it blocks until all are here or the remote fails.
func (v *View) Want(ctx context.Context, match func(path string) bool, wait bool, progress func(Hydration)) (Hydration, error) {
	v.store.Forgive()
	p := v.store.blobPipe
	reached := time.Now() // the remote answered last, as far as is known
	for asked := false; ; asked = true {
		if p.reachable() {
			reached = time.Now()
		}
		var wants []prioritize.Want
		h, err := v.count(ctx, match, func(f file) {
			wants = append(wants, prioritize.Want{ID: f.id, Class: prioritize.Readahead, Path: f.path})
		})
		if err != nil {
			return h, err
		}
		if asked {
			progress(h)
			if len(wants) > 0 && !p.flying(wants[0].ID) && v.missing(wants[0].ID) {
				return h, fmt.Errorf("read %s: %w", wants[0].Path, v.store.failureOf(wants[0].ID))
			}
			if len(wants) > 0 && wait && time.Since(reached) > p.deadline { // as long as a read would wait
				_, cause := p.health()
				return h, fmt.Errorf("read %s: %w", wants[0].Path, p.late(cause))
			}
		} else {
			p.ask(wants)
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

// Hydration counts the files of a tree and how many contents are on this host.
type Hydration struct {
	Files, Blobs, Hydrated int
	Bytes                  int64 // of the hydrated contents
}

// Hydration counts what is here of the whole tree; while trees still stream in, those that have come. It never waits.
func (v *View) Hydration(ctx context.Context) Hydration { return v.store.hydration(v.shown()) }

func (s *Store) hydration(tree object.ID) Hydration {
	c := counter{store: s, seen: map[object.ID]struct{}{}, missing: func(file) {}}
	s.walkHere(tree, "", func(f file) { c.add(f) })
	return c.Hydration
}

// count is what a tree had when it was counted.
type count struct {
	Hydration
	began time.Time
}

// maxCounts is how many trees are known for what they had.
const maxCounts = 256

// HydrationSince is Hydration as it was counted since then, for those who ask again and again, or for many mounts: counting a
// large tree takes a tenth of a second, once for all who show it. Whoever cannot wait that long on a busy host, because ctx
// ends, is told what was counted last; it goes on for who asks next.
func (v *View) HydrationSince(ctx context.Context, then time.Time) Hydration {
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
			return c.Hydration
		}
		select {
		case <-done:
		case <-ctx.Done():
			return c.Hydration
		case <-s.stop:
			return c.Hydration
		}
	}
}

// recount counts a tree, unless the Store is closed, and closes done.
func (s *Store) recount(tree object.ID, done chan struct{}) {
	began := time.Now()
	end := func(h Hydration, counted bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.counts) >= maxCounts {
			clear(s.counts)
		}
		if counted {
			s.counts[tree] = count{h, began}
		}
		delete(s.counting, tree)
		close(done)
	}
	if !s.background(func(context.Context) { end(s.hydration(tree), true) }) {
		end(Hydration{}, false)
	}
}

// counter counts files, and each content once.
type counter struct {
	Hydration
	store   *Store
	seen    map[object.ID]struct{}
	missing func(file) // called for each blob that is not here
}

func (c *counter) add(f file) {
	c.Files++
	if _, again := c.seen[f.id]; again {
		return
	}
	c.seen[f.id] = struct{}{}
	c.Blobs++
	if n, ok := c.store.contentSize(f.id); ok {
		c.Hydrated++
		c.Bytes += n
	} else {
		c.missing(f)
	}
}

// count counts the files that match, waiting for trees, and calls missing for each blob that is not here.
func (v *View) count(ctx context.Context, match func(string) bool, missing func(file)) (Hydration, error) {
	c := counter{store: v.store, seen: map[object.ID]struct{}{}, missing: missing}
	_, err := v.store.walkTree(ctx, v.shown(), "", func(f file) bool {
		if match(f.path) {
			c.add(f)
		}
		return true
	})
	return c.Hydration, err
}
