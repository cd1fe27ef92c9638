package session

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

const (
	// manyPacks is how many packs there may be before small ones are joined. Every one costs whoever looks for an object.
	manyPacks = 50
	// tidyEvery is after how many writes they are counted.
	tidyEvery = 8
)

// tidying is the background work that keeps the number of packs small.
type tidying struct {
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	written int // packs since they were counted
	busy    bool
	closed  bool
}

// wrote hears of every pack that was written.
func (t *tidying) wrote(r *Repo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.written++; t.written%tidyEvery != 1 || t.busy || t.closed {
		return
	}
	t.busy = true
	t.work.Go(func() {
		defer func() {
			t.mu.Lock()
			t.busy = false
			t.mu.Unlock()
		}()
		if err := r.tidy(t.ctx); err != nil && t.ctx.Err() == nil {
			r.log.Warn("join packs of a session", zap.String("dir", r.dir), zap.Error(err))
		}
	})
}

func (t *tidying) stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.work.Wait()
}

// tidy joins small packs if there are many. Nothing is dropped: the new pack has all that was in the old ones before these
// go, and whoever looked for something in them finds it there.
func (r *Repo) tidy(ctx context.Context) error {
	if !r.maintaining.TryLock() { // gc does the same, and more
		return nil
	}
	defer r.maintaining.Unlock()
	packs, err := r.readTables()
	if err != nil {
		return err
	}
	packs = slices.DeleteFunc(packs, func(t *packTable) bool { return t.kept || t.promised })
	if len(packs) <= manyPacks {
		return nil
	}
	old := small(packs)
	wanted := map[object.ID]bool{}
	for _, t := range old {
		for i := range t.live {
			id, err := t.index.ID(i)
			if err != nil {
				return err
			}
			wanted[id] = true
		}
	}
	fresh, err := r.repack(ctx, wanted)
	if err != nil {
		return err
	}
	return r.removePacks(slices.DeleteFunc(old, func(t *packTable) bool { return t.path == fresh }))
}

// small picks the packs that are to become one, so that each that stays is at least twice as large as all smaller ones
// together: an object is then packed anew as often as the logarithm of how much there is.
func small(packs []*packTable) []*packTable {
	slices.SortFunc(packs, func(a, b *packTable) int { return cmp.Compare(a.size, b.size) })
	var sum int64
	n := 0
	for i, t := range packs {
		if t.size < 2*sum || i == 0 {
			n = i + 1
		}
		sum += t.size
	}
	return packs[:n]
}
