package agent

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/session"
)

// pushTurn is the maximum time for which a mount that was taken over makes other mounts wait while it pushes (see
// Config.Turn). It is short, because the session remote may not answer.
const pushTurn = 500 * time.Millisecond

// turn calls Config.Turn, by which Start waits for its turn among the mounts of the process.
type turn struct {
	take func(ctx context.Context) (done func()) // Config.Turn; nil if Start does not wait
	// begun is closed when Start watches the refs of the git directory.
	begun chan struct{}

	mu      sync.Mutex
	hurried func() // ends the wait for the turn; nil before Start; protected by mu
}

// wait waits for the turn of this mount until ctx ends or endWait is called. The caller must call done at the end of
// the turn.
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

// endWait ends the wait for the turn of this mount, and waits until Start watches the refs of the git directory or ctx
// ends. If Start was not called, endWait returns at once.
func (t *turn) endWait(ctx context.Context) {
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

// use waits until the session remote has the claim of this process on a lane, for at most pushTurn. It is called during
// the turn of the mount.
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
