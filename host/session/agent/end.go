package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// A mount ends in two steps. BeforeUnmount runs while the mount is still attached to the kernel, and does everything
// that may take long: it makes a checkpoint and pushes everything. After the mount was detached, no process can change
// it any more. Then End stores the changes since BeforeUnmount, and releases the lane on the session remote.

// SyncTime is the default timeout for operations that wait until the session remote has everything.
const SyncTime = 30 * time.Second

const (
	keepTime = 30 * time.Second // timeout for the last checkpoint of a mount
	// drainTime is the timeout for a push in progress when a session is deleted; the session is deleted on the session
	// remote after that.
	drainTime     = 5 * time.Second
	finalPushTime = 15 * time.Second // timeout for the final push, after the session remote has answered BeforeUnmount
)

// ending has the progress and the result of ending the mount.
type ending struct {
	// timeout for waiting for the session remote; 0 means SyncTime; if negative, the mount does not wait
	patience time.Duration
	tried    bool // whether BeforeUnmount has run
	// reason why refs are missing on the session remote; nil if the reason is unknown or no ref is missing
	why      error
	unsaved  error                 // reason why the latest changes are in no checkpoint; nil if a checkpoint contains them
	pending  int64                 // number of refs that are not pushed
	diverged []control.DivergedRef // refs that were pushed under another name
	empty    bool                  // whether the session repository has nothing except metadata
}

// BeforeUnmount creates a checkpoint and pushes it while the mount is still attached to the kernel. If wait is set and
// files have changed, it first waits until the git directory was created.
func (a *Agent) BeforeUnmount(ctx context.Context, reason session.Reason, wait bool) {
	if !a.Active() {
		return
	}
	keep, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	if wait && (a.config.Tree.Changed() > 0 || a.config.massRemoved()) {
		a.config.Git.Await(keep)
	}
	err := a.KeepAll(keep, reason)
	a.mu.Lock()
	asked := a.ending.patience
	a.mu.Unlock()
	if wait := patience(ctx, asked); wait > 0 {
		ctx, cancel := context.WithTimeoutCause(ctx, wait, fault.ErrSlow)
		defer cancel()
		err = errors.Join(err, a.Push(ctx, nil))
	}
	if err != nil {
		a.log.Warn("push session before unmounting", zap.String("dir", a.config.Dir), zap.Error(err))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending.tried, a.ending.why = true, err
}

// patience returns the timeout for the push in BeforeUnmount: the duration wait, or SyncTime if wait is 0, but at most
// half of the time until the deadline of ctx, so that there is time for the unmount itself.
func patience(ctx context.Context, wait time.Duration) time.Duration {
	if wait == 0 {
		wait = SyncTime
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	return wait
}

// SetPatience sets the timeout for the push when the mount ends. 0 stands for SyncTime. If d is negative, the mount
// ends without waiting for the session remote.
func (a *Agent) SetPatience(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending.patience = d
}

// EndRequest has the parameters of Agent.End.
type EndRequest struct {
	Served bool           // whether the mount was attached to the kernel
	Opened bool           // whether the working tree of the mount is open
	Keep   bool           // whether the changes are kept; if false, they are discarded with the mount
	Reason session.Reason // reason that is recorded in the last checkpoint
}

// End stores the remaining changes of the mount, releases the lane, and closes everything that Open has opened. The
// mount must be detached from the kernel, and Start must have returned.
func (a *Agent) End(r EndRequest) {
	if a.place.home == "" {
		return
	}
	if !r.Served {
		a.claim.withdraw()
	}
	if !r.Opened || !a.Active() {
		return
	}
	a.mu.Lock()
	w := a.work
	a.mu.Unlock()
	if r.Reason == session.Discard && w.queue != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainTime)
		w.queue.Drain(ctx)
		cancel()
	}
	if r.Served && r.Keep {
		a.endWork(r.Reason)
	}
	a.mu.Lock()
	w = a.work
	a.closed = true
	a.mu.Unlock()
	var errs []error
	if w.copier != nil {
		w.copier.Close()
	}
	if w.queue != nil {
		st := w.queue.Status()
		a.mu.Lock()
		a.ending.count(st)
		a.mu.Unlock()
		errs = append(errs, w.queue.Close())
	}
	if w.origin != nil {
		errs = append(errs, w.origin.Close())
	}
	if w.repo != nil {
		empty := isEmpty(w.repo)
		a.mu.Lock()
		a.ending.empty = empty
		a.mu.Unlock()
		errs = append(errs, w.repo.Close())
	}
	if err := errors.Join(errs...); err != nil {
		a.log.Warn("end session", zap.String("session", a.config.Session), zap.Error(err))
	}
}

// endWork stores all remaining changes in the session repository, releases the lane, and pushes both.
func (a *Agent) endWork(reason session.Reason) {
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	err := a.KeepAll(ctx, reason)
	var lost UnsavedError
	a.mu.Lock()
	if errors.As(err, &lost) {
		a.ending.unsaved = lost
	}
	repo, lane, tried := a.work.repo, a.lane.Name, a.ending.tried
	before, wait := a.ending.why, a.ending.patience
	a.mu.Unlock()
	if repo == nil {
		return
	}
	if _, releaseErr := session.Release(ctx, repo, a.config.Session, lane, a.claim.owner(), string(reason),
		session.Actor()); releaseErr != nil {
		err = errors.Join(err, releaseErr)
	}
	if wait >= 0 && reason != session.Discard && (!tried || before == nil || answered(before)) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), finalPushTime, fault.ErrSlow)
		defer cancel()
		err = errors.Join(err, a.Push(ctx, nil))
	} else if err == nil {
		err = before
	}
	if err != nil {
		a.log.Warn("push session while unmounting", zap.String("dir", a.config.Dir), zap.Error(err))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending.why = err
}

// count records the number of refs that are not pushed and, if no reason is recorded yet, the reason why.
func (e *ending) count(st writeback.Status) {
	e.pending, e.diverged = int64(st.Pending), divergedRefs(st)
	if e.why == nil {
		e.why = st.Failure
	}
}

// Empty reports whether the session repository has nothing except metadata. It must be called after End.
func (a *Agent) Empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending.empty
}

// Left describes the refs that are not on the session remote after the end of a mount.
type Left struct {
	Pending  int64                 // number of refs that are not pushed; 0 if all refs were pushed
	Why      string                // reason why refs are not pushed; "" if Pending is 0
	Diverged []control.DivergedRef // refs that were pushed under another name
}

// Left returns the number of refs that are not on the session remote, with the reason. It must be called after End.
func (a *Agent) Left() Left {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := Left{Diverged: a.ending.diverged}
	switch {
	case a.ending.unsaved != nil: // count at least the ref that the checkpoint would have updated if it had not failed
		l.Pending, l.Why = max(1, a.ending.pending),
			"last changes are in no checkpoint: "+control.AsError(a.ending.unsaved).Error()
	case a.ending.pending == 0:
	case a.ending.why == nil:
		l.Pending, l.Why = a.ending.pending, "push was not waited for"
	default:
		l.Pending, l.Why = max(1, a.ending.pending), fault.OneLine(control.AsError(a.ending.why).Cause)
	}
	return l
}

// answered reports whether err means that the session remote has answered, but has not accepted all updates.
func answered(err error) bool {
	return errors.Is(err, writeback.ErrMoved) || errors.Is(err, writeback.ErrRefused)
}
