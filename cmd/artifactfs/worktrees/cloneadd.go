package worktrees

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/session"
)

// cloneRemote is the name that the trees of a clone give to the clone. The other remotes of the clone have their names
// in the trees, too.
const cloneRemote = "clone"

// add makes a tree of the clone at x.path, and prints the result. It returns the directory of the tree. Everything
// that can be refused is refused before anything is mounted.
func (c clone) add(ctx context.Context, a *cli.App, x addition) (dir string, err error) {
	start := time.Now()
	if c.at == "" && x.changes {
		return "", &control.Error{Code: control.ExitUsage, Verb: "add worktree", Object: x.path,
			Cause: "--changes needs a working tree, and the current directory is in none"}
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", cli.Failure("add worktree", x.path, err)
	}
	defer unlock()
	known, all, err := sessionsAndMounts(ctx, a, false)
	if err != nil {
		return "", err
	}
	if s, ok := cli.FindUnmounted(all, x.path); ok {
		return "", x.refuse("run "+cli.ResumeCommand(s.MountStatus)+" to mount it again",
			"session %s, which is not mounted, belongs to this path", s.Session.Name)
	}
	x.clean = true // so that the plan names a commit
	plan, err := x.plan(ctx, cmp.Or(c.at, c.dir), func(branch string) (string, error) {
		return c.usedBy(ctx, c.among(known, all), branch)
	})
	if err != nil {
		return "", err
	}
	if err := c.check(ctx, x, plan, known); err != nil {
		return "", err
	}
	var changed changes
	if x.changes {
		if changed, err = c.changes(ctx, plan); err != nil {
			return "", cli.Failure("add worktree", x.path, err)
		}
	}
	removeBranch, err := c.createBranch(ctx, plan)
	if err != nil {
		return "", cli.Failure("add worktree", x.path, err)
	}
	reply, err := c.addTree(ctx, a, x, plan, changed)
	unlock()
	if err != nil {
		// A new tree has nothing that the clone lacks. The session of another tree stays.
		last := context.WithoutCancel(ctx)
		var undo error
		if reply.Dir != "" {
			var client *control.Client
			if client, undo = a.EnsureDaemon(last); undo == nil {
				_, undo = client.Unmount(last, control.UnmountRequest{Dir: reply.Dir, Discard: !reply.Resumed, Trash: true,
					Timeout: -1})
			}
		}
		return "", x.failed(a, err, errors.Join(undo, removeBranch(last)))
	}
	made := added{MountReply: reply, Branch: plan.branch, Changes: len(changed.paths)}
	made.Head = plan.headOf(reply)
	if c.at != "" {
		made.Included = c.extras(ctx, a, reply.Dir)
	}
	return reply.Dir, made.printOfClone(a, c, changed, time.Since(start))
}

// addTree mounts the tree and completes it. If it fails after the tree was mounted, the reply has its directory.
func (c clone) addTree(ctx context.Context, a *cli.App, x addition, p plan,
	changed changes) (control.MountReply, error) {
	reply, err := c.mount(ctx, a, x, p)
	if err != nil {
		return control.MountReply{}, err
	}
	if reply.Resumed {
		return reply, errors.New("its session exists already; artifactfs session resume mounts it")
	}
	// The git directory is still being made. Only what git has to do in the tree waits for it.
	if err = c.keepBase(ctx, reply); err == nil {
		err = cli.CheckVisible("add worktree", reply.Dir)
	}
	if err == nil && x.changes {
		err = checkVisible(ctx, reply.Dir)
	}
	if err == nil && x.changes {
		err = changed.copyTo(ctx, c.at, reply.Dir)
	}
	return reply, err
}

// keepBase makes the clone keep the commit of a new tree, of which r is the reply to the mount request. The branches of
// the clone may lose it before the tree has read all files. The daemon removes the ref with the session.
func (c clone) keepBase(ctx context.Context, r control.MountReply) error {
	if r.Commit == "" {
		return nil
	}
	_, err := git(ctx, c.dir, "update-ref", session.BaseRef(r.Session), r.Commit)
	return err
}

// refuse returns the error of a tree that is not added.
func (x addition) refuse(hint, format string, args ...any) error {
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "add worktree", Object: x.path,
		Cause: fmt.Sprintf(format, args...), Hint: hint}
}

// check refuses a tree that would take over the session of another tree, and one that checkBranch refuses. known are
// the sessions of this host.
func (c clone) check(ctx context.Context, x addition, p plan, known []control.SessionInfo) error {
	if slices.ContainsFunc(known, func(s control.SessionInfo) bool { return x.session != "" && s.Name == x.session }) {
		return x.refuse("choose another name, or run artifactfs session resume "+x.session, "session %s exists already",
			x.session)
	}
	if !p.resets { // if the branch is created, it is not in the clone
		return nil
	}
	return c.checkBranch(ctx, x, p, c.dir)
}

// checkBranch refuses a tree whose branch would move the branch of the clone to a commit that lacks commits of it. The
// commits are looked up in the repository at dir.
func (c clone) checkBranch(ctx context.Context, x addition, p plan, dir string) error {
	if p.branch == "" || !p.creates && p.head == nil {
		return nil
	}
	old, exists := resolve(ctx, c.dir, "refs/heads/"+p.branch)
	if !exists {
		return nil
	}
	to, _ := resolve(ctx, dir, cmp.Or(p.commit, "HEAD"))
	if _, err := git(ctx, dir, "merge-base", "--is-ancestor", old, to); err != nil {
		return x.refuse("choose another branch, or move it in the clone: git branch --force "+cli.ShellWord(p.branch)+" "+to,
			"branch '%s' of the clone has commits that %.10s lacks, and a tree only adds commits to it", p.branch, to)
	}
	return nil
}

// mount mounts the clone at x.path, at the commit or the branch of the plan.
func (c clone) mount(ctx context.Context, a *cli.App, x addition, p plan) (control.MountReply, error) {
	var o mounts.MountOptions
	flags := &cobra.Command{Use: "add"}
	flags.SetContext(ctx)
	o.AddFlags(flags)
	o.Request.Session, o.Request.Ref = x.session, p.commit
	if err := c.prepare(ctx, &o.Request, p.branch); err != nil {
		return control.MountReply{}, err
	}
	switch {
	case p.creates:
		o.Request.NewGit.Head = &control.NewHead{Branch: p.branch}
	case p.branch != "":
		o.Request.Ref = "refs/heads/" + p.branch
	}
	if err := o.Complete(flags, []string{c.dir, x.path}, a); err != nil {
		return control.MountReply{}, err
	}
	progress := a.NewProgress()
	defer progress.Stop()
	return mounts.MountInBackground(ctx, a, o.Request, progress.Show)
}

// lazyFetching is the variable by which upload-pack of a partial clone is permitted to fetch missing objects. Since git
// 2.45 it does not do that otherwise, because it would run programs that the configuration of the repository names. The
// user of a tree runs git in the clone anyway.
const lazyFetching = "GIT_NO_LAZY_FETCH"

// prepare completes the request for a tree with a branch, or "": its branches appear in the clone, and its git
// directory gets the settings and the remote-tracking branches of the clone. It also adds to the environment of this
// process, which the request contains, the settings by which the mount names its remote and converts contents: an older
// daemon does not know that the session keeps them.
func (c clone) prepare(ctx context.Context, r *control.MountRequest, branch string) error {
	own, partial, err := c.settings(ctx, branch)
	if err != nil {
		return err
	}
	r.NewGit = &control.NewGit{Settings: own, Called: cloneRemote, Tracking: true}
	if r.NewGit.Exclude, err = c.info("exclude"); err == nil {
		r.NewGit.Attributes, err = c.info("attributes")
	}
	if err != nil {
		return err
	}
	// A partial clone fetches what it lacks when a tree needs it, as it does for git worktree.
	if partial {
		if err := os.Setenv(lazyFetching, "0"); err != nil {
			return err
		}
	}
	r.SessionOptions.Remote, r.SessionOptions.Branches = control.RemoteOrigin, session.BranchesAsIs
	settings := []control.GitSetting{{Name: "clone.defaultRemoteName", Value: cloneRemote}}
	for _, s := range own {
		if converts(s) {
			settings = append(settings, s)
		}
	}
	n, err := strconv.Atoi(cmp.Or(os.Getenv("GIT_CONFIG_COUNT"), "0"))
	if err != nil {
		return fmt.Errorf("$GIT_CONFIG_COUNT: %w", err)
	}
	for i, s := range settings {
		err = errors.Join(err, os.Setenv(fmt.Sprintf("GIT_CONFIG_KEY_%d", n+i), s.Name),
			os.Setenv(fmt.Sprintf("GIT_CONFIG_VALUE_%d", n+i), s.Value))
	}
	return errors.Join(err, os.Setenv("GIT_CONFIG_COUNT", strconv.Itoa(n+len(settings))))
}

// maxInfo is the maximum size in bytes of a file that info returns, because a request has few of them and is short.
const maxInfo = 128 << 10

// info returns the contents of a file in the directory info of the clone; nothing if there is no such file.
func (c clone) info(name string) ([]byte, error) {
	path := filepath.Join(c.common, "info", name)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && len(text) > maxInfo:
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxInfo)
	}
	return text, err
}

// extras copies what .worktreeinclude names, and the hooks of agents, to the tree at dir. Both are conveniences, so
// errors are only printed.
func (c clone) extras(ctx context.Context, a *cli.App, dir string) *included {
	copied, err := include(ctx, c.at, dir)
	if err != nil {
		fmt.Fprintf(a.Stderr, "artifactfs: not all files that %s names are in the new tree: %s\n", includeFile,
			cli.OneLine(err.Error()))
	}
	if err := copyHooks(ctx, c.at, dir); err != nil {
		fmt.Fprintf(a.Stderr, "artifactfs: hooks of agents are not in the new tree: %s\n", cli.OneLine(err.Error()))
	}
	return copied
}

// settings returns the settings of the clone that its trees get: all of the repository, except those that describe how
// the repository is stored, and its relation to other directories. Of the settings of branches, they get those of
// their own branch. The hooks, and the files of git-lfs, are those of the clone, too. partial is whether it is a
// partial clone.
func (c clone) settings(ctx context.Context, branch string) (all []control.GitSetting, partial bool, err error) {
	text, err := git(ctx, c.dir, "config", "--local", "-z", "--list", "--includes")
	if err != nil {
		return nil, false, err
	}
	for entry := range strings.SplitSeq(text, "\x00") {
		name, value, ok := strings.Cut(entry, "\n")
		if !ok {
			value = "true" // a setting without a value
		}
		section, rest, _ := strings.Cut(name, ".")
		partial = partial || name == "extensions.partialclone" || section == "remote" && strings.HasSuffix(rest, ".promisor")
		if name == "" || slices.Contains(notInTrees, section) || slices.Contains(notInTrees, name) {
			continue
		}
		if i := strings.LastIndexByte(rest, '.'); section == "branch" && i >= 0 && rest[:i] != branch {
			continue
		}
		if section == "remote" {
			if value, ok = remoteSetting(rest, value); !ok {
				continue
			}
		}
		all = append(all, control.GitSetting{Name: name, Value: value})
	}
	// A configured directory is, if its path is relative, one of each tree. By default, all use that of the clone.
	if _, err := git(ctx, c.dir, "config", "--get", "core.hookspath"); gitcmd.Exited(err, 1) {
		hooks := filepath.Join(c.common, "hooks")
		if info, err := os.Stat(hooks); err == nil && info.IsDir() {
			all = append(all, control.GitSetting{Name: "core.hookspath", Value: hooks})
		}
	}
	// The files that git-lfs stores for a commit are needed wherever the commit appears, and outlive the tree.
	return append(all, control.GitSetting{Name: "lfs.storage", Value: c.lfsStorage(ctx)}), partial, nil
}

// lfsStorage returns the directory in which git-lfs stores the files of the clone.
func (c clone) lfsStorage(ctx context.Context) string {
	dir, err := git(ctx, c.dir, "config", "--get", "lfs.storage")
	if err != nil || dir == "" {
		dir = "lfs"
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(c.common, dir)
	}
	return dir
}

// remoteSetting returns the value that a setting of a remote has in a tree, or false if a tree does not get the
// setting. name is its name without "remote.".
func remoteSetting(name, value string) (string, bool) {
	i := strings.LastIndex(name, ".")
	if i < 0 || name[:i] == cloneRemote {
		return "", false
	}
	switch remote := name[:i]; name[i+1:] {
	case "promisor", "partialclonefilter": // objects come from the clone
		return "", false
	case "mirror": // git push would delete all branches of the remote that the tree lacks
		return "", false
	case "fetch": // a mirror or a bare clone fetches into branches, which a tree may have checked out
		if _, to, _ := strings.Cut(value, ":"); to != "" && !strings.HasPrefix(to, "refs/remotes/") {
			return "+refs/heads/*:refs/remotes/" + remote + "/*", true
		}
	}
	return value, true
}

// notInTrees lists the sections and settings of a clone's configuration that its trees do not get.
var notInTrees = []string{"extensions", "gc", "maintenance", "include", "includeif", "submodule", "index", "receive",
	"uploadpack", "transfer", "pack", "repack",
	"core.repositoryformatversion", "core.bare", "core.worktree", "core.filemode", "core.logallrefupdates",
	"core.fsmonitor", "core.fsmonitorhookversion", "core.untrackedcache", "core.sharedrepository", "core.splitindex",
	"core.sparsecheckout", "core.sparsecheckoutcone", "core.ignorecase", "core.precomposeunicode", "core.symlinks",
	"core.commitgraph", "core.multipackindex", "core.checkstat", "core.trustctime", "lfs.storage"}

// converts reports whether a setting determines how git converts the contents of files.
func converts(s control.GitSetting) bool {
	return strings.HasPrefix(s.Name, "filter.") || slices.Contains([]string{"core.autocrlf", "core.eol",
		"core.attributesfile"}, s.Name)
}

// printOfClone prints the result for a tree of a clone, to which changed was copied.
func (out added) printOfClone(a *cli.App, c clone, changed changes, took time.Duration) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, out)
	}
	if a.Quiet {
		return nil
	}
	shown := out.MountReply
	shown.Ref, shown.Head = cmp.Or(out.Branch, "detached HEAD"), ""
	if err := cli.PrintMount(a, shown, took); err != nil {
		return err
	}
	if out.Changes > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: the new tree has %s of %s\n", cli.Plural(int64(out.Changes), "uncommitted path"),
			c.at)
	}
	if len(changed.repositories) > 0 {
		fmt.Fprintf(a.Stderr, "artifactfs: not copied: the git repositories %s\n",
			cli.OneLine(strings.Join(changed.repositories, ", ")))
	}
	if out.Included != nil {
		out.Included.print(a)
	}
	fmt.Fprintf(a.Stderr, "artifactfs: new commits on its branches appear in %s; ignored files of %[1]s are not in it\n",
		c.dir)
	return nil
}
