package daemon

import (
	"context"
	"errors"
	"path"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
)

// readyGit returns the git directory of the mount. It waits until the mount has tried to make it, and returns fault.ErrNoGitDir if
// that failed.
func (m *mount) readyGit(ctx context.Context) (*gitdir.Dir, error) {
	if !m.triedGit(ctx) {
		return nil, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gitReady {
		return nil, fault.ErrNoGitDir
	}
	return m.git.dir, nil
}

// checkouts returns what package checkout needs of this mount. Git is answered already, see serveGit.
func (m *mount) checkouts(git *gitdir.Dir) *checkout.Checkout {
	return &checkout.Checkout{
		Tree: m.tree, Kernel: m.server, Mark: staleMark{m}, Mounts: mountsOver(m.dir), Differ: git, Git: git, Refs: git,
		Journal: m.git.journal, Trees: m.view.Tree, Log: m.daemon.log, Dir: m.dir, Base: m.snapshot().Tree,
		Lock: func(ctx context.Context) (checkout.Index, error) {
			lock, err := git.LockIndex(ctx)
			if err != nil {
				return nil, err
			}
			return lock, nil
		},
		Device: func() (uint32, error) { return mountpoint.DeviceOf(m.dir) },
		Added:  m.tree.Added, Redirects: m.redirects.Paths, Show: m.show,
		Reads: m.request.Prefetch != control.PrefetchNone,
	}
}

// finishCheckouts does again what killed processes began in this mount, before git is let in. A mount that cannot be changed
// leaves it to a later one.
func (m *mount) finishCheckouts(ctx context.Context, git *gitdir.Dir) {
	if !m.writable() && !m.request.Follow {
		return
	}
	if err := git.BreakLocks(ctx); err != nil {
		m.daemon.log.Warn("break the locks of an interrupted switch", zap.String("dir", m.dir), zap.Error(err))
	}
	for _, p := range m.git.journal.Pending() {
		switch {
		case p.Restore == nil:
			m.finishSwitch(ctx, git, p)
		case m.writable():
			m.finishRestore(ctx, git, p)
		}
	}
}

// abandonCheckout ends an intent that cannot be carried out. The working tree stays as the killed process left it, and git status
// lists the difference. If ctx has ended, the next process that serves the mount tries again.
func (m *mount) abandonCheckout(ctx context.Context, p *checkout.Pending, what string, err error) {
	if ctx.Err() == nil {
		err = errors.Join(err, p.End())
	}
	m.daemon.log.Warn(what, zap.String("dir", m.dir), zap.Error(err))
}

// staleMark keeps its mark in the state that a successor of this process reads.
type staleMark struct{ m *mount }

func (s staleMark) Stale() bool { return s.m.handover.Stale() }

func (s staleMark) SetStale(stale bool) {
	s.m.handover.Update(func(h *takeover.State) { h.Stale = stale })
}

// mountsOver is the directory of a mount, over paths of which something else may be mounted. If the mount table cannot be
// read, something is.
type mountsOver string

func (dir mountsOver) On(p string) bool {
	return dir.any(func(at string) bool { return at == path.Join(string(dir), p) })
}

func (dir mountsOver) Below(p string) bool {
	return dir.any(func(at string) bool { return mountinfo.Within(path.Join(string(dir), p), at) })
}

func (dir mountsOver) any(is func(at string) bool) bool {
	mounts, err := mountinfo.Self()
	return err != nil || slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return is(m.Point) })
}
