package review

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/review"
)

// Method is the way in which the commits of a session are put on a branch.
type Method string

const (
	FastForward Method = "ff"     // the branch moves to the commit of the session
	Squash      Method = "squash" // one new commit has the changes of the session
	MergeCommit Method = "merge"  // a merge commit joins the branch and the session
)

const maxMessage = 4 << 20 // bytes of messages of commits that are read

// Merge says which commits of a session are put on which branch.
type Merge struct {
	Method     Method // "" means FastForward
	Branch     string // without refs/heads/; "" for the default branch
	Checkpoint string // checkpoint whose HEAD is merged; "" for the newest one, which must have no uncommitted changes
	Message    string // of a new commit; "" for one that lists the commits of the session
	Expect     string // commit of the branch that the user has seen; "" for any
}

// Merged is the result of a merge.
type Merged struct {
	Session, Checkpoint string
	Method              Method
	Branch              string // without refs/heads/
	Old                 string // commit of the branch before the merge; "" if the branch did not exist
	New                 string
	Commits             int // commits of the session that the branch did not have
}

// Merge puts the commits of a session on a branch of the same repository.
func (s *Service) Merge(ctx context.Context, by By, repo records.Repo, name string, m Merge) (Merged, error) {
	var made Merged
	m.Method = cmp.Or(m.Method, FastForward)
	if m.Method != FastForward && m.Method != Squash && m.Method != MergeCommit {
		return made, problem(Invalid, "%.40q is not a method: want ff, squash or merge", m.Method)
	}
	err := s.act(ctx, by, repo, func(ctx context.Context, v *view) (c change, err error) {
		if err := v.session(name); err != nil {
			return c, err
		}
		if err := v.whole(name); err != nil {
			return c, err
		}
		p, err := v.checkpoint(ctx, name, m.Checkpoint)
		if err != nil {
			return c, err
		}
		if p.Head.IsZero() || m.Checkpoint == "" {
			if err := review.Committed(ctx, source{v, name}, p); err != nil {
				return c, err
			}
		}
		branch, err := review.Branch(m.Branch, v.repo.DefaultBranch)
		if err != nil {
			return c, err
		}
		old := v.refs[branch]
		if m.Expect != "" && m.Expect != old {
			return c, &Problem{Kind: Conflict, Now: old,
				Text: fmt.Sprintf("branch %s is at %.12s, not at %.12s as expected", review.Short(branch),
					cmp.Or(old, "no commit"), m.Expect)}
		}
		made = Merged{Session: name, Checkpoint: string(p.ID), Method: m.Method, Branch: review.Short(branch), Old: old}
		w := merging{v: v, by: by, m: m, head: p.Head, branch: branch, tip: old, made: &made}
		return w.plan(ctx)
	})
	return made, err
}

// merging is an attempt to put a commit of a session on a branch.
type merging struct {
	v      *view
	by     By
	m      Merge
	head   object.ID // commit of the session
	branch string    // full name of the branch
	tip    string    // commit of the branch; "" if it does not exist
	made   *Merged
}

// plan decides which commit the branch gets.
func (w *merging) plan(ctx context.Context) (c change, err error) {
	if w.tip == "" && w.m.Method != FastForward {
		return c, problem(Conflict, "there is no branch %s: only the method ff creates one", w.made.Branch)
	}
	commits, err := w.commits(ctx)
	if err != nil {
		return c, err
	}
	j, commits, err := w.join(ctx, commits)
	switch {
	case err != nil:
		return c, err
	case j.None:
		return c, review.Nothing(w.branch, w.made.Session)
	case w.m.Method == FastForward && !j.Forward:
		return c, problem(Conflict, "not a fast-forward: branch %s has commits that session %s lacks; "+
			"use the method merge or squash, or merge the branch into the session with git", w.made.Branch, w.made.Session)
	}
	w.made.Commits = len(commits)
	if w.made.New = w.head.String(); w.m.Method != FastForward {
		if w.made.New, err = w.commit(ctx, j.Tree, commits); err != nil {
			return c, err
		}
		c.pack = w.v.pack
	}
	c.updates, c.merged = []records.RefUpdate{w.v.update(w.branch, w.made.New)},
		map[string]string{w.branch: w.made.Session}
	return c, nil
}

// join joins the commit of the session with the branch. It also returns the commits that the message of the new commit
// names: all, or for a squash those after the commit of the session that was squashed onto the branch before.
func (w *merging) join(ctx context.Context, commits []branchCommit) (review.Joined, []branchCommit, error) {
	if w.m.Method == Squash {
		now, err := w.v.tree(ctx, w.tip)
		if err != nil {
			return review.Joined{}, nil, err
		}
		if i := slices.IndexFunc(commits, func(c branchCommit) bool { return c.tree == now }); i >= 0 {
			later, err := w.commits(ctx, commits[i].id)
			return review.Joined{Tree: commits[0].tree, None: i == 0}, later, err
		}
	}
	j, err := w.v.join(ctx, w.head, w.tip, w.branch)
	return j, commits, err
}

// branchCommit is a commit of the session that the branch lacks.
type branchCommit struct {
	id, tree string
	review.Commit
}

// commits returns the commits of the session that neither the branch nor the commits known reach, newest first.
func (w *merging) commits(ctx context.Context, known ...string) (all []branchCommit, err error) {
	args := []string{"log", "-z", "--topo-order", "--no-show-signature", "--encoding=UTF-8",
		"--format=tformat:%H %T %P%n%B", w.head.String()}
	if w.tip != "" {
		known = append(known, w.tip)
	}
	for _, id := range known {
		args = append(args, "^"+id)
	}
	out, err := w.v.git.Output(ctx, maxMessage, append(args, "--")...)
	if gitcmd.Exited(err, 128) {
		return nil, problem(Conflict, "the repository lacks commits of the branch or of the session")
	}
	for text := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if line, message, ok := strings.Cut(text, "\n"); ok {
			ids := strings.Fields(line)
			all = append(all, branchCommit{ids[0], ids[1], review.Commit{Message: message, Merge: len(ids) > 3}})
		}
	}
	return all, err
}

// commit writes a commit with a tree to the workspace, as the user who makes the act.
func (w *merging) commit(ctx context.Context, tree string, commits []branchCommit) (string, error) {
	c, err := w.v.workspace(ctx)
	if err != nil {
		return "", err
	}
	args := []string{"commit-tree", tree, "-p", w.tip}
	if w.m.Method == MergeCommit {
		args = append(args, "-p", w.head.String())
	}
	git := w.v.git.Git.In(c.Dir)
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		git.Env = append(git.Env, "GIT_"+role+"_NAME="+approval.Person(w.by.actor()),
			"GIT_"+role+"_EMAIL="+approval.Address(w.by.actor()),
			fmt.Sprintf("GIT_%s_DATE=%d +0000", role, w.v.s.o.Now().Unix()))
	}
	out, err := git.Output(ctx, w.message(commits), append(args, "-F", "-")...)
	return strings.TrimSpace(string(out)), err
}

// message returns the message of the new commit.
func (w *merging) message(commits []branchCommit) string {
	if w.m.Message != "" {
		return strings.TrimRight(w.m.Message, "\n") + "\n"
	}
	var texts []review.Commit
	for _, c := range commits {
		texts = append(texts, c.Commit)
	}
	if w.m.Method == MergeCommit {
		return review.MergeMessage(w.made.Session, w.made.Branch, texts)
	}
	return review.SquashMessage(texts)
}

// pack writes a pack with all objects that were made in the workspace.
func (v *view) pack(ctx context.Context, w io.Writer) error {
	ids, err := loose(filepath.Join(v.copy.Dir, "objects"))
	if err != nil {
		return fmt.Errorf("list new objects: %w", err)
	}
	cmd := v.git.Git.In(v.copy.Dir).Command(ctx, "pack-objects", "--stdout", "-q")
	cmd.Stdin, cmd.Stdout = strings.NewReader(strings.Join(ids, "\n")+"\n"), w
	return gitcmd.Run(cmd)
}

// loose returns the ids of the loose objects in a directory.
func loose(dir string) (ids []string, err error) {
	dirs, err := os.ReadDir(dir)
	for _, d := range dirs {
		if len(d.Name()) != 2 || !d.IsDir() {
			continue
		}
		files, failed := os.ReadDir(filepath.Join(dir, d.Name()))
		err = errors.Join(err, failed)
		for _, f := range files {
			if id := d.Name() + f.Name(); object.ValidID(id) {
				ids = append(ids, id)
			}
		}
	}
	return ids, err
}
