package moves

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
)

// restoring is a restore of files in progress, with the repository of the session of its checkpoints.
type restoring struct {
	checkout.Restore
	m    *Mover
	repo *session.Repo
	// capture creates the checkpoint that precedes the restore.
	capture func(context.Context, session.Reason, string, ...capture.Carrying) (session.Checkpoint, capture.Report,
		error)
	// lacking has the files whose contents the latest checkpoint of Capture lacks.
	lacking []string
	// failed has the linked worktrees that could not be restored, by path, with the causes.
	failed map[string]error
}

// newRestoring returns a restore of the given paths, or of all files if paths is empty. The caller must set the field
// Target.
func (m *Mover) newRestoring(git *gitdir.Dir, repo *session.Repo, paths []string) *restoring {
	w := &restoring{m: m, repo: repo, capture: m.Mount.Agent.Capture}
	w.Restore = checkout.Restore{Checkout: m.checkouts(git), Checkpoints: w, Differ: dirDiffer(m.Contents.View.Tree),
		Paths: paths, Lacking: func() []string { return w.lacking }}
	return w
}

// dirDiffer implements checkout.Differ with treediff.WithDirs, which also finds empty directories.
type dirDiffer treediff.Reader

// Differences returns the paths at which two trees differ, including empty directories, in the order of
// treediff.WithDirs.
func (read dirDiffer) Differences(ctx context.Context, from, to object.ID) (list []checkout.Difference, err error) {
	err = treediff.WithDirs(ctx, treediff.Reader(read), from, to, func(path string, from, to object.TreeEntry) error {
		list = append(list, checkout.Difference{Path: path, OldMode: from.Mode, NewMode: to.Mode, Old: from.ID, New: to.ID})
		return nil
	})
	return list, err
}

// Restore changes files of the mount back to their state at a checkpoint. If r is a dry run, it only lists the changes.
// Errors have a hint.
func (m *Mover) Restore(ctx context.Context, r control.RestoreRequest) (control.RestoreReply, error) {
	start := time.Now()
	reply, err := m.restore(ctx, r, session.Checkpoint{})
	if err != nil {
		of := fault.Subject{
			Area: fault.Restore, Verb: "restore", Object: m.Mount.Dir, Checkpoint: "checkpoint " + r.ID, ID: r.ID,
			GitDir: m.Mount.GitDir,
		}
		return control.RestoreReply{}, of.Explain(err)
	}
	if !r.DryRun {
		m.Log.Info("restored", zap.String("dir", m.Mount.Dir), zap.String("checkpoint", reply.Checkpoint.ID),
			zap.Int("paths", len(reply.Changes)),
			zap.Duration("took", time.Since(start)))
	}
	return reply, nil
}

// restore implements Restore, without hints in its errors. It holds git's index lock from the comparison until all
// files are written, so that no git command changes the index in between. If since is not the zero value, it changes
// nothing if one of the paths has changed since that checkpoint.
func (m *Mover) restore(ctx context.Context, r control.RestoreRequest,
	since session.Checkpoint) (reply control.RestoreReply, err error) {
	if !m.Mount.Writable {
		return reply, fault.ErrReadOnly
	}
	git, err := m.Ready(ctx)
	if err != nil {
		return reply, err
	}
	// If the daemon died before it replied, the client repeats the request. The successor may have completed the restore
	// already. It finds the completed restore by the nonce of the request.
	if done, ok := m.takeRestored(r.Nonce); ok {
		return done, nil
	}
	if err := m.finishUnfinished(ctx, git); err != nil {
		return reply, err
	}
	paths, named, err := pathsInside(r.Paths)
	if err != nil {
		return reply, err
	}
	if named && len(paths) == 0 {
		restored, err := m.restoreGit(r.DryRun)
		return control.RestoreReply{Dir: m.Mount.Dir, DryRun: r.DryRun, Changes: []control.PathChange{}, Kept: []string{},
			Git: restored}, err
	}
	// A checkpoint of another session is first copied to this session's repository.
	if r.Of != "" {
		a, err := m.adopt(ctx, r.Of, r.SessionRemote, r.ID)
		if err != nil {
			return reply, err
		}
		r.ID = string(a.checkpoint.ID)
	}
	lock, err := git.LockIndex(ctx)
	if err != nil {
		return reply, err
	}
	defer lock.Release() // has no effect if Apply has succeeded, because Apply has then released the lock
	repo, err := m.Mount.Agent.Open(ctx)
	if err != nil {
		return reply, err
	}
	w := m.newRestoring(git, repo, paths)
	w.Since = since
	// The ID is looked up before Apply creates a checkpoint, because an ID such as @~1 refers to the newest checkpoint.
	if w.Target, err = catalog.Find(ctx, repo, m.Mount, r.ID); err != nil {
		return reply, err
	}
	if r.Of == "" { // a linked worktree of another session has commits that git in this mount may lack
		w.nameWorktrees(ctx)
	}
	if err := w.Compare(ctx); err != nil {
		return reply, err
	}
	linked, err := w.missingWorktrees(ctx)
	if err == nil && !r.DryRun {
		err = w.apply(ctx, git, lock, r, linked)
	}
	if err != nil {
		return reply, err
	}
	if reply, err = w.reply(ctx, w.Changes, r.DryRun, linked); err == nil && (named || len(paths) == 0) {
		reply.Git, err = m.restoreGit(r.DryRun)
	}
	return reply, err
}

// apply changes the files as Compare has computed, and restores the linked worktrees with the paths linked. It releases
// lock if it succeeds.
func (w *restoring) apply(ctx context.Context, git *gitdir.Dir, lock checkout.Index, r control.RestoreRequest,
	linked []string) error {
	if len(linked) == 0 {
		return w.Apply(ctx, lock, w.stagedFunc(r.Staged), r.Nonce, nil)
	}
	intent := checkout.WorktreesIntent{State: w.Target.State.String(), Paths: linked}
	pending, err := w.m.journal.Load().Begin(checkout.Intent{Worktrees: &intent})
	if err != nil {
		return err
	}
	if err := w.Apply(ctx, lock, w.stagedFunc(r.Staged), r.Nonce, nil); err != nil {
		return errors.Join(err, pending.End())
	}
	w.failed, err = w.m.finishWorktrees(ctx, git, pending)
	return err
}

// restoreGit creates the file ".git" in the root of the mount again if a program has removed it, and returns whether it
// was removed. No checkpoint contains this file. In a dry run, nothing is created.
func (m *Mover) restoreGit(dry bool) (removed bool, err error) {
	if removed = worktree.GitRemoved(m.Tree); !removed || dry {
		return removed, nil
	}
	stale, err := worktree.RestoreGit(m.Tree)
	if err == nil {
		m.Server.Invalidate(stale)
		m.Log.Info("created .git again", zap.String("dir", m.Mount.Dir))
	}
	return err == nil, err
}

// pathsInside returns the paths in clean form, relative to the root of the mount. It leaves out ".git" and the paths
// below it, and reports whether there were any of them. If one of the paths is the root itself, it returns an empty
// list, which stands for all files. It returns an error for a path outside of the mount.
func pathsInside(paths []string) (inside []string, git bool, err error) {
	for _, p := range paths {
		switch p = filepath.ToSlash(filepath.Clean(p)); {
		case p == ".":
			return nil, false, nil
		case !filepath.IsLocal(p):
			return nil, false, fmt.Errorf("%s is not in the mount", p)
		case p == ".git" || strings.HasPrefix(p, ".git/"):
			git = true
		default:
			inside = append(inside, p)
		}
	}
	return inside, git, nil
}

// reply returns the reply that lists the changed paths in list and the restored linked worktrees in linked. dry states
// that the changes were not made.
func (w *restoring) reply(ctx context.Context, list []checkout.Difference, dry bool,
	linked []string) (control.RestoreReply, error) {
	o, err := w.m.Catalog.OpenMount(w.m.Mount)
	if err != nil {
		return control.RestoreReply{}, err
	}
	defer o.Close()
	changes := make([]control.PathChange, 0, len(list)+len(linked))
	for _, path := range linked {
		if w.failed[path] == nil {
			changes = append(changes, control.PathChange{Path: path + "/", Status: "A"})
		}
	}
	for _, d := range list {
		// Paths that were left unchanged are in Kept, and not in this list.
		if dry || !slices.Contains(w.Kept, d.Path) {
			old, now := object.TreeEntry{Mode: d.OldMode, ID: d.Old}, object.TreeEntry{Mode: d.NewMode, ID: d.New}
			changes = append(changes, catalog.PathChange(d.Path, old, now))
		}
	}
	reply := control.RestoreReply{Dir: w.m.Mount.Dir, Checkpoint: o.Shown(w.Target), DryRun: dry, Changes: changes,
		Kept: []string{}, Receipt: w.receipt(ctx)}
	if dry {
		return reply, nil
	}
	before := o.Shown(w.Before)
	reply.Before, reply.Kept = &before, append(reply.Kept, w.Kept...)
	for path, err := range w.failed {
		if reply.Failed == nil {
			reply.Failed = map[string]string{}
		}
		reply.Failed[path] = err.Error()
	}
	return reply, nil
}

// receipt returns what the checkpoint does not contain among the restored paths, or nil if there is nothing.
func (w *restoring) receipt(ctx context.Context) *control.Receipt {
	state, err := w.stateOf(ctx, w.Target)
	if err != nil { // the files are restored nevertheless
		w.m.Log.Warn("read what a checkpoint leaves out", zap.String("dir", w.m.Mount.Dir), zap.Error(err))
		return nil
	}
	all := control.NewReceipt(catalog.LeftOut(state.Left), w.Target.Left, nil)
	if len(w.Paths) == 0 {
		return all
	}
	return all.Without(func(name string) bool {
		name = strings.TrimSuffix(name, "/")
		return !slices.ContainsFunc(w.Paths, func(path string) bool {
			return path == name || strings.HasPrefix(name, path+"/") || strings.HasPrefix(path, name+"/")
		})
	})
}

// Capture creates a checkpoint of the current state. It implements checkout.Checkpoints.
func (w *restoring) Capture(ctx context.Context) (session.Checkpoint, error) {
	p, report, err := w.capture(ctx, session.Restore, "")
	w.lacking = report.Unfiltered
	return p, err
}

// Dirs returns the permissions of the directories in a checkpoint, by path. It implements checkout.Checkpoints.
func (w *restoring) Dirs(ctx context.Context, p session.Checkpoint) (map[string]uint32, error) {
	state, err := w.stateOf(ctx, p)
	return state.Dirs, err
}

// Hold creates a ref to the tree of a checkpoint, because the working tree will show parts of this tree, so that gc
// must not remove its objects. It returns an error if gc has removed the checkpoint already. It implements
// checkout.Checkpoints.
func (w *restoring) Hold(ctx context.Context, p session.Checkpoint) error {
	defer w.repo.Working()()
	if _, err := w.repo.Find(string(p.ID)); err != nil { // gc has removed the checkpoint in the meantime
		return err
	}
	ref := session.RestoredRef(w.repo.Session(), p.ID)
	return w.repo.Update(ctx, []session.RefChange{{Name: ref, New: p.Tree, Force: true}})
}
