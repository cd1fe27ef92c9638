package mount

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

// readyGit returns the git directory of the mount. It waits until the mount has tried to create it, and returns
// fault.ErrNoGitDir if that failed.
func (m *Mount) readyGit(ctx context.Context) (*gitdir.Dir, error) {
	if !m.TriedGit(ctx) {
		return nil, errors.Join(ctx.Err(), fault.ErrNoGitDir)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gitReady {
		return nil, fault.ErrNoGitDir
	}
	return m.git.dir, nil
}

// checkouts returns the parts of this mount that package checkout works on during a switch or restore. The caller has called
// serveGit before, which sets m.git.journal.
func (m *Mount) checkouts(git *gitdir.Dir) *checkout.Checkout {
	return &checkout.Checkout{
		Tree: m.tree, Kernel: m.server, Mark: staleMark{m}, Mounts: mountsOver(m.Dir), Differ: git, Git: git, Refs: git,
		Journal: m.git.journal, Trees: m.view.Tree, Log: m.host.Log, Dir: m.Dir, Base: m.snapshot().Tree,
		Lock: func(ctx context.Context) (checkout.Index, error) {
			lock, err := git.LockIndex(ctx)
			if err != nil {
				return nil, err
			}
			return lock, nil
		},
		Device: func() (uint32, error) { return mountpoint.DeviceOf(m.Dir) },
		Added:  m.tree.Added, Redirects: m.redirects.Paths, Show: m.show,
		Reads: m.Request.Prefetch != control.PrefetchNone,
	}
}

// finishCheckouts completes the switches and restores that killed processes left unfinished in this mount. It is called before
// the first git command may run in the mount. A read-only mount that does not follow a branch does nothing, so that a later
// writable mount of the session completes them.
func (m *Mount) finishCheckouts(ctx context.Context, git *gitdir.Dir) {
	if !m.Writable() && !m.Request.Follow {
		return
	}
	if err := git.BreakLocks(ctx); err != nil {
		m.host.Log.Warn("break the locks of an interrupted switch", zap.String("dir", m.Dir), zap.Error(err))
	}
	for _, p := range m.git.journal.Pending() {
		switch {
		case p.Restore == nil:
			m.finishSwitch(ctx, git, p)
		case m.Writable():
			m.finishRestore(ctx, git, p)
		}
	}
}

// abandonCheckout removes the journal entry of a switch or restore that cannot be completed, and logs err with the message what.
// The working tree remains as the killed process left it, and git status lists the differences. If ctx has ended,
// abandonCheckout keeps the entry, so that the next process that serves the mount tries again.
func (m *Mount) abandonCheckout(ctx context.Context, p *checkout.Pending, what string, err error) {
	if ctx.Err() == nil {
		err = errors.Join(err, p.End())
	}
	m.host.Log.Warn(what, zap.String("dir", m.Dir), zap.Error(err))
}

// staleMark implements checkout.StaleMark. It stores the mark in the takeover state, where a successor of this process can read
// it.
type staleMark struct{ m *Mount }

// Stale reports whether a process died between SetStale(true) and SetStale(false).
func (s staleMark) Stale() bool { return s.m.handover.Stale() }

// SetStale sets the mark. The mark is set while a checkout changes files whose old contents may be in the kernel's page cache.
func (s staleMark) SetStale(stale bool) {
	s.m.handover.Update(func(h *takeover.State) { h.Stale = stale })
}

// mountsOver is the path of a mount's directory. Its methods report whether another file system is mounted on a path in that
// mount. If the mount table cannot be read, they return true, so that no caller changes a directory that might be covered by
// another mount.
type mountsOver string

// On reports whether another file system is mounted at path p of the mount.
func (dir mountsOver) On(p string) bool {
	return dir.any(func(at string) bool { return at == path.Join(string(dir), p) })
}

// Below reports whether another file system is mounted at path p of the mount or anywhere below it.
func (dir mountsOver) Below(p string) bool {
	return dir.any(func(at string) bool { return mountinfo.Within(path.Join(string(dir), p), at) })
}

// any reports whether the mount table has a mount point for which the function is returns true. It also returns true if the
// mount table cannot be read.
func (dir mountsOver) any(is func(at string) bool) bool {
	mounts, err := mountinfo.Self()
	return err != nil || slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return is(m.Point) })
}
