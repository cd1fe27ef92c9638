// Package background runs the background work of a mount: it repeats work that fails, and records failures for the
// status.
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
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// pauses are the pauses before background work of a mount that has failed is repeated.
var pauses = backoff.Backoff{First: time.Second, Longest: 30 * time.Second}

const (
	// maxSpacePause is the longest pause before work is repeated that has failed because the disk was full. It is
	// repeated earlier when more space is free. spacePoll is the interval between two checks of the free space.
	spacePoll     = 2 * time.Second
	maxSpacePause = 10 * time.Minute
	minFreed      = 16 << 20 // minimum number of bytes that must become free before such work is repeated
)

// errFault means that background work has panicked.
var errFault = errors.New("internal error of the daemon; its log shows the cause")

// Work runs the background work of one mount. The methods may be called from any goroutine.
type Work struct {
	Store *fetch.Store // store of the mounted remote; set before the first call of Repeat

	dir   string // root of the mount, for the log
	state string // path of the state directory
	log   *zap.Logger
	all   sync.WaitGroup

	mu       sync.Mutex
	failures map[string]error // error of the last attempt, by the name of the work that has failed; protected by mu
	retried  chan struct{}    // closed, and replaced by a new channel, to repeat failed work at once; protected by mu
}

// New returns the Work of the mount at dir. state is the path of the state directory.
func New(dir, state string, log *zap.Logger) *Work {
	return &Work{dir: dir, state: state, log: log, failures: map[string]error{}, retried: make(chan struct{})}
}

// Wait waits until all functions that were passed to Go have returned.
func (w *Work) Wait() { w.all.Wait() }

// Retry makes failed work run again at once, without waiting for the end of its pause.
func (w *Work) Retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.retried)
	w.retried = make(chan struct{})
}

// Go calls the function work in a goroutine. what is the name of the work. If work panics, the status of the mount
// shows a failure, and the mount is still served; otherwise the panic would kill the worker, and probably the
// successor, which runs the same work.
func (w *Work) Go(what string, work func()) {
	w.all.Go(func() {
		w.Note(what, w.Guard(what, func() error {
			work()
			return nil
		}))
	})
}

// Guard calls the function work and returns its error. If work panics, Guard returns an error that wraps errFault, and
// logs the stack. what is the name of the work.
func (w *Work) Guard(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			w.log.Error(what+" panicked", zap.String("dir", w.dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

// Repeat calls the function work until it succeeds or ctx ends. Between a failure and the next success, the mount's
// status shows the error under the name what. After the first call, Repeat closes the channel tried, if it is not nil,
// so that other goroutines can wait for the first attempt without waiting for success. If ctx ends during the first
// call, tried remains open, so goroutines that wait for it must wait for the end of the mount, too.
func (w *Work) Repeat(ctx context.Context, what string, tried chan<- struct{}, work func() error) {
	for failures := 1; ; failures++ {
		// Both channels are read before the call of work, so that an event during the call is not missed.
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
			w.awaitSpace(ctx)
			continue
		}
		select {
		case <-time.After(pauses.Pause(failures)):
		case <-recovered: // the remote is reachable again
		case <-retried: // for example, the mount has a new token
			failures = 1
		case <-ctx.Done():
			return
		}
	}
}

// awaitSpace waits until the file system of the state directory has more free space than at the time of the call: a
// quarter more, and at least minFreed bytes more. It returns after maxSpacePause at the latest. Without this wait, each
// attempt would transfer a pack for which there is still no space.
func (w *Work) awaitSpace(ctx context.Context) {
	before, _ := disk.Free(w.state)
	need := before + max(before/4, minFreed)
	latest := time.NewTimer(maxSpacePause)
	defer latest.Stop()
	for {
		select {
		case <-time.After(spacePoll):
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

// Note records err as the result of the background work called what, for the status and the log. If err is nil, the
// work has succeeded, and the error of an earlier failure is removed.
func (w *Work) Note(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, failed := w.failures[what]
	switch {
	case err != nil:
		w.log.Warn(what, zap.String("dir", w.dir), zap.Error(err))
		w.failures[what] = err
	case failed:
		w.log.Info("succeeded after earlier failures: "+what, zap.String("dir", w.dir))
		delete(w.failures, what)
	}
}

// Failure returns the error of background work whose last attempt has failed, or nil if there is none; if there are
// several, the first by the name of the work. It ignores errors because of an unreachable remote if the remote can be
// reached again.
func (w *Work) Failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(w.failures)) {
		if fetch.IsUnreachable(w.failures[what]) && w.Store.Reachable() {
			continue // the remote answers again, and Repeat will soon repeat the work that failed
		}
		return fmt.Errorf("%s: %w", what, w.failures[what])
	}
	return nil
}
