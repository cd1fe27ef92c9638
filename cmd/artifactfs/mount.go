package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/config"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
)

type mountOptions struct {
	request       control.MountRequest
	budget, cache size
	foreground    bool
	follow        string // branch; followMounted: that which is mounted
	device        int    // descriptor of an opened /dev/fuse; -1: none
}

func (a *app) mountCommand() *cobra.Command {
	var o mountOptions
	cmd := &cobra.Command{
		Use:   "mount [REMOTE [DIR]]",
		Short: "Mount a repository at a directory",
		Long: `Mount shows the tree of REMOTE at DIR and returns as soon as the root directory can be read. Everything works
from there on; a read waits for just what it needs.

REMOTE is anything git can clone: http, https, ssh, git and file URLs, host:path, a local path. DIR is made if it is
missing, and must be empty; left out, it is the repository's name in the current directory. A link that artifactfs
session link printed, URL#session=NAME@CHECKPOINT, shows that checkpoint, read-only; URL#session=NAME goes on with the
session. Any other fragment is refused.

Credentials come from the URL, from $ARTIFACTFS_TOKEN or --token-file, or from git's credential helpers. They are kept
in memory and nowhere else, and git commands in the mount log in with them, too. A session remote on the same host gets
the same; for another one there are $ARTIFACTFS_SESSION_TOKEN and --session-token-file. artifactfs credential set hands
in a new token. Settings of git and ssh in the environment of this command, such as $GIT_ASKPASS, $GIT_SSH_COMMAND or
http.extraHeader in $GIT_CONFIG_COUNT, count for this mount, though a daemon runs already.

What is changed in the mount is kept on this host, in a session: mounting REMOTE at DIR again goes on with it, on top of
the commit it began with, until artifactfs unmount --discard throws it away. A mount without changes leaves nothing.
--session names the work, so that it can be mounted anywhere. --read-only shows the repository alone, or with --session
what a session has made of it.

Paths that --redirect names, such as node_modules, live in a plain directory outside of the mount as soon as somebody
makes them, and are thrown away with the mount: that is quicker, and they count as no change. Without the flag they are
those of redirect = ["PATH", ...] in .artifactfs.toml in the root of the repository and in
~/.config/artifactfs/config.toml, together; --redirect "" has none.

With --follow the mount goes with its branch on the remote, as by git pull --ff-only and without a content being read:
the remote is asked every --follow-interval, in one request, and at once by artifactfs refresh. A read-only mount goes
wherever the branch does; a writable one while git status lists nothing there and the branch has no commits of its own.
Otherwise artifactfs status says what it waits for.

With --recurse-submodules the commits that submodules are pinned to are mounted at their paths, and theirs inside of
them. They have sessions of their own, and are unmounted with DIR. One that cannot be mounted is told of, and left out.

With --git-dir inside, .git is a directory of the mount and not a file that names one elsewhere: git works then where
nothing but the mount can be seen, as in a container. This takes root, or root of a user namespace.

With --fuse-fd N (--foreground only) nothing is mounted: a program that may has opened /dev/fuse as descriptor N and
mounted with it at DIR. So a sandbox needs no privilege at all.

What is hydrated stays in a cache on disk that all mounts share.

Each flag has an environment variable, as --cache-size has $ARTIFACTFS_CACHE_SIZE, which counts when the flag is not
given; $ARTIFACTFS_REMOTE and $ARTIFACTFS_DIR count when there are no arguments. Empty ones do not count.`,
		Example: `  artifactfs mount https://github.com/git/git
  artifactfs mount git@example.org:team/app.git /srv/app --ref v2.1
  artifactfs mount ~/src/app /tmp/app --wait all --prefetch all
  artifactfs mount https://example.org/app.git /srv/fix --session fix-login --redirect node_modules,web/dist
  artifactfs mount https://example.org/app.git /srv/app --read-only --follow=main
  artifactfs mount https://example.org/app.git app --foreground --log-format json
  artifactfs mount https://example.org/app.git --json | jq .timings_ms
  ARTIFACTFS_REMOTE=https://example.org/app.git ARTIFACTFS_DIR=/work artifactfs mount`,
		Annotations: fromEnvironment,
		Args:        arguments(0, 2, "REMOTE [DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given := environmentArguments("REMOTE", "DIR"); len(args) == 0 {
				args = given
			}
			if len(args) == 0 {
				return usage(cmd, errors.New("takes REMOTE [DIR], and $ARTIFACTFS_REMOTE is not set either"))
			}
			if err := o.complete(cmd, args, a); err != nil {
				return err
			}
			return a.mount(cmd.Context(), o)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.foreground, "foreground", false, "serve the mount in this process until it is interrupted or unmounted")
	f.IntVar(&o.device, "fuse-fd", -1, "serve DIR, where somebody has mounted already, by the descriptor `N`\nof the /dev/fuse he did it with (--foreground only)")
	return cmd
}

// addFlags adds those that all commands have which mount.
func (o *mountOptions) addFlags(cmd *cobra.Command) {
	r, f := &o.request, cmd.Flags()
	o.device = -1
	f.SortFlags = false
	f.StringVar(&r.Ref, "ref", "", "branch, tag, full ref `NAME` or commit id (default: the remote's HEAD)")
	f.StringVar(&r.Session, "session", "", "`NAME` of the work to go on with or to begin (default: one made of REMOTE\nand DIR; with --read-only: none)")
	f.StringVar(&o.follow, "follow", "", "go with the `BRANCH` on the remote (alone: the mounted one) while nothing is\nchanged in the mount")
	f.Lookup("follow").NoOptDefVal = followMounted
	f.DurationVar(&r.FollowInterval, "follow-interval", daemon.DefaultFollowInterval, "how often --follow asks the remote")
	f.BoolVar(&r.ReadOnly, "read-only", false, "refuse writes")
	f.StringSliceVar(&r.Redirects, "redirect", nil, "`PATH`s in the mount, with commas between, that live outside of it")
	f.BoolVar(&r.Submodules, "recurse-submodules", false, "mount submodules at their paths, too, and theirs")
	f.Var(newChoice(&r.GitDir, control.GitDirOutside, control.GitDirOutside, control.GitDirInside), "git-dir", "where git's directory is: below the state directory, or\n.git in the mount, for who sees nothing else (root)")
	f.Var(newChoice(&r.Wait, control.WaitTree, control.WaitTree, control.WaitGit, control.WaitAll), "wait", "return when the tree is readable, when git is ready, too,\nor when what --prefetch names is hydrated, too")
	f.Var(newChoice(&r.History, control.HistoryBackground, control.HistoryBackground, control.HistoryFull, control.HistoryNone), "history", "when the commits behind the mounted one come: behind the\nmount, before it counts as done, or never")
	f.Var(newChoice(&r.Prefetch, control.PrefetchAuto, control.PrefetchAuto, control.PrefetchAll, control.PrefetchNone), "prefetch", "what to hydrate before it is read: by likely need up to\nthe budget, everything, or nothing")
	f.Var(&o.budget, "prefetch-budget", "most that --prefetch auto brings (default "+sizeText(daemon.DefaultBudget)+")")
	f.Var(&o.cache, "cache-size", "quota of hydrated contents on disk, for all mounts together (default "+sizeText(daemon.DefaultCacheSize)+")")
	f.DurationVar(&r.Timeout, "timeout", 0, "longest `WAIT` for the remote, now and in a later read (default "+strings.TrimSuffix(daemon.DefaultDeadline.String(), "0s")+")")
	f.StringVar(&r.TokenFile, "token-file", "", "read the token for the remote from `FILE`, again whenever it is refused")
	f.StringVar(&r.SessionTokenFile, "session-token-file", "", "the same for the session remote (default: that of the remote, if it is\non the same host)")
	f.Uint32Var(&r.UID, "uid", uint32(os.Getuid()), "`ID` of the owner of everything in the mount")
	f.Uint32Var(&r.GID, "gid", uint32(os.Getgid()), "`ID` of the group of everything in the mount")
	f.BoolVar(&r.AllowOther, "allow-other", false, "let other users in")
	o.addCarryFlags(cmd)
	completeFlag(cmd, "git-dir", "outside", "inside")
	completeFlag(cmd, "wait", "tree", "git", "all")
	completeFlag(cmd, "history", "background", "full", "none")
	completeFlag(cmd, "prefetch", "auto", "all", "none")
}

// complete makes the request of what flags and arguments say.
func (o *mountOptions) complete(cmd *cobra.Command, args []string, a *app) error {
	r := &o.request
	r.PrefetchBudget, r.CacheSize, r.Token = int64(o.budget), int64(o.cache), a.token
	r.SessionToken = a.sessionToken
	if !o.foreground {
		r.Environment = control.CallerEnvironment()
	}
	r.Passing, r.Through, r.ExactOwner = a.passing, a.through, true
	r.RedirectsOnly = cmd.Flags().Changed("redirect")
	if r.GitDir == control.GitDirOutside {
		r.GitDir = "" // what a daemon of an earlier version understands, too
	}
	if o.device >= 0 && !o.foreground {
		return usage(cmd, errors.New("--fuse-fd needs --foreground: the descriptor is this process's"))
	}
	if o.device >= 0 {
		var err error
		if r.Device, err = inheritedDevice(o.device); err != nil {
			return err
		}
	}
	link, err := atLink(cmd, r, args[0])
	if err != nil {
		return err
	}
	if err := completeCarry(cmd, r); err != nil {
		return err
	}
	if err := o.completeFollow(cmd); err != nil {
		return err
	}
	if link { // the session says of which remote it is
		dir := r.Session
		if len(args) > 1 {
			dir = args[1]
		}
		args = []string{"", dir}
	}
	return completeRequest(r, args)
}

// inheritedDevice takes the descriptor that a more privileged program has left open for us.
func inheritedDevice(fd int) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229)) { // Documentation/admin-guide/devices.txt
		err = errors.New("it is no /dev/fuse")
	}
	if err != nil {
		return nil, &control.Error{Code: control.ExitUsage, Verb: "mount", Object: fmt.Sprintf("--fuse-fd %d", fd), Cause: err.Error(),
			Hint: "whoever mounts has to leave the descriptor open across exec: no close-on-exec, and its number in --fuse-fd"}
	}
	unix.CloseOnExec(fd) // a child of ours that held it would keep the mount alive
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// completeRequest fills in what the arguments say: a daemon has another working directory, so paths become absolute.
func completeRequest(r *control.MountRequest, args []string) error {
	fail := func(object, cause, hint string) error {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: object, Cause: cause, Hint: hint}
	}
	r.Remote = args[0]
	elsewhere := r.Session != "" && r.SessionOptions.Remote != "" // what is there says of which remote it is
	if r.Remote == "" && !elsewhere {
		return fail("", "REMOTE is empty", "artifactfs mount --help")
	}
	if r.Timeout < 0 {
		return fail("", "--timeout is negative", "")
	}
	if r.Session != "" {
		if err := control.ValidSession(r.Session); err != nil {
			return fail("", err.Cause, "")
		}
	}
	if err := completeRedirects(r); err != nil {
		return err
	}
	if r.Remote != "" && isPath(r.Remote) {
		abs, err := filepath.Abs(r.Remote)
		if err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		r.Remote = abs
	}
	for flag, file := range map[string]*string{"--token-file ": &r.TokenFile, "--session-token-file ": &r.SessionTokenFile} {
		if *file == "" {
			continue
		}
		abs, err := filepath.Abs(*file)
		if err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		if info, err := os.Stat(abs); err != nil {
			return fail(flag+*file, reason(err), "a file whose only line is the token")
		} else if info.IsDir() {
			return fail(flag+*file, "it is a directory", "a file whose only line is the token")
		}
		*file = abs
	}
	dir := repositoryName(r.Remote)
	if len(args) > 1 {
		dir = args[1]
	}
	if dir == "" {
		return fail("", "no directory can be made of the remote's name", "name one: artifactfs mount REMOTE DIR")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	// The mount table knows the directory by its real name, and so shall status. What is mounted with our device answers
	// nobody yet.
	real := ""
	if r.Device == nil {
		real, _ = filepath.EvalSymlinks(abs)
	}
	if real != "" {
		abs = real
	} else if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	r.Dir = abs
	return nil
}

// completeRedirects cleans what the flag says; without it the user's configuration speaks.
func completeRedirects(r *control.MountRequest) error {
	if r.ReadOnly && len(r.Redirects) > 0 {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: "--redirect makes no sense with --read-only"}
	}
	if !r.RedirectsOnly {
		file, err := config.Read(config.UserFile())
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(), Hint: `it may hold redirect = ["PATH", ...]`}
		}
		r.Redirects = file.Redirect
	}
	if r.ReadOnly {
		r.Redirects = nil
	}
	var err error
	if r.Redirects, err = config.Paths(r.Redirects); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: "--redirect: " + err.Error(), Hint: "artifactfs mount --help"}
	}
	return nil
}

// isPath tells local paths from URLs and host:path as git does (connect.c, url_is_local_not_ssh).
func isPath(remote string) bool {
	if strings.Contains(remote, "://") {
		return false
	}
	colon, slash := strings.IndexByte(remote, ':'), strings.IndexByte(remote, '/')
	return colon < 0 || slash >= 0 && slash < colon
}

// repositoryName is the name git clone would give the directory; "" if there is none.
func repositoryName(remote string) string {
	if _, rest, ok := strings.Cut(remote, "://"); ok {
		_, remote, _ = strings.Cut(rest, "/") // the host is no name for a directory
	} else if !isPath(remote) {
		_, remote, _ = strings.Cut(remote, ":")
	}
	remote = strings.TrimRight(remote, "/")
	remote = strings.TrimRight(strings.TrimSuffix(remote, "/.git"), "/")
	name := strings.TrimSuffix(path.Base(remote), ".git")
	if name == "." || name == ".." || name == "/" {
		return ""
	}
	return name
}

func (a *app) mount(ctx context.Context, o mountOptions) error {
	if o.foreground {
		return a.serveMount(ctx, o.request)
	}
	start := time.Now()
	p := a.newProgress()
	reply, err := a.mountInBackground(ctx, o.request, p.show)
	p.stop()
	if err != nil {
		return failure("mount", o.request.Dir, err)
	}
	return a.printMount(reply, time.Since(start))
}

func (a *app) mountInBackground(ctx context.Context, r control.MountRequest, show func(control.Progress)) (control.MountReply, error) {
	for again := true; ; again = false {
		client, err := a.ensureDaemon(ctx)
		if err != nil {
			return control.MountReply{}, err
		}
		reply, err := client.Mount(ctx, r, show)
		if again && errors.Is(err, control.ErrNoServer) {
			continue // it was idle and ended just now
		}
		return reply, err
	}
}

func (a *app) printMount(m control.MountReply, took time.Duration) error {
	if a.quiet {
		return nil
	}
	if a.json {
		return printJSON(a.stdout, m)
	}
	what := []string{refName(m.Ref, m.Commit)}
	if m.Files >= 0 {
		what = append(what, plural(m.Files, "file"))
	}
	_, err := fmt.Fprintf(a.stdout, "mounted %s at %s (%s, %s)\n", m.Remote, m.Dir, strings.Join(what, ", "), seconds(took))
	return err
}

// refName is what people call the mounted commit.
func refName(ref, commit string) string {
	switch {
	case ref != "":
		return ref
	case commit != "":
		return commit[:min(12, len(commit))]
	}
	return "empty"
}
