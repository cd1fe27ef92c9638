package transport

import "sync"

// tasks counts the background goroutines and child processes of a Remote, for which Remote.Close waits. The lock mu
// protects the field closed, so that no task begins after Close has started to wait. The zero value is ready to use.
type tasks struct {
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// begin registers a task, which must call done when it ends. It returns errClosed after close.
func (t *tasks) begin() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errClosed
	}
	t.running.Add(1)
	return nil
}

// done records that a task has ended.
func (t *tasks) done() { t.running.Done() }

// close makes further calls of begin fail. It does not wait.
func (t *tasks) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// wait returns when all tasks have ended. It must be called after close.
func (t *tasks) wait() { t.running.Wait() }
