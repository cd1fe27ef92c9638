package daemon

import (
	"context"
	"sync"
	"time"
)

const (
	turnPause = 100 * time.Millisecond // pause after a mount, in which the next one of a series usually starts
	turnLimit = time.Second            // longest wait of the mount that has the turn
)

// backgroundTurns delay the background work of mounts while other mounts start. To write the index of a large tree takes a
// processor for a quarter of a second, and ten forks in a row would write it ten times concurrently. One mount at a time
// does such work, and not while others start. Work that a caller waits for needs no turn.
type backgroundTurns struct {
	token chan struct{} // holds one value while a mount has its turn

	mu     sync.Mutex
	making int       // number of mounts that are starting
	made   time.Time // when the last of them was served or failed
}

// startMount registers a starting mount, which a caller waits for, until ended is called.
func (t *backgroundTurns) startMount() (ended func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making++
	// A caller may call ended twice.
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.making--
		t.made = time.Now()
	})
}

// take waits for a turn, which ends when the caller calls done. It returns early, without a turn, if ctx ends, if wanted
// reports that a caller waits for the work, or if changed reports that the user is working in the mount. The channels
// may be nil.
func (t *backgroundTurns) take(ctx context.Context, wanted, changed <-chan struct{}) (done func()) {
	select {
	case <-wanted:
		return func() {}
	default:
	}
	select {
	case t.token <- struct{}{}:
	case <-wanted:
		return func() {}
	case <-changed:
		return func() {}
	case <-ctx.Done():
		return func() {}
	}
	// The turn is held while waiting, so that only one mount at a time waits for others to start.
	t.calm(ctx, wanted, changed)
	return sync.OnceFunc(func() { <-t.token })
}

// calm waits while mounts are starting, at most turnLimit.
func (t *backgroundTurns) calm(ctx context.Context, wanted, changed <-chan struct{}) {
	for most := time.Now().Add(turnLimit); ; {
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

// rest returns how long to wait before the next check for starting mounts; it is not positive if none is starting.
func (t *backgroundTurns) rest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.making > 0 {
		return turnPause
	}
	return turnPause - time.Since(t.made)
}
