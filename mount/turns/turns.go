// Package turns delays the background work of mounts while other mounts are starting.
package turns

import (
	"context"
	"sync"
	"time"
)

const (
	turnPause = 100 * time.Millisecond // pause after a mount, in which the next one of a series usually starts
	turnLimit = time.Second            // longest wait of the mount that has the turn
)

// Turns delay the background work of mounts while other mounts are starting. Writing the index of a large tree takes a
// quarter of a second of processor time, and ten forks in a row would write ten indexes concurrently. With turns, one mount at a
// time does such work, and it waits until no mount is starting. Work that a caller is waiting for does not need a turn.
type Turns struct {
	token chan struct{} // holds one value while a mount has its turn

	mu     sync.Mutex
	making int       // number of mounts that are starting
	made   time.Time // when the last of them was served or failed
}

// New returns the turns of the mounts of a process.
func New() *Turns { return &Turns{token: make(chan struct{}, 1)} }

// StartMount records that a mount is starting. The caller calls ended when that mount is served or has failed.
func (t *Turns) StartMount() (ended func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making++
	// sync.OnceFunc allows the caller to call ended twice.
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.making--
		t.made = time.Now()
	})
}

// Take waits for a turn and returns the function done, which ends the turn. It returns early, without a turn, if ctx ends, if
// wanted becomes readable because a caller waits for the work, or if changed becomes readable because the user is changing files
// in the mount. Both channels may be nil.
func (t *Turns) Take(ctx context.Context, wanted, changed <-chan struct{}) (done func()) {
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
	t.Calm(ctx, wanted, changed)
	return sync.OnceFunc(func() { <-t.token })
}

// Calm waits until no mount is starting, but no longer than turnLimit. It returns early if ctx ends or if one of the two
// channels becomes readable.
func (t *Turns) Calm(ctx context.Context, wanted, changed <-chan struct{}) {
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

// rest returns how long to wait before checking again for starting mounts. The result is zero or negative if there is no need to
// wait.
func (t *Turns) rest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.making > 0 {
		return turnPause
	}
	return turnPause - time.Since(t.made)
}
