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

// waiter is the context of one request. It is done when the process that made the request has received a signal that
// stops processes, or when the mount has ended.
//
// The kernel reports any signal as an interrupt, and only once (fs/fuse/dev.c, request_wait_answer). Whatever the reply
// to an interrupted request is, the stat(2) or read(2) of the process fails with EINTR. On other file systems these
// calls never fail with EINTR, so programs with timers (git's progress display, profilers, Go's scheduler) treat EINTR
// as an I/O error. Therefore an interrupt ends the wait only when a signal that stops processes is pending
// (stopSignals).
type waiter struct {
	cancel  <-chan struct{}  // go-fuse closes this channel when the kernel reports an interrupt
	gone    <-chan struct{}  // closed when the mount has ended
	pid     uint32           // id of the thread that made the request
	request worktree.Request // identity of the request for the working tree

	ops    *counters
	cost   metrics.Cost  // time for which the request waited for data, and the sources of the data
	traced *metrics.Cost // copy of cost for the listeners of Trace; nil if there are none

	mu   sync.Mutex
	done chan struct{} // channel that Done returns; closed when the context is done
	err  error         // result of Err; protected by mu

	finished chan struct{}  // closed by finish, so that watch returns
	watcher  sync.WaitGroup // waits for the goroutine that runs watch
}

// recheck is the interval at which pending signals are read from /proc after an interrupt. The kernel reports only
// the first interrupt of a request, so later signals can be found only there.
const recheck = 50 * time.Millisecond

// wait returns the context of a request. The caller must call finish before it answers the request.
func (f *fileSystem) wait(cancel <-chan struct{}, h *raw.InHeader) *waiter {
	request := worktree.Request{ID: h.Unique &^ resent, Again: h.Unique&resent != 0}
	return &waiter{cancel: cancel, gone: f.gone, pid: h.Pid, request: request, ops: &f.ops, traced: f.tracer.cost(h)}
}

// finish adds the request's cost to the counters and stops the goroutine that Done has started. It must be called
// before the request is answered, because go-fuse then reuses the cancel channel for another request.
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

// Deadline returns false, because a request has no time limit.
func (w *waiter) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value returns the identity of the request for the key worktree.RequestKey, the cost of the request for the key
// metrics.CostKey, and the thread that made the request for the key proc.CallerKey. The packages that carry out the
// request read these values.
func (w *waiter) Value(key any) any {
	switch key.(type) {
	case worktree.RequestKey:
		return &w.request
	case metrics.CostKey:
		return &w.cost
	case proc.CallerKey:
		return int(w.pid)
	}
	return nil
}

// Err returns context.Canceled once the channel of Done is closed, and nil before.
func (w *waiter) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Done returns a channel that is closed when the wait should end. The first call starts a goroutine that watches for
// interrupts. Most requests never wait, so they need no goroutine.
func (w *waiter) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done, w.finished = make(chan struct{}), make(chan struct{})
		w.watcher.Go(w.watch)
	}
	return w.done
}

// watch closes the channel done when the mount has ended or the process has received a signal that stops processes. It
// returns early when finish is called.
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

// awaitStop is called after an interrupt. It returns true when one of stopSignals is pending for the process or the
// mount has ended. It returns false when finish is called before that.
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

// stopSignals is the set of signals that end a process or ask it to end; bit n-1 stands for signal n. Other signals
// whose default action kills a process are not in the set: if the process has no handler, the kernel turns them into
// SIGKILL before they are pending (kernel/signal.c, complete_signal).
const stopSignals uint64 = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGQUIT-1) |
	1<<(syscall.SIGABRT-1) | 1<<(syscall.SIGKILL-1) | 1<<(syscall.SIGTERM-1)

// stopping reports whether one of stopSignals is pending for a thread. It also returns true if the signals of the
// thread cannot be read.
func stopping(tid uint32) bool {
	status, err := proc.Of(int(tid)).Status()
	if err != nil {
		return true // the thread has ended, or is in a namespace that this process cannot see
	}
	return pendingStop(status)
}

// pendingStop reports whether a signal in stopSignals is pending for the thread and not blocked by the thread.
func pendingStop(s proc.Status) bool { return s.Pending&^s.Blocked&stopSignals != 0 }
