package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
)

// This file reads and moves HEAD in the way of git switch. It runs stock git for both.

// Errors of Resolve.
var (
	// ErrNoCommit reports that no branch, tag or commit has the name.
	ErrNoCommit = errors.New("no branch or commit has this name")
	// ErrNotBranch reports the name of a commit without Wish.Detach.
	ErrNotBranch = errors.New("it is a commit, not a branch")
	// ErrBranchExists reports that Wish.Create is an existing branch.
	ErrBranchExists = errors.New("a branch of this name exists already")
	// ErrAmbiguous reports that several remotes have a branch of the name, and there is no local one.
	ErrAmbiguous = errors.New("several remotes have a branch of this name")
	// ErrInUse reports that another worktree has checked out the branch.
	ErrInUse = errors.New("another worktree has this branch")
)

// Head is the position of HEAD.
type Head struct {
	Branch string    // short name of the branch; "": HEAD is detached
	Commit object.ID // zero on a branch without a commit
	Tree   object.ID // tree of Commit; zero on a branch without a commit
}

// name returns the name by which the reflog refers to h.
func (h Head) name() string {
	if h.Branch == "" {
		return h.Commit.String()
	}
	return h.Branch
}

// Wish is the position to which HEAD is to move.
type Wish struct {
	Name   string // branch, tag or commit; "-": where HEAD was before; "": the commit of HEAD
	Create string // short name of a branch to create at that commit; "": none
	Detach bool   // detach HEAD, which any commit permits
}

// Destination is a resolved Wish.
type Destination struct {
	Head
	Name     string // name for the reflog
	New      bool   // Branch has to be created
	Upstream string // full name of the remote-tracking branch that a new branch follows; "": none
	start    string // start point of a new branch, in the syntax of git branch
}

// Head returns the position of HEAD.
func (d *Dir) Head(ctx context.Context) (Head, error) {
	text, err := os.ReadFile(filepath.Join(d.path, "HEAD"))
	if err != nil {
		return Head{}, fmt.Errorf("read HEAD: %w", err)
	}
	var h Head
	if ref, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "ref: "); ok {
		h.Branch = strings.TrimPrefix(ref, "refs/heads/")
	}
	ids, err := d.objects(ctx, "HEAD^{commit}", "HEAD^{tree}")
	if err != nil {
		return Head{}, fmt.Errorf("read HEAD: %w", err)
	}
	h.Commit, h.Tree = ids[0], ids[1]
	return h, nil
}

// Resolve resolves a wish by the rules of git switch. It returns ErrNoCommit if no local commit has the name, and the
// other errors above.
func (d *Dir) Resolve(ctx context.Context, w Wish) (Destination, error) {
	name := w.Name
	switch name {
	case "":
		name = "HEAD"
	case "-":
		out, err := d.git(ctx, nil, "check-ref-format", "--branch", "@{-1}")
		if err != nil {
			return Destination{}, ErrNoCommit
		}
		name = strings.TrimSpace(string(out))
	}
	// git would take the name for an option, or for several lines of input.
	if strings.HasPrefix(name, "-") || strings.ContainsAny(name, "\n\x00") {
		return Destination{}, ErrNoCommit
	}
	// One git cat-file resolves all names, since each start of git takes milliseconds.
	ids, err := d.objects(ctx, "refs/heads/"+name+"^{commit}", "refs/heads/"+name+"^{tree}", name+"^{commit}",
		name+"^{tree}", "refs/heads/"+w.Create)
	if err != nil {
		return Destination{}, err
	}
	branch, any := Head{Branch: name, Commit: ids[0], Tree: ids[1]}, Head{Commit: ids[2], Tree: ids[3]}
	switch {
	case w.Create != "":
		if !ids[4].IsZero() {
			return Destination{}, ErrBranchExists
		}
		if _, err := d.git(ctx, nil, "check-ref-format", "--branch", w.Create); err != nil {
			return Destination{}, fmt.Errorf("%q is not a name for a branch", w.Create)
		}
		if any.Commit.IsZero() {
			return Destination{}, ErrNoCommit
		}
		any.Branch = w.Create
		return Destination{Head: any, Name: w.Create, New: true, start: name}, nil
	case w.Detach && !any.Commit.IsZero():
		return Destination{Head: any, Name: name}, nil
	case w.Detach:
		return Destination{}, ErrNoCommit
	case !branch.Commit.IsZero():
		return Destination{Head: branch, Name: name}, d.unused(ctx, name)
	}
	to, err := d.guess(ctx, name)
	if errors.Is(err, ErrNoCommit) && !any.Commit.IsZero() {
		err = ErrNotBranch
	}
	return to, err
}

// guess finds the remote-tracking branch to create a branch of the same name from, as git switch does; ErrAmbiguous
// if several remotes have one.
func (d *Dir) guess(ctx context.Context, name string) (Destination, error) {
	out, err := d.git(ctx, nil, "for-each-ref", "--format=%(refname) %(objectname) %(tree)", "refs/remotes/*/"+name)
	if err != nil {
		return Destination{}, err
	}
	lines := strings.Fields(string(out))
	switch {
	case len(lines) == 0:
		return Destination{}, ErrNoCommit
	case len(lines) > 3:
		return Destination{}, ErrAmbiguous
	case len(lines) < 3:
		return Destination{}, fmt.Errorf("read %s: not a commit", lines[0])
	}
	commit, err1 := object.ParseID(lines[1])
	tree, err2 := object.ParseID(lines[2])
	return Destination{
		Head: Head{Branch: name, Commit: commit, Tree: tree}, Name: name, New: true,
		Upstream: lines[0], start: strings.TrimPrefix(lines[0], "refs/remotes/"),
	}, errors.Join(err1, err2)
}

// unused returns ErrInUse if another worktree of this git directory has checked out the branch.
func (d *Dir) unused(ctx context.Context, branch string) error {
	// Most git directories have one worktree, so git is not started.
	if _, err := os.Stat(filepath.Join(d.path, "worktrees")); err != nil {
		return nil
	}
	out, err := d.git(ctx, nil, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return err
	}
	at := ""
	for _, line := range strings.Split(string(out), "\x00") {
		if path, ok := strings.CutPrefix(line, "worktree "); ok {
			at = path
		}
		if line == "branch refs/heads/"+branch && at != d.workTree && at != realPath(d.workTree) {
			return fmt.Errorf("%w: %s", ErrInUse, at)
		}
	}
	return nil
}

// Move moves HEAD and creates the branch if necessary. It does not stop in the middle when ctx ends.
func (d *Dir) Move(ctx context.Context, from Head, to Destination) error {
	if to.New {
		args := []string{"branch", to.Branch, to.start}
		if to.Upstream != "" {
			args = []string{"branch", "--track", to.Branch, to.start}
		}
		if err := d.update(ctx, []string{"HEAD", "refs/heads/" + to.Branch, "config"}, args...); err != nil {
			return err
		}
	}
	reason := "checkout: moving from " + from.name() + " to " + to.Name
	if to.Branch != "" {
		return d.update(ctx, []string{"HEAD"}, "symbolic-ref", "-m", reason, "HEAD", "refs/heads/"+to.Branch)
	}
	return d.update(ctx, []string{"HEAD"}, "update-ref", "--no-deref", "-m", reason, "HEAD", to.Commit.String())
}

// Track sets the ref of a branch, tag or commit that was fetched without the rest of the history. A branch becomes a
// remote-tracking branch; a commit has no ref ("").
func (d *Dir) Track(ctx context.Context, ref string, commit object.ID) error {
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		ref = "refs/remotes/origin/" + branch
	}
	if ref == "" {
		return nil
	}
	return d.update(ctx, []string{ref}, "update-ref", ref, commit.String())
}

// Forward moves the branch that HEAD is on from one commit to another, as git pull does for a fast-forward.
// reason is the message for the reflog. git refuses if the branch is no longer at from.
func (d *Dir) Forward(ctx context.Context, branch string, from, to object.ID, reason string) error {
	ref := "refs/heads/" + branch
	return d.update(ctx, []string{"HEAD", ref}, "update-ref", "-m", reason, ref, to.String(), from.String())
}

// Commit returns the commit and the tree that a name resolves to; zero if there is none.
func (d *Dir) Commit(ctx context.Context, name string) (Head, error) {
	ids, err := d.objects(ctx, name+"^{commit}", name+"^{tree}")
	if err != nil {
		return Head{}, err
	}
	return Head{Commit: ids[0], Tree: ids[1]}, nil
}

// Reaches reports whether a commit is the same as another or an ancestor of it, as far as the history has been
// fetched.
func (d *Dir) Reaches(ctx context.Context, ancestor, commit object.ID) bool {
	_, err := d.git(ctx, nil, "merge-base", "--is-ancestor", ancestor.String(), commit.String())
	return err == nil
}

// Behind returns the number of commits that are ancestors of commit, itself included, but not of HEAD.
func (d *Dir) Behind(ctx context.Context, commit object.ID) (int64, error) {
	out, err := d.git(ctx, nil, "rev-list", "--count", "HEAD.."+commit.String())
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
}

// Changes returns the paths that git status lists: those that differ from HEAD and untracked ones; with ignored also
// the ignored ones.
func (d *Dir) Changes(ctx context.Context, ignored bool) (paths []string, err error) {
	args := []string{"status", "--porcelain", "-z", "--no-renames"}
	if ignored {
		args = append(args, "--ignored")
	}
	out, err := d.git(ctx, nil, args...)
	for _, line := range split(out) {
		if len(line) > 3 {
			paths = append(paths, line[3:])
		}
	}
	return paths, err
}

// OtherWork reports whether the git directory has a local branch other than branch, or a stash.
func (d *Dir) OtherWork(ctx context.Context, branch string) (bool, error) {
	out, err := d.git(ctx, nil, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/stash")
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) != "refs/heads/"+branch {
			return true, err
		}
	}
	return false, err
}

// Busy returns a description of the operation, such as a merge or rebase, that forbids to move HEAD; "" if there is
// none.
func (d *Dir) Busy() string {
	for _, op := range []struct{ file, what string }{
		{"MERGE_HEAD", "merging"}, {"rebase-merge", "rebasing"}, {"rebase-apply/applying", "in an am session"},
		{"rebase-apply", "rebasing"}, {"CHERRY_PICK_HEAD", "cherry-picking"}, {"REVERT_HEAD", "reverting"},
	} {
		if _, err := os.Lstat(filepath.Join(d.path, op.file)); err == nil {
			return op.what
		}
	}
	return ""
}

// objects resolves names to IDs. The ID of a name that does not exist is zero.
func (d *Dir) objects(ctx context.Context, names ...string) ([]object.ID, error) {
	out, err := d.git(ctx, []byte(strings.Join(names, "\n")+"\n"), "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return nil, err
	}
	ids := make([]object.ID, len(names))
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(names) {
		return nil, fmt.Errorf("read %d names: git listed %d", len(names), len(lines))
	}
	for i, line := range lines {
		if id, err := object.ParseID(line); err == nil { // otherwise git printed "missing" or "ambiguous"
			ids[i] = id
		}
	}
	return ids, nil
}

// git runs a git command on this directory and its working tree and returns its output. The command takes no optional
// locks, so it cannot disturb a git command of the user.
func (d *Dir) git(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := d.command(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	return gitcmd.Output(cmd)
}

// command returns a git command that neither prompts nor fetches.
func (d *Dir) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := gitcmd.New(ctx, append([]string{"--git-dir", d.path, "--work-tree", d.workTree, "--no-optional-locks"}, args...)...)
	cmd.Env = append(append(cmd.Env, gitcmd.PlainText, gitcmd.NoPrompt, gitcmd.NoFetch), Borrowing(d.path)...)
	return cmd
}

// HeadName returns the short name of the branch that HEAD points to, or the commit ID; "" if HEAD cannot be read.
func (d *Dir) HeadName() string {
	text, err := os.ReadFile(filepath.Join(d.path, "HEAD"))
	if err != nil {
		return ""
	}
	name := strings.TrimPrefix(strings.TrimSpace(string(text)), "ref: ")
	return strings.TrimPrefix(name, "refs/heads/")
}
