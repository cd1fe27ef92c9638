package pipeline

import (
	"context"
	"sync"
)

// shared contains the fields that all parts of a Pipeline use: the mutex that protects the state of all parts, and the
// channel that ends the pipeline. One mutex is enough, because no part holds it while it waits for the network or the
// disk. The common mutex also makes changes of two parts atomic, such as the arrival of a blob and the end of a
// failure.
type shared struct {
	stop chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu sync.Mutex
	// wake signals that a want was queued, that the remote may be tried again, or that the pipeline was closed.
	wake   *sync.Cond
	closed bool
}

func newShared() *shared {
	s := &shared{stop: make(chan struct{})}
	s.wake = sync.NewCond(&s.mu)
	return s
}

// context returns a context that ends when the pipeline is closed. The caller must call cancel.
func (s *shared) context() (ctx context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(context.Background())
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
