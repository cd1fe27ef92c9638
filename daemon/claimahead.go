package daemon

import (
	"cmp"
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

// A session that comes from elsewhere is claimed while its points are on their way, so that nobody waits for that alone. What
// cannot be done so, because somebody was quicker or the session remote does not answer, is left to confirm.

// aheadClaim is the claim of a lane that is under way while a session is brought.
type aheadClaim struct {
	carry  *carry
	ref    string
	old    object.ID // of ref, on the session remote
	cancel context.CancelFunc
	opened chan *thin.Push // nil: it cannot be had
	done   chan struct{}   // closed when what begin has begun is over; nil: it was not called

	// Valid once done is closed.
	now   object.ID // what the session remote was asked to make of ref; zero: nothing was sent
	acked bool      // and has
	err   error
}

// claimAhead opens the way for a claim; nil: there is none to be made. Where a push is a dialogue it begins now.
func (c *carry) claimAhead(ctx context.Context, remote *thin.Remote, ref string, old object.ID) *aheadClaim {
	if !c.carries() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	a := &aheadClaim{carry: c, ref: ref, old: old, cancel: cancel, opened: make(chan *thin.Push, 1)}
	go func() {
		push, err := remote.OpenPushOf(ctx, []transport.Ref{{Name: ref, ID: old}})
		if err != nil {
			push = nil
			c.mount.daemon.log.Debug("claim ahead", zap.String("session", c.mount.session), zap.Error(err))
		}
		a.opened <- push
	}()
	return a
}

// begin claims the lane in the repository, which holds what the session remote knows of the session, and there.
func (a *aheadClaim) begin(ctx context.Context, repo *session.Repo) {
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	before := a.cancel
	a.cancel, a.done = func() { cancel(); before() }, make(chan struct{})
	go func() {
		defer close(a.done)
		a.err = a.claim(ctx, repo)
	}()
}

func (a *aheadClaim) claim(ctx context.Context, repo *session.Repo) error {
	c := a.carry
	if _, err := c.claimLane(ctx, repo, c.optionsNow().TakeOver); err != nil {
		return err
	}
	now, err := repo.Ref(a.ref)
	if err != nil || now == a.old {
		return err
	}
	push := <-a.opened
	a.opened <- nil
	if push == nil {
		return nil
	}
	defer push.Close()
	c.setClaimed(true)
	err = writeback.Ahead(ctx, repo, push, a.ref, a.old, now)
	if errors.Is(err, writeback.ErrMoved) { // what they made of it is looked at when ours is sent again
		c.setClaimed(false)
		return repo.Update(ctx, []session.RefChange{{Name: a.ref, Old: now, New: a.old}})
	}
	if err != nil {
		c.mount.daemon.log.Debug("claim ahead", zap.String("session", c.mount.session), zap.Error(err))
	}
	a.now, a.acked = now, err == nil
	return nil
}

// wait returns when begin is through; an error if the lane cannot be ours.
func (a *aheadClaim) wait() error {
	if a == nil {
		return nil
	}
	start := time.Now()
	<-a.done
	a.carry.mu.Lock()
	a.carry.waited = time.Since(start)
	a.carry.mu.Unlock()
	if isRefusal(a.err) {
		return a.err
	}
	return nil // it is tried again
}

// isRefusal says whether an error of a claim is that nobody, or somebody else, is to work in the session.
func isRefusal(err error) bool {
	var held *session.HeldError
	return errors.As(err, &held) || errors.Is(err, session.ErrClosed)
}

// refused says, by what the session remote knows of a session, whether its lane cannot be ours.
func (c *carry) refused(meta session.Meta) error {
	if !c.carries() || c.optionsNow().TakeOver {
		return nil
	}
	writer, err := c.mount.daemon.writer()
	if err != nil {
		return err
	}
	if held := meta.Held(cmp.Or(laneOf(meta, writer), session.MainLane), writer); held != nil {
		return held
	}
	return nil
}

// end ends what is under way. It may be called on nil, and after wait.
func (a *aheadClaim) end() {
	if a == nil {
		return
	}
	a.cancel()
	if a.done != nil {
		<-a.done
	}
	if push := <-a.opened; push != nil {
		push.Close()
	}
}

func (c *carry) setClaimed(claimed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimed = claimed
}

// withdraw lets go of the lane of a mount that has claimed it and never came to be. Others would take it for one at work.
func (c *carry) withdraw() {
	c.mu.Lock()
	claimed, held, repo, queue, writer, lane, before := c.claimed, c.held, c.repo, c.queue, c.writer, c.lane.Name, c.unclaimed
	c.mu.Unlock()
	m := c.mount
	if !claimed || held != nil || m.home == nil || m.wasServed() {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lastTime, fault.ErrSlow)
	defer cancel()
	err := func() error {
		if queue != nil {
			_, err := session.Withdraw(ctx, repo, m.session, lane, writer, before, notMade, session.Actor())
			return errors.Join(err, c.send(ctx, nil))
		}
		return c.withdrawAhead(ctx, writer, before)
	}()
	if err != nil {
		m.daemon.log.Warn("let go of a session", zap.String("session", m.session), zap.Error(err))
	}
}

// notMade is the reason of whoever lets go of a lane without having had a mount.
const notMade = "it could not be mounted"

// withdrawAhead is withdraw before there is a queue.
func (c *carry) withdrawAhead(ctx context.Context, writer session.Writer, before object.ID) error {
	m := c.mount
	repo, err := session.OpenRepo(m.sessionRepoDir(), m.repoOptions(m.store.Format(), m.session))
	if err != nil {
		return err
	}
	defer repo.Close()
	meta, old, err := session.ReadMeta(repo, m.session)
	if err != nil {
		return err
	}
	if _, err := session.Withdraw(ctx, repo, m.session, laneOf(meta, writer), writer, before, notMade, session.Actor()); err != nil {
		return err
	}
	ref := session.MetaRef(m.session)
	now, err := repo.Ref(ref)
	if err != nil || now == old {
		return err
	}
	push, err := m.second.OpenPushOf(ctx, []transport.Ref{{Name: ref, ID: old}})
	if err != nil {
		return err
	}
	defer push.Close()
	return writeback.Ahead(ctx, repo, push, ref, old, now)
}
