package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// A mount ends in two steps. While the kernel still has it, BeforeUnmount does what may take long: a checkpoint of all
// writes, and the push of everything. After the kernel has detached it, nothing can change any more: End keeps the
// writes since BeforeUnmount too, and releases the lane on the session remote.

// SyncTime is the default for how long a caller waits for the session remote.
const SyncTime = 30 * time.Second

const (
	keepTime = 30 * time.Second // limit for the last checkpoint
	restTime = 15 * time.Second // limit for the final push to a session remote that has just answered
)

// ending is the progress and result of the end of the mount.
type ending struct {
	patience time.Duration // wait for the session remote; SyncTime if 0, none if negative
	tried    bool          // BeforeUnmount has run
	why      error         // reason why the session remote does not have everything
	unsaved  error         // reason why the latest work is in no checkpoint
	pending  int64         // number of refs that are not pushed
	diverged []control.DivergedRef
	empty    bool // the repository holds nothing but metadata
}

// BeforeUnmount makes a checkpoint and pushes it while the kernel still has the mount. With wait, the checkpoint waits
// for the git directory.
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

// patience returns how long the end of a mount waits for the session remote before the unmount, at most half of the time
// until the deadline of ctx, so that time is left for the unmount itself.
func patience(ctx context.Context, wait time.Duration) time.Duration {
	if wait == 0 {
		wait = SyncTime
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	return wait
}

// SetPatience sets how long the end of the mount waits for the session remote: SyncTime if d is 0, not at all if d is
// negative.
func (a *Agent) SetPatience(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending.patience = d
}

// EndRequest states how a mount ends.
type EndRequest struct {
	Served bool // the kernel had the mount
	Opened bool // its working tree was opened, and still is
	Keep   bool // the work is not discarded with the mount
	Reason session.Reason
}

// End ends the Agent. The mount must be detached from the kernel, and Start must have returned.
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
	if r.Served && r.Keep {
		a.endWork(r.Reason)
	}
	a.mu.Lock()
	w := a.work
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
		a.log.Warn("end a session", zap.String("session", a.config.Session), zap.Error(err))
	}
}

// endWork keeps all remaining work, releases the lane, and pushes both.
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
	if wait >= 0 && (!tried || before == nil || answered(before)) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), restTime, fault.ErrSlow)
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

// count records the refs that are not pushed at the end.
func (e *ending) count(st writeback.Status) {
	e.pending, e.diverged = int64(st.Pending), divergedRefs(st)
	if e.why == nil {
		e.why = st.Failure
	}
}

// Empty reports, after End, whether the repository holds nothing but metadata.
func (a *Agent) Empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending.empty
}

// Left describes the work that is not pushed after End.
type Left struct {
	Pending  int64 // number of refs; 0 if everything was pushed
	Why      string
	Diverged []control.DivergedRef // refs that were pushed under another name
}

// Left returns the work that is not pushed. It must be called after End.
func (a *Agent) Left() Left {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := Left{Diverged: a.ending.diverged}
	switch {
	case a.ending.unsaved != nil: // at least 1, for the ref that the missing checkpoint would have moved
		l.Pending, l.Why = max(1, a.ending.pending), "the last changes are in no checkpoint: "+control.AsError(a.ending.unsaved).Error()
	case a.ending.pending == 0:
	case a.ending.why == nil:
		l.Pending, l.Why = a.ending.pending, "it was not waited for"
	default:
		l.Pending, l.Why = max(1, a.ending.pending), fault.OneLine(control.AsError(a.ending.why).Cause)
	}
	return l
}

// answered reports whether the session remote has answered, although it does not have all of the work.
func answered(err error) bool {
	return errors.Is(err, writeback.ErrMoved) || errors.Is(err, writeback.ErrRefused)
}
