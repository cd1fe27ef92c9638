package daemon

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// Who has a lane is what the session remote says: what lies here may be of long ago, and of two who claim a lane at the same
// time the session remote hears of one first. So a mount is told of as mounted when its claim is acknowledged there, and
// refused if somebody else is at work. A session remote that does not answer keeps nobody from working: should it turn out
// later that somebody else has the lane, this mount goes on in one of its own (yield).

// confirmTime bounds the wait for a session remote to acknowledge a claim.
const confirmTime = 5 * time.Second

func (c *carry) setClaiming(claiming bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claiming = claiming
}

// confirm returns when the session remote has acknowledged that the lane is ours, or does not answer; a session.HeldError
// if somebody else has it.
func (c *carry) confirm(ctx context.Context) error {
	c.mu.Lock()
	left := confirmTime - c.waited
	c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, left, fault.ErrSlow)
	defer cancel()
	for try := 1; ; try++ {
		c.mu.Lock()
		queue, followed := c.queue, c.followed
		c.mu.Unlock()
		err := queue.Reach(ctx, session.MetaRef(c.mount.session))
		moved := errors.Is(err, writeback.ErrMoved) && try < takenTries
		if moved && c.heldBy() == nil {
			select {
			case <-followed:
			case <-ctx.Done():
			}
		}
		switch held := c.heldBy(); {
		case held != nil:
			return held
		case moved:
			continue
		case err != nil:
			c.mount.daemon.log.Info("continue without an answer of the session remote", zap.String("session", c.mount.session), zap.Error(err))
		}
		return nil
	}
}

// hear brings what the session remote knows of the session, and says whether that is news.
func (c *carry) hear(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	defer cancel()
	news, err := c.hearOf(ctx)
	if err != nil {
		c.mount.daemon.log.Info("ask who is at work", zap.String("session", c.mount.session), zap.Error(err))
	}
	return news
}

func (c *carry) hearOf(ctx context.Context) (news bool, err error) {
	m := c.mount
	ref := session.MetaRef(m.session)
	if m.second == nil {
		return false, nil
	}
	refs, err := m.second.Refs(ctx, []string{ref})
	if err != nil {
		return false, err
	}
	base, err := m.record.Base()
	if err != nil {
		return false, err
	}
	repo, err := session.OpenRepo(m.sessionRepoDir(), m.repoOptions(base.Format, m.session))
	if err != nil {
		return false, err
	}
	defer repo.Close()
	ours, err := repo.Ref(ref)
	if err != nil || ours.IsZero() {
		return false, err
	}
	for _, r := range refs.List {
		if r.Name != ref || r.ID == ours {
			continue
		}
		if _, err := m.owned.Bring(ctx, fetch.BringRequest{From: m.second, Wants: []object.ID{r.ID}, Haves: []object.ID{ours}, Contents: true}); err != nil {
			return false, err
		}
		if writeback.Within(repo, r.ID, ours) {
			return true, repo.Update(ctx, []session.RefChange{{Name: ref, Old: ours, New: r.ID}})
		}
	}
	return false, nil
}

func (c *carry) heldBy() *session.HeldError {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// giveUpClaim undoes the claim of a mount that is just being made, if somebody else is at work in the lane; false: it need
// not be.
func (c *carry) giveUpClaim(ctx context.Context, t writeback.Taken) (bool, error) {
	c.mu.Lock()
	repo, lane, writer, claiming := c.repo, c.lane.Name, c.writer, c.claiming
	takeOver := c.options.TakeOver
	c.mu.Unlock()
	if !claiming || takeOver {
		return false, nil
	}
	theirs, err := session.MetaAt(repo, repo.Format(), t.Theirs)
	if err != nil {
		return false, err
	}
	held := theirs.Held(lane, writer)
	if held == nil {
		return false, nil
	}
	ref := session.MetaRef(c.mount.session)
	ours, err := repo.Ref(ref)
	if err == nil {
		err = repo.Update(ctx, []session.RefChange{{Name: ref, Old: ours, New: t.Theirs}})
	}
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = held
	return true, nil
}
