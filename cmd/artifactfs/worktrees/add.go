package worktrees

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// addition holds the arguments of the command "worktree add".
type addition struct {
	of, session  string
	path, commit string
	head         *control.NewHead // what -b, -B and --detach state
	force, clean bool
	changes      bool // whether the tree of a clone has the uncommitted changes
}

// addCommand returns the command "worktree add".
func addCommand(a *cli.App) *cobra.Command {
	var x addition
	var head cli.HeadFlags
	cmd := &cobra.Command{
		Use:   "add PATH [COMMIT]",
		Short: "Make a working tree at PATH",
		Long: `Add forks the session of the mount that contains the current directory, and mounts the fork at PATH. As with git
worktree add, HEAD of the new tree is on a new branch with the name of the last part of PATH; if there is such a branch
already, that branch is checked out. -b and -B name another branch, and --detach uses none.

Without COMMIT, the new tree has all that the present one has: also the staged and other uncommitted changes, the
untracked files, and the stashes. --clean leaves the changes out. With COMMIT, or with an existing branch, the files are
those of the commit: nothing uncommitted is taken along. If no branch COMMIT exists but one remote has it, a branch that
tracks it is created. - is the branch that was checked out before the present one.

A branch that another tree of the family has checked out is refused, unless --force is given. Ignored files, such as
dependencies, are in the new tree, too; if the file .worktreeinclude in the root names some, in the syntax of
.gitignore, only these. Both trees share their contents on the disk until one changes a file, and they are in no
checkpoint. The hooks of coding agents (artifactfs agent install) are in the new tree.

In a clone that is not a mount, HEAD and COMMIT mean those of the clone. The new tree has its remotes, settings and
hooks, and, with --changes, its uncommitted changes. Of the ignored files it has only those that .worktreeinclude names,
copied, at most 256 MiB and for 2 seconds. The branch is created in the clone, too. New commits reach it there about a
second after they were made; branches that are rewritten (git commit --amend, git rebase) are not moved there. The clone
also stores the session, in refs/afs/.

The session of the new tree has the same session remote. artifactfs session fork can do the same with other options of
a mount.`,
		Example: `  artifactfs worktree add ../fix
  artifactfs worktree add -b fix-login ../fix origin/main
  artifactfs worktree add --detach --clean /tmp/try HEAD~2
  artifactfs worktree add --changes ../try
  artifactfs worktree add ../fix -C /srv/app --json | jq -r .dir`,
		Args: cli.Arguments(1, 2, "PATH [COMMIT]"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if x.head, err = head.Head(cmd); err != nil {
				return err
			}
			x.path, x.commit = args[0], cli.First(args[1:])
			_, err = x.run(cmd.Context(), a)
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	head.Add(cmd)
	f.BoolVarP(&x.force, "force", "f", false, "check out a branch that another tree has checked out")
	f.BoolVar(&x.clean, "clean", false, "leave uncommitted changes and untracked files out")
	f.BoolVar(&x.changes, "changes", false, "of a clone that is not a mount: take uncommitted changes along")
	f.BoolVarP(&a.Quiet, "quiet", "q", a.Quiet, "print only errors")
	f.StringVar(&x.session, "session", "", "`NAME` of the new session (default: derived from PATH)")
	ofFlag(a, cmd, &x.of)
	return cmd
}

// added is the output of "worktree add --json".
type added struct {
	control.MountReply
	Branch   string    `json:"branch"`             // short name of the branch of HEAD; "": HEAD is detached
	Included *included `json:"included,omitempty"` // what was copied; missing: there is no file .worktreeinclude
	Changes  int       `json:"changes,omitempty"`  // number of the uncommitted paths that were copied from a clone
}

// run makes the tree and prints the result. It returns the directory of the tree.
func (x addition) run(ctx context.Context, a *cli.App) (dir string, err error) {
	if x.changes && (x.clean || x.commit != "") {
		return "", &control.Error{Code: control.ExitUsage, Verb: "add worktree", Object: x.path,
			Cause: "--changes excludes --clean and COMMIT"}
	}
	w, err := sessions.SessionOf(ctx, a, "add worktree", x.of)
	if e := control.AsError(err); e != nil && e.Code == control.ExitNotMounted {
		if c, ok := findClone(ctx, cmp.Or(x.of, ".")); ok {
			return c.add(ctx, a, x)
		}
	}
	if err != nil {
		return "", err
	}
	m, err := w.Mounted("add worktree")
	if err != nil {
		return "", err
	}
	start := time.Now()
	// The mount that was found has only the parts of the status by which mounts are found.
	all, err := a.Mounts(ctx)
	i := slices.IndexFunc(all, func(o cli.Served) bool { return o.Mounted() && o.Dir == m.Dir })
	if i < 0 {
		return "", cmp.Or(err, error(cli.NotMounted("add worktree", m.Dir)))
	}
	m = all[i]
	// The fork of a tree of a clone is a tree of the clone, too.
	of, isTree := cloneOf(ctx, m.MountStatus)
	if isTree {
		unlock, err := of.lock(ctx)
		if err != nil {
			return "", cli.Failure("add worktree", x.path, err)
		}
		defer unlock()
	}
	plan, err := x.plan(ctx, m.Dir, func(branch string) (string, error) {
		used, err := usedBy(ctx, a, m, all, branch)
		if used == "" && err == nil && isTree {
			members, err := of.members(ctx, a, false)
			if err != nil {
				return "", err
			}
			return of.usedBy(ctx, members, branch)
		}
		return used, err
	})
	if err == nil && isTree {
		err = of.checkBranch(ctx, x, plan, m.Dir)
	}
	if err != nil {
		return "", err
	}
	uncommitted := make(chan int64, 1)
	go func() { uncommitted <- plan.uncommitted(ctx, a, m.Dir) }()
	reply, err := x.fork(ctx, a, m, plan.head, func(r *control.MountRequest) error {
		if !isTree {
			return nil
		}
		return of.prepare(ctx, r, plan.branch)
	})
	if err != nil {
		return "", cli.Failure("add worktree", x.path, err)
	}
	if isTree && of.keepBase(ctx, reply) != nil {
		fmt.Fprintf(a.Stderr, "artifactfs: %s does not have the commit with which the new tree begins\n", of.dir)
	}
	// The git directory is still being made. Only what git has to do in the tree waits for it.
	if err = cli.CheckVisible("add worktree", reply.Dir); err == nil && plan.checkout != nil {
		if err = checkVisible(ctx, reply.Dir); err == nil {
			err = plan.checkOut(ctx, reply.Dir)
		}
	}
	if err != nil {
		// The fork has nothing that its parent lacks.
		_, undo := m.Client.Unmount(context.WithoutCancel(ctx),
			control.UnmountRequest{Dir: reply.Dir, Discard: true, Timeout: -1})
		return "", x.failed(a, err, undo)
	}
	out := added{MountReply: reply, Branch: plan.branch}
	// Usually the fork shares the ignored files. If it cannot, those with a name in .worktreeinclude are copied.
	if c := reply.Carried; c == nil || c.Failed != "" {
		if out.Included, err = include(ctx, m.Dir, reply.Dir); err != nil {
			fmt.Fprintf(a.Stderr, "artifactfs: not all files that %s names are in the new tree: %s\n", includeFile,
				cli.OneLine(err.Error()))
		}
	}
	if err := copyHooks(ctx, m.Dir, reply.Dir); err != nil {
		fmt.Fprintf(a.Stderr, "artifactfs: hooks of agents are not in the new tree: %s\n", cli.OneLine(err.Error()))
	}
	// What was copied, and the hooks, are in the new tree although the fork did not have them.
	out.Receipt = reply.Receipt.Without(func(name string) bool {
		_, err := os.Lstat(filepath.Join(reply.Dir, name))
		return err == nil && !strings.HasSuffix(name, "/")
	})
	out.Head = plan.headOf(reply)
	return reply.Dir, out.print(a, <-uncommitted, m.Dir, time.Since(start))
}

// headOf returns HEAD of the new tree, of which r is the reply to the mount request: the short name of a branch, or a
// commit.
func (p plan) headOf(r control.MountReply) string { return cmp.Or(p.branch, p.commit, r.Head) }

// failed returns the error of a tree that could not be added. If undoing what was done has failed, too, that is printed
// and does not hide the error.
func (x addition) failed(a *cli.App, err, undo error) error {
	if undo != nil {
		fmt.Fprintf(a.Stderr, "artifactfs: the working tree was not removed completely: %s\n",
			cli.OneLine(undo.Error()))
	}
	return cli.Failure("add worktree", x.path, err)
}

// print prints the result: on stderr, with how many uncommitted changes of the tree at parent the new tree begins.
func (out added) print(a *cli.App, uncommitted int64, parent string, took time.Duration) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, out)
	}
	if a.Quiet {
		return nil
	}
	shown := out.MountReply
	shown.Ref, shown.Head = cmp.Or(out.Branch, "detached HEAD"), ""
	if _, err := fmt.Fprintf(a.Stdout, "forked session %s: ", out.Session); err != nil {
		return cli.Printed(err)
	}
	if err := cli.PrintMount(a, shown, took); err != nil {
		return err
	}
	if out.Included != nil {
		out.Included.print(a)
	}
	if uncommitted > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: the new tree has %s of %s (--clean leaves them out)\n",
			cli.Plural(uncommitted, "uncommitted path"), parent)
	}
	return nil
}

// plan states how the new tree begins.
type plan struct {
	head     *control.NewHead // HEAD of the fork
	checkout []string         // arguments of git checkout in the fork; nil: the fork stays as it is
	branch   string           // short name of the branch of HEAD; "": HEAD is detached
	commit   string           // id of the commit of HEAD; "": that of the fork's parent
	creates  bool             // whether the branch is created, or moved to the commit
	resets   bool             // whether the branch may exist already, if it is created
	upstream string           // ref of the remote branch that the created branch tracks; "": none
}

// branchError means that a tree cannot be added because its branch exists, or is that of another tree.
type branchError struct{ error }

func (e branchError) Unwrap() error { return e.error }

// plan determines how a new tree of the repository at dir begins. usedBy returns the directory of the tree that has
// checked out a branch, or "".
func (x addition) plan(ctx context.Context, dir string, usedBy func(branch string) (string, error)) (plan, error) {
	fail := func(kind control.ErrorCode, format string, args ...any) (plan, error) {
		return plan{}, &control.Error{Code: control.ExitFailed, Kind: kind, Verb: "add worktree", Object: x.path,
			Cause: fmt.Sprintf(format, args...)}
	}
	commit := x.commit
	if commit == "-" {
		commit = "@{-1}"
		if name, err := git(ctx, dir, "rev-parse", "--abbrev-ref", commit); err == nil && name != "" && name != "HEAD" {
			commit = name
		}
	}
	if strings.HasPrefix(commit, "-") {
		return fail(control.CodeNotFound, "invalid reference: %s", commit)
	}
	branches := map[string]bool{}
	isBranch := func(name string) bool {
		if known, ok := branches[name]; ok {
			return known
		}
		branches[name] = hasBranch(ctx, dir, name)
		return branches[name]
	}
	head := x.head
	if head == nil && commit == "" {
		name := filepath.Base(filepath.Clean(x.path))
		if !isBranch(name) {
			head = &control.NewHead{Branch: name}
		} else {
			commit = name
		}
	}
	p := plan{}
	switch {
	case head == nil && isBranch(commit):
		p.branch, p.checkout = commit, []string{commit}
	case head == nil:
		id, ok := resolve(ctx, dir, commit)
		if ok {
			p.commit, p.checkout = id, []string{"--detach", id}
			break
		}
		on, err := git(ctx, dir, "for-each-ref", "--format=%(refname)", "refs/remotes/*/"+commit)
		if n := len(strings.Fields(on)); err != nil || n != 1 {
			if n > 1 {
				return fail(control.CodeConflict, "%d remotes have a branch %s: name it with -b %s REMOTE/%s", n, commit, commit,
					commit)
			}
			return fail(control.CodeNotFound, "invalid reference: %s", commit)
		}
		p.branch, p.creates, p.upstream = commit, true, strings.TrimSpace(on)
		p.commit, _ = resolve(ctx, dir, p.upstream)
		p.checkout = []string{"--track", "-b", commit, p.upstream}
	case commit == "" && !x.clean:
		p.head, p.branch = head, head.Branch
	default:
		start := cmp.Or(commit, "HEAD")
		id, ok := resolve(ctx, dir, start)
		if !ok {
			return fail(control.CodeNotFound, "invalid reference: %s", start)
		}
		if !head.Reset && head.Branch != "" && isBranch(head.Branch) {
			p, err := fail(control.CodeConflict, "a branch named '%s' already exists", head.Branch)
			return p, branchError{err}
		}
		// git sets the upstream of the new branch if it gets the name of a branch of a remote.
		if start != "HEAD" {
			if full, err := git(ctx, dir, "rev-parse", "--symbolic-full-name", start); err == nil &&
				strings.HasPrefix(full, "refs/remotes/") {
				p.upstream = full
			}
		}
		p.commit, p.creates, p.resets = id, !head.Detach, head.Reset
		id = cmp.Or(p.upstream, id)
		switch p.branch = head.Branch; {
		case head.Detach:
			p.checkout = []string{"--detach", id}
		case head.Reset:
			p.checkout = []string{"-B", head.Branch, id}
		default:
			p.checkout = []string{"-b", head.Branch, id}
		}
	}
	if p.branch != "" && !control.ValidBranch(p.branch) {
		return plan{}, &control.Error{Code: control.ExitUsage, Verb: "add worktree", Object: x.path,
			Cause: fmt.Sprintf("'%s' is not a valid branch name", p.branch), Hint: "add -b NAME"}
	}
	if x.force && p.checkout != nil {
		p.checkout = append([]string{"--ignore-other-worktrees"}, p.checkout...)
	}
	if x.force || p.branch == "" {
		return p, nil
	}
	if used, err := usedBy(p.branch); err != nil || used != "" {
		if err != nil {
			return p, err
		}
		p, err := fail(control.CodeConflict, "'%s' is already used by worktree at '%s'", p.branch, used)
		return p, branchError{err}
	}
	return p, nil
}

// resolve returns the id of the commit with a name in git, or false if there is none.
func resolve(ctx context.Context, dir, name string) (id string, ok bool) {
	id, err := git(ctx, dir, "rev-parse", "--verify", "--quiet", name+"^{commit}")
	return id, err == nil
}

// hasBranch reports whether the repository at dir has a branch.
func hasBranch(ctx context.Context, dir, branch string) bool {
	_, err := git(ctx, dir, "show-ref", "--verify", "--quiet", "refs/heads/"+branch)
	return err == nil
}

// usedBy returns the directory of the tree of the family of m that has checked out a branch, or "" if there is none.
func usedBy(ctx context.Context, a *cli.App, m cli.Served, all []cli.Served, branch string) (string, error) {
	if m.Head == branch {
		return m.Dir, nil
	}
	// The sessions are listed only if a session of the same repository may be on this branch.
	on := func(o cli.Served) bool {
		return o.Remote == m.Remote && (o.Head == branch || o.Head == "" || isID(o.Head))
	}
	if !slices.ContainsFunc(all, on) {
		return "", nil
	}
	members, err := family(ctx, a, m.Session.Name, false)
	for _, o := range members {
		if o.uses(ctx, branch) {
			return o.Dir, nil
		}
	}
	return "", err
}

// fork forks the session of m and mounts the fork at x.path, with the session remote and the policy of m. prepare may
// change the options of the new session.
func (x addition) fork(ctx context.Context, a *cli.App, m cli.Served, head *control.NewHead,
	prepare func(*control.MountRequest) error) (control.MountReply, error) {
	var o mounts.MountOptions
	flags := &cobra.Command{Use: "add"}
	flags.SetContext(ctx)
	o.AddFlags(flags)
	o.Request.Session, o.Request.SessionOptions.Policy = x.session, m.Session.Policy
	switch s := m.Session; {
	case s.SessionRemote == m.Remote && s.SessionRemote != "":
		o.Request.SessionOptions.Remote = control.RemoteOrigin
	case s.Mode != control.RemoteEmbedded:
		o.Request.SessionOptions.Remote = s.SessionRemote
	}
	if err := prepare(&o.Request); err != nil {
		return control.MountReply{}, err
	}
	if err := o.Complete(flags, []string{m.Remote, x.path}, a); err != nil {
		return control.MountReply{}, err
	}
	p := a.NewProgress()
	defer p.Stop()
	return m.Client.Fork(ctx, control.ForkRequest{Of: m.Dir, Mount: o.Request, Head: head}, p.Show)
}

// uncommitted returns the number of uncommitted paths of the tree at dir with which the new tree begins. It returns 0
// if they are left out or not printed, or if git needs longer than cli.LookTime.
func (p plan) uncommitted(ctx context.Context, a *cli.App, dir string) int64 {
	if p.checkout != nil || a.JSON || a.Quiet {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, cli.LookTime)
	defer cancel()
	out, err := git(ctx, dir, "status", "--porcelain", "--no-renames")
	if err != nil || out == "" {
		return 0
	}
	return int64(strings.Count(out, "\n") + 1)
}

// checkOut changes the fork at dir to the commit of the plan, without anything uncommitted and without the operation,
// such as a rebase, that is in progress in its parent.
func (p plan) checkOut(ctx context.Context, dir string) error {
	for _, op := range []struct {
		file string
		quit []string
	}{
		{"rebase-merge", []string{"rebase", "--quit"}}, {"rebase-apply/applying", []string{"am", "--quit"}},
		{"rebase-apply", []string{"rebase", "--quit"}}, {"BISECT_START", []string{"bisect", "reset", "HEAD"}},
	} {
		file, err := git(ctx, dir, "rev-parse", "--path-format=absolute", "--git-path", op.file)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(file); err != nil {
			continue
		}
		if _, err := git(ctx, dir, op.quit...); err != nil {
			return err
		}
	}
	_, err := git(ctx, dir, slices.Concat([]string{"checkout", "-q", "-f"}, p.checkout, []string{"--"})...)
	if err == nil {
		_, err = git(ctx, dir, "clean", "-ffdq")
	}
	return err
}

// copyHooks installs the hooks of the agents that are installed in the tree at from in the one at to, unless it has the
// agent's configuration already. The files with the hooks are specific to a machine, so checkpoints do not contain
// them.
func copyHooks(ctx context.Context, from, to string) error {
	for _, agent := range agenthook.Agents() {
		var parts []agenthook.Part // several may be in one file
		for _, p := range agenthook.Parts() {
			if ok, err := agenthook.Has(from, agent, p); ok && err == nil && !agenthook.Foreign(to, agent, p) {
				parts = append(parts, p)
			}
		}
		if len(parts) == 0 {
			continue
		}
		program, err := cli.OwnCommand()
		for _, p := range parts {
			if err == nil {
				_, err = agenthook.InstallPart(to, agent, p, program)
			}
		}
		if gitDir, gitErr := git(ctx, to, "rev-parse", "--absolute-git-dir"); err == nil && gitErr == nil {
			err = agenthook.MakeDir(gitDir)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", agent, err)
		}
	}
	return nil
}
