package daemon

import (
	"context"
	"errors"
	"fmt"
)

// errLocked means that a lock was not released before the deadline of Alive.
var errLocked = errors.New("a lock is held for too long")

// Alive checks that no goroutine holds a lock forever. It acquires and releases the lock of the mount table and the locks of
// every mount, and returns nil when it has done so. If ctx ends first, it returns an error that wraps errLocked and names the
// lock that it was waiting for. The supervisor replaces a worker that fails this check.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // name of the lock that is being acquired
	// The function ask puts into the channel at the name of the lock that is acquired next. It first removes the previous name
	// from the channel, if that name was not read yet.
	ask := func(what string) {
		select {
		case <-at:
		default:
		}
		at <- what
	}
	// If a lock is never released, this goroutine does not end, but then the supervisor kills the process.
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
		return fmt.Errorf("acquire the lock of %s: %w", <-at, errLocked)
	}
}
