// Package background runs the background work of a mount: it repeats work that fails, and records failures for the status.
package background

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Failed background work of a mount is repeated after a pause. The first pause is retryFirst; each following pause is twice as
// long as the previous one, up to retryMost.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second

	// Work that failed because the disk was full is repeated when more disk space is free. The free space is checked every
	// roomPoll, and the work is repeated after roomMost even if no space was freed.
	roomPoll = 2 * time.Second
	roomMost = 10 * time.Minute
	roomStep = 16 << 20 // least number of bytes that must have become free
)

// errFault reports a panic in the background work of a mount.
var errFault = errors.New("the daemon failed inside; its log says where")

// Work is the background work of one mount. Its methods are safe for concurrent use.
type Work struct {
	Store *fetch.Store // store of the mounted remote; set before the first call of Repeat

	dir   string // root of the mount, for the log
	state string // path of the state directory
	log   *zap.Logger
	all   sync.WaitGroup

	mu       sync.Mutex
	failures map[string]error // last errors, by the name of the work; guarded by mu
	retried  chan struct{}    // closed and replaced to repeat failed work at once; guarded by mu
}

// New returns the background work of the mount at the directory dir. The parameter state is the path of the state directory.
func New(dir, state string, log *zap.Logger) *Work {
	return &Work{dir: dir, state: state, log: log, failures: map[string]error{}, retried: make(chan struct{})}
}

// Wait waits until all functions that were passed to Go have returned.
func (w *Work) Wait() { w.all.Wait() }

// Retry repeats failed work immediately, without waiting for the end of its pause.
func (w *Work) Retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.retried)
	w.retried = make(chan struct{})
}

// Go runs work in a goroutine, which Wait waits for. A panic in work is recorded as a failure in the mount's
// status, and the files of the mount are still served. If the panic killed the worker, the successor would run the same work and
// probably die too.
func (w *Work) Go(what string, work func()) {
	w.all.Go(func() {
		w.Note(what, w.Guard(what, func() error {
			work()
			return nil
		}))
	})
}

// Guard calls work and returns its error. It turns a panic into an error that wraps errFault, and logs the stack with the
// message what.
func (w *Work) Guard(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			w.log.Error(what+" panicked", zap.String("dir", w.dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

// Repeat calls work until it succeeds or ctx ends. Between a failure and the next success, the mount's status shows the error
// under the name what. After the first call, Repeat closes the channel tried, if it is not nil, so that other goroutines can
// wait for the first attempt without waiting for success. If ctx ends during the first call, tried remains open; goroutines that
// wait for it therefore wait for the end of the mount too.
func (w *Work) Repeat(ctx context.Context, what string, tried chan<- struct{}, work func() error) {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		// Both channels are read before the call, so that an event during the call is not missed.
		recovered := w.Store.Recovered()
		w.mu.Lock()
		retried := w.retried
		w.mu.Unlock()
		err := w.Guard(what, work)
		if ctx.Err() != nil {
			return
		}
		w.Note(what, err)
		if tried != nil {
			close(tried)
			tried = nil
		}
		if err == nil {
			return
		}
		if errors.Is(err, syscall.ENOSPC) {
			w.awaitRoom(ctx)
			continue
		}
		select {
		case <-time.After(pause):
		case <-recovered: // the remote answers requests again
		case <-retried: // for example, the mount has a new token
			pause = retryFirst
		case <-ctx.Done():
			return
		}
	}
}

// awaitRoom waits until the file system of the state directory has more free space than when awaitRoom was called: a quarter
// more, and at least roomStep bytes more. It returns after roomMost in any case. Without this wait, each retry would transfer a
// pack again that still does not fit.
func (w *Work) awaitRoom(ctx context.Context) {
	before, _ := disk.Free(w.state)
	need := before + max(before/4, roomStep)
	latest := time.NewTimer(roomMost)
	defer latest.Stop()
	for {
		select {
		case <-time.After(roomPoll):
		case <-latest.C:
			return
		case <-ctx.Done():
			return
		}
		if free, err := disk.Free(w.state); err == nil && free >= need {
			return
		}
	}
}

// Note records the result of background work for the status and the log, under the name what. If err is nil, it clears the error
// of an earlier failure.
func (w *Work) Note(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, failed := w.failures[what]
	switch {
	case err != nil:
		w.log.Warn(what, zap.String("dir", w.dir), zap.Error(err))
		w.failures[what] = err
	case failed:
		w.log.Info("succeeded after all: "+what, zap.String("dir", w.dir))
		delete(w.failures, what)
	}
}

// Failure returns an error of background work that has not succeeded since, or nil if there is none. Of several errors it
// returns the first by the name of the work. It skips "remote unreachable" errors if the remote has answered a request since
// then.
func (w *Work) Failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(w.failures)) {
		if fetch.IsUnreachable(w.failures[what]) && w.Store.Reachable() {
			continue // Repeat repeats the work
		}
		return fmt.Errorf("%s: %w", what, w.failures[what])
	}
	return nil
}
