package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// A restore that has begun to change paths is finished by whoever goes on with the mount, the next process or the next
// mount: what it brings back is in the point, what there was is in another one, and both are on record. A path that is
// neither as it was before nor as it is to be was changed by somebody since, and stays.

// restoreFile is in the mount's home as long as a restore is under way.
const restoreFile = "restore.json"

// restoreRecord is what is being restored.
type restoreRecord struct {
	Request control.RestoreRequest `json:"request"` // by the point's whole id
	Before  session.PointID        `json:"before"`  // undoes it
}

// noteRestore makes sure that the restore is finished if this process ends in the middle of it.
func (w *restoring) noteRestore(staged bool) error {
	text, err := json.Marshal(restoreRecord{
		Request: control.RestoreRequest{Dir: w.m.dir, ID: string(w.target.ID), Paths: w.paths, Staged: staged, Nonce: w.nonce}, Before: w.undo(),
	})
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(w.m.home.Dir, restoreFile), append(text, '\n'), 0o600)
}

// undo is the point that has what there was before anything was restored.
func (w *restoring) undo() session.PointID {
	if w.began.ID != "" {
		return w.began.ID
	}
	return w.now.ID
}

func (m *mount) forgetRestore() error {
	err := os.Remove(filepath.Join(m.home.Dir, restoreFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// interrupted says whether a process that is gone was in the middle of a restore.
func (m *mount) interrupted() bool {
	_, err := os.Lstat(filepath.Join(m.home.Dir, restoreFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// finishRestore does the rest of what a process began that ended in the middle of it. If that cannot be done, the working
// tree is as that process left it, and status says how to go on or back.
func (m *mount) finishRestore(ctx context.Context, git *gitdir.Dir) {
	if !m.writable() || !m.interrupted() {
		return
	}
	text, err := os.ReadFile(filepath.Join(m.home.Dir, restoreFile))
	var r restoreRecord
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil {
		err = m.restoreRest(ctx, git, r)
	}
	undo := fmt.Sprintf("artifactfs session restore -C %s %s", m.dir, r.Before)
	if err == nil {
		m.agent.AddNote(fmt.Sprintf("a restore of checkpoint %s was interrupted, and finished; %s undoes it", r.Request.ID, undo))
		m.daemon.log.Info("finished a restore that was interrupted", zap.String("dir", m.dir), zap.String("checkpoint", r.Request.ID))
		return
	}
	if ctx.Err() != nil { // whoever comes next finishes it
		return
	}
	m.agent.AddNote(fmt.Sprintf("a restore of checkpoint %s was interrupted and cannot be finished automatically (%v): run the same command again, or undo it with %s", r.Request.ID, err, undo))
	m.daemon.log.Warn("finish a restore that was interrupted", zap.String("dir", m.dir), zap.Error(errors.Join(err, m.forgetRestore())))
}

// restoreRest finishes a restore, and has its reply ready for an asker who asks again.
func (m *mount) restoreRest(ctx context.Context, git *gitdir.Dir, r restoreRecord) error {
	w := &restoring{m: m, paths: r.Request.Paths, nonce: r.Request.Nonce, found: map[string]worktree.Found{}, point: m.agent.CaptureNow}
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return err
	}
	defer lock.Release() // it is given up already if all goes well
	if w.repo, err = m.agent.Open(ctx); err != nil {
		return err
	}
	if w.began, err = w.repo.Find(string(r.Before)); err != nil {
		return err
	}
	if err := w.compare(ctx, r.Request.ID); err != nil {
		return err
	}
	if m.handover.Stale() { // what is as it is to be is not compared any more, and nobody has told the kernel of it
		whole := &restoring{m: m, paths: w.paths, target: w.target, now: w.began}
		if err := whole.differences(ctx); err != nil {
			return err
		}
		m.server.Invalidate(m.staleAfter(ctx, whole.list))
	}
	if err := w.carryOut(ctx, git, lock, r.Request.Staged); err != nil {
		return err
	}
	w.now = w.began // what the reply tells of is the whole of it
	if err := w.differences(ctx); err != nil {
		return err
	}
	reply, err := w.reply(false)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = &restored{r.Request.Nonce, reply}
	return nil
}

// spareChanged removes from the list the paths that were changed after the interrupted restore began. An empty directory, or
// a missing file in the place of a directory to be restored, is not such a change: a kill in the middle of a restore leaves both.
func (w *restoring) spareChanged(ctx context.Context) error {
	if w.began.ID == "" || w.now.ID == w.began.ID {
		return nil
	}
	changed, removed := map[string]bool{}, map[string]bool{}
	err := diffDirs(ctx, w.m.view.Tree, w.began.Tree, w.now.Tree, func(path string, from, to object.TreeEntry) error {
		switch {
		case to.Mode == 0:
			removed[path] = true
			return nil
		case isEmptyDir(to):
			emptied, err := w.has(ctx, w.began.Tree, path)
			changed[path] = !emptied
			return err
		}
		changed[path] = true
		return nil
	})
	if err != nil {
		return err
	}
	w.list = slices.DeleteFunc(w.list, func(d gitdir.Difference) bool {
		spared := changed[d.Path] || removed[d.Path] && d.NewMode != object.ModeDir
		if spared && !slices.Contains(w.kept, d.Path) {
			w.kept = append(w.kept, d.Path)
		}
		return spared
	})
	return nil
}

// takeRestored gives, once, what came of a restore that was interrupted and finished, to who has asked for it.
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
	nonce string // of who asked for it
	reply control.RestoreReply
}
