package fuse

import (
	"context"
	"sync"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// waiter is the context of one request. It is done when the process that made the request is to be
// stopped, and when the mount has ended.
//
// The kernel reports any signal as an interrupt, once (fs/fuse/dev.c, request_wait_answer), and
// with any reply to an interrupt stat(2) or read(2) of that process fails with EINTR, which they
// never do on other file systems: programs with timers (git's progress, profilers, Go's scheduler)
// take it for an I/O error. So an interrupt counts only once a signal is pending that means to
// stop.
type waiter struct {
	cancel  <-chan struct{}
	gone    <-chan struct{}
	pid     uint32
	request worktree.Request

	ops    *counters
	cost   metrics.Cost
	traced *metrics.Cost // cost for the listeners of Trace; nil without listeners

	mu   sync.Mutex
	done chan struct{} // created by the first call of Done
	err  error

	finished chan struct{}
	watcher  sync.WaitGroup
}

// recheck is the interval at which pending signals are read after an interrupt, which the kernel
// reports only once.
const recheck = 50 * time.Millisecond

// wait returns the context of a request. finish must be called on it before the answer.
func (f *fileSystem) wait(cancel <-chan struct{}, h *raw.InHeader) *waiter {
	request := worktree.Request{ID: h.Unique &^ resent, Again: h.Unique&resent != 0}
	return &waiter{cancel: cancel, gone: f.gone, pid: h.Pid, request: request, ops: &f.ops, traced: f.tracer.cost(h)}
}

// finish ends the watching. It must be called before the request is answered, because go-fuse
// reuses the cancel channel for the next one.
func (w *waiter) finish() {
	if source, blobs, bytes := w.cost.Total(); source != 0 {
		w.ops.fetched.Add(1)
		if w.traced != nil {
			w.traced.Add(source, blobs, bytes)
		}
	}
	w.mu.Lock()
	watched := w.done != nil
	w.mu.Unlock()
	if watched {
		close(w.finished)
		w.watcher.Wait()
	}
}

// Deadline returns false: a request ends by an interrupt or with the mount.
func (w *waiter) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value returns what the layers below need of a request: its identity and its cost.
func (w *waiter) Value(key any) any {
	switch key.(type) {
	case worktree.RequestKey:
		return &w.request
	case metrics.CostKey:
		return &w.cost
	}
	return nil
}

// Err returns context.Canceled after Done was closed.
func (w *waiter) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Done starts the watching: most requests are answered without a wait.
func (w *waiter) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done, w.finished = make(chan struct{}), make(chan struct{})
		w.watcher.Go(w.watch)
	}
	return w.done
}

// watch closes done when the mount ends or the process is to stop. It ends at finish.
func (w *waiter) watch() {
	select {
	case <-w.finished:
		return
	case <-w.gone:
	case <-w.cancel:
		if !w.awaitStop() {
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = context.Canceled
	close(w.done)
}

// awaitStop returns true when the interrupted process is to stop, and false when the request has
// ended before.
func (w *waiter) awaitStop() bool {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for !stopping(w.pid) {
		select {
		case <-w.finished:
			return false
		case <-w.gone:
			return true
		case <-tick.C:
		}
	}
	return true
}

// stopSignals are those that end a process or ask it to end. A signal without a handler whose
// default action is to kill is SIGKILL by the time it is pending (kernel/signal.c,
// complete_signal).
const stopSignals uint64 = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGQUIT-1) |
	1<<(syscall.SIGABRT-1) | 1<<(syscall.SIGKILL-1) | 1<<(syscall.SIGTERM-1)

// stopping reports whether a stop signal is pending for a thread, or whether this cannot be known.
func stopping(tid uint32) bool {
	status, err := proc.Of(int(tid)).Status()
	if err != nil {
		return true // the thread has ended, or is in a namespace that cannot be seen
	}
	return pendingStop(status)
}

// pendingStop reports whether a stop signal is pending that the thread does not block.
func pendingStop(s proc.Status) bool { return s.Pending&^s.Blocked&stopSignals != 0 }
