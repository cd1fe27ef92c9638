package catalog

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/proposals"
	"github.com/artifactfs/artifactfs/session/review"
)

// changed is the change of a branch that a request for approval is for. For the deletion of a session, it consists of
// the changes in the session.
type changed struct {
	ap            *approving
	before, after object.ID // trees before and after the change; before is zero for a branch that does not exist
	merge         bool      // whether after is the tree of a merge
}

// change returns the change that the branch target, whose present commit is tip, gets if the HEAD commit of the
// checkpoint p is pushed to it or merged into it. none is true if the branch already has this commit. target is the
// full name of the branch.
func (ap *approving) change(ctx context.Context, p session.Checkpoint, tip object.ID,
	target string) (c *changed, none bool, err error) {
	// Trees of the checkpoint's commits that the base commit also has were not fetched with the checkpoint.
	if err := ap.o.farBase(ctx); err != nil {
		return nil, false, err
	}
	head, err := ap.o.Repo.TreeOf(p.Head)
	if err != nil || tip.IsZero() || tip == p.Head {
		return &changed{ap: ap, after: head}, tip == p.Head, err
	}
	before, err := ap.snapshot(ctx, tip)
	if err != nil {
		return nil, false, err
	}
	ancestor, missing := ap.contains(p.Head, tip)
	if ancestor {
		return &changed{ap: ap, before: before, after: head}, false, nil
	}
	return ap.merged(ctx, mergeOf{target: target, tip: tip, head: p.Head, theirs: before, ours: head, history: missing})
}

// snapshot returns the tree of a commit, after it has fetched the commit with its trees from the repository of the
// branch. The trees of the session's base commit need not be fetched.
func (ap *approving) snapshot(ctx context.Context, commit object.ID) (object.ID, error) {
	if commit.String() == ap.o.record.Commit {
		return ap.o.Repo.TreeOf(commit)
	}
	tree, err := ap.target.Snapshot(ctx, commit)
	return tree, ap.explain(err)
}

// contains reports whether the commit tip is reachable from the commit head through commits of the session. missing
// lists the reachable commits that were not fetched, because the mounted remote has them.
func (ap *approving) contains(head, tip object.ID) (ok bool, missing []object.ID) {
	return ap.reaches(head, map[object.ID]bool{}, func(id object.ID) bool { return id == tip })
}

// reaches reports whether the function found returns true for the commit head or an ancestor of it. It does not visit
// the commits in the parameter seen, to which it adds others, and those behind them. The result missing lists commits
// that were not fetched.
func (ap *approving) reaches(head object.ID, seen map[object.ID]bool,
	found func(object.ID) bool) (ok bool, missing []object.ID) {
	for next := []object.ID{head}; len(next) > 0; {
		id := next[0]
		next = next[1:]
		if seen[id] {
			continue
		}
		if seen[id] = true; found(id) {
			return true, nil
		}
		up, ok := ap.parents(id)
		if !ok {
			missing = append(missing, id)
		}
		next = append(next, up...)
	}
	return false, missing
}

// mergeOf describes a merge of the commit head of the session into a branch.
type mergeOf struct {
	target       string      // full name of the branch
	tip, head    object.ID   // commits of the branch and of the session
	theirs, ours object.ID   // trees of tip and head
	history      []object.ID // ancestors of head that are only in the repository of the branch
}

// merged returns the change of a branch by the merge m, with the tree that git merge results in. If the history shows
// that the merge is a fast-forward, it returns that change. none is true if there is nothing to merge.
func (ap *approving) merged(ctx context.Context, m mergeOf) (c *changed, none bool, err error) {
	bases, err := ap.bases(ctx, m)
	if err != nil {
		return nil, false, err
	}
	forward, none, err := review.Relate(bases, m.head, m.tip, m.target)
	switch {
	case err != nil:
		return nil, false, err
	case forward:
		return &changed{ap: ap, before: m.theirs, after: m.ours}, false, nil
	case none:
		return &changed{ap: ap, before: m.theirs, after: m.theirs}, true, nil
	}
	if ap.squashed(m, bases[0]) {
		return &changed{ap: ap, before: m.theirs, after: m.ours, merge: true}, false, nil
	}
	base, err := ap.snapshot(ctx, bases[0])
	if err != nil {
		return nil, false, err
	}
	renames, err := ap.provideMerge(ctx, base, m.ours, m.theirs)
	if err != nil {
		return nil, false, err
	}
	// Git finds the base of a merge through commits, whose history may be missing on this host.
	objects, theirs, ours, err := session.CommitsToMerge(ap.o.Repo.Format(), base, m.theirs, m.ours)
	if err != nil {
		return nil, false, err
	}
	if err := ap.target.Write(ctx, objects); err != nil {
		return nil, false, err
	}
	// Git detects renames only if all contents that it compares are on this host.
	git := ap.git().WithoutUser() // so that the tree is the one that other hosts and the server make
	result, err := merge.Commits(git.Runner(ctx), theirs.String(), ours.String(), merge.Renames(renames))
	if err == nil {
		err = review.Conflicts(result.Conflicted(), m.target)
	}
	return &changed{ap: ap, before: m.theirs, after: result.Result, merge: true}, false, err
}

// squashed reports whether the branch has the tree of a commit of the session after the merge base, because that commit
// was squashed onto the branch. Then only the changes after that commit matter, as in session promote.
func (ap *approving) squashed(m mergeOf, base object.ID) bool {
	seen := map[object.ID]bool{base: true}
	if start, err := object.ParseID(ap.o.record.Commit); err == nil {
		seen[start] = true // the history before the session may have the same tree for another reason
	}
	delete(seen, m.head)
	// Commits that are not here belong to the history before the session.
	same, _ := ap.reaches(m.head, seen, func(id object.ID) bool {
		tree, err := ap.o.Repo.TreeOf(id)
		return err == nil && tree == m.theirs
	})
	return same
}

// bases returns the merge bases of the merge m. Usually branch and session have the base commit of the session in
// common, and only newer commits are fetched. Otherwise, bases fetches the complete history of both.
func (ap *approving) bases(ctx context.Context, m mergeOf) ([]object.ID, error) {
	if base, err := object.ParseID(ap.o.record.Commit); err == nil {
		wants := []object.ID{m.tip}
		up, _ := ap.parents(base)
		for _, id := range m.history {
			if !slices.Contains(up, id) {
				wants = append(wants, id)
			}
		}
		if err := ap.target.Since(ctx, base, wants...); err != nil {
			return nil, ap.explain(err)
		}
		if bases, ok := treediff.MergeBases(ap.parents, m.tip, m.head, base); ok {
			return bases, nil
		}
	}
	if err := ap.target.History(ctx, append([]object.ID{m.tip}, m.history...)...); err != nil {
		return nil, ap.explain(err)
	}
	return merge.Bases(ap.git().Runner(ctx), m.tip.String(), m.head.String())
}

// parents returns the parents of a commit, or false if the commit was not fetched.
func (ap *approving) parents(commit object.ID) ([]object.ID, bool) {
	c, err := ap.o.Repo.Commit(commit)
	if err != nil {
		c, err = ap.target.Commit(commit)
	}
	return c.Parents, err == nil
}

// provideMerge fetches the contents that git merge-tree reads to merge the tree ours of the session into the tree
// theirs of the branch. renames is false if contents that are needed to detect renames are missing.
func (ap *approving) provideMerge(ctx context.Context, base, ours, theirs object.ID) (renames bool, err error) {
	// The attributes of the merge are those of the branch.
	ids, renames, err := treediff.ContentsToMerge(ctx, ap.tree, base, theirs, ours)
	if err != nil {
		return false, err
	}
	mine := map[object.ID]bool{}
	err = treediff.Trees(ctx, ap.tree, base, ours, func(_ string, _, to object.TreeEntry) error {
		mine[to.ID] = true
		return nil
	})
	if err != nil {
		return false, err
	}
	return renames, ap.provide(ctx, ids, func(id object.ID) bool { return mine[id] })
}

// tree returns the entries of a tree of the session or of the repository of the branch.
func (ap *approving) tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, err := ap.target.Tree(id)
	if errors.Is(err, odb.ErrNotFound) {
		return ap.o.tree(ctx, id)
	}
	return entries, err
}

// provide fetches those of the contents ids that are missing on this host: from the session remote if the function mine
// returns true, and from the repository of the branch otherwise.
func (ap *approving) provide(ctx context.Context, ids []object.ID, mine func(object.ID) bool) error {
	lacks, err := read.Missing(ctx, ap.git(), ids)
	if err != nil || len(lacks) == 0 {
		return err
	}
	var ours, theirs []object.ID
	for _, id := range lacks {
		if mine(id) {
			ours = append(ours, id)
		} else {
			theirs = append(theirs, id)
		}
	}
	if err := ap.o.far.Contents(ctx, ap.session, ours); err != nil {
		return fault.SessionRemote(ap.o.far.Remote(), err)
	}
	return ap.explain(ap.target.Contents(ctx, ap.session, theirs))
}

// git returns the mirror of the repository of the branch, with the objects of the session as alternates.
func (ap *approving) git() gitcmd.Repo {
	return gitcmd.Repo{Dir: ap.target.Dir(), Objects: []string{filepath.Join(ap.o.far.Dir(), "objects")}}
}

// files returns the paths whose files differ, without the numbers of lines.
func (c *changed) files(ctx context.Context) (all []control.PathChange, err error) {
	f := c.ap.o.Repo.Format()
	out, err := c.ap.git().Output(ctx, "", "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev",
		treediff.Name(f, c.before), treediff.Name(f, c.after))
	if err != nil {
		return nil, err
	}
	list, err := read.ParseDiff(string(out), false)
	for _, change := range list {
		all = append(all, proposals.PathChange(change))
	}
	return all, err
}

// paths returns the paths of the changed files.
func (c *changed) paths(ctx context.Context) (paths []string, err error) {
	all, err := c.files(ctx)
	for _, f := range all {
		paths = append(paths, f.Path)
	}
	return paths, err
}

// count returns the numbers of changed files and lines. It fetches the contents of these files.
func (c *changed) count(ctx context.Context) (n control.ChangeCount, err error) {
	all, err := c.files(ctx)
	if err != nil {
		return n, err
	}
	var old, now []object.ID // contents that the branch has, and those that the session has
	for _, f := range all {
		old, now = appendBlob(old, f.OldMode, f.Old), appendBlob(now, f.NewMode, f.New)
	}
	theirs := map[object.ID]bool{}
	for _, id := range old {
		theirs[id] = true
	}
	if err := c.ap.provide(ctx, append(old, now...), func(id object.ID) bool { return !theirs[id] }); err != nil {
		return n, err
	}
	err = addLines(ctx, c.ap.git(), c.ap.o.Repo.Format(), all, c.before, c.after)
	return proposals.Count(all), err
}
