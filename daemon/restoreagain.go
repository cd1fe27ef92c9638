package daemon

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
)

// finishRestore does the rest of an interrupted restore, and status says so. If that cannot be done, it ends the intent, and
// status says how to restore again or to undo what was done.
func (m *mount) finishRestore(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) {
	err := p.Err
	if err == nil {
		err = m.restoreRest(ctx, git, p)
	}
	undo := fmt.Sprintf("artifactfs session restore -C %s %s", m.dir, p.Restore.Before)
	if err == nil {
		m.agent.AddNote(fmt.Sprintf("a restore of checkpoint %s was interrupted, and finished; %s undoes it", p.Restore.Checkpoint, undo))
		m.daemon.log.Info("finished a restore that was interrupted", zap.String("dir", m.dir),
			zap.String("checkpoint", string(p.Restore.Checkpoint)))
		return
	}
	if ctx.Err() == nil {
		m.agent.AddNote(fmt.Sprintf("a restore of checkpoint %s was interrupted and cannot be finished automatically (%v): "+
			"run the same command again, or undo it with %s", p.Restore.Checkpoint, err, undo))
	}
	m.abandonCheckout(ctx, p, "finish a restore that was interrupted", err)
}

// restoreRest finishes a restore, and keeps its reply for a caller who asks again. A path that is neither as it was before
// the restore nor as the restore leaves it was changed since, and stays.
func (m *mount) restoreRest(ctx context.Context, git *gitdir.Dir, p *checkout.Pending) error {
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return err
	}
	defer lock.Release() // it is given up already if all goes well
	repo, err := m.agent.Open(ctx)
	if err != nil {
		return err
	}
	w := m.newRestoring(git, repo, p.Restore.Paths)
	w.capture = m.agent.CaptureNow // the mount is not ready for git before this has returned
	if w.Before, err = repo.Find(string(p.Restore.Before)); err != nil {
		return err
	}
	if w.Target, err = findPoint(ctx, repo, m, string(p.Restore.Checkpoint)); err != nil {
		return err
	}
	if err := w.Compare(ctx); err != nil {
		return err
	}
	if err := w.Apply(ctx, lock, w.stagedIf(p.Restore.Staged), p.Restore.Nonce, p); err != nil {
		return err
	}
	whole, err := w.Whole(ctx) // also what the killed process has done
	if err != nil {
		return err
	}
	reply, err := w.reply(whole, false)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = &restored{p.Restore.Nonce, reply}
	return nil
}

// takeRestored returns the reply of a restore that was interrupted and finished, once, to the caller whose nonce it has.
func (m *mount) takeRestored(nonce string) (control.RestoreReply, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restored == nil || nonce == "" || m.restored.nonce != nonce {
		return control.RestoreReply{}, false
	}
	reply := m.restored.reply
	m.restored = nil
	return reply, true
}

// restored is a restore that was interrupted, and finished by this process.
type restored struct {
	nonce string // of its request
	reply control.RestoreReply
}
