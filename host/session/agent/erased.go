package agent

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// A fork contains the transcript of its parent up to the checkpoint that the fork started from. If records are erased
// from the parent, session.json of the parent records the erasure (session.Erasure). If the fork is on the same host,
// the command that erases the records also erases them from the fork. A fork on another host reads session.json from
// the parent's session remote when the fork is mounted, and again at the interval eraseInterval, and erases the same
// records. Then the fork records the erasure in its own session.json, where forks of the fork find it.
//
// A host that has an older transcript of the session itself erases the same records before it compares its refs with
// those of the session remote (package writeback). sweepErased removes their objects.

// eraseInterval is the interval at which a mounted fork reads which records its parent session has erased.
const eraseInterval = 30 * time.Second

// parentErasures erases records from the transcript of a fork that were erased from its parent session.
type parentErasures struct{ agent *Agent }

// follow erases all records that the parent session has erased, at once and at the interval eraseInterval. It returns
// when ctx ends.
func (e parentErasures) follow(ctx context.Context) {
	a := e.agent
	parent, remote := a.config.Remotes.Parent()
	if remote == nil {
		return
	}
	var seen object.ID
	for {
		id, err := e.look(ctx, parent, remote, seen)
		if err != nil && ctx.Err() == nil {
			a.log.Debug("read records erased by the parent session", zap.String("session", a.config.Session), zap.Error(err))
		}
		if seen = id; !clock.Wait(ctx, eraseInterval) {
			return
		}
	}
}

// look reads the parent's metadata, and repeats all erasures that the metadata lists. seen is the commit of the
// metadata whose erasures were repeated before; if it is still the newest, look does nothing. look returns the commit
// whose erasures have been repeated.
func (e parentErasures) look(ctx context.Context, parent string, remote *transport.Remote,
	seen object.ID) (object.ID, error) {
	ref := session.MetaRef(parent)
	refs, err := remote.Refs(ctx, []string{ref})
	if err != nil {
		return seen, err
	}
	var now object.ID
	for _, r := range refs.List {
		if r.Name == ref {
			now = r.ID
		}
	}
	if now.IsZero() || now == seen {
		return now, nil
	}
	meta, err := e.agent.config.Objects.ReadMeta(ctx, remote, now)
	if err != nil {
		return seen, err
	}
	repo, err := e.agent.Open(ctx)
	if err != nil {
		return seen, err
	}
	// The records are erased when the hold is released.
	if own, _, err := session.ReadMeta(repo, e.agent.config.Session); err == nil && len(meta.Erased) > 0 &&
		own.Profile.Held() {
		return seen, own.OnHold(own.Session)
	}
	for _, erasure := range meta.Erased {
		if err := e.repeat(ctx, repo, erasure); err != nil {
			return seen, err
		}
	}
	return now, nil
}

// repeat erases the records of one erasure of the parent from the transcript of the fork.
func (e parentErasures) repeat(ctx context.Context, repo *session.Repo, erasure session.Erasure) error {
	a := e.agent
	r := transcript.Repeated(a.config.Session, erasure, a.config.Session)
	erased, memory, err := transcript.Erase(ctx, repo, r, a.config.Objects.Contents(ctx))
	if err != nil || len(erased)+memory == 0 {
		return err
	}
	a.log.Info("erased records that the parent session erased", zap.String("session", a.config.Session),
		zap.Int("records", len(erased)), zap.Int("memory", memory))
	erasure.Except = r.Except // forks of the fork keep what was made in the fork, too
	if err := session.NoteErased(ctx, repo, a.config.Session, erasure); err != nil {
		return err
	}
	if err := a.Lock(ctx); err != nil {
		return err
	}
	defer a.Unlock()
	_, err = repo.Sweep(ctx)
	return err
}

// sweepErased removes unreachable objects from the repository if another host has erased records from the transcript
// since the metadata before. The caller holds the agent's lock.
func (o otherWriters) sweepErased(ctx context.Context, repo *session.Repo, before, now session.Meta) {
	a := o.agent
	if slices.EqualFunc(before.Erased, now.Erased, session.Erasure.Same) {
		return
	}
	if _, err := repo.Sweep(ctx); err != nil {
		a.log.Warn("remove records that another host has erased", zap.String("session", a.config.Session), zap.Error(err))
	}
}
