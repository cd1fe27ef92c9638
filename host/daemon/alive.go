package daemon

import (
	"context"
	"errors"
	"fmt"
)

// errLocked means that Daemon.Alive could not acquire a lock before its deadline.
var errLocked = errors.New("lock was not released in time")

// Alive checks that no goroutine of the daemon holds a lock forever, by acquiring and releasing the lock of the mount
// table and the locks of every mount. It returns nil when it has acquired all. If ctx ends first, it returns an error
// that wraps errLocked and names the lock that it was waiting for. The supervisor replaces a worker that fails this
// check.
func (d *Daemon) Alive(ctx context.Context) error {
	done := make(chan struct{})
	at := make(chan string, 1) // name of the lock that is being acquired
	// ask puts the name of the lock that is acquired next into the channel at. It first removes the previous name, if
	// that was not read yet.
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
