// Package mounts contains the commands that create mounts and update them: "mount" and "refresh". The commands "session
// fork", "session resume" and "run" have the same flags as "mount" (MountOptions).
package mounts

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

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/transport/via"
	"github.com/artifactfs/artifactfs/host/config"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/follow"
	"github.com/artifactfs/artifactfs/host/remotes"
)

// MountOptions holds the flags of a command that mounts, and the request that results from these flags.
type MountOptions struct {
	// Request is complete after the method Complete has returned.
	Request       control.MountRequest
	budget, cache cli.Size
	foreground    bool
	agentMemory   bool // value of the flag
	memory        memoryChoice
	follow        string // branch that the mount follows; the value followMounted stands for the mounted branch
	device        int    // descriptor of an open /dev/fuse, or -1 if there is none
	create        creation
	server        hosting.Connection // server of the flag --create
}

// MountCommand returns the command "mount".
func MountCommand(a *cli.App) *cobra.Command {
	var o MountOptions
	cmd := &cobra.Command{
		Use:   "mount [REMOTE [DIR]]",
		Short: "Mount a repository at a directory",
		Long: `Mount mounts REMOTE at DIR, and returns as soon as the root directory can be read. From then on all files and
directories can be used: a read waits only for the contents that it needs.

REMOTE is any URL or path that git can clone: http, https, ssh, git and file URLs, host:path, or a local path. DIR must
be empty; it is created if it does not exist. The default of DIR is the name of the repository, in the current
directory. REMOTE may also be a link that artifactfs session link has printed: URL#session=NAME@CHECKPOINT mounts that
checkpoint read-only, and URL#session=NAME resumes the session. Any other fragment is an error.

Credentials are taken from the URL, from $ARTIFACTFS_TOKEN or --token-file, or from git's credential helpers. They are
stored only in memory. git commands in the mount use them too, and so does a session remote on the same host; for a
session remote on another host, set $ARTIFACTFS_SESSION_TOKEN or --session-token-file. artifactfs credential set
replaces a token. A token file that begins with #! is a program that prints the token; it runs again when the remote
refuses the token, and before the time in a token that ends in ?expires=UNIX. Settings of git and ssh in the environment
of this command, such as $GIT_ASKPASS, $GIT_SSH_COMMAND or http.extraHeader in $GIT_CONFIG_COUNT, apply to this mount,
even if the daemon was started without them.

Changes in the mount are kept on this host, in a session. Mounting REMOTE at DIR again resumes the session, on the
commit from which it was started. artifactfs unmount --discard deletes it. No session is kept for a mount without
changes. --session gives the session a name, by which it can be mounted at any directory. --read-only mounts the
repository without a session; with --session, it mounts the newest state of that session.

--create creates REMOTE on a server of artifactfs serve, if it does not exist there. REMOTE is SERVER/NAMESPACE/NAME,
such as http://127.0.0.1:8790/team/app, or NAMESPACE/NAME. The mount makes short-lived tokens for REMOTE itself, with
the token of $ARTIFACTFS_SERVER_TOKEN or --server-token-file, and renews them as long as it lives. The session is pushed
to REMOTE, unless --session-remote names another repository. --create=session-remote does the same for the repository of
--session-remote, and --create=both for two repositories. Without --create, the mount makes its own tokens too if REMOTE
is the URL of a repository of the server of $ARTIFACTFS_SERVER, or of the server that this user runs on this host.

--session-remote-create COMMAND creates the session remote: if the git server has no repository at the URL of
--session-remote, COMMAND runs once, for at most one minute. Its environment contains $ARTIFACTFS_SESSION_REMOTE (the
URL without secrets), $ARTIFACTFS_SESSION, $ARTIFACTFS_REMOTE, $ARTIFACTFS_OBJECT_FORMAT and, if there is a token,
$ARTIFACTFS_SESSION_TOKEN. COMMAND is split into words as in a shell, but no shell runs it; write sh -c '...' for a
shell. If COMMAND fails, the mount fails.

Paths named by --redirect, such as node_modules, are plain directories that are stored outside of the mount. They are
faster than the mount, are not part of the session, and are deleted at unmount. Without the flag, the setting
redirect = ["PATH", ...] applies, from .artifactfs.toml in the root of the repository and from
~/.config/artifactfs/config.toml. --redirect "" turns all of these off.

With --follow, the mount moves with its branch on the remote, as after git pull --ff-only, but without downloading
files. The remote is polled with one request each --follow-interval; artifactfs refresh polls it at once. A read-only
mount always moves. A writable mount moves only while git status is clean and the local branch has no commits that the
remote does not have; if it does not move, artifactfs status prints the reason.

With --recurse-submodules, submodules are mounted at their paths, at the commits that the mounted tree names, and
recursively their own submodules. Each submodule has a separate session, and is unmounted with DIR. If a submodule
cannot be mounted, mount prints a warning and continues.

With --git-dir inside, .git is a directory in the mount; otherwise it is a file that points outside of the mount. Git
then works where only the mount is visible, as in a container. This requires root, or root in a user namespace.

With --fuse-fd N, which requires --foreground, artifactfs does not call mount(2): a privileged program has opened
/dev/fuse as descriptor N and mounted it at DIR. So artifactfs can run in a sandbox without privileges.

Mount records which files programs read first, in a read profile, and the next mount of REMOTE fetches these files
before they are read. --profile NAME keeps a profile for one purpose, such as a build; artifactfs profile --help has the
details.

Fetched contents are stored in a cache on disk that all mounts share. With --store-from DIR, or the setting
store_from = "DIR" in ~/.config/artifactfs/config.toml, the mount first reads from DIR: the state directory of another
daemon, such as that of the host, mounted read-only into a container. Nothing is written there, every object is
verified, and what DIR lacks is fetched from REMOTE. REMOTE must have the same URL as in the mounts of that daemon.

Each flag can be set by an environment variable, for example --cache-size by $ARTIFACTFS_CACHE_SIZE; a flag on the
command line takes precedence. $ARTIFACTFS_REMOTE and $ARTIFACTFS_DIR are used if there are no arguments. Empty
variables are ignored.`,
		Example: `  artifactfs mount https://github.com/git/git
  artifactfs mount git@example.org:team/app.git /srv/app --ref v2.1
  artifactfs mount ~/src/app /tmp/app --wait all --prefetch all
  artifactfs mount https://example.org/app.git /srv/fix --session fix-login --redirect node_modules,web/dist
  artifactfs mount https://example.org/app.git /srv/app --read-only --follow=main
  artifactfs mount https://example.org/app.git app --foreground --log-format json
  artifactfs mount --create http://127.0.0.1:8790/team/app app
  artifactfs mount https://example.org/app.git --json | jq .timings_ms
  ARTIFACTFS_REMOTE=https://example.org/app.git ARTIFACTFS_DIR=/work artifactfs mount`,
		Annotations: cli.FromEnvironment,
		Args:        cli.Arguments(0, 2, "REMOTE [DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given := cli.EnvironmentArguments("REMOTE", "DIR"); len(args) == 0 {
				args = given
			}
			if len(args) == 0 {
				return cli.Usage(cmd, errors.New("REMOTE is missing: want REMOTE [DIR], or set $ARTIFACTFS_REMOTE"))
			}
			if err := o.Complete(cmd, args, a); err != nil {
				return err
			}
			if err := o.CompleteMemory(cmd); err != nil {
				return err
			}
			return mountRemote(cmd.Context(), a, o)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
	o.AddFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.foreground, "foreground", false, "serve the mount in this process, until Ctrl-C or until it is unmounted")
	f.IntVar(&o.device, "fuse-fd", -1, "serve DIR, which another program has mounted, through descriptor `N`, the\n"+
		"/dev/fuse with which it was mounted; requires --foreground")
	cli.SetBrief(cmd, mountBrief)
	return cmd
}

// AddFlags adds the flags that all mounting commands have in common.
func (o *MountOptions) AddFlags(cmd *cobra.Command) {
	r, f := &o.Request, cmd.Flags()
	o.device = -1
	f.SortFlags = false
	f.StringVar(&r.Ref, "ref", "", "`NAME` of a branch, a tag or a ref, or id of a commit (default: the remote's HEAD)")
	f.StringVar(&r.Session, "session", "", "`NAME` of the session to resume or create (default: derived from REMOTE\n"+
		"and DIR; with --read-only: none)")
	f.StringVar(&o.follow, "follow", "",
		"move with `BRANCH` on the remote (no value: the mounted branch), while the\nmount has no changes")
	f.Lookup("follow").NoOptDefVal = followMounted
	f.DurationVar(&r.FollowInterval, "follow-interval", follow.DefaultInterval,
		"`INTERVAL` at which --follow polls the remote")
	f.BoolVar(&r.ReadOnly, "read-only", false, "refuse writes")
	f.StringSliceVar(&r.Redirects, "redirect", nil,
		"comma-separated `PATH`s in the mount whose contents are stored outside of it")
	f.BoolVar(&r.Submodules, "recurse-submodules", false, "also mount the submodules at their paths, recursively")
	f.Var(cli.NewChoice(&r.GitDir, control.GitDirOutside, control.GitDirOutside, control.GitDirInside), "git-dir",
		"location of the git directory: below the state directory,\nor .git in the mount, for containers (requires root)")
	f.Var(cli.NewChoice(&r.Wait, control.WaitTree, control.WaitTree, control.WaitGit, control.WaitAll), "wait",
		"return when the root directory is readable (tree), when git\nworks too (git), or when --prefetch has also finished (all)")
	f.Var(cli.NewChoice(&r.History, control.HistoryBackground, control.HistoryBackground, control.HistoryFull,
		control.HistoryNone),
		"history", "when to fetch the older commits: after mount has\nreturned, before mount returns, or never")
	f.Var(cli.NewChoice(&r.Prefetch, control.PrefetchAuto, control.PrefetchAuto, control.PrefetchAll,
		control.PrefetchNone),
		"prefetch",
		"contents to fetch before they are read: those that are\nlikely to be read, up to the budget; all; or none")
	f.Var(&o.budget, "prefetch-budget",
		"maximum `SIZE` of the contents that --prefetch auto fetches (default "+cli.SizeText(contents.DefaultBudget)+")")
	f.StringVar(&r.Profile, "profile", readprofile.Auto, "`NAME` of the read profile: prefetch the files that it lists,\n"+
		"and record those that programs read now (none: do neither)")
	f.BoolVar(&r.ShareProfile, "share-profile", false,
		"keep the read profile on the session remote too, for other machines")
	f.Var(&o.cache, "cache-size",
		"maximum `SIZE` of the cache of file contents, which all mounts share (default "+
			cli.SizeText(daemon.DefaultCacheSize)+")")
	f.StringVar(&r.StoreFrom, "store-from", "",
		"before the remote is asked, read what another daemon has fetched from its state\n"+
			"directory `DIR`, such as that of the host, read-only in a container")
	f.DurationVar(&r.Timeout, "timeout", 0,
		"longest `WAIT` for the remote: when mounting, and for each later read (default "+
			strings.TrimSuffix(remotes.DefaultDeadline.String(), "0s")+")")
	f.StringVar(&r.Via, "via", "", "reach REMOTE through the relay at `URL`, and directly if the relay fails; http\n"+
		"and https remotes only (artifactfs relay --help)")
	f.StringVar(&r.TokenFile, "token-file", "",
		"read the token for the remote from `FILE`, again whenever the remote refuses it")
	f.StringVar(&r.SessionTokenFile, "session-token-file", "",
		"the same `FILE` for the session remote (default: the token for the remote, if\nboth are on the same host)")
	f.Uint32Var(&r.UID, "uid", uint32(os.Getuid()),
		"user `ID` of the owner of all files in the mount (default: the caller's)")
	f.Uint32Var(&r.GID, "gid", uint32(os.Getgid()), "group `ID` of all files in the mount (default: the caller's)")
	f.BoolVar(&r.GroupWrite, "group-write", false, "let the group of --gid do all that the owner may do with the files")
	f.BoolVar(&r.AllowOther, "allow-other", false, "let other users access the mount")
	f.BoolVar(&r.IDMap, "id-map", false, "permit idmapped mounts, for containers in user namespaces (Linux 6.12)")
	f.BoolVar(&r.ACL, "acl", false, "support POSIX access control lists (setfacl); ls -l, and users other than the\n"+
		"owner of the files, then cause one more request for each file")
	o.addCarryFlags(cmd)
	o.addCreateFlags(cmd)
	cli.CompleteFlag(cmd, "git-dir", "outside", "inside")
	cli.CompleteFlag(cmd, "wait", "tree", "git", "all")
	cli.CompleteFlag(cmd, "history", "background", "full", "none")
	cli.CompleteFlag(cmd, "prefetch", "auto", "all", "none")
}

// Complete fills o.Request from flags and arguments.
func (o *MountOptions) Complete(cmd *cobra.Command, args []string, a *cli.App) error {
	r := &o.Request
	r.PrefetchBudget, r.CacheSize, r.Token = int64(o.budget), int64(o.cache), a.Token
	r.SessionToken = a.SessionToken
	if !o.foreground {
		r.Environment = control.CallerEnvironment()
	}
	r.Passing, r.Through, r.ExactOwner, r.Umask = a.Passing, a.Through, true, control.CallerUmask()
	r.RedirectsOnly = cmd.Flags().Changed("redirect")
	if r.GitDir == control.GitDirOutside {
		r.GitDir = "" // An empty string means "outside". Daemons of earlier versions do not know the word.
	}
	if r.Profile == readprofile.Auto {
		r.Profile = "" // An empty string means the default. Daemons of earlier versions accept it, too.
	}
	if o.device >= 0 && !o.foreground {
		return cli.Usage(cmd, errors.New("--fuse-fd needs --foreground, because the descriptor belongs to this process"))
	}
	if o.device >= 0 {
		var err error
		if r.Device, err = InheritedDevice(o.device); err != nil {
			return err
		}
	}
	args, err := o.createRepos(cmd.Context(), cmd, args, a)
	if err != nil {
		return err
	}
	link, err := cli.AtLink(cmd, r, args[0])
	if err != nil {
		return err
	}
	remote := args[0]
	if link {
		remote = ""
	}
	if err := o.logIn(cmd.Context(), a, remote); err != nil {
		return err
	}
	if err := completeCarry(cmd, r); err != nil {
		return err
	}
	if err := o.completeFollow(cmd); err != nil {
		return err
	}
	if link { // The link names a session, and the session determines the remote.
		dir := r.Session
		if len(args) > 1 {
			dir = args[1]
		}
		args = []string{"", dir}
	}
	return completeRequest(r, args)
}

// InheritedDevice returns the file /dev/fuse, which a more privileged program has opened and passed to this process as
// the descriptor fd. It returns a usage error if fd refers to another file.
func InheritedDevice(fd int) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	// /dev/fuse has the number 10:229
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229)) {
		err = errors.New("descriptor is not an open /dev/fuse")
	}
	if err != nil {
		return nil, &control.Error{Code: control.ExitUsage, Verb: "mount", Object: fmt.Sprintf("--fuse-fd %d", fd),
			Cause: err.Error(),
			Hint:  "the program that mounts must pass the descriptor through exec (no close-on-exec), and its number in --fuse-fd"}
	}
	unix.CloseOnExec(fd) // without this, a child process that inherits the descriptor would keep the mount alive
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// completeRequest adds the arguments to the request. It makes paths absolute, because the daemon runs in another
// directory. It checks that the token files exist, but does not read them: the daemon reads them.
func completeRequest(r *control.MountRequest, args []string) error {
	fail := func(object, cause, hint string) error {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: object, Cause: cause, Hint: hint}
	}
	r.Remote = args[0]
	// The session on the session remote determines which remote is mounted.
	elsewhere := r.Session != "" && r.SessionOptions.Remote != ""
	if r.Remote == "" && !elsewhere {
		return fail("", "REMOTE is empty", "artifactfs mount --help")
	}
	if _, err := via.New(r.Via); r.Via != "" && err != nil {
		return fail("--via "+r.Via, err.Error(),
			"name the URL that artifactfs relay prints, such as http://relay.example.org:9428")
	}
	if r.Timeout < 0 {
		return fail("", "--timeout must not be negative", "")
	}
	if r.Session != "" {
		if err := r.ValidateSession(); err != nil {
			return fail("", err.Cause, "")
		}
	}
	if err := completeRedirects(r); err != nil {
		return err
	}
	if err := completeStoreFrom(r); err != nil {
		return err
	}
	if r.Remote != "" && cli.IsPath(r.Remote) {
		abs, err := filepath.Abs(r.Remote)
		if err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		r.Remote = abs
	}
	for flag, file := range map[string]*string{"--token-file ": &r.TokenFile,
		"--session-token-file ": &r.SessionTokenFile} {
		if *file == "" {
			continue
		}
		abs, err := filepath.Abs(*file)
		if err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		if info, err := os.Stat(abs); err != nil {
			return fail(flag+*file, cli.Reason(err), "name a file whose only line is the token")
		} else if info.IsDir() {
			return fail(flag+*file, "file is a directory", "name a file whose only line is the token")
		}
		*file = abs
	}
	// The default of DIR is the name that git clone would choose.
	dir := RepositoryName(r.Remote)
	if len(args) > 1 {
		dir = args[1]
	}
	if dir == "" {
		return fail("", "DIR is missing and cannot be derived from REMOTE", "type artifactfs mount REMOTE DIR")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	// The status must show the real path of the directory, because the mount table contains that path. If the directory is
	// already mounted through the inherited device, it must not be accessed, because no process answers the requests of
	// this mount yet.
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

// completeRedirects checks the paths of --redirect. Without the flag, it reads the paths from the user's configuration.
func completeRedirects(r *control.MountRequest) error {
	if r.ReadOnly && len(r.Redirects) > 0 {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: "--redirect and --read-only exclude each other"}
	}
	if !r.RedirectsOnly {
		file, err := config.Read(config.UserFile())
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(),
				Hint: `the file may contain redirect = ["PATH", ...]`}
		}
		r.Redirects = file.Redirect
	}
	if r.ReadOnly {
		r.Redirects = nil
	}
	var err error
	if r.Redirects, err = config.Paths(r.Redirects); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: "--redirect: " + err.Error(),
			Hint: "artifactfs mount --help"}
	}
	return nil
}

// completeStoreFrom checks the directory of --store-from. Without the flag, it reads the directory from the user's
// configuration; that directory need not exist, because the same configuration may be used on hosts without it.
func completeStoreFrom(r *control.MountRequest) (err error) {
	if r.StoreFrom != "" {
		r.StoreFrom, err = cli.DirectoryFlag("mount", "--store-from", r.StoreFrom)
		return err
	}
	file, err := config.Read(config.UserFile())
	if err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Cause: err.Error(),
			Hint: `the file may contain store_from = "DIR"`}
	}
	r.StoreFrom = file.StoreFrom
	return nil
}

// RepositoryName returns the directory name that git clone would choose, or "" if the remote has no such name.
func RepositoryName(remote string) string {
	if _, rest, ok := strings.Cut(remote, "://"); ok {
		_, remote, _ = strings.Cut(rest, "/") // Remove the host, because the directory is never named after the host.
	} else if !cli.IsPath(remote) {
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

// mountRemote mounts through a daemon, or in this process with --foreground, and prints the result.
func mountRemote(ctx context.Context, a *cli.App, o MountOptions) error {
	if o.foreground {
		return serving.ServeMount(ctx, a, o.Request, func(ctx context.Context, m *control.MountReply) error {
			return o.CarryMemory(ctx, a, m)
		})
	}
	start := time.Now()
	p := a.NewProgress()
	reply, err := MountInBackground(ctx, a, o.Request, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("mount", o.Request.Dir, err)
	}
	err = o.CarryMemory(ctx, a, &reply)
	return errors.Join(cli.PrintMount(a, reply, time.Since(start)), err)
}

// MountInBackground requests a mount from the shared daemon, which it starts if necessary. It calls the function show
// with the progress. If the daemon exits between its start and the request, MountInBackground tries a second time.
func MountInBackground(ctx context.Context, a *cli.App, r control.MountRequest,
	show func(control.Progress)) (control.MountReply, error) {
	for again := true; ; again = false {
		client, err := a.EnsureDaemon(ctx)
		if err != nil {
			return control.MountReply{}, err
		}
		reply, err := client.Mount(ctx, r, show)
		if again && errors.Is(err, control.ErrNoServer) {
			continue // the daemon was idle and has ended just before the request
		}
		return reply, err
	}
}
