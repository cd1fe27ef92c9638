package agent

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/session"
)

// pushTurn is the longest time for which a mount that was taken over keeps other mounts waiting while it pushes (Config.Turn). It is
// short, because the session remote may not answer.
const pushTurn = 500 * time.Millisecond

// turn is the wait of Start for Config.Turn.
type turn struct {
	take func(ctx context.Context) (done func()) // Config.Turn; nil: Start does not wait
	// begun is closed when Start watches the refs of the git directory.
	begun chan struct{}

	mu      sync.Mutex
	hurried func() // ends the wait; nil before Start; protected by mu
}

// wait waits for the turn of this mount, until ctx ends or hurry is called.
func (t *turn) wait(ctx context.Context) (done func()) {
	if t.take == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.mu.Lock()
	t.hurried = cancel
	t.mu.Unlock()
	return t.take(ctx)
}

// hurry ends the wait for the turn of this mount, and waits until Start watches the refs of the git directory or ctx ends. If Start was
// not called, hurry returns at once.
func (t *turn) hurry(ctx context.Context) {
	t.mu.Lock()
	hurried := t.hurried
	t.mu.Unlock()
	if hurried == nil {
		return
	}
	hurried()
	select {
	case <-t.begun:
	case <-ctx.Done():
	}
}

// use waits within the turn until the session remote of the agent a has the claim of this process, at most for pushTurn.
func (t *turn) use(ctx context.Context, a *Agent) {
	if t.take == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pushTurn)
	defer cancel()
	if err := a.opened().queue.Reach(ctx, session.MetaRef(a.config.Session)); err != nil {
		a.log.Debug("push claim", zap.String("session", a.config.Session), zap.Error(err)) // the queue reports it
	}
}
