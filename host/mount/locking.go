package mount

import (
	"context"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/worktree"
)

// locking connects a mount with the locks of other sessions. A mount without a session remote that others can use has none.
type locking struct {
	view   *locks.View    // decides which paths programs must not change
	keeper *keeper.Keeper // reads locks from the session remote, and renews those of the session
}

// newLocking returns the locks of a writable mount, or nil if it has no session remote but the embedded one.
func newLocking(m *Mount) *locking {
	if !m.Writable() || m.contents.Objects.SessionRemote == nil {
		return nil
	}
	view := &locks.View{Session: m.Session, Log: m.host.Sampled.With(zap.String("mount", m.Dir))}
	return &locking{view, keeper.New(&keeper.Keeper{
		Session: m.Session, Dir: m.host.State, Saved: filepath.Join(m.home.Dir, "locks.json"),
		Remote: m.contents.Objects.SessionRemote.Remote,
		Listed: m.contents.Objects.Listed, View: view, Log: m.host.Log.With(zap.String("mount", m.Dir)),
		Open: func() (*transport.Remote, func(), error) {
			remote, _, err := m.host.Remotes.Session(m.Request.Now())
			if err != nil {
				return nil, nil, err
			}
			return remote.Remote, func() { remote.Close() }, nil
		},
		// Data that programs have written before the lock was known is still accepted.
		Before: func(ctx context.Context) { _ = agentMount{m}.writeBack(ctx) },
		After: func(added []locks.Lock) {
			m.attachment.Server.Invalidate(worktree.Stale{Nodes: coveredBy(m.attachment.Tree, added)})
		},
	})}
}

// coveredBy returns the files that the kernel has cached and that are covered by locks. The kernel must request their attributes again.
func coveredBy(t *worktree.Tree, list []locks.Lock) []worktree.Node {
	return t.Kernel().Known(func(path string) (file, below bool) {
		for _, l := range list {
			file = file || locks.Covers(l.Pattern, path)
			below = below || locks.CoversBelow(l.Pattern, path)
		}
		return file, below
	})
}

// run reads and renews locks until ctx ends. If the channel turned is not nil, run begins when it is closed, or after the interval of its
// requests: until then, the locks that the predecessor has stored are in force.
func (l *locking) run(ctx context.Context, turned <-chan struct{}) {
	if l == nil {
		return
	}
	if turned != nil {
		select {
		case <-turned:
		case <-time.After(keeper.Interval):
		case <-ctx.Done():
		}
	}
	l.keeper.Run(ctx)
}

// notes returns lines for the status of the mount.
func (l *locking) notes() []string {
	if l == nil {
		return nil
	}
	return l.view.Notes()
}

// refuses returns a *locks.HeldError if the daemon must not change a path for a command of the user.
func (l *locking) refuses(path string) error {
	if l == nil || !l.view.Refuses(path, false) {
		return nil
	}
	held, _ := l.view.Holder(path)
	return &locks.HeldError{Pattern: path, Lock: held}
}

// SessionRef returns the value of a ref of the session remote; zero if it does not exist. The same request reads the locks.
func (a agentMount) SessionRef(ctx context.Context, name string) (object.ID, error) {
	refs, err := a.m.locking.keeper.Refs(ctx, name)
	for _, r := range refs.List {
		if r.Name == name {
			return r.ID, err
		}
	}
	return object.ID{}, err
}
