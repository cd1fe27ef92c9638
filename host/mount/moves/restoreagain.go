package moves

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/session/catalog"
)

// finishRestore completes the restore p, which was interrupted, and adds a note to the status. If the restore cannot be
// completed, finishRestore calls leave and returns the error; if the restore is not tried again, the note names the
// commands with which the user can repeat or undo it.
func (m *Mover) finishRestore(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) error {
	err := p.Err
	if err == nil {
		err = m.completeRestore(ctx, git, p)
	}
	undo := fmt.Sprintf("artifactfs session restore -C %s %s", m.Mount.Dir, p.Restore.Before)
	if err == nil {
		m.Mount.Agent.AddNote(fmt.Sprintf("restore of checkpoint %s was interrupted, and then completed; run %s to undo it",
			p.Restore.Checkpoint, undo))
		m.Log.Info("finished a restore that was interrupted", zap.String("dir", m.Mount.Dir),
			zap.String("checkpoint", string(p.Restore.Checkpoint)))
		return nil
	}
	if m.leave(ctx, p, "finish a restore that was interrupted", err) {
		m.Mount.Agent.AddNote(fmt.Sprintf("restore of checkpoint %s was interrupted and cannot be completed automatically (%v): "+
			"run the same command again, or undo it with %s", p.Restore.Checkpoint, err, undo))
	}
	return err
}

// completeRestore completes the restore p, which was interrupted, and stores its reply for a client that repeats the
// request. It changes only paths that have the state before or after the restore, because a path in any other state was
// changed later.
func (m *Mover) completeRestore(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) error {
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return err
	}
	defer lock.Release() // has no effect if Apply has succeeded, because Apply has then released the lock
	repo, err := m.Mount.Agent.Open(ctx)
	if err != nil {
		return err
	}
	w := m.newRestoring(git, repo, p.Restore.Paths)
	// The method Capture waits until git works in the mount. Git works only after completeRestore has returned, so use
	// CaptureNow.
	w.capture = m.Mount.Agent.CaptureNow
	if w.Before, err = repo.Find(string(p.Restore.Before)); err != nil {
		return err
	}
	if w.Target, err = catalog.Find(ctx, repo, m.Mount, string(p.Restore.Checkpoint)); err != nil {
		return err
	}
	w.nameWorktrees(ctx)
	if err := w.Compare(ctx); err != nil {
		return err
	}
	if err := w.Apply(ctx, lock, w.stagedFunc(p.Restore.Staged), p.Restore.Nonce, p); err != nil {
		return err
	}
	whole, err := w.Whole(ctx) // the list includes the paths that the interrupted process has restored
	if err != nil {
		return err
	}
	reply, err := w.reply(ctx, whole, false, nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = &restored{p.Restore.Nonce, reply}
	return nil
}

// takeRestored returns the reply of an interrupted restore that this process has completed, if nonce is the nonce of
// its request. It returns the reply once, and false after that.
func (m *Mover) takeRestored(nonce string) (control.RestoreReply, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restored == nil || nonce == "" || m.restored.nonce != nonce {
		return control.RestoreReply{}, false
	}
	reply := m.restored.reply
	m.restored = nil
	return reply, true
}

// restored is the reply for an interrupted restore that this process has completed.
type restored struct {
	nonce string // nonce of the request
	reply control.RestoreReply
}
