package pipeline

import (
	"context"
	"sync"
)

// shared is what all parts of a Pipeline have in common: the mutex that guards the state of each of them, and the end of the
// pipeline. One mutex is enough, because no part holds it while it waits for the network or the disk, and with one mutex a change of
// two parts, such as the arrival of a blob and the end of a failure, is one step.
type shared struct {
	stop chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu     sync.Mutex
	wake   *sync.Cond // signals that a want was queued, that the remote may be tried again, or Close
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
