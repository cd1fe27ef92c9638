package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// withdrawTime is the timeout for releasing a lane on the session remote after the mount of the session has failed to
// start.
const withdrawTime = 5 * time.Second

// AheadClaim is a claim on a lane that is pushed while the checkpoints of the session are still being fetched, so that
// the mount does not have to wait for both in sequence. If the push fails, because another writer was faster or the
// session remote does not answer, Agent.Claim pushes the claim again.
type AheadClaim struct {
	agent  *Agent
	ref    string             // metadata ref of the session
	old    object.ID          // commit of ref on the session remote
	cancel context.CancelFunc // cancels the push
	opened chan *thin.Push    // receives the open push; nil if it could not be opened
	done   chan struct{}      // closed when the goroutine that Begin starts has returned; nil if Begin was not called

	// The fields below may be read after the channel done was closed.
	now   object.ID // commit that was sent as the new commit of ref; zero if nothing was sent
	acked bool      // whether the session remote has acknowledged the commit now
	err   error     // error of the push or of the claim
}

// ClaimAhead opens a push to ref, the metadata ref of the session, in the background, for a later AheadClaim.Begin. old
// is the commit of ref on the session remote. ClaimAhead returns nil if the mount makes no checkpoints and so needs no
// claim. The caller must call End.
func (a *Agent) ClaimAhead(ctx context.Context, remote *thin.Remote, ref string, old object.ID) *AheadClaim {
	if !a.Active() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	c := &AheadClaim{agent: a, ref: ref, old: old, cancel: cancel, opened: make(chan *thin.Push, 1)}
	go func() { // opening a push may take several requests, so it runs concurrently with the fetch
		push, err := remote.OpenPushOf(ctx, []transport.Ref{{Name: ref, ID: old}})
		if err != nil {
			push = nil
			a.log.Debug("claim session in advance", zap.String("session", a.config.Session), zap.Error(err))
		}
		c.opened <- push
	}()
	return c
}

// Begin claims a lane in the metadata in repo, which must be the same as on the session remote, and pushes the claim in
// the background. It does nothing if c is nil.
func (c *AheadClaim) Begin(ctx context.Context, repo *session.Repo) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	before := c.cancel
	c.cancel, c.done = func() { cancel(); before() }, make(chan struct{})
	go func() {
		defer close(c.done)
		c.err = c.claim(ctx, repo)
	}()
}

// claim claims a lane in the metadata in repo, and pushes the claim with the push that ClaimAhead has opened. If
// another writer has changed the metadata on the session remote, claim undoes its change in repo.
func (c *AheadClaim) claim(ctx context.Context, repo *session.Repo) error {
	l := &c.agent.claim
	if _, err := l.claimLane(ctx, repo, c.agent.Options().TakeOver); err != nil {
		return err
	}
	now, err := repo.Ref(c.ref)
	if err != nil || now == c.old {
		return err
	}
	push := <-c.opened
	c.opened <- nil
	if push == nil {
		return nil
	}
	defer push.Close()
	l.setClaimed(true)
	err = writeback.Ahead(ctx, repo, push, c.ref, c.old, now)
	// The remote has refused the push, so undo the claim in repo. Later Agent.Claim processes the other writer's change
	// and pushes a new claim.
	if errors.Is(err, writeback.ErrMoved) {
		l.setClaimed(false)
		return repo.Update(ctx, []session.RefChange{{Name: c.ref, Old: now, New: c.old}})
	}
	if err != nil {
		c.agent.log.Debug("claim session in advance", zap.String("session", c.agent.config.Session), zap.Error(err))
	}
	c.now, c.acked = now, err == nil
	return nil
}

// Wait waits until the push that Begin started has ended. It returns an error if another writer has the lane, or the
// session is closed. It returns nil after any other error, because Agent.Claim repeats the claim, and if c is nil.
func (c *AheadClaim) Wait() error {
	if c == nil {
		return nil
	}
	start := time.Now()
	<-c.done
	c.agent.claim.setWaited(time.Since(start))
	if IsRefusal(c.err) {
		return c.err
	}
	return nil // any other error is ignored, because Agent.Claim repeats the claim
}

// AddTo adds the metadata ref to the map acknowledged, with the commit that the session remote has acknowledged: the
// commit that was pushed or, without an acknowledgement, the previous one. In the second case AddTo also adds the
// commit that was pushed to the map asked. The caller must have called Wait. AddTo does nothing if c is nil or if
// nothing was pushed.
func (c *AheadClaim) AddTo(acknowledged, asked map[string]object.ID) {
	if c == nil || c.now.IsZero() {
		return
	}
	if acknowledged[c.ref] = c.old; c.acked {
		acknowledged[c.ref] = c.now
	} else {
		asked[c.ref] = c.now
	}
}

// End cancels the push of the claim, waits until it has ended, and closes it. It does nothing if c is nil.
func (c *AheadClaim) End() {
	if c == nil {
		return
	}
	c.cancel()
	if c.done != nil {
		<-c.done
	}
	if push := <-c.opened; push != nil {
		push.Close()
	}
}

// reasonNotMounted is the reason that the metadata records when the lane of a mount that has failed to start is
// released.
const reasonNotMounted = "session could not be mounted"

// withdraw releases the lane that a mount has claimed before it failed to start. Without the release, other machines
// would have to take the lane over. Errors are logged.
func (l *laneClaim) withdraw() {
	a := l.agent
	l.mu.Lock()
	claimed, refused, writer, before := l.claimed, l.refused, l.writer, l.before
	l.mu.Unlock()
	if !claimed || refused != nil {
		return
	}
	a.mu.Lock()
	w, lane := a.work, a.lane.Name
	a.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), withdrawTime, fault.ErrSlow)
	defer cancel()
	err := func() error {
		if w.queue != nil {
			_, err := session.Withdraw(ctx, w.repo, a.config.Session, lane, writer, before, reasonNotMounted, session.Actor())
			return errors.Join(err, a.Push(ctx, nil))
		}
		return l.withdrawAhead(ctx, writer, before)
	}()
	if err != nil {
		a.log.Warn("release claim on session", zap.String("session", a.config.Session), zap.Error(err))
	}
}

// withdrawAhead releases a lane that only an AheadClaim has claimed. Because no queue was opened then, it pushes the
// release itself. before is the commit of the metadata before the claim.
func (l *laneClaim) withdrawAhead(ctx context.Context, writer session.Writer, before object.ID) error {
	c := l.agent.config
	repo, err := c.Repository.OpenMeta(before.Format())
	if err != nil {
		return err
	}
	defer repo.Close()
	meta, old, err := session.ReadMeta(repo, c.Session)
	if err != nil {
		return err
	}
	if _, err := session.Withdraw(ctx, repo, c.Session, laneOf(meta, writer), writer, before, reasonNotMounted,
		session.Actor()); err != nil {
		return err
	}
	ref := session.MetaRef(c.Session)
	now, err := repo.Ref(ref)
	if err != nil || now == old {
		return err
	}
	push, err := c.Remotes.Session().OpenPushOf(ctx, []transport.Ref{{Name: ref, ID: old}})
	if err != nil {
		return err
	}
	defer push.Close()
	return writeback.Ahead(ctx, repo, push, ref, old, now)
}
