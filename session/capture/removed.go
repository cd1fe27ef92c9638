package capture

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// takeRemoved adds the files that were just removed or overwritten to the tree of the checkpoint s. The result said is
// a message for the checkpoint, which states the number of these files. When the checkpoint was written or has failed,
// the caller must call done, which releases the contents of the files; if saved is false, the working tree keeps the
// files for the next checkpoint. c.mem does not contain these files, so the next checkpoint shows them as removed.
func (c *Capturer) takeRemoved(ctx context.Context, s *shot) (done func(saved bool), said string, err error) {
	// Take the list after the freeze, so that it contains every file that was removed before the freeze.
	files, lost, done := c.o.Tree.Removals().Take()
	e := s.edit
	// The method contents has processed the frozen files already. Its call below must process only the removed files.
	e.plain, e.cleaned = nil, nil
	if err := s.addRemovedWorktrees(ctx, files); err != nil {
		return done, "", fmt.Errorf("read removed linked worktrees: %w", err)
	}
	n := 0
	for _, k := range files {
		f := removedEntry(k)
		if c.roots.isGitFile(f.Path) {
			continue
		}
		if k.Lost() {
			lost++
			continue
		}
		// The rules decide about a removed file as they do about an existing one.
		why, err := e.reasonToLeaveOut(ctx, f)
		if err == nil && (why == "" && !e.v.inSkipped(f.Path)) {
			n++
			_, err = e.entry(ctx, f)
		}
		if err != nil {
			return done, "", fmt.Errorf("store removed file %s: %w", f.Path, err)
		}
	}
	if n+lost == 0 {
		return done, "", nil
	}
	if n > 0 {
		if err := e.contents(ctx); err != nil {
			return done, "", err
		}
		// The comparison with the previous checkpoint reads the new trees before they are written to the Repo.
		s.full, err = e.trees.write(e.trees.root, s.emit)
	}
	said = fmt.Sprintf("before %d files were removed or overwritten", n)
	if n == 1 {
		said = "before 1 file was removed or overwritten"
	}
	if lost > 0 {
		said += fmt.Sprintf(", without %d more for which there was no space", lost)
	}
	return done, said, err
}

// addRemovedWorktrees handles linked worktrees that were removed together with their directories. If files contains a
// file of such a worktree, addRemovedWorktrees adds the worktree to this checkpoint, with the files that it has in the
// previous checkpoint.
func (s *shot) addRemovedWorktrees(ctx context.Context, files []*removed.File) error {
	c := s.edit.c
	last, have := c.Last()
	if has, err := c.o.Repo.HasWorktrees(last); !have || err != nil || !has {
		return nil // without the previous state, the removed files are those of a directory
	}
	state, err := c.o.Repo.State(last)
	if err != nil {
		return err
	}
	list, err := state.Worktrees(c.format)
	if err != nil {
		return err
	}
	for _, l := range list {
		if c.roots.has(l.Path) || !slices.ContainsFunc(files,
			func(k *removed.File) bool { return isWithin(k.Path, l.Path) }) {
			continue
		}
		info, err := c.o.Repo.Commit(l.Files)
		if err != nil {
			return err
		}
		was, err := c.lookup(ctx, info.Tree, l.Path)
		if err != nil {
			return err
		}
		if err := s.edit.trees.set(ctx, l.Path, was.Mode, was.ID); err != nil {
			return err
		}
		r := root{name: l.Name, path: l.Path, tracking: tracking{index: l.Index}, branch: l.Branch, commit: l.Commit,
			files: l.Operation,
			gone:  info.Tree}
		if head, err := c.o.Repo.Commit(l.Commit); err == nil {
			r.head = head.Tree
		}
		c.roots = append(c.roots, r)
	}
	slices.SortFunc(c.roots, func(a, b root) int { return strings.Compare(a.path, b.path) })
	s.view.track(c.tracking)
	s.view.x.roots = c.roots
	clear(s.view.x.cached)
	clear(s.view.skipped)
	return nil
}

// removedEntry returns the entry of a removed file as a freeze would have returned it before the removal.
func removedEntry(k *removed.File) *worktree.FrozenEntry {
	e := &worktree.FrozenEntry{Path: k.Path, Kind: worktree.FrozenContent, Mode: k.Mode, Size: k.Size, Target: k.Target,
		Content: k.Content}
	if k.Mode == object.ModeSymlink {
		e.Kind = worktree.FrozenLink
	}
	return e
}

// inSkipped reports whether path is below a directory that checkpoints leave out as a whole.
func (v *view) inSkipped(path string) bool {
	for dir := parent(path); dir != ""; dir = parent(dir) {
		if v.skip(dir) {
			return true
		}
	}
	return false
}

// reportSaved informs the working tree of the changes that checkpoints now contain, and of the ignored directories that
// checkpoints leave out.
func (c *Capturer) reportSaved(s *shot) {
	ignored := map[string]bool{}
	for path, l := range c.left.all {
		if n := len(path); l.Why == session.Ignored && n > 0 && path[n-1] == '/' {
			ignored[path[:n-1]] = true
		}
	}
	if moment := s.view.frozen.Moment(); moment != 0 {
		c.o.Tree.Removals().Saved(moment, ignored)
	}
}
