package session

import (
	"context"
	"sync"
)

// tidying is the background work that keeps the number of packs small.
type tidying struct {
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	written int // packs since the last look
}

func (t *tidying) wrote(r *Repo) {}

func (t *tidying) stop() {
	t.cancel()
	t.work.Wait()
}
