package checkout

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Checkpoints creates and reads the checkpoints of the session whose files are restored.
type Checkpoints interface {
	// Capture creates a checkpoint of the current state.
	Capture(ctx context.Context) (session.Checkpoint, error)
	// Hold protects the tree of a checkpoint from garbage collection. It is called before the working tree shows parts
	// of this tree.
	Hold(ctx context.Context, p session.Checkpoint) error
	// Dirs returns the permissions of the checkpoint's directories that differ from the default, by path.
	Dirs(ctx context.Context, p session.Checkpoint) (map[string]uint32, error)
}

// StagedOf returns the index entries of the target checkpoint that differ from those of the checkpoint now, which
// contains the current state.
type StagedOf func(ctx context.Context, now session.Checkpoint) (*gitdir.Staged, error)

// Restore restores files of a working tree from a checkpoint. It must be used by a single goroutine. The caller must
// hold the index lock from before Compare until Apply has returned. No change of the user is lost, because everything
// that a restore overwrites is in the checkpoint Before.
type Restore struct {
	Checkout    *Checkout
	Checkpoints Checkpoints
	Differ      Differ   // compares the trees of checkpoints, including empty directories
	Paths       []string // paths to restore, relative to the root; if empty, all paths
	// directories that the caller restores itself, because the trees of checkpoints do not contain them
	Elsewhere []string
	// Lacking returns the paths of files whose contents the latest checkpoint of Checkpoints.Capture lacks, although it
	// may have earlier contents of them. They are kept. If Lacking is nil, there are none.
	Lacking func() []string
	Target  session.Checkpoint // checkpoint to restore from
	// Since is the checkpoint that Target was computed from. If a path to restore has changed since then, Compare returns
	// a fault.RefusalError. The zero value stands for a target that does not depend on the current state.
	Since session.Checkpoint

	// Before is the checkpoint of the state before the restore. To repeat an interrupted restore, the caller sets this
	// field. For a new restore, Compare sets the field.
	Before session.Checkpoint
	// Changes lists the paths to change, in the order in which Differ lists them. Compare sets this field.
	Changes []Difference
	// Kept lists the paths that were left unchanged, because a program changed them during the restore, because another
	// file occupies the path, or because no checkpoint has the contents (Lacking).
	Kept []string

	// whether the caller has set Before, which means that an interrupted restore is repeated
	again bool
	now   session.Checkpoint // checkpoint of the current state
	// states of the changed paths, by path, as they were before the checkpoint now was made
	found map[string]worktree.Found
}

// Compare creates a checkpoint of the current state and computes Changes, the differences of the target from it. If a
// path has changed between the lookup of the paths and the checkpoint, Compare repeats both, at most five times,
// because a program may write continually.
func (r *Restore) Compare(ctx context.Context) (err error) {
	const tries = 5
	r.again, r.found = r.Before.ID != "", map[string]worktree.Found{}
	if r.now, err = r.Checkpoints.Capture(ctx); err != nil {
		return err
	}
	for try := 0; ; try++ {
		if err := r.compare(ctx); err != nil {
			return err
		}
		for _, d := range r.Changes {
			if r.found[d.Path], err = r.Checkout.Tree.Find(ctx, d.Path); err != nil {
				return err
			}
		}
		before := r.now
		if r.now, err = r.Checkpoints.Capture(ctx); err != nil {
			return err
		}
		if r.now.Tree == before.Tree || try == tries {
			break
		}
	}
	if err := r.checkPaths(ctx); err != nil {
		return err
	}
	err = r.compare(ctx)
	if !r.again {
		r.Before = r.now
	}
	if err == nil && r.Since.ID != "" {
		err = r.checkSince(ctx)
	}
	return err
}

// checkSince returns a fault.RefusalError if paths to restore have changed since the checkpoint Since.
func (r *Restore) checkSince(ctx context.Context) error {
	list, err := r.Differ.Differences(ctx, r.Since.Tree, r.now.Tree)
	if err != nil {
		return err
	}
	refusal := fault.RefusalError{Why: "files were changed in the meantime", Hint: "nothing was changed; run the command again"}
	for _, d := range list {
		if r.Wants(d.Path) {
			refusal.Paths = append(refusal.Paths, d.Path)
		}
	}
	if len(refusal.Paths) > 0 {
		return refusal
	}
	return nil
}

// checkPaths returns a fault.NoPathError if one of the requested paths is neither in the target nor in the working
// tree.
func (r *Restore) checkPaths(ctx context.Context) error {
	for _, p := range r.Paths {
		known := slices.ContainsFunc(r.Elsewhere, func(dir string) bool { return dir == p || strings.HasPrefix(dir, p+"/") })
		for _, tree := range []object.ID{r.Target.Tree, r.now.Tree} {
			has, err := r.Checkout.has(ctx, tree, p)
			if err != nil {
				return err
			}
			known = known || has
		}
		if !known {
			return fault.NoPathError{Path: p}
		}
	}
	return nil
}

// has reports whether a git tree contains the path at.
func (c *Checkout) has(ctx context.Context, tree object.ID, at string) (bool, error) {
	e, err := treediff.EntryAt(ctx, c.Trees, tree, at)
	return e.Mode != 0, err
}

// Wants reports whether a path is one of the requested paths, or is below one of them.
func (r *Restore) Wants(at string) bool {
	return len(r.Paths) == 0 || slices.ContainsFunc(r.Paths,
		func(p string) bool { return at == p || strings.HasPrefix(at, p+"/") })
}

// compare sets Changes to the paths at which the current state and the target differ.
func (r *Restore) compare(ctx context.Context) (err error) {
	r.Changes, err = r.differences(ctx, r.now.Tree)
	if r.Lacking != nil {
		lacking := r.Lacking()
		r.spare(func(d Difference) bool { return slices.Contains(lacking, d.Path) })
	}
	if err == nil && r.again && r.now.ID != r.Before.ID {
		err = r.spareChanged(ctx)
	}
	return err
}

// Whole returns all paths at which the target differs from the checkpoint Before. If an interrupted restore was
// repeated, this includes the paths that were restored before the interruption.
func (r *Restore) Whole(ctx context.Context) ([]Difference, error) {
	return r.differences(ctx, r.Before.Tree)
}

// differences returns the requested paths at which the target differs from the tree from. It omits submodules,
// redirected directories, whose files are not stored in the working tree, and paths that the working tree cannot show.
func (r *Restore) differences(ctx context.Context, from object.ID) ([]Difference, error) {
	redirects := r.Checkout.Redirects()
	list, err := r.Differ.Differences(ctx, from, r.Target.Tree)
	return slices.DeleteFunc(list, func(d Difference) bool {
		elsewhere := slices.ContainsFunc(redirects, func(dir string) bool { return strings.HasPrefix(d.Path+"/", dir) })
		return !r.Wants(d.Path) || elsewhere || !object.CanShowPath(d.Path) || d.OldMode == object.ModeGitlink ||
			d.NewMode == object.ModeGitlink
	}), err
}

// keepChanged removes from Changes the paths that a program has changed since the interrupted restore began: such a
// path has neither the state before the restore nor that of the target. An empty directory, and a missing file where a
// directory must be restored, do not count as such changes, because a killed restore may leave them.
func (r *Restore) spareChanged(ctx context.Context) error {
	list, err := r.Differ.Differences(ctx, r.Before.Tree, r.now.Tree)
	if err != nil {
		return err
	}
	changed, removed := map[string]bool{}, map[string]bool{}
	for _, d := range list {
		switch d.NewMode {
		case 0:
			removed[d.Path] = true
		case object.ModeDir:
			emptied, err := r.Checkout.has(ctx, r.Before.Tree, d.Path)
			if err != nil {
				return err
			}
			changed[d.Path] = !emptied
		default:
			changed[d.Path] = true
		}
	}
	r.spare(func(d Difference) bool { return changed[d.Path] || removed[d.Path] && d.NewMode != object.ModeDir })
	return nil
}

// spare moves the paths for which is returns true from Changes to Kept.
func (r *Restore) spare(is func(d Difference) bool) {
	r.Changes = slices.DeleteFunc(r.Changes, func(d Difference) bool {
		spared := is(d)
		if spared && !slices.Contains(r.Kept, d.Path) {
			r.Kept = append(r.Kept, d.Path)
		}
		return spared
	})
}

// Apply changes the files and the index as Compare has computed. If it succeeds, it has released lock. If it returns an
// error, it has changed neither files nor the index, unless the error is an UnfinishedError. staged returns the index
// entries to restore; if staged is nil, the index is only updated for the changed files. nonce is the nonce of the
// client's request. pending is the intent of the interrupted restore that is repeated, or nil for a new one.
func (r *Restore) Apply(ctx context.Context, lock Index, staged StagedOf, nonce string, pending *Pending) error {
	c := r.Checkout
	if pending == nil {
		if err := c.refuse(r.Changes); err != nil {
			return err
		}
	}
	c.refreshKernel(ctx, r.Changes)
	// The killed process may have restored paths without notifying the kernel. Changes does not contain these paths, so
	// the kernel is notified of all paths of the restore.
	if pending != nil && c.Mark.Stale() {
		whole, err := r.Whole(ctx)
		if err != nil {
			return err
		}
		c.refreshKernel(ctx, whole)
	}
	x, err := lock.Read()
	if err != nil {
		return err
	}
	p, err := PlanRestore(ctx, c.Tree, r.Changes, r.found, func(ctx context.Context) (map[string]uint32, error) {
		return r.Checkpoints.Dirs(ctx, r.Target)
	})
	if err != nil {
		return err
	}
	device, err := c.Device()
	if err != nil {
		return err
	}
	var entries *gitdir.Staged
	if staged != nil {
		if entries, err = staged(ctx, r.now); err != nil {
			return err
		}
	}
	if err := r.Checkpoints.Hold(ctx, r.Target); err != nil {
		return err
	}
	r.Kept = append(r.Kept, p.Kept...)
	intent := RestoreIntent{Checkpoint: r.Target.ID, Before: r.Before.ID, Paths: r.Paths,
		Staged: staged != nil, Nonce: nonce}
	return c.apply(ctx, lock, x, change{
		to: r.Target.Tree, plan: p, intent: Intent{Restore: &intent}, pending: pending,
		reindex: func(x *index.Index, done worktree.GraftResult, _ time.Time) {
			for i, g := range p.Grafts {
				if done.Done[i].Kept {
					r.Kept = append(r.Kept, g.Path)
				}
			}
			restoreIndex(x, entries, p.Grafts, done, device)
		},
	})
}
