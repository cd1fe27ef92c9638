package daemon

import (
	"context"
	"sync"
	"time"
)

const (
	turnRest = 100 * time.Millisecond // after a mount, in which the next one of a row begins
	turnMost = time.Second            // longest wait of the mount that has the turn
)

// turns keep the work behind mounts out of the way of mounts that are being made. The index of a large tree takes a
// processor for a quarter of a second, and ten forks in a row would have it written ten times at once: one mount does such
// work at a time, and not while others are being made. What somebody waits for needs no turn.
type turns struct {
	turn chan struct{} // holds one while a mount has its turn

	mu     sync.Mutex
	making int       // mounts that are being made
	made   time.Time // when the last of them was served or failed
}

// begins says that somebody waits for a mount, until ended.
func (t *turns) begins() (ended func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.making--
		t.made = time.Now()
	})
}

// take waits for a turn, which ends with done. It waits no longer than until one of two channels says that somebody wants what
// is to be done, or ctx ends.
func (t *turns) take(ctx context.Context, wanted, changed <-chan struct{}) (done func()) {
	select {
	case <-wanted:
		return func() {}
	default:
	}
	select {
	case t.turn <- struct{}{}:
	case <-wanted:
		return func() {}
	case <-changed:
		return func() {}
	case <-ctx.Done():
		return func() {}
	}
	t.calm(ctx, wanted, changed)
	return sync.OnceFunc(func() { <-t.turn })
}

// calm waits while mounts are being made.
func (t *turns) calm(ctx context.Context, wanted, changed <-chan struct{}) {
	for most := time.Now().Add(turnMost); ; {
		rest := min(t.rest(), time.Until(most))
		if rest <= 0 {
			return
		}
		select {
		case <-time.After(rest):
		case <-wanted:
			return
		case <-changed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// rest is how long to wait before looking again whether mounts are being made; 0: none is.
func (t *turns) rest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.making > 0 {
		return turnRest
	}
	return turnRest - time.Since(t.made)
}
