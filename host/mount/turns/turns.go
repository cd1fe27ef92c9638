// Package turns delays the background work of mounts while other mounts are starting.
package turns

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// pause after the start of a mount, because another mount is often started soon after it
	turnPause = 100 * time.Millisecond
	// maximum time for which the mount that has the turn waits for mounts that are being started
	turnLimit = time.Second
)

// Turns delays the background work of mounts while other mounts are being started. Writing the index of a large tree
// takes 250 ms of processor time, and ten forks in a row would write ten indexes at the same time. With turns, only one
// mount at a time does such work, after it has waited until no mount is being started. Work for which a client waits
// does not need a turn.
//
// Turns also delays work after a takeover: fifty mounts that connect to their session remotes at the same moment would
// take all of the processor time from the programs that have just waited for the takeover.
type Turns struct {
	token    chan struct{} // full while a mount has its turn
	catching chan struct{} // contains a value for each mount that catches up after a takeover

	mu     sync.Mutex
	making int       // number of mounts that are being started
	made   time.Time // time at which the last of these mounts was served or has failed
}

// New returns the Turns of the mounts of one process.
func New() *Turns {
	return &Turns{token: make(chan struct{}, 1), catching: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// CatchUp waits until a mount that was taken over may do the work that was delayed until all mounts were taken over. At
// most half as many mounts do so at a time as there are processors. The caller must call done. CatchUp returns early,
// without a turn, if ctx ends.
func (t *Turns) CatchUp(ctx context.Context) (done func()) {
	select {
	case t.catching <- struct{}{}:
		return sync.OnceFunc(func() { <-t.catching })
	case <-ctx.Done():
		return func() {}
	}
}

// StartMount records that a mount is being started. The caller must call ended when the mount is served or has failed.
func (t *Turns) StartMount() (ended func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making++
	// With sync.OnceFunc, a second call of ended has no effect.
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.making--
		t.made = time.Now()
	})
}

// Take waits for a turn and returns the function done, which ends the turn. It returns early, without a turn, if ctx
// ends, if a value can be received from wanted (a client waits for the work), or if a value can be received from
// changed (the user changes files in the mount). Both channels may be nil.
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
	// The turn is held during this wait, so that only one mount at a time waits for the others.
	t.Calm(ctx, wanted, changed)
	return sync.OnceFunc(func() { <-t.token })
}

// Calm waits until no mount is being started, for at most turnLimit. It returns early if ctx ends, or if a value can be
// received from one of the channels, which may be nil.
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

// rest returns the time after which Calm must check again whether mounts are being started. A result of zero or less
// means that no wait is needed.
func (t *Turns) rest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.making > 0 {
		return turnPause
	}
	return turnPause - time.Since(t.made)
}
