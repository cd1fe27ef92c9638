package review

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/review"
)

// workspace returns a copy of the replica in which git may write objects. It is removed when the view ends.
func (v *view) workspace(ctx context.Context) (*replica.Copy, error) {
	if v.copy == nil {
		c, err := v.dir.Copy(ctx)
		if err != nil {
			return nil, err
		}
		v.copy = c
	}
	return v.copy, nil
}

// join joins the commit head of a session with a branch whose commit is tip, "" if the branch does not exist. The tree
// of a merge is written to the workspace. Approvals and merges use this function, so that a merge has the tree that was
// approved.
func (v *view) join(ctx context.Context, head object.ID, tip, target string) (j review.Joined, err error) {
	if j.Tree, err = v.tree(ctx, head.String()); err != nil {
		return j, err
	}
	if j.Forward, j.None = tip == "", tip == head.String(); j.Forward || j.None {
		return j, nil
	}
	onto, err := object.ParseIDOf(v.format, tip)
	if err != nil {
		return j, err
	}
	bases, err := merge.Bases(v.git.Git.In(v.git.Dir).Runner(ctx), tip, head.String())
	if gitcmd.Exited(err, 128) {
		return j, problem(Conflict, "the repository lacks commits of the branch or of the session")
	}
	if err == nil {
		j.Forward, j.None, err = review.Relate(bases, head, onto, target)
	}
	switch {
	case err != nil || j.Forward:
	case j.None:
		j.Tree, err = v.tree(ctx, tip)
	default:
		var same bool
		if same, err = v.squashed(ctx, head.String(), tip); err == nil && !same {
			j.Tree, err = v.merge(ctx, head.String(), tip, target)
		}
	}
	return j, err
}

// squashed reports whether a branch at the commit tip has the tree of a commit of the session that it lacks, because
// that commit was squashed onto it. Then only the changes after that commit matter, so that the branch gets the tree of
// head.
func (v *view) squashed(ctx context.Context, head, tip string) (bool, error) {
	tree, err := v.tree(ctx, tip)
	if err != nil {
		return false, err
	}
	out, err := v.git.Output(ctx, maxMessage, "log", "--no-show-signature", "--format=tformat:%T", head, "^"+tip, "--")
	return slices.Contains(strings.Fields(string(out)), tree), err
}

// merge merges two commits in the workspace, and returns the tree.
func (v *view) merge(ctx context.Context, head, tip, target string) (string, error) {
	c, err := v.workspace(ctx)
	if err != nil {
		return "", err
	}
	merged, err := merge.Commits(v.git.Git.In(c.Dir).Runner(ctx), tip, head, merge.Renames(true))
	if err == nil {
		err = review.Conflicts(merged.Conflicted(), target)
	}
	return merged.Result.String(), err
}

// changed returns the paths whose files differ between two trees in a git directory. The id "" stands for the empty
// tree.
func (v *view) changed(ctx context.Context, dir, from, to string) ([]string, error) {
	if from == "" {
		from = treediff.Name(v.format, object.ID{})
	}
	git := v.git
	git.Dir, git.Pool = dir, nil
	return git.Paths(ctx, from, to)
}

// Paths implements review.Source.
func (s source) Paths(ctx context.Context, request approval.Record) ([]string, error) {
	v, sub, dir, base := s.v, request.Subject, s.v.git.Dir, ""
	if sub.Base != "" {
		var err error
		if base, err = v.tree(ctx, sub.Base); err != nil {
			return nil, err
		}
	}
	none := func(read.Entry) bool { return false }
	// The tree of a merge may not have been made yet.
	if err := v.git.Entries(ctx, sub.Tree, none); errors.Is(err, read.ErrNotFound) {
		_, tree, err := review.Result(ctx, s, request)
		if err != nil {
			return nil, err
		}
		if tree != sub.Tree || v.copy == nil {
			return nil, problem(Conflict, "its checkpoint results in the tree %s", tree)
		}
		dir = v.copy.Dir
	} else if err != nil {
		return nil, err
	}
	return v.changed(ctx, dir, base, sub.Tree)
}
