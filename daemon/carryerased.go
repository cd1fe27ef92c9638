package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/transport"
)

// A fork has the transcript of its parent up to the checkpoint that it began with. What is erased from the parent's is on
// record in session.json of the parent (session.Erasure). A fork of this host is erased by the command itself; one elsewhere
// looks at that file on the parent's session remote when it is mounted, and every eraseEvery while it is, and erases the same
// records. It notes the erasures in its own session.json then, for forks of it.

// eraseEvery is how often a mounted fork looks what was erased from its parent.
const eraseEvery = 30 * time.Second

// followErasures erases from the session what is erased from the one that it was forked from, until ctx ends.
func (c *carry) followErasures(ctx context.Context) {
	parent, remote := c.parentRemote()
	if remote == nil {
		return
	}
	var seen object.ID
	for {
		id, err := c.eraseAsParent(ctx, parent, remote, seen)
		if err != nil && ctx.Err() == nil {
			c.mount.daemon.log.Debug("look what the session's parent erased", zap.String("session", c.mount.session), zap.Error(err))
		}
		if seen = id; !pause(ctx, eraseEvery) {
			return
		}
	}
}

// parentRemote returns the session that this one was forked from and its session remote; nil: it has none that this mount
// talks to.
func (c *carry) parentRemote() (parent string, remote *transport.Remote) {
	m := c.mount
	p := m.record.Point
	if p == nil || p.Parent == "" || p.Parent == m.session || p.ParentRemote == "" {
		return "", nil
	}
	switch {
	case m.second != nil && m.second.URL() == p.ParentRemote:
		return p.Parent, m.second.Remote
	case m.elder != nil && m.elder.URL() == p.ParentRemote:
		return p.Parent, m.elder.Remote
	}
	return "", nil
}

// eraseAsParent looks at the metadata of the parent, unless it is still as seen, and returns which version it was.
func (c *carry) eraseAsParent(ctx context.Context, parent string, remote *transport.Remote, seen object.ID) (object.ID, error) {
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
	meta, err := c.mount.daemon.fetchMeta(ctx, remote, now)
	if err != nil {
		return seen, err
	}
	repo, err := c.open(ctx)
	if err != nil {
		return seen, err
	}
	for _, e := range meta.Erased {
		if err := c.eraseLike(ctx, repo, e); err != nil {
			return seen, err
		}
	}
	return now, nil
}

// eraseLike erases the records of an erasure of the parent that are here.
func (c *carry) eraseLike(ctx context.Context, repo *session.Repo, e session.Erasure) error {
	m := c.mount
	r := transcript.EraseRequest{
		Session: m.session, Before: e.Before, Others: true, IDs: map[string]bool{},
		Stone: transcript.Tombstone{Time: e.Time, By: e.By, Why: e.Why},
	}
	for _, id := range e.IDs {
		r.IDs[id] = true
	}
	erased, err := transcript.Erase(ctx, repo, r, m.contents(ctx))
	if err != nil || len(erased) == 0 {
		return err
	}
	m.daemon.log.Info("erased what the session's parent erased", zap.String("session", m.session), zap.Int("records", len(erased)))
	if err := session.NoteErased(ctx, repo, m.session, e); err != nil {
		return err
	}
	if err := c.alone(ctx); err != nil {
		return err
	}
	defer c.letOthers()
	_, err = repo.Sweep(ctx)
	return err
}
