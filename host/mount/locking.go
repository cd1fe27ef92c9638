package mount

import (
	"context"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/worktree"
)

// locking makes a mount obey the locks of other sessions. It is nil for a mount without a session remote that other
// sessions can use.
type locking struct {
	view   *locks.View    // decides which paths programs must not change
	keeper *keeper.Keeper // reads locks from the session remote, and renews those of the session
}

// beginLocks starts to use the locks of other sessions, and returns the fuse.Guard that decides which paths programs
// must not change. It returns nil if the mount is not writable, or has no session remote but the embedded one.
func (s *sessionSide) beginLocks() fuse.Guard {
	remote := s.contents.Objects.SessionRemote
	if !s.attachment.Writable() || remote == nil {
		return nil
	}
	view := &locks.View{Session: s.name, Log: s.host.Sampled.With(zap.String("mount", s.dir))}
	s.locking = &locking{view, keeper.New(&keeper.Keeper{
		Session: s.name, Dir: s.host.State, Saved: filepath.Join(s.home.Dir, "locks.json"), Remote: remote.Remote,
		Listed: s.contents.Objects.Listed, View: view, Log: s.host.Log.With(zap.String("mount", s.dir)),
		Open: func() (*transport.Remote, func(), error) {
			remote, _, err := s.host.Remotes.Session(s.request.Now())
			if err != nil {
				return nil, nil, err
			}
			return remote.Remote, func() { remote.Close() }, nil
		},
		// Data that programs have written before the lock was known is still accepted.
		Before: func(ctx context.Context) { _ = s.writeBack(ctx) },
		After: func(added []locks.Lock) {
			s.attachment.Server.Invalidate(worktree.Stale{Nodes: coveredBy(s.attachment.Tree, added)})
		},
	})}
	return view
}

// coveredBy returns the files that the kernel has cached and that one of the locks covers. The kernel must request
// their attributes again.
func coveredBy(t *worktree.Tree, list []locks.Lock) []worktree.Node {
	return t.Kernel().Known(func(path string) (file, below bool) {
		for _, l := range list {
			file = file || locks.Covers(l.Pattern, path)
			below = below || locks.CoversBelow(l.Pattern, path)
		}
		return file, below
	})
}

// run reads and renews locks until ctx ends. If turned is not nil, run waits until that is closed, but at most for
// keeper.Interval; until then, the locks that the predecessor has stored are in force.
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

// notes returns messages about locks for the status of the mount.
func (l *locking) notes() []string {
	if l == nil {
		return nil
	}
	return l.view.Notes()
}

// refuses returns a *locks.HeldError if the daemon must not change the path for a command of the user, because another
// session has locked it.
func (l *locking) refuses(path string) error {
	if l == nil || !l.view.Refuses(path, false) {
		return nil
	}
	held, _ := l.view.Holder(path)
	return &locks.HeldError{Pattern: path, Lock: held}
}

// SessionRef returns the value of a ref of the session remote, or zero if it does not exist. The same request reads the
// locks.
func (s *sessionSide) SessionRef(ctx context.Context, name string) (object.ID, error) {
	refs, err := s.locking.keeper.Refs(ctx, name)
	for _, r := range refs.List {
		if r.Name == name {
			return r.ID, err
		}
	}
	return object.ID{}, err
}
