package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/transport"
)

// withdrawTime limits the wait for the session remote when a lane is released after a failed mount.
const withdrawTime = 5 * time.Second

// AheadClaim is a claim that is pushed while the checkpoints of the session are still being fetched, so that the mount
// does not wait for the claim separately. If this fails, because another writer was faster or the session remote does
// not answer, Claim repeats it.
type AheadClaim struct {
	agent  *Agent
	ref    string
	old    object.ID // commit of ref on the session remote
	cancel context.CancelFunc
	opened chan *thin.Push // holds one value; nil if the push could not be opened
	done   chan struct{}   // closed when the goroutine of Begin has returned; nil if Begin was not called

	// The fields below are valid once done is closed.
	now   object.ID // commit that the session remote was asked to move ref to; zero if nothing was sent
	acked bool      // the session remote has acknowledged the move
	err   error
}

// ClaimAhead opens a push of the session's metadata, which is the commit old of ref on the session remote. It returns
// nil if the mount needs no claim. The caller must call End.
func (a *Agent) ClaimAhead(ctx context.Context, remote *thin.Remote, ref string, old object.ID) *AheadClaim {
	if !a.Active() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	c := &AheadClaim{agent: a, ref: ref, old: old, cancel: cancel, opened: make(chan *thin.Push, 1)}
	go func() { // where a push starts with a dialogue, it runs concurrently with the fetch
		push, err := remote.OpenPushOf(ctx, []transport.Ref{{Name: ref, ID: old}})
		if err != nil {
			push = nil
			a.log.Debug("claim ahead", zap.String("session", a.config.Session), zap.Error(err))
		}
		c.opened <- push
	}()
	return c
}

// Begin claims the lane in the repository, which must have the metadata of the session remote, and pushes the claim in
// the background. It may be called on nil.
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

// claim claims the lane in repo and pushes the claim through the opened push. If the session remote has moved, it undoes
// the claim in repo.
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
	if errors.Is(err, writeback.ErrMoved) { // the change of the other writer is followed when Claim pushes the claim again
		l.setClaimed(false)
		return repo.Update(ctx, []session.RefChange{{Name: c.ref, Old: now, New: c.old}})
	}
	if err != nil {
		c.agent.log.Debug("claim ahead", zap.String("session", c.agent.config.Session), zap.Error(err))
	}
	c.now, c.acked = now, err == nil
	return nil
}

// Wait returns when the push of Begin has finished. It returns an error if the lane cannot be claimed. It may be called
// on nil.
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
	return nil // Claim repeats a claim that failed for another reason
}

// AddTo corrects the acknowledged commit of the metadata, or adds the commit to asked if the session remote has not
// answered. It must be called after Wait. It may be called on nil.
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

// End cancels the push, waits for it and closes it. It may be called on nil, and after Wait.
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

// notMade is the recorded reason for releasing a lane whose mount failed.
const notMade = "it could not be mounted"

// withdraw releases the lane of a mount that claimed it and failed to start. Otherwise other writers would refuse to use
// the lane.
func (l *laneClaim) withdraw() {
	a := l.agent
	l.mu.Lock()
	claimed, held, writer, before := l.claimed, l.held, l.writer, l.before
	l.mu.Unlock()
	if !claimed || held != nil {
		return
	}
	a.mu.Lock()
	w, lane := a.work, a.lane.Name
	a.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), withdrawTime, fault.ErrSlow)
	defer cancel()
	err := func() error {
		if w.queue != nil {
			_, err := session.Withdraw(ctx, w.repo, a.config.Session, lane, writer, before, notMade, session.Actor())
			return errors.Join(err, a.Push(ctx, nil))
		}
		return l.withdrawAhead(ctx, writer, before)
	}()
	if err != nil {
		a.log.Warn("let go of a session", zap.String("session", a.config.Session), zap.Error(err))
	}
}

// withdrawAhead is withdraw for an AheadClaim, before a queue exists.
func (l *laneClaim) withdrawAhead(ctx context.Context, writer session.Writer, before object.ID) error {
	c := l.agent.config
	repo, err := c.Repository.OpenMeta()
	if err != nil {
		return err
	}
	defer repo.Close()
	meta, old, err := session.ReadMeta(repo, c.Session)
	if err != nil {
		return err
	}
	if _, err := session.Withdraw(ctx, repo, c.Session, laneOf(meta, writer), writer, before, notMade, session.Actor()); err != nil {
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
