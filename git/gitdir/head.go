package gitdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// The functions in this file read and move HEAD by running stock git. They follow the rules of git switch.

// Errors of Resolve.
var (
	// ErrNoCommit means that no branch, tag or commit has this name.
	ErrNoCommit = errors.New("no such branch or commit")
	// ErrNotBranch means that the name stands for a commit and not for a branch, and Wish.Detach is false.
	ErrNotBranch = errors.New("name is a commit, not a branch")
	// ErrBranchExists means that the branch in Wish.Create already exists.
	ErrBranchExists = errors.New("branch already exists")
	// ErrBranchBlocked means that a branch cannot be created because of the name of another branch.
	ErrBranchBlocked = errors.New("branch cannot exist beside another branch")
	// ErrAmbiguous means that no local branch has this name, but that branches of several remotes have it.
	ErrAmbiguous = errors.New("several remotes have a branch with this name")
	// ErrInUse means that the branch is checked out in another worktree.
	ErrInUse = errors.New("branch is checked out in another worktree")
)

// Head describes what HEAD refers to: a branch, or a commit if HEAD is detached.
type Head struct {
	Branch string    // short name of the branch; "" if HEAD is detached
	Commit object.ID // zero if the branch has no commit
	Tree   object.ID // tree of Commit; zero if the branch has no commit
}

// name returns the text by which a reflog message refers to h.
func (h Head) name() string {
	if h.Branch == "" {
		return h.Commit.String()
	}
	return h.Branch
}

// Wish describes the branch or commit to which the user wants to move HEAD.
type Wish struct {
	Name   string // branch, tag or commit; "-" means the branch or commit before the last switch, "" the commit of HEAD
	Create string // short name of a branch to create at the commit of Name; "" to create none
	Detach bool   // whether to detach HEAD; if it is false, Name must be a branch unless Create is set
}

// Destination is the result of Resolve: the branch or commit to which Move moves HEAD.
type Destination struct {
	Head
	Name     string // name for the reflog message
	New      bool   // whether Branch does not exist yet
	Upstream string // full name of the remote-tracking branch that the new branch tracks, or ""
	start    string // start point of the new branch, as an argument of git branch
}

// Head returns the branch and the commit of HEAD.
func (d *Dir) Head(ctx context.Context) (Head, error) {
	text, err := disk.ReadRegular(filepath.Join(d.path, "HEAD"), disk.SmallFile)
	if err != nil {
		return Head{}, fmt.Errorf("read HEAD: %w", err)
	}
	var h Head
	if ref, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "ref: "); ok {
		h.Branch = strings.TrimPrefix(ref, "refs/heads/")
	}
	ids, err := d.git.objects(ctx, "HEAD^{commit}", "HEAD^{tree}")
	if err != nil {
		return Head{}, fmt.Errorf("read HEAD: %w", err)
	}
	h.Commit, h.Tree = ids[0], ids[1]
	return h, nil
}

// Resolve determines the branch or commit for a Wish, by the rules of git switch. It returns ErrNoCommit if no commit
// on this host has the name, and the other errors of this file as their comments state.
func (d *Dir) Resolve(ctx context.Context, w Wish) (Destination, error) {
	name := w.Name
	switch name {
	case "":
		name = "HEAD"
	case "-":
		out, err := d.git.output(ctx, nil, "check-ref-format", "--branch", "@{-1}")
		if err != nil {
			return Destination{}, ErrNoCommit
		}
		name = strings.TrimSpace(string(out))
	}
	// git would interpret such a name as an option, or as more than one line of input.
	if strings.HasPrefix(name, "-") || strings.ContainsAny(name, "\n\x00") {
		return Destination{}, ErrNoCommit
	}
	// Resolve all names with one git cat-file, because each start of git takes milliseconds.
	ids, err := d.git.objects(ctx, "refs/heads/"+name+"^{commit}", "refs/heads/"+name+"^{tree}", name+"^{commit}",
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
		if _, err := d.git.output(ctx, nil, "check-ref-format", "--branch", w.Create); err != nil {
			return Destination{}, fmt.Errorf("invalid branch name %q", w.Create)
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

// guess returns the destination for a new branch that starts at the remote-tracking branch of the same name, as git
// switch creates it. It returns ErrAmbiguous if several remotes have such a branch, and ErrNoCommit if no remote has
// one.
func (d *Dir) guess(ctx context.Context, name string) (Destination, error) {
	out, err := d.git.output(ctx, nil, "for-each-ref", "--format=%(refname) %(objectname) %(tree)", "refs/remotes/*/"+name)
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
		return Destination{}, fmt.Errorf("resolve %s: object is not a commit", lines[0])
	}
	commit, err1 := object.ParseID(lines[1])
	tree, err2 := object.ParseID(lines[2])
	return Destination{
		Head: Head{Branch: name, Commit: commit, Tree: tree}, Name: name, New: true,
		Upstream: lines[0], start: strings.TrimPrefix(lines[0], "refs/remotes/"),
	}, errors.Join(err1, err2)
}

// unused returns ErrInUse if the branch is checked out in another worktree of this git directory, and nil otherwise.
func (d *Dir) unused(ctx context.Context, branch string) error {
	// Start git only if there is another worktree, because most git directories have none.
	if _, err := os.Stat(filepath.Join(d.path, "worktrees")); err != nil {
		return nil
	}
	out, err := d.git.output(ctx, nil, "worktree", "list", "--porcelain", "-z")
	if err != nil {
		return err
	}
	// The first worktree is the mount itself. git may print another path for it (package guard).
	_, others, _ := strings.Cut(string(out), "\x00worktree ")
	at := ""
	for _, line := range strings.Split("worktree "+others, "\x00") {
		if path, ok := strings.CutPrefix(line, "worktree "); ok {
			at = path
		}
		if line == "branch refs/heads/"+branch {
			return fmt.Errorf("%w: %s", ErrInUse, at)
		}
	}
	return nil
}

// Move moves HEAD to the destination in the parameter to. It first creates the branch if to.New is set. The parameter
// from is used in the reflog message. Move continues even if ctx ends, because a git process that is stopped leaves
// lock files. If HEAD cannot be moved, Move removes the branch that it has created.
func (d *Dir) Move(ctx context.Context, from Head, to Destination) error {
	if to.New {
		if err := d.branch(ctx, to); err != nil {
			return err
		}
	}
	reason := "checkout: moving from " + from.name() + " to " + to.Name
	if to.Branch == "" {
		return d.git.update(ctx, nil, "update-ref", "--no-deref", "-m", reason, "HEAD", to.Commit.String())
	}
	err := d.git.update(ctx, nil, "symbolic-ref", "-m", reason, "HEAD", "refs/heads/"+to.Branch)
	if err != nil && to.New {
		err = errors.Join(err, d.git.update(ctx, []string{"refs/heads/" + to.Branch, "packed-refs", "config"},
			"branch", "--quiet", "-D", to.Branch))
	}
	return err
}

// branch creates the branch of the destination in the parameter to.
func (d *Dir) branch(ctx context.Context, to Destination) error {
	args := []string{"branch", to.Branch, to.start}
	guarded := guard.Exists(d.path)
	switch {
	case guarded:
		// In the guarded directory, git does not know the remotes.
		args = []string{"branch", "--no-track", to.Branch, to.start}
	case to.Upstream != "":
		args = []string{"branch", "--track", to.Branch, to.start}
	}
	err := d.git.update(ctx, []string{"refs/heads/" + to.Branch, "config"}, args...)
	if err != nil || to.Upstream == "" || !guarded {
		return err
	}
	remote, name, _ := strings.Cut(strings.TrimPrefix(to.Upstream, "refs/remotes/"), "/")
	key := "branch." + to.Branch
	return guard.Configure(context.WithoutCancel(ctx), d.path,
		[2]string{key + ".remote", remote}, [2]string{key + ".merge", "refs/heads/" + name})
}

// Track sets the ref of a branch or tag whose commit was fetched without the rest of the history. The ref of a branch
// is its remote-tracking branch. If the user requested a commit, ref is "" and Track does nothing.
func (d *Dir) Track(ctx context.Context, ref string, commit object.ID) error {
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		ref = refname.Tracking(d.path, branch)
	}
	if ref == "" {
		return nil
	}
	return d.git.update(ctx, []string{ref}, "update-ref", ref, commit.String())
}

// Forward moves a branch from one commit to another, as git pull does for a fast-forward. The caller passes the branch
// that HEAD is on. The parameter reason is the message for the reflog. git refuses the change if the branch no longer
// points to the commit in the parameter from.
func (d *Dir) Forward(ctx context.Context, branch string, from, to object.ID, reason string) error {
	ref := "refs/heads/" + branch
	return d.git.update(ctx, []string{ref}, "update-ref", "-m", reason, ref, to.String(), from.String())
}

// Commit returns the commit to which name resolves, and the tree of this commit. Both are zero if there is no such
// commit.
func (d *Dir) Commit(ctx context.Context, name string) (Head, error) {
	ids, err := d.git.objects(ctx, name+"^{commit}", name+"^{tree}")
	if err != nil {
		return Head{}, err
	}
	return Head{Commit: ids[0], Tree: ids[1]}, nil
}

// run returns a function that runs git in the directory, for package merge.
func (d *Dir) run(ctx context.Context) merge.Run {
	return func(args ...string) ([]byte, error) { return d.git.output(ctx, nil, args...) }
}

// Reaches reports whether the commit ancestor is reachable from the parameter commit, including the case that both are
// the same commit. It considers only the history that was fetched.
func (d *Dir) Reaches(ctx context.Context, ancestor, commit object.ID) bool {
	reaches, err := merge.IsAncestor(d.run(ctx), ancestor.String(), commit.String())
	return reaches && err == nil
}

// Divergence is the difference between HEAD and a branch of the remote.
type Divergence struct {
	Ahead  int64 // number of commits that are reachable from HEAD and not from the branch
	Behind int64 // number of commits that are reachable from the branch and not from HEAD
	Own    bool  // some of the commits of Ahead have never been on the branch, as far as its reflog shows
}

// Divergence compares HEAD with the commit of the remote-tracking ref in the parameter tracking. It returns an error if
// the history on this host does not connect the two.
func (d *Dir) Divergence(ctx context.Context, tracking string) (v Divergence, err error) {
	base, err := merge.Base(d.run(ctx), "HEAD", tracking)
	if err == nil && base.IsZero() {
		err = errors.New("commits have no common ancestor")
	}
	if err != nil {
		return v, err
	}
	out, err := d.git.output(ctx, nil, "rev-list", "--count", "--left-right", "HEAD..."+tracking)
	if err != nil {
		return v, err
	}
	if _, err := fmt.Sscan(string(out), &v.Ahead, &v.Behind); err != nil {
		return v, fmt.Errorf("count commits: %w", err)
	}
	if v.Ahead > 0 {
		head, err := d.git.output(ctx, nil, "rev-parse", "HEAD")
		if err != nil {
			return v, err
		}
		// git exits with 1 if HEAD was never on the branch.
		fork, err := d.git.output(ctx, nil, "merge-base", "--fork-point", tracking, "HEAD")
		v.Own = err != nil || string(fork) != string(head)
	}
	return v, nil
}

// Changes returns the paths that git status lists: paths that differ from HEAD, and untracked paths. If ignored is set,
// it also returns the paths that git ignores.
func (d *Dir) Changes(ctx context.Context, ignored bool) (paths []string, err error) {
	args := []string{"status", "--porcelain", "-z", "--no-renames"}
	if guard.Exists(d.path) {
		// Otherwise git would run in the submodules, with the settings of their git directories.
		args = append(args, "--ignore-submodules=dirty")
	}
	if ignored {
		args = append(args, "--ignored")
	}
	out, err := d.git.output(ctx, nil, args...)
	for _, line := range split(out) {
		if len(line) > 3 {
			paths = append(paths, line[3:])
		}
	}
	return paths, err
}

// OtherWork reports whether the git directory has a stash, or a local branch other than the one in the parameter
// branch.
func (d *Dir) OtherWork(ctx context.Context, branch string) (bool, error) {
	out, err := d.git.output(ctx, nil, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/stash")
	for line := range strings.Lines(string(out)) {
		if strings.TrimSpace(line) != "refs/heads/"+branch {
			return true, err
		}
	}
	return false, err
}

// Busy returns a description of the operation in progress, such as a merge or rebase, during which HEAD must not be
// moved. It returns "" if no operation is in progress.
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

// HeadName returns the short name of the branch that HEAD points to, or, if HEAD is detached, the id of the commit. It
// returns "" if HEAD cannot be read.
func (d *Dir) HeadName() string { return HeadNameAt(d.path) }

// HeadNameAt does the same as Dir.HeadName for the git directory at path, which need not have an index.
func HeadNameAt(path string) string {
	text, err := disk.ReadRegular(filepath.Join(path, "HEAD"), disk.SmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = disk.ReadRegular(filepath.Join(path, withdrawnHead), disk.SmallFile)
	}
	if err != nil {
		return ""
	}
	name := strings.TrimPrefix(strings.TrimSpace(string(text)), "ref: ")
	return strings.TrimPrefix(name, "refs/heads/")
}
