package promotion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/review"
)

// promoted is the planned value of the target branch.
type promoted struct {
	tip, tree object.ID   // commit of the branch and its tree; both are zero if the branch contains the changes already
	have      []object.ID // commits that the target repository has
}

// relation describes how the commit of the target branch and the commits of the session are related.
type relation struct {
	onto object.ID // commit of the branch
	tree object.ID // tree of onto; zero if forward is set, because it is not needed
	// commits that are reachable from onto, among those of the session and those on which it is based
	have    map[object.ID]bool
	forward bool      // whether onto is reachable from HEAD, so that the branch can be moved by a fast-forward
	base    object.ID // tree of the merge base
}

// plan determines the new value of the target branch. old is its present value, and start the value of the branch from
// which it is created; both may be zero.
func (p *promotion) plan(ctx context.Context, old, start object.ID) (promoted, error) {
	head, err := p.o.Repo.TreeOf(p.work.head)
	if err != nil {
		return promoted{}, err
	}
	if !p.reply.Mounted {
		if err := p.based(ctx); err != nil {
			return promoted{}, err
		}
	}
	onto := old
	if onto.IsZero() {
		onto = start
	}
	if onto.IsZero() && p.r.PullRequest {
		return promoted{},
			p.refused(control.CodeNotFound, "repository has no branch "+p.reply.Base+" that could receive the commits", "")
	}
	if onto.IsZero() {
		if p.reply.Method != control.PromoteFF {
			return promoted{}, p.refused(control.CodeNotFound, "repository has no such branch", "add --ff to create the branch")
		}
		p.list(p.work.commits)
		return promoted{p.work.head, head, p.work.bases}, nil
	}
	r, err := p.relate(ctx, onto)
	if err != nil {
		return promoted{}, err
	}
	lacked := p.work.without(r.have)
	p.list(lacked)
	next := promoted{p.work.head, head, append(slices.Clone(p.work.bases), onto)}
	switch {
	case r.have[p.work.head] && len(lacked) == 0:
		return promoted{}, nil
	case p.reply.Method == control.PromoteFF && (r.forward || old.IsZero()):
		return next, nil
	case p.reply.Method == control.PromoteFF:
		return promoted{}, p.refused(control.CodeRefused,
			"not a fast-forward: the branch has commits that the session lacks (it is at "+onto.String()[:12]+")",
			"add --merge to join both by a merge commit, or --squash to put the changes on the branch as one commit")
	}
	if !r.forward {
		if next.tree, err = p.merge(ctx, r, head); err != nil {
			return promoted{}, err
		}
		if next.tree == r.tree && p.reply.Method == control.PromoteSquash {
			return promoted{}, nil
		}
	}
	next.tip, err = p.commit(ctx, next.tree, onto, lacked)
	return next, err
}

// list adds commits, those that the branch lacks, to the reply.
func (p *promotion) list(commits []owned) {
	p.reply.Commits, p.reply.Total = shownCommits(commits), int64(len(commits))
}

// based returns an error if the target repository lacks a commit on which the session is based, because the history
// before the session is not pushed.
func (p *promotion) based(ctx context.Context) error {
	for _, id := range p.work.bases {
		err := p.fetch(ctx, transport.FetchRequest{Wants: []object.ID{id}, Depth: 1, Filter: "tree:0"})
		var lacks transport.NotOurRef
		switch {
		case errors.As(err, &lacks):
			return p.refused(control.CodeNotFound, "repository lacks the commit "+id.String()+", on which the session is based",
				"push that commit to the repository first, from a complete clone; without --to the commits go to the mounted remote")
		case err != nil:
			return p.failed(err)
		}
	}
	return nil
}

// relate determines the relation between onto, the commit of the target branch, and the commits of the session.
func (p *promotion) relate(ctx context.Context, onto object.ID) (relation, error) {
	r := relation{onto: onto}
	if p.work.has(onto) {
		r.have, r.forward = p.work.ancestors(onto), true
		return r, nil
	}
	// The commits between the session and the branch, with their trees.
	haves := slices.Clone(p.work.bases)
	for _, c := range p.work.commits[:min(len(p.work.commits), maxHaves)] {
		haves = append(haves, c.id)
	}
	if err := p.fetch(ctx, transport.FetchRequest{Wants: []object.ID{onto}, Haves: haves,
		Filter: "blob:none"}); err != nil {
		return r, p.failed(err)
	}
	var err error
	if r.have, err = p.reaches(onto); err != nil {
		return r, err
	}
	if r.have[p.work.head] {
		return r, nil
	}
	c, err := p.info(onto)
	if err != nil {
		return r, err
	}
	r.tree = c.Tree
	for _, id := range p.work.bases {
		if !r.have[id] { // the branch is behind the session's base, or their histories differ
			return p.relateFully(ctx, r)
		}
	}
	// Of the commits that both have, the first one is a descendant of the others, except after merges in both
	// directions.
	base := p.work.bases[0]
	for _, c := range p.work.commits {
		if r.have[c.id] {
			base = c.id
			break
		}
	}
	return r, p.baseOf(&r, base)
}

// baseOf sets r.base, the tree from which both sides of the merge are compared: that of the commit base. If the branch
// has the tree of a commit of the session, because that commit was squashed onto it, baseOf sets that tree, so that
// only later changes are merged.
func (p *promotion) baseOf(r *relation, base object.ID) error {
	if id, same := p.work.trees[r.tree]; same {
		r.base = r.tree
		if p.reply.Method == control.PromoteSquash {
			maps.Copy(r.have, p.work.ancestors(id))
		}
		return nil
	}
	c, err := p.info(base)
	r.base = c.Tree
	return err
}

// reaches returns those of the commits of the session, and of the commits on which it is based, that are reachable from
// the commit onto.
func (p *promotion) reaches(onto object.ID) (map[object.ID]bool, error) {
	have, seen := map[object.ID]bool{}, map[object.ID]bool{}
	for stack := []object.ID{onto}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		if p.work.has(id) {
			for known := range p.work.ancestors(id) {
				have[known] = true
			}
			continue
		}
		c, err := p.scratch.Commit(id)
		if errors.Is(err, odb.ErrNotFound) { // a commit before the session's base
			continue
		}
		if err != nil {
			return nil, err
		}
		stack = append(stack, c.Parents...)
	}
	return have, nil
}

// info returns a commit of the target repository or of the session.
func (p *promotion) info(id object.ID) (object.CommitInfo, error) {
	c, err := p.scratch.Commit(id)
	if errors.Is(err, odb.ErrNotFound) {
		return p.o.Repo.Commit(id)
	}
	return c, err
}

// relateFully completes the relation r from the complete history of the branch and of the session's base, which it
// fetches without trees.
func (p *promotion) relateFully(ctx context.Context, r relation) (relation, error) {
	wants := append(slices.Clone(p.work.bases), r.onto)
	if err := p.fetch(ctx, transport.FetchRequest{Wants: wants, Filter: "tree:0"}); err != nil {
		return r, p.failed(err)
	}
	base, err := merge.Base(p.git().Runner(ctx), r.onto.String(), p.work.head.String())
	if err == nil && base.IsZero() {
		err = p.refused(control.CodeConflict, "branch and session have no common history", "")
	}
	if err != nil {
		return r, err
	}
	if base == r.onto {
		r.forward = true
		return r, nil
	}
	if err := p.fetch(ctx, transport.FetchRequest{Wants: []object.ID{base}, Depth: 1, Filter: "blob:none"}); err != nil {
		return r, p.failed(err)
	}
	return r, p.baseOf(&r, base)
}

// merge merges the changes of the session, whose tree is head, into the target branch, and returns the resulting tree.
// If there are conflicts, it returns an error that names the paths.
func (p *promotion) merge(ctx context.Context, r relation, head object.ID) (tree object.ID, err error) {
	switch r.base {
	case r.tree:
		return head, nil
	case head:
		return r.tree, nil
	}
	ids, renames, err := treediff.ContentsToMerge(ctx, p.readTree, r.base, r.tree, head)
	if err != nil {
		return tree, err
	}
	lacks, err := p.lacks(ctx, ids)
	if err == nil {
		err = p.provide(ctx, lacks, true)
	}
	if err != nil {
		return tree, err
	}
	objects, us, them, err := session.CommitsToMerge(p.scratch.Format(), r.base, r.tree, head)
	if err == nil {
		err = p.scratch.Write(ctx, objects)
	}
	if err != nil {
		return tree, err
	}
	git := p.git().WithoutUser() // so that the tree is the one that was approved
	merged, err := merge.Commits(git.Runner(ctx), us.String(), them.String(), merge.Renames(renames))
	if err != nil {
		return tree, err
	}
	if paths := merged.Conflicted(); len(paths) > 0 {
		return tree,
			p.refused(control.CodeConflict, "branch and session have changed the same lines: "+review.Some(paths, maxNamed),
				"run git fetch and git merge in the mount, resolve the conflicts, and promote again")
	}
	return merged.Result, nil
}

// lacks returns those elements of ids whose objects git does not find on this host, without duplicates.
func (p *promotion) lacks(ctx context.Context, ids []object.ID) (lacks []object.ID, err error) {
	return read.Missing(ctx, p.git(), ids)
}

// outgoing returns the objects that must be pushed. Contents that are missing on this host are fetched, unless the
// target is the mounted remote, which has them. If the target has refused a push because it lacks some
// (promotion.whole), all are pushed.
func (p *promotion) outgoing(ctx context.Context, next promoted) (ids []object.ID, err error) {
	args := []string{"rev-list", "--objects", "--no-object-names", "--missing=print", next.tip.String(), "--not"}
	for _, id := range next.have {
		if _, err := p.info(id); err == nil {
			args = append(args, id.String())
		}
	}
	out, err := p.git().Output(ctx, "", args...)
	if err != nil {
		return nil, err
	}
	var missing []object.ID
	for line := range strings.Lines(string(out)) {
		text, lacked := strings.CutPrefix(strings.TrimSpace(line), "?")
		id, err := object.ParseID(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("parse output of git rev-list: %w", err)
		case lacked:
			missing = append(missing, id)
		case p.reply.Mounted && !p.whole && !p.o.Far && p.o.Repo.Remotes(id): // the mounted remote has the object
		default:
			ids = append(ids, id)
		}
	}
	if len(missing) > 0 && (!p.reply.Mounted || p.whole || p.o.Far) {
		if err := p.provide(ctx, missing, false); err != nil {
			return nil, fmt.Errorf("fetch contents that the repository lacks: %w", err)
		}
		still, err := p.lacks(ctx, missing)
		if err != nil {
			return nil, err
		}
		ids = append(ids, slices.DeleteFunc(missing, func(id object.ID) bool { return slices.Contains(still, id) })...)
	}
	p.reply.Objects = int64(len(ids))
	return ids, nil
}

// readTree returns the entries of a tree of the target repository or of the session.
func (p *promotion) readTree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, err := p.scratch.Tree(id)
	if errors.Is(err, odb.ErrNotFound) {
		return p.o.Tree(ctx, id)
	}
	return entries, err
}

// git runs git in the scratch repository with the string in as standard input, and returns the standard output.
func (p *promotion) git() gitcmd.Repo {
	// The author is the caller, and not the user who started the daemon.
	base := slices.DeleteFunc(gitcmd.Environ(nil), func(v string) bool {
		return strings.HasPrefix(v, "GIT_AUTHOR_") || strings.HasPrefix(v, "GIT_COMMITTER_")
	})
	return gitcmd.Repo{Dir: p.scratch.Dir(), Objects: p.o.objects(), Base: base,
		Env:     slices.Concat(p.r.Identity, p.committer),
		Options: []string{"-c", "core.commitGraph=false"}}
}
