package capture

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// Checkpoints contain the linked worktrees inside the mount (git worktree add): their files, indexes and HEADs. A view
// lists the directory of such a worktree, even if it is ignored, and its own rules, index and HEAD decide about the
// files in it. The tree from which the next checkpoint continues contains these files at their paths. The tree that a
// checkpoint shows does not contain them: they are in the tree of another commit, to which the checkpoint's state
// refers (session.Worktree).

// root is a linked worktree inside the mount. Its field head, from the embedded struct, is the tree of the worktree's
// HEAD.
type root struct {
	name, path string // name below worktrees/ of the git directory, and path in the working tree
	tracking
	branch string                  // full name of the ref that its HEAD points to; "" if its HEAD is detached
	commit object.ID               // commit of its HEAD; zero if its HEAD is on a branch without a commit
	stat   fileStat                // attributes of its index file
	files  map[string]session.File // files of operations in progress
	broken error                   // reason why its HEAD or its index cannot be read; checkpoints then do not contain it
	// gone is the tree of the previous checkpoint if the directory was removed since that checkpoint, otherwise zero.
	gone object.ID
}

// roots is a list of linked worktrees, sorted by path.
type roots []root

// has reports whether path is the directory of a linked worktree.
func (list roots) has(path string) bool {
	return slices.ContainsFunc(list, func(r root) bool { return r.path == path })
}

// above returns the directory of the innermost linked worktree that contains path, or "" if path is in the main working
// tree. The directory of a linked worktree itself belongs to the working tree around it.
func (list roots) above(path string) string {
	// A path sorts behind the directories above it, so the innermost worktree is found first.
	for _, r := range slices.Backward(list) {
		if isWithin(path, r.path) {
			return r.path
		}
	}
	return ""
}

// gone returns the tree with the files of the removed linked worktree that contained path, or zero if there is none.
func (list roots) gone(path string) object.ID {
	for _, r := range list {
		if !r.gone.IsZero() && isWithin(path, r.path) {
			return r.gone
		}
	}
	return object.ID{}
}

// isWithin reports whether path is below the directory dir.
func isWithin(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && strings.HasPrefix(path, dir)
}

// findRoots returns the linked worktrees whose directories exist in the working tree, sorted by path, with their HEAD
// trees and indexes at the previous checkpoint. It leaves out worktrees that the rules of checkpoints exclude.
func (c *Capturer) findRoots(ctx context.Context) (list roots) {
	for _, l := range linkedTrees(c.o.GitDir, c.o.Dir) {
		if !session.ValidWorktree(l.name, l.path) || len(list) == session.MaxWorktrees ||
			c.rules.exclude.covers(l.path, true) && !c.rules.include.covers(l.path, true) {
			continue
		}
		// The Tree is asked and not the mount, because the daemon must not wait for a reply of its own.
		text, err := c.contentNow(ctx, join(l.path, gitFile))
		to, isLink := strings.CutPrefix(string(text), "gitdir: ")
		if err != nil || !isLink || filepath.Base(strings.TrimSpace(to)) != l.name {
			continue // the directory was removed without git, or belongs to another worktree
		}
		r := root{name: l.name, path: l.path, tracking: c.mem.Linked[l.path].tracking()}
		// An earlier attempt to make the same checkpoint may have read the index.
		if i := slices.IndexFunc(c.roots, func(was root) bool { return was.path == l.path && was.name == l.name }); i >= 0 {
			r.tracking = c.roots[i].tracking
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b root) int { return strings.Compare(a.path, b.path) })
	return list
}

// gitFile is the name of the file in the directory of a linked worktree that names its git directory.
const gitFile = ".git"

// isGitFile reports whether path is the file .git of a linked worktree. No tree contains this file.
func (list roots) isGitFile(path string) bool {
	return len(list) > 0 && strings.HasSuffix(path, "/"+gitFile) && list.has(parent(path))
}

// remembered returns the data about the indexes of the linked worktrees that the next checkpoint needs, by path, or nil
// if there are no linked worktrees.
func (list roots) remembered() (all map[string]*indexMemory) {
	for _, r := range list {
		if all == nil {
			all = map[string]*indexMemory{}
		}
		all[r.path] = rememberIndex(r.stat, r.tracking)
	}
	return all
}

// rootReader reads the state of linked worktrees. It adds new objects to out and copies.
type rootReader struct {
	c      *Capturer
	out    *output
	copier *session.Copier
}

// all reads the HEADs and indexes of the linked worktrees c.roots. If a worktree cannot be read, all sets its field
// broken and logs the error, so that one broken worktree does not prevent checkpoints.
func (w rootReader) all(ctx context.Context) {
	c := w.c
	for i := range c.roots {
		r := &c.roots[i]
		if r.broken = w.read(ctx, r); r.broken != nil {
			c.o.Log.Warn("read linked worktree", zap.String("path", r.path), zap.Error(r.broken))
		}
	}
}

// read reads the HEAD, the index and the operations in progress of a linked worktree, and stores them in r.
func (w rootReader) read(ctx context.Context, r *root) (err error) {
	c := w.c
	dir := filepath.Join(c.o.GitDir, "worktrees", r.name)
	text, err := disk.ReadRegular(filepath.Join(dir, "HEAD"), disk.SmallFile)
	if err != nil {
		return err
	}
	r.branch, r.commit, r.head = "", object.ID{}, object.ID{}
	line := strings.TrimSpace(string(text))
	if to, isRef := strings.CutPrefix(line, "ref:"); isRef {
		r.branch = strings.TrimSpace(to)
		r.commit, err = c.refs.Ref(r.branch)
	} else {
		r.commit, err = object.ParseIDOf(c.format, line)
	}
	if err != nil {
		return fmt.Errorf("read HEAD: %w", err)
	}
	if !r.commit.IsZero() {
		if !c.o.Repo.Owned(r.commit) && !c.o.Repo.Remotes(r.commit) {
			if err := w.copier.Commits(ctx, []object.ID{r.commit}); err != nil {
				return err
			}
		}
		info, err := c.o.Repo.Commit(r.commit)
		if err != nil {
			return err
		}
		r.head = info.Tree
	}
	if r.files, err = readOperation(dir); err != nil {
		return err
	}
	name := filepath.Join(dir, "index")
	if r.stat, err = statOf(name); err != nil {
		return err
	}
	was := c.mem.Linked[r.path]
	if was.isUnchanged(r.stat, r.head) {
		if r.index, err = was.index(); err == nil {
			return nil
		}
	}
	s := &staging{c: c, out: w.out, copier: w.copier, tracked: 2}
	r.index, err = s.file(ctx, name, r.stat, []object.ID{r.head, c.o.BaseTree, was.tracking().index.Tree})
	return err
}

// addLinked sets s.shown to the tree s.full without the files of linked worktrees. It adds the linked worktrees to the
// state of the checkpoint. Linked worktrees that the checkpoint does not contain are added to the left-out paths.
func (s *shot) addLinked(ctx context.Context) error {
	c := s.edit.c
	s.shown = s.full
	defer func() { c.roots = slices.DeleteFunc(c.roots, func(r root) bool { return !r.gone.IsZero() }) }()
	carried, err := s.carried(ctx)
	if err != nil {
		return err
	}
	s.edit.linked(ctx, carried)
	if len(c.roots) == 0 {
		return nil
	}
	if s.shown, err = s.withoutRoots(ctx); err != nil {
		return err
	}
	for dir := range s.state.Dirs {
		if c.roots.has(dir) || c.roots.above(dir) != "" {
			delete(s.state.Dirs, dir)
		}
	}
	if len(carried) == 0 {
		return nil
	}
	files, indexes, objects, err := session.WorktreeFiles(c.format, s.full, carried)
	if err != nil {
		return err
	}
	for _, o := range objects {
		s.out.add(o)
	}
	for i := range carried {
		carried[i].Files = files
	}
	s.state.parents = append(s.state.parents, files, indexes)
	return s.state.AddWorktrees(carried)
}

// carried returns the linked worktrees that the checkpoint contains.
func (s *shot) carried(ctx context.Context) (list []session.Worktree, err error) {
	c := s.edit.c
	for _, r := range c.roots {
		l := session.Worktree{Name: r.name, Path: r.path, Branch: r.branch, Commit: r.commit, Index: r.index,
			Operation: r.files}
		e, err := c.lookup(ctx, s.full, r.path)
		if err != nil {
			return nil, err
		}
		// The directory may be in another repository, whose files are left out.
		if r.broken == nil && e.Mode == object.ModeDir && l.Valid() {
			list = append(list, l)
		}
	}
	return list, nil
}

// withoutRoots returns the tree s.full without the linked worktrees, and without the directories that contained nothing
// else.
func (s *shot) withoutRoots(ctx context.Context) (object.ID, error) {
	c := s.edit.c
	t := newTrees(c.readTree, c.format, s.full)
	for _, r := range c.roots {
		for at := r.path; at != ""; at = parent(at) {
			mode, _, err := t.get(ctx, at)
			if err != nil {
				return object.ID{}, err
			}
			d, err := t.within(ctx, at, false)
			if err != nil {
				return object.ID{}, err
			}
			if mode == 0 || at != r.path && !d.isEmpty() {
				break
			}
			if err := t.remove(ctx, at); err != nil {
				return object.ID{}, err
			}
		}
	}
	return t.write(t.root, s.emit)
}

// isEmpty reports whether the directory has no entries.
func (d *directory) isEmpty() bool {
	for _, e := range d.was {
		if d.get(e.Name).mode != 0 {
			return false
		}
	}
	for _, e := range d.now {
		if e.mode != 0 {
			return false
		}
	}
	return true
}

// linked updates the left-out paths: the linked worktrees inside the mount that are not in carried are left out, and no
// others.
func (e *edit) linked(ctx context.Context, carried []session.Worktree) {
	var now []string
	for _, l := range linkedTrees(e.c.o.GitDir, e.c.o.Dir) {
		if slices.ContainsFunc(carried, func(c session.Worktree) bool { return c.Path == l.path }) {
			continue
		}
		// else the directory was removed without git
		if _, err := e.c.o.Tree.Resolve(ctx, join(l.path, gitFile)); err == nil {
			now = append(now, l.path+"/")
		}
	}
	for path, l := range e.left.all {
		if l.Why == session.Linked && !slices.Contains(now, path) {
			e.left.delete(path)
		}
	}
	for _, path := range now {
		// a worktree in a directory that is not ignored is also a nested repository
		e.left.delete(strings.TrimSuffix(path, "/"))
		e.left.add(LeftOut{Path: path, Why: session.Linked})
	}
}

// linkedTree names a linked worktree below the mount.
type linkedTree struct {
	name string // name of its directory below worktrees/
	path string // path relative to the mount
}

// linkedTrees returns the linked worktrees of the git directory gitDir whose directories are below dir, by the files
// that git keeps about them. The directories may no longer exist.
func linkedTrees(gitDir, dir string) (list []linkedTree) {
	entries, _ := os.ReadDir(filepath.Join(gitDir, "worktrees")) // usually there is no such directory
	if dir == "" || len(entries) == 0 {
		return nil
	}
	// git writes paths without symbolic links. The mountpoint itself is not one.
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		own := filepath.Join(gitDir, "worktrees", entry.Name())
		text, err := disk.ReadRegular(filepath.Join(own, "gitdir"), disk.SmallFile)
		file := strings.TrimSpace(string(text))
		if err != nil || filepath.Base(file) != gitFile {
			continue
		}
		if !filepath.IsAbs(file) { // git writes relative paths if worktree.useRelativePaths is set
			file = filepath.Join(own, file)
		}
		at, err := filepath.Rel(filepath.Join(above, filepath.Base(dir)), filepath.Dir(file))
		if err == nil && at != "." && filepath.IsLocal(at) {
			list = append(list, linkedTree{entry.Name(), filepath.ToSlash(at)})
		}
	}
	return list
}
