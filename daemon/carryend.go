package daemon

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

// A mount ends in two steps. While the kernel still has it, what takes long is done: a point of what programs have written,
// and the sending of all there is. When it is gone, nothing can change any more: what was written in between is kept too, and
// the session remote hears that nobody works in the session now.

// How long the end of a mount may take for what is carried away.
const (
	syncTime = 30 * time.Second // for the session remote, while the mount is still there
	keepTime = 30 * time.Second // for a point
	restTime = 15 * time.Second // for the session remote, which has just answered, to hear of the rest
	lastTime = 5 * time.Second  // for it to hear of a change of a session that is not mounted
)

// ending is how a mount ends, for what is carried away from it.
type ending struct {
	patience time.Duration // for the session remote; 0: syncTime, negative: none
	tried    bool          // before did its part
	why      error         // that not all is there
	unkept   error         // why the last of the work is in no point
	pending  int64         // refs that are not on the session remote
	diverged []control.DivergedRef
	empty    bool // the repository holds nothing but that it is there
}

// before does what takes long of the end of a mount, while it is still there.
func (c *carry) before(ctx context.Context) {
	m := c.mount
	if !c.carries() || m.removes() || !m.wasServed() || m.foreign() || !m.mounted() {
		return
	}
	keep, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	if (m.changed() > 0 || m.massRemoved()) && m.snapshot().Whole() { // a checkpoint needs the git directory, which may not exist yet
		m.triedGit(keep)
	}
	err := c.keepAll(keep, c.endReason())
	if wait := c.patience(ctx); wait > 0 {
		ctx, cancel := context.WithTimeoutCause(ctx, wait, fault.ErrSlow)
		defer cancel()
		err = errors.Join(err, c.send(ctx, nil))
	}
	if err != nil {
		m.daemon.log.Warn("push session before unmounting", zap.String("dir", m.dir), zap.Error(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending.tried, c.ending.why = true, err
}

// patience is how long the session remote is waited for before the mount goes, and leaves time to take it away.
func (c *carry) patience(ctx context.Context) time.Duration {
	c.mu.Lock()
	wait := c.ending.patience
	c.mu.Unlock()
	if wait == 0 {
		wait = syncTime
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	return wait
}

func (c *carry) setPatience(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending.patience = d
}

// endReason is that of the point with which the mount ends.
func (c *carry) endReason() session.Reason {
	if c.mount.discards() {
		return session.Discard
	}
	if c.mount.daemon.ending() {
		return session.Shutdown
	}
	return session.Unmount
}

// ending says whether the daemon is being closed.
func (d *Daemon) ending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// end ends the carrying. The kernel does not have the mount any more, and nobody makes points now; the tree is still open.
func (c *carry) end() {
	m := c.mount
	c.withdraw()
	if m.home == nil || m.tree == nil || !c.carries() {
		return
	}
	if m.wasServed() && !m.removes() {
		c.endWork()
	}
	c.mu.Lock()
	carrier, queue, repo, origin := c.carrier, c.queue, c.repo, c.origin
	c.closed = true
	c.mu.Unlock()
	var errs []error
	if carrier != nil {
		carrier.Close()
	}
	if queue != nil {
		c.count()
		errs = append(errs, queue.Close())
	}
	if origin != nil {
		errs = append(errs, origin.Close())
	}
	if repo != nil {
		empty := isEmpty(repo)
		c.mu.Lock()
		c.ending.empty = empty
		c.mu.Unlock()
		errs = append(errs, repo.Close())
	}
	if err := errors.Join(errs...); err != nil {
		m.daemon.log.Warn("end a session", zap.String("session", m.session), zap.Error(err))
	}
}

// endWork keeps what is not kept yet, and has it told that nobody works in the session any more.
func (c *carry) endWork() {
	ctx, cancel := context.WithTimeout(context.Background(), keepTime)
	defer cancel()
	c.mount.redirects.end(ctx) // nothing is bound over what stands for them any more
	err := c.keepAll(ctx, c.endReason())
	var lost unkeptError
	c.mu.Lock()
	if errors.As(err, &lost) {
		c.ending.unkept = lost
	}
	repo, writer, lane, tried := c.repo, c.writer, c.lane.Name, c.ending.tried
	before, wait := c.ending.why, c.ending.patience
	c.mu.Unlock()
	if repo == nil {
		return
	}
	if _, releaseErr := session.Release(ctx, repo, c.mount.session, lane, writer, string(c.endReason()), session.Actor()); releaseErr != nil {
		err = errors.Join(err, releaseErr)
	}
	if wait >= 0 && (!tried || before == nil || answered(before)) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), restTime, fault.ErrSlow)
		defer cancel()
		err = errors.Join(err, c.send(ctx, nil))
	} else if err == nil {
		err = before
	}
	if err != nil {
		c.mount.daemon.log.Warn("push session while unmounting", zap.String("dir", c.mount.dir), zap.Error(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending.why = err
}

// count notes what is not on the session remote in the end.
func (c *carry) count() {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.queue.Status()
	c.ending.pending, c.ending.diverged = int64(st.Pending), divergedRefs(st)
	if c.ending.why == nil {
		c.ending.why = st.Failure
	}
}

// tellLeft says in the reply to an unmount what of the work is not on the session remote, and why, and what is there under
// another name.
func (c *carry) tellLeft(reply *control.UnmountReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reply.Pending, reply.Why = c.left()
	if reply.DivergedRefs = c.ending.diverged; len(reply.DivergedRefs) > 0 {
		reply.SessionRemote = shownRemote(c.options.Remote, "", c.mount.record)
	}
}

// left returns what of the work is not on the session remote, and why. The caller holds mu.
func (c *carry) left() (pending int64, why string) {
	if c.ending.unkept != nil { // the ref that would have moved
		return max(1, c.ending.pending), "the last changes are in no checkpoint: " + control.AsError(c.ending.unkept).Error()
	}
	if c.ending.pending == 0 {
		return 0, ""
	}
	if c.ending.why == nil {
		return c.ending.pending, "it was not waited for"
	}
	return max(1, c.ending.pending), fault.OneLine(control.AsError(c.ending.why).Cause)
}

// answered says whether a session remote that does not have all of the work is there to be told of the end of it.
func answered(err error) bool {
	return errors.Is(err, writeback.ErrMoved) || errors.Is(err, writeback.ErrRefused)
}

// wasServed says whether the kernel had the mount.
func (m *mount) wasServed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cancel != nil
}
