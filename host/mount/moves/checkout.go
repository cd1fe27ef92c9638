package moves

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// checkouts returns a checkout.Checkout for this mount, which switches and restores use. Finish, which sets m.journal,
// must have been called.
func (m *Mover) checkouts(git *gitdir.Dir) *checkout.Checkout {
	return &checkout.Checkout{
		Tree: m.Tree, Kernel: m.Server, Mark: m.Handover, Mounts: mountsOver(m.Mount.Dir), Git: git, Refs: git,
		Journal: m.journal.Load(), Trees: m.Contents.View.Tree, Log: m.Log, Dir: m.Mount.Dir,
		Base: m.Contents.Snapshot().Tree,
		Lock: func(ctx context.Context) (checkout.Index, error) {
			lock, err := git.LockIndex(ctx)
			if err != nil {
				return nil, err
			}
			return lock, nil
		},
		Device: func() (uint32, error) { return mountpoint.DeviceOf(m.Mount.Dir) },
		Added:  m.Tree.Overlay().Added, Redirects: m.Redirects, Show: m.Contents.Shown.Show, Notify: m.Events.Raise,
		Reads: m.Reads, Refuses: m.Refuses,
	}
}

// Finish opens the journal of unfinished changes, and completes the switches and restores that killed processes have
// started in this mount. It is called before git commands can run and before Ready returns, and may be called again
// after a failure. If the mount is read-only and does not follow a branch, Finish completes nothing; a later writable
// mount of the session does.
func (m *Mover) Finish(ctx context.Context, git *gitdir.Dir) {
	m.journal.Store(checkout.OpenJournal(m.Mount.Home))
	if !m.Mount.Writable && !m.Follow {
		return
	}
	if err := git.BreakLocks(ctx); err != nil {
		m.Log.Warn("break the locks of an interrupted switch", zap.String("dir", m.Mount.Dir), zap.Error(err))
	}
	removeMade(m.Mount.GitDir)
	for _, p := range m.journal.Load().Pending() {
		m.finish(ctx, git, p)
	}
}

// finish completes the change p, which was interrupted, or has failed and could not be undone. It returns nil if the
// change is completed or abandoned.
func (m *Mover) finish(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) error {
	switch {
	case p.Worktrees != nil:
		if !m.Mount.Writable {
			return nil
		}
		_, err := m.finishWorktrees(ctx, git, p)
		return err
	case p.Restore == nil:
		return m.finishSwitch(ctx, git, p)
	case m.Mount.Writable:
		return m.finishRestore(ctx, git, p)
	}
	return nil
}

// finishUnfinished completes the changes that have failed and could not be undone. It returns an error if one of them
// fails again and still can neither be completed nor undone. Each new change calls it first.
func (m *Mover) finishUnfinished(ctx context.Context, git *gitdir.Dir) error {
	m.finishing.Lock()
	defer m.finishing.Unlock()
	for _, p := range m.journal.Load().Unfinished() {
		var again checkout.UnfinishedError
		if err := m.finish(ctx, git, p); errors.As(err, &again) {
			return fmt.Errorf("finish %s: %w", p.Intent, err)
		}
	}
	return nil
}

// Unfinished returns a message for each change that has failed and could not be undone.
func (m *Mover) Unfinished() (list []string) {
	if m == nil || m.journal.Load() == nil {
		return nil
	}
	for _, p := range m.journal.Load().Unfinished() {
		list = append(list,
			fmt.Sprintf("%s has changed only a part of the paths; the next switch, restore or merge finishes it first",
				p.Intent))
	}
	return list
}

// abandonCheckout removes the journal entry p of a switch or restore that cannot be completed, and logs err with the
// message what. The working tree remains as the killed process has left it, and git status lists the differences. If
// ctx has ended, or if err is a checkout.UnfinishedError, abandonCheckout keeps the entry, so that the change is tried
// again later.
func (m *Mover) abandonCheckout(ctx context.Context, p *checkout.Pending, what string, err error) {
	var again checkout.UnfinishedError
	if ctx.Err() == nil && !errors.As(err, &again) {
		err = errors.Join(err, p.End())
	}
	m.Log.Warn(what, zap.String("dir", m.Mount.Dir), zap.Error(err))
}

// mountsOver is the directory of a mount. It implements checkout.Mounts: its methods report whether another file system
// is mounted at a path in that mount. If the mount table cannot be read, they return true.
type mountsOver string

// On reports whether another file system is mounted at the path p of the mount.
func (dir mountsOver) On(p string) bool {
	return dir.any(func(at string) bool { return at == path.Join(string(dir), p) })
}

// Below reports whether another file system is mounted at the path p of the mount, or anywhere below it.
func (dir mountsOver) Below(p string) bool {
	return dir.any(func(at string) bool { return mountinfo.Within(path.Join(string(dir), p), at) })
}

// any reports whether the mount table has a mount point for which the function is returns true, or cannot be read.
func (dir mountsOver) any(is func(at string) bool) bool {
	mounts, err := mountinfo.Self()
	return err != nil || slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return is(m.Point) })
}
