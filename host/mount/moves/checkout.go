package moves

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/session"
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
// fails again and stays unfinished. Each new change calls it first.
func (m *Mover) finishUnfinished(ctx context.Context, git *gitdir.Dir) error {
	m.finishing.Lock()
	defer m.finishing.Unlock()
	journal := m.journal.Load()
	for _, p := range journal.Unfinished() {
		if err := m.finish(ctx, git, p); err != nil && slices.Contains(journal.Unfinished(), p) {
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

// leave decides about the journal entry p of a switch or restore whose repetition has failed with err, and logs err
// with the message what. The entry stays, so that the change is tried again later, unless a repetition would fail
// again: see hopeless. A second failure removes it too, unless the cause is passing, so that no entry refuses all later
// changes for ever. leave reports whether it has removed the entry; the working tree then remains as the killed process
// has left it, and git status lists the differences.
func (m *Mover) leave(ctx context.Context, p *checkout.Pending, what string, err error) (removed bool) {
	switch {
	case ctx.Err() != nil: // this process, or the one that succeeds it, tries again
	case p.Err != nil, hopeless(err), p.Leave() && !passing(err):
		removed = true
		err = errors.Join(err, p.End())
	}
	m.Log.Warn(what, zap.String("dir", m.Mount.Dir), zap.Bool("dropped", removed), zap.Error(err))
	return removed
}

// hopeless reports whether err, with which the repetition of an interrupted change has failed, states that the change
// is impossible: it would overwrite changes of the user, git is in the middle of an operation, or the branch, commit,
// path or checkpoint does not exist any more.
func hopeless(err error) bool {
	var refusal fault.RefusalError
	var busy fault.GitBusyError
	var path fault.NoPathError
	var checkpoint *session.FindError
	return errors.As(err, &refusal) || errors.As(err, &busy) || errors.As(err, &path) || errors.As(err, &checkpoint) ||
		isAny(err, fault.ErrSparse, gitdir.ErrNoCommit, gitdir.ErrNotBranch, gitdir.ErrBranchExists,
			gitdir.ErrBranchBlocked, gitdir.ErrAmbiguous, gitdir.ErrInUse, session.ErrNoCheckpoint,
			session.ErrNotCheckpoint)
}

// passing reports whether the cause of err is a state of this host that ends: a lock, or a lack of space, memory,
// processes or descriptors.
func passing(err error) bool {
	var undone checkout.UnfinishedError
	return errors.As(err, &undone) || isAny(err, gitdir.ErrLocked, gitdir.ErrRefsLocked, syscall.ENOSPC, syscall.EDQUOT,
		syscall.ENOMEM, syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE)
}

// isAny reports whether err is one of the given errors.
func isAny(err error, list ...error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
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
