package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
)

// IncludeName is the name of the file in the root that names the paths that are carried to a fork, in the syntax of
// .gitignore. Other programs that make worktrees read it as well.
const IncludeName = ".worktreeinclude"

// Carrying selects the paths that are carried to a fork, among those that a checkpoint leaves out.
type Carrying struct {
	// Begin begins a seal of the contents of the Tree. It is called before each freeze that a checkpoint is made of, if
	// there may be something to carry.
	Begin func() (*worktree.Seal, error)
	// All carries all paths, even if the file IncludeName exists or Include is not empty. Otherwise only the paths that
	// these name are carried, if there are any such names.
	All bool
	// Listed carries only the paths that the file and Include name, even if there is no such file.
	Listed  bool
	Include []string // globs of further paths to carry
	Exclude []string // globs of paths that are not carried
}

// carrying is the work for a Carrying in progress. A nil carrying carries nothing.
type carrying struct {
	Carrying
	seal *worktree.Seal // seal of the latest freeze; nil if it could not be begun
	err  error          // why it could not be begun
	// lacks is whether there is something to take, but the latest freeze had no seal. must is whether the next freezes
	// have one in any case.
	lacks, must bool
}

// begin begins a seal for the next freeze of the Capturer c. It ends that of an earlier freeze, which was in vain. It
// returns nil if nothing is carried, and also if nothing of what the previous checkpoint has left out is to be carried,
// because a seal costs disk space as long as the session exists. fold states that paths are compared regardless of
// case.
func (k *carrying) begin(ctx context.Context, c *Capturer, fold bool) *worktree.Seal {
	if k == nil {
		return nil
	}
	k.close()
	k.err = nil
	if !k.must {
		choose, err := k.chooser(ctx, c, fold)
		if k.err = err; err != nil || !takesOf(c.left, choose) {
			return nil
		}
	}
	if k.seal, k.err = k.Begin(); k.err != nil {
		k.seal = nil
	}
	return k.seal
}

// takesOf reports whether choose takes one of the left-out paths.
func takesOf(left *leftSet, choose func(path string, isDir bool) carry.Choice) bool {
	for path, l := range left.all {
		path, isDir := strings.CutSuffix(path, "/")
		if l.Why == session.Linked {
			continue
		}
		if choice := choose(path, isDir); choice != carry.Leave && (choice != carry.Enter || isDir) {
			return true
		}
	}
	return false
}

// close ends the seal.
func (k *carrying) close() {
	if k != nil && k.seal != nil {
		k.seal.Close()
		k.seal = nil
	}
}

// Taken are the files that Checkpoint has taken for a fork.
type Taken struct {
	*carry.Files
	Secrets []string // taken paths that look like secrets, sorted
	// Missing are the first of the paths that the checkpoint leaves out and that were not taken, or not completely, in
	// the order of Report.Left. All is the number of these paths.
	Missing []LeftOut
	All     int64
}

// take takes the paths that the checkpoint s leaves out, except linked worktrees, which a fork restores itself, and
// the paths in them.
func (k *carrying) take(ctx context.Context, s *shot) (*Taken, error) {
	if k.err != nil {
		return nil, k.err
	}
	choose, err := k.chooser(ctx, s.edit.c, s.view.x.fold)
	if err != nil {
		return nil, err
	}
	var paths []string
	for path, l := range s.edit.left.all {
		if l.Why != session.Linked {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	files := &carry.Files{}
	if k.seal != nil {
		files, err = k.seal.Take(paths, choose)
	} else {
		k.lacks = takesOf(s.edit.left, choose)
	}
	if err != nil {
		return nil, err
	}
	t := &Taken{Files: files}
	missing := leftSet{all: map[string]LeftOut{}}
	for path, l := range s.edit.left.all {
		name, isDir := strings.CutSuffix(path, "/")
		switch {
		case !files.Has(path):
			missing.all[path] = l
		case l.Why == session.Secret, s.edit.c.rules.deny.covers(name, isDir):
			t.Secrets = append(t.Secrets, path)
		}
	}
	slices.Sort(t.Secrets)
	t.Missing, t.All = missing.first(), int64(len(missing.all))
	return t, nil
}

// chooser returns the function that decides which of the left-out paths are carried. fold states that paths are
// compared regardless of case.
func (k *carrying) chooser(ctx context.Context, c *Capturer, fold bool) (func(path string, isDir bool) carry.Choice,
	error) {
	var named, out globs
	listed := false
	if !k.All {
		text, ok, err := k.includeFile(ctx, c.o.Tree)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", IncludeName, err)
		}
		named, listed = parseIgnore(text, fold), ok || k.Listed || len(k.Include) > 0
	}
	for _, glob := range k.Include {
		named = named.add(strings.TrimPrefix(glob, "./"), fold)
	}
	for _, glob := range k.Exclude {
		out = out.add(strings.TrimPrefix(glob, "./"), fold)
	}
	roots := c.roots
	return func(path string, isDir bool) carry.Choice {
		below := slices.ContainsFunc(roots, func(r root) bool { return isWithin(r.path, path) })
		if roots.has(path) || roots.above(path) != "" {
			return carry.Leave
		}
		if fold {
			path = lower(path)
		}
		switch {
		case out.covers(path, isDir):
			return carry.Leave
		case listed && !named.covers(path, isDir):
			if isDir && named.below(path) {
				return carry.Enter
			}
			return carry.Leave
		case isDir && (below || out.below(path)):
			return carry.Ask
		}
		return carry.All
	}, nil
}

// includeFile returns the present text of the file IncludeName, and false if there is no such regular file. The
// contents may have to be fetched.
func (k *carrying) includeFile(ctx context.Context, tree *worktree.Tree) (text []byte, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	n, err := tree.Resolve(ctx, IncludeName)
	if errors.Is(err, worktree.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	a, err := tree.Attr(ctx, n)
	switch {
	case err != nil:
		return nil, false, err
	case a.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, false, nil
	case a.Size > maxIgnoreFile:
		return nil, false, syscall.EFBIG
	}
	text = make([]byte, a.Size)
	read, err := tree.Read(ctx, n, text, 0)
	return text[:read], err == nil, err
}
