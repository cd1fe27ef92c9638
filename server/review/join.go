package review

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/treediff"
)

// joined is the result of joining a commit of a session with a branch.
type joined struct {
	tree    string // tree of the branch afterwards
	forward bool   // the branch can be moved by a fast-forward
	none    bool   // the branch has the commit already
}

// run runs git in a git directory, and returns its standard output.
func (v *view) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := v.git.Git.Command(ctx, append([]string{"--no-replace-objects", "--git-dir=" + dir}, args...)...)
	cmd.Env = append(cmd.Env, gitcmd.PlainText, gitcmd.NoLocks)
	return gitcmd.Output(cmd)
}

// runIn returns the method run for a git directory, for package merge.
func (v *view) runIn(ctx context.Context, dir string) merge.Run {
	return func(args ...string) ([]byte, error) { return v.run(ctx, dir, args...) }
}

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

// join joins the commit head with a branch whose commit is tip, "" if the branch does not exist. The tree of a merge is written to the
// workspace. Conflicts are a Problem with the paths.
func (v *view) join(ctx context.Context, head, tip string) (j joined, err error) {
	if j.tree, err = v.tree(ctx, head); err != nil {
		return j, err
	}
	if tip == "" {
		return joined{tree: j.tree, forward: true}, nil
	}
	if tip == head {
		return joined{tree: j.tree, none: true}, nil
	}
	bases, err := merge.Bases(v.runIn(ctx, v.git.Dir), tip, head)
	switch {
	case gitcmd.Exited(err, 128):
		return j, problem(Conflict, "the repository lacks commits of the branch or of the session")
	case err != nil:
		return j, err
	case len(bases) == 0:
		return j, problem(Conflict, "the session and the branch have no common history")
	case len(bases) > 1:
		return j, problem(Conflict, "the session and the branch were merged crosswise, so that a merge has several possible bases: "+
			"merge the branch into the session with git")
	case bases[0].String() == tip:
		return joined{tree: j.tree, forward: true}, nil
	case bases[0].String() == head:
		j.tree, err = v.tree(ctx, tip)
		j.none = true
		return j, err
	}
	j.tree, err = v.merge(ctx, head, tip)
	return j, err
}

// merge merges two commits in the workspace, and returns the tree.
func (v *view) merge(ctx context.Context, head, tip string) (string, error) {
	c, err := v.workspace(ctx)
	if err != nil {
		return "", err
	}
	merged, err := merge.Commits(v.runIn(ctx, c.Dir), tip, head, merge.Renames(true))
	if err != nil {
		return "", err
	}
	if paths := merged.Conflicted(); len(paths) > 0 {
		return "", &Problem{Kind: Conflict, Paths: paths,
			Text: "the session and the branch have changed the same lines: " + some(paths) + "; merge the branch into the session with git"}
	}
	return merged.Result.String(), nil
}

// changed returns the paths whose files differ between two trees in a git directory. The id "" stands for the empty tree.
func (v *view) changed(ctx context.Context, dir, from, to string) ([]string, error) {
	if from == "" {
		from = treediff.Name(v.format, object.ID{})
	}
	git := v.git
	git.Dir, git.Pool = dir, nil
	return git.Paths(ctx, from, to)
}

// touched returns the paths that the change of a request touches.
func (v *view) touched(ctx context.Context, request approval.Record) ([]string, error) {
	sub, dir, base := request.Subject, v.git.Dir, ""
	if sub.Base != "" {
		var err error
		if base, err = v.tree(ctx, sub.Base); err != nil {
			return nil, err
		}
	}
	none := func(gitread.Entry) bool { return false }
	// The tree of a merge may not have been made yet.
	if err := v.git.Entries(ctx, sub.Tree, none); errors.Is(err, gitread.ErrNotFound) {
		tree, err := v.requested(ctx, request)
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
