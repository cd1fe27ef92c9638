package session

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// manyPacks is the number of packs above which small packs are joined, because every pack is searched for an
	// object.
	manyPacks = 50
	// tidyEvery is the number of written packs after which tidy counts the packs again.
	tidyEvery = 8
)

// maintenance joins small packs of a Repo, and removes unreachable objects from its packs. The lock maintaining is
// acquired before sweeping.
type maintenance struct {
	dir     string   // directory of the Repo
	refs    *RefDir  // reads the refs of the Repo
	sources *sources // reads the objects of the Repo
	log     *zap.Logger

	maintaining sync.Mutex   // held while packs are joined or removed
	sweeping    sync.RWMutex // locked for reading by Repo.Working, and for writing by sweep while it removes packs
	tidying     tidying      // state of the background goroutine that joins small packs
}

// tidying is the state of the background goroutine that joins small packs.
type tidying struct {
	ctx    context.Context    // canceled by stop
	cancel context.CancelFunc // cancels ctx
	work   sync.WaitGroup     // waits for the goroutine

	// mu protects the fields below.
	mu      sync.Mutex
	written int  // number of packs that were written since the Repo was opened
	busy    bool // whether the goroutine runs
	closed  bool // whether stop was called
}

// wrote counts a pack that was written. At the first pack, and then at every tidyEvery-th pack, it starts the method
// tidy in the background, unless it is running.
func (t *tidying) wrote(m *maintenance) {
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
		if err := m.tidy(t.ctx); err != nil && t.ctx.Err() == nil {
			m.log.Warn("join packs of session", zap.String("dir", m.dir), zap.Error(err))
		}
	})
}

// stop cancels the background goroutine and waits until it has ended.
func (t *tidying) stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.work.Wait()
}

// tidy joins small packs if there are more than manyPacks packs. It loses no object, and removes the old packs only
// after the new one was written, so that a concurrent reader always finds every object.
func (m *maintenance) tidy(ctx context.Context) error {
	if !m.maintaining.TryLock() { // the method sweep holds the lock, and rewrites packs itself
		return nil
	}
	defer m.maintaining.Unlock()
	packs, err := m.readTables()
	if err != nil {
		return err
	}
	// Packs with a .keep or .promisor file are not joined. The objects in a pack with a .promisor file may refer to
	// missing objects, which git permits only in a pack with such a file.
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
	fresh, err := m.repack(ctx, wanted)
	if err != nil {
		return err
	}
	// git pack-objects may have written one of the old packs again.
	return m.removePacks(slices.DeleteFunc(old, func(t *packTable) bool { return t.path == fresh }))
}

// small returns the packs to join: after that, each remaining pack is at least twice as large as all smaller packs
// together. So each object is rewritten O(log n) times, where n is the total size. small sorts packs by size.
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
