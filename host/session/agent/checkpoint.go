package agent

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

const (
	fewSegments = 4 // number of segments above which a goroutine counts the checkpoints after Open has returned
	// oldLimit is the number of checkpoints that gc would drop from which Notices suggests gc. The number matters
	// because each checkpoint has to be read when checkpoints are counted or listed.
	oldLimit = 1000
)

// Checkpoint creates a checkpoint of the working tree. If nothing has changed since the newest checkpoint, it returns
// that, and made is false.
func (a *Agent) Checkpoint(ctx context.Context, reason session.Reason,
	message string) (p session.Checkpoint, made bool, err error) {
	p, report, err := a.Capture(ctx, reason, message)
	return p, report.Made, err
}

// Capture creates a checkpoint like Checkpoint, and returns also a report, which names the files that the checkpoint
// does not contain. It waits until the git directory was created, because the state of the git directory is part of a
// checkpoint. carry is as for capture.Capturer.Checkpoint.
func (a *Agent) Capture(ctx context.Context, reason session.Reason, message string,
	carry ...capture.Carrying) (session.Checkpoint, capture.Report, error) {
	if !a.config.Git.Await(ctx) {
		return session.Checkpoint{}, capture.Report{}, ErrEnded
	}
	return a.CaptureNow(ctx, reason, message, carry...)
}

// CaptureNow creates a checkpoint like Capture, but does not wait until the git directory was created.
func (a *Agent) CaptureNow(ctx context.Context, reason session.Reason, message string, carry ...capture.Carrying) (
	p session.Checkpoint, report capture.Report, err error,
) {
	if err = a.Lock(ctx); err != nil {
		return p, report, err
	}
	defer a.Unlock()
	if _, err = a.Open(ctx); err != nil {
		return p, report, err
	}
	// Take the token even if the policy ignores changes of the git directory, because in this case no goroutine takes
	// it.
	signed := signal.Take(a.git.moved)
	if signed {
		a.git.noteChange()
	}
	began := time.Now()
	p, report, err = a.opened().capturer.Checkpoint(ctx, reason, message, carry...)
	a.problems.note("create checkpoint", err)
	if err != nil {
		if signed {
			a.git.sign()
		}
		return p, report, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.checkpoints
	c.newest, c.seen, c.leftOut, c.unread = p, began, report.Left, report.Unread
	c.unfiltered = report.Unfiltered
	if report.Made {
		c.count++
		c.made.Made++
		c.made.Paused = max(c.made.Paused, report.Paused)
		c.made.Took += report.Took
		a.log.Debug("created checkpoint", zap.String("dir", a.config.Dir), zap.String("id", string(p.ID)),
			zap.String("reason", string(reason)),
			zap.Int64("changed", p.Changed), zap.Duration("paused", report.Paused), zap.Duration("took", report.Took))
	}
	return p, report, nil
}

// CheckpointHead creates a checkpoint if HEAD refers to another commit than in the newest checkpoint in repo.
func (a *Agent) CheckpointHead(ctx context.Context, repo *session.Repo) error {
	last := object.ID{}
	if newest, err := repo.Checkpoints(1); err != nil {
		return err
	} else if len(newest) > 0 {
		last = newest[0].Head
	}
	_, head, err := session.NewRefDir(a.place.gitDir, repo.Format()).Head()
	if err != nil || head == last {
		return err
	}
	_, _, err = a.Checkpoint(ctx, session.Git, "")
	return err
}

// checkpointLock is a lock whose method Lock stops waiting when a context ends. The channel has capacity 1 and is full
// while the lock is held.
type checkpointLock chan struct{}

// Lock acquires the lock under which checkpoints are made or removed. If ctx ends first, it returns the cause of this
// end.
func (t checkpointLock) Lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t checkpointLock) Unlock() { <-t }

// Newest returns the newest checkpoint that this process has made or found, and the name of the lane in which the next
// checkpoint is made.
func (a *Agent) Newest() (p session.Checkpoint, lane string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkpoints.newest, a.lane.Name
}

// LeftOut returns the files of the working tree that the checkpoint id does not contain, as of the last comparison with
// the working tree. It returns false if id is not the newest checkpoint, or if this process has made no comparison. The
// checkpoint state stores another list: the files that were left out when the checkpoint was created.
func (a *Agent) LeftOut(id session.CheckpointID) ([]capture.LeftOut, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkpoints.leftOut, a.checkpoints.newest.ID == id && a.checkpoints.leftOut != nil
}

// Recount counts the checkpoints in the session repository again. It must be called after checkpoints were added or
// removed there by other code.
func (a *Agent) Recount() {
	a.mu.Lock()
	repo, made := a.work.repo, a.checkpoints.made.Made
	a.mu.Unlock()
	checkpoints, err := repo.Checkpoints(0)
	if err != nil {
		a.log.Warn("count checkpoints", zap.String("session", a.config.Session), zap.Error(err))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.checkpoints
	c.count, c.old = int64(len(checkpoints))+int64(c.made.Made-made), oldCheckpoints(checkpoints, time.Now())
}

// oldCheckpoints returns the number of checkpoints that are older than session.DefaultAll. Of these, gc keeps only the
// last one of each day and those that are pinned. The checkpoints must be sorted, newest first.
func oldCheckpoints(checkpoints []session.Checkpoint, now time.Time) int {
	i := slices.IndexFunc(checkpoints, func(p session.Checkpoint) bool { return now.Sub(p.Time) > session.DefaultAll })
	if i < 0 {
		return 0
	}
	return len(checkpoints) - i
}

// massRemoved reports whether many files were removed or overwritten at once since the last checkpoint.
func (c *Config) massRemoved() bool {
	_, _, many := c.Removals.MassRemoved()
	return many
}

// unsaved reports whether files or the git directory may have changed since the newest checkpoint.
func (a *Agent) unsaved() bool {
	repo := a.opened().repo
	if a.config.Tree.Changed() > 0 || a.config.massRemoved() ||
		repo == nil && statedir.HasSessionRepo(a.place.home) || repo != nil && !isEmpty(repo) {
		return true
	}
	untouched, err := a.config.Git.Untouched()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // if the git directory does not exist, git has changed nothing
		a.log.Debug("check git directory for changes", zap.String("dir", a.config.Dir), zap.Error(err))
	}
	return err == nil && !untouched
}

// isEmpty reports whether a session repository has no refs except the metadata of its session.
func isEmpty(repo *session.Repo) bool {
	refs, err := repo.Refs("")
	return err == nil && !slices.ContainsFunc(refs,
		func(r packedrefs.Ref) bool { return r.Name != session.MetaRef(repo.Session()) })
}

// KeepAll stores all changes in the session repository: the refs of the git directory and a checkpoint. If the policy
// is off, it creates a checkpoint only for the reason session.Manual. KeepAll returns an UnsavedError if some changes
// could not be stored.
func (a *Agent) KeepAll(ctx context.Context, reason session.Reason) error {
	// no program has changed anything
	if !a.config.Git.Exists() && a.config.Tree.Changed() == 0 && !a.config.massRemoved() {
		return nil
	}
	off := a.policy() == control.PolicyOff
	err := a.Flush(ctx)
	if off && reason != session.Manual || !a.unsaved() {
		return unsavedError(err)
	}
	if _, _, captureErr := a.CaptureNow(ctx, reason, ""); captureErr != nil {
		return errors.Join(err, unsavedError(captureErr))
	}
	// The checkpoint contains the commits of all refs, so no change is lost if copying the refs has failed. But a user who
	// clones the embedded session remote may then lack contents.
	if a.Options().Remote == control.RemoteEmbedded {
		return err
	}
	return unsavedError(err)
}

// KeepNewest creates a checkpoint in the mount of the agent a if files or the git directory may have changed since the
// newest checkpoint. It does nothing if the mount makes no checkpoints, or if nothing was ever changed, so that no
// session repository is created.
func KeepNewest(ctx context.Context, a *Agent) error {
	if !a.Active() || !a.unsaved() {
		return nil
	}
	_, _, err := a.Checkpoint(ctx, session.Idle, "")
	return err
}

// Flush copies the current refs of the git directory into the session repository.
func (a *Agent) Flush(ctx context.Context) error {
	a.turn.endWait(ctx)
	copier := a.opened().copier
	if copier == nil {
		return nil
	}
	return copier.Flush(ctx)
}

// UnsavedError means that some of the latest changes are not stored in the session repository.
type UnsavedError struct{ cause error }

// unsavedError returns err wrapped in an UnsavedError, or nil if err is nil.
func unsavedError(err error) error {
	if err == nil {
		return nil
	}
	return UnsavedError{err}
}

// Error returns the message of the cause.
func (e UnsavedError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e UnsavedError) Unwrap() error { return e.cause }
