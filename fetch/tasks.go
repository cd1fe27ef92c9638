package fetch

import (
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"
)

// tasks runs the goroutines of a store: the fetches of snapshots and of history, the conversions of contents, and the counts of trees.
type tasks struct {
	stop chan struct{} // channel that the method close closes
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// start runs work in a goroutine, which may outlive the caller. The method close cancels the context of work, and the method wait
// waits until work has returned. start returns false, and does not run work, if the store is closed.
func (t *tasks) start(work func(ctx context.Context)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	// wg.Go is called with mu held. Therefore a concurrent call of close either runs before start has locked mu, so that start
	// returns false, or after wg.Go, so that wait waits for the goroutine.
	t.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-t.stop:
				cancel()
			case <-ctx.Done():
			}
		}()
		work(ctx)
	})
	return true
}

// close cancels all work in progress, without waiting for it, and makes later calls of start return false. It returns false if
// close was called before.
func (t *tasks) close() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.closed = true
	close(t.stop)
	return true
}

// wait blocks until all goroutines of the tasks have ended. The caller must call close first.
func (t *tasks) wait() { t.wg.Wait() }

// notices are messages about reduced service, such as a remote without filters. The status of a mount shows them to the user.
type notices struct {
	log *zap.Logger

	mu   sync.Mutex
	list []string // messages, without duplicates
}

// add records a message and logs it, unless the same message was recorded before.
func (n *notices) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.list, text) {
		return
	}
	n.list = append(n.list, text)
	n.log.Warn(text)
}

// all returns all messages in the order in which they were recorded.
func (n *notices) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}
