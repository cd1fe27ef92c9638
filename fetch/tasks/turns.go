package tasks

import (
	"context"
	"sync"
)

// Turns makes tasks with the same key run one after the other. The zero value is ready to use.
type Turns[K comparable] struct {
	mu      sync.Mutex
	running map[K]chan struct{} // tasks in progress by their keys; each channel is closed when its task ends
}

// Begin waits until no task with this key runs, and then returns. Other callers with the same key then wait until the
// returned function done is called. If ctx ends first, Begin returns the error of ctx.
func (t *Turns[K]) Begin(ctx context.Context, key K) (done func(), err error) {
	for {
		t.mu.Lock()
		other, ok := t.running[key]
		if !ok {
			if t.running == nil {
				t.running = map[K]chan struct{}{}
			}
			mine := make(chan struct{})
			t.running[key] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.running, key)
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
