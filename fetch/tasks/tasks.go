// Package tasks runs the goroutines of a store, and ends them when the store is closed.
package tasks

import (
	"context"
	"sync"
)

// Group is a group of goroutines: the fetches of snapshots and of history, the conversions of contents, and the counts
// of trees.
type Group struct {
	stop chan struct{} // channel that the method Close closes
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// New returns an empty group.
func New() *Group { return &Group{stop: make(chan struct{})} }

// Stopped returns a channel that is closed by Close.
func (g *Group) Stopped() <-chan struct{} { return g.stop }

// Start runs work in a goroutine, which may outlive the caller. The method Close cancels the context of work, and the
// method Wait waits until work has returned. Start returns false, and does not run work, if the store is closed.
func (g *Group) Start(work func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	// wg.Go is called with mu held. Therefore a concurrent call of Close either runs before Start has locked mu, so that
	// Start returns false, or after wg.Go, so that Wait waits for the goroutine.
	g.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-g.stop:
				cancel()
			case <-ctx.Done():
			}
		}()
		work(ctx)
	})
	return true
}

// Close cancels all work in progress, without waiting for it, and makes later calls of Start return false. It returns
// false if Close was called before.
func (g *Group) Close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.closed = true
	close(g.stop)
	return true
}

// Wait blocks until all goroutines of the tasks have ended. The caller must call Close first.
func (g *Group) Wait() { g.wg.Wait() }
