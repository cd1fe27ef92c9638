package daemon

import (
	"context"
	"errors"
	"fmt"
)

// errLocked reports that a lock was held until the deadline of Alive.
var errLocked = errors.New("a lock is held for too long")

// Alive checks that no lock is held forever. It acquires and releases the lock of the mount table and the locks of every mount,
// and returns nil when it has done so. If ctx ends first, it returns an error that wraps errLocked and names the lock that it
// was waiting for. The supervisor replaces a worker that fails this check.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // name of what is being locked
	// ask announces the lock that is about to be acquired. It replaces the previous name in the channel, whether or not that was
	// read.
	ask := func(what string) {
		select {
		case <-at:
		default:
		}
		at <- what
	}
	// The goroutine leaks if a lock is never released, but then the supervisor kills this process.
	go func() {
		defer close(done)
		ask("the registry")
		for _, m := range d.list() {
			ask(m.Dir)
			m.Touch()
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask %s: %w", <-at, errLocked)
	}
}
