package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/namespace"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
)

// These are the exit codes of the command "run" if CMD could not be started. Shells use the same codes.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

const (
	busyTime = 2 * time.Second       // time for which processes that CMD has left running may still use the mount
	busyPoll = 50 * time.Millisecond // interval between attempts to unmount
)

// runOptions holds the arguments of the command "run".
type runOptions struct {
	mounts.MountOptions
	// dir is the directory to mount at; "" means a temporary directory.
	dir string
	// discard makes run delete the session after the command, without an entry in the trash.
	discard bool
	// keep is the time for which the session is kept; 0 means until the session is discarded.
	keep cli.Days
	// shown selects an existing mount, and the path at which CMD sees the mount.
	shown shown
	// command is CMD with its arguments.
	command []string
}

// runCommand returns the command "run". It mounts through the shared daemon, and exits with the exit code of CMD.
func runCommand(a *cli.App) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [REMOTE] [flags] -- CMD [ARG...]",
		Short: "Run a command in a temporary mount",
		Long: `Run mounts REMOTE at a temporary directory, runs CMD there, unmounts, and exits with the exit code of CMD. Ctrl-C and
Ctrl-Z on the terminal reach CMD directly, and run passes other signals on to it.

The changes of CMD are kept on this host in a session, and run prints the command that resumes the session. --session
NAME names the session. --keep AGE keeps the session only for that time: once AGE has passed and the session is not
mounted, the daemon or session gc deletes it on this host and on its session remote, and session undelete can restore it
for another 7 days. --discard deletes the changes permanently when CMD has exited.

Processes that still use the mount after CMD has exited have 2 seconds to finish. Then run prints their names and
unmounts; they lose access to the files.

--at PATH shows the mount at PATH to CMD and its children, in a mount namespace of their own. Use it for programs that
have stored absolute paths, such as virtual environments and build directories: in a fork, PATH is the directory of the
parent session. Without REMOTE, CMD runs in an existing mount: that of the current directory, or of -C.

Run has the flags of mount (run --help --all lists them), and each can be set by an environment variable, as for mount.
$ARTIFACTFS_REMOTE is used if there is no argument REMOTE, and $ARTIFACTFS_DIR if there is no --dir.

Exit code: that of CMD, or 128 plus the number of the signal that killed CMD. If CMD was not run: 126 if it cannot be
executed, 127 if it is not found, or an exit code of mount. If CMD has exited with 0, the exit code is 1 if its changes
could not be saved, and 5 if a part of them is not on the session remote yet.`,
		Example: `  artifactfs run https://github.com/git/git -- make -j8
  artifactfs run https://example.org/app.git --ref v2.1 --discard -- go test ./...
  artifactfs run https://example.org/app.git --keep 7d -- ./agent
  artifactfs run git@example.org:team/app.git --session fix-login -- bash
  artifactfs run -C ~/app-fix --at ~/app -- make test`,
		Annotations:       cli.FromEnvironment,
		RunE:              func(cmd *cobra.Command, args []string) error { return runIn(a, cmd, args, o) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.AddFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "mount at `DIR` (default: a new temporary directory)")
	f.Var(&o.keep, "keep", "keep the session for this time, such as 7d or 12h\n(default: until it is deleted)")
	f.BoolVar(&o.discard, "discard", false, "delete the session permanently when CMD has exited")
	o.shown.addFlags(f)
	cli.SetBrief(cmd,
		cli.Brief{Flags: []string{"ref", "session", "session-remote", "read-only", "redirect", "prefetch",
			"token-file", "dir", "keep", "discard", "at", "of"}})
	return cmd
}

// runIn parses the arguments of run, creates the directory, and runs the command there.
func runIn(a *cli.App, cmd *cobra.Command, args []string, o runOptions) error {
	if err := o.shown.takePath(cmd); err != nil {
		return err
	}
	remote := cli.EnvironmentArguments("REMOTE")
	// The argument REMOTE precedes "--". CMD and its arguments follow "--".
	switch at := cmd.ArgsLenAtDash(); {
	case at < 0 || at == len(args):
		return cli.Usage(cmd, errors.New("command is missing: want REMOTE -- CMD [ARG...]"))
	case at > 1:
		return cli.Usage(cmd, fmt.Errorf("want REMOTE -- CMD [ARG...], got %d arguments before --", at))
	case at == 1:
		remote, o.command = []string{args[0]}, args[1:]
	case o.shown.of != "" || o.shown.at != "" && len(remote) == 0:
		remote, o.command = nil, args
	case len(remote) == 0:
		return cli.Usage(cmd, errors.New("REMOTE is missing: want REMOTE -- CMD [ARG...], or set $ARTIFACTFS_REMOTE"))
	default:
		o.command = args
	}
	if err := o.shown.check(cmd, len(remote) > 0); err != nil {
		return err
	}
	if o.discard && o.keep != 0 {
		return cli.Usage(cmd, errors.New("--keep and --discard exclude each other"))
	}
	if a.JSON {
		return cli.Usage(cmd, errors.New("--json is not possible: the output is that of CMD"))
	}
	// Report a missing command before anything is mounted. A command with a slash in its name may be a file in the mount,
	// so such a command is not checked.
	if !strings.Contains(o.command[0], "/") {
		if _, err := exec.LookPath(o.command[0]); err != nil && !errors.Is(err, exec.ErrDot) {
			return cannotRun(o.command[0], err)
		}
	}
	if len(remote) == 0 {
		return runExisting(cmd.Context(), a, o)
	}
	place, err := makePlace(o, remote[0])
	if err != nil {
		return err
	}
	defer place.remove()
	a.Passing = true // do not mount the directory again after a restart of the machine
	if err := o.Complete(cmd, append(remote, place.dir), a); err != nil {
		return err
	}
	if err := o.CompleteMemory(cmd); err != nil {
		return err
	}
	return runMounted(cmd.Context(), a, o)
}

// place is the directory at which the command "run" mounts.
type place struct {
	dir    string
	parent string // temporary directory that contains dir and is removed after dir; "" if dir is the value of --dir
}

// makePlace returns the directory of --dir, or else creates a temporary directory with the name that git clone would
// choose.
func makePlace(o runOptions, remote string) (place, error) {
	if o.dir != "" {
		return place{dir: o.dir}, nil
	}
	parent, err := os.MkdirTemp("", "artifactfs-run-")
	if err == nil && o.Request.AllowOther { // Other users need access to the directory that contains the mount.
		err = os.Chmod(parent, 0o755)
	}
	if err != nil {
		return place{}, fmt.Errorf("run: %w", err)
	}
	name := mounts.RepositoryName(remote)
	if name == "" {
		name = "tree"
	}
	return place{dir: filepath.Join(parent, name), parent: parent}, nil
}

// remove removes the temporary directory.
func (p place) remove() {
	if p.parent != "" {
		os.Remove(p.parent) // This fails, and keeps the directory, as long as the directory contains a mount.
	}
}

// runMounted mounts the remote, runs the command and unmounts. It returns the exit code of the command. If the command
// has succeeded but the unmount fails, it returns the error of the unmount.
func runMounted(ctx context.Context, a *cli.App, o runOptions) error {
	// CMD runs as the same user, so keep it from reading the secrets in the memory of this process.
	if o.shown.at == "" { // otherwise startChild does it
		if err := serving.KeepMemory(); err != nil {
			return cli.Failure("run", o.Request.Dir, err)
		}
	}
	p := a.NewProgress()
	reply, err := mounts.MountInBackground(ctx, a, o.Request, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("run", o.Request.Dir, err)
	}
	if err := o.CarryMemory(ctx, a, &reply); err != nil {
		cli.PrintError(a.Stderr, control.AsError(err))
	}
	cli.PrintReceipt(a, "carried", reply.Receipt)
	cli.PrintMemory(a, reply.Memory)
	a.Serving = true // from now on, all signals are passed on to the command
	code, err := control.ExitFailed, ctx.Err()
	// The mount is not visible here, as in another mount namespace. CMD would run in an empty directory.
	if err == nil {
		err = cli.CheckVisible("run", reply.Dir)
	}
	var view *namespace.View
	if err == nil && o.shown.at != "" {
		var v namespace.View
		v, err = o.shown.view(ctx, a, reply.Dir, ".")
		view = &v
	}
	if err == nil { // If err is nil, no signal has arrived before or during the mount.
		code, err = runChild(a, o.command, reply.Dir, view)
	}
	if err != nil {
		cli.PrintError(a.Stderr, control.AsError(err))
	}
	// Unmount even if a signal has ended CMD and canceled ctx.
	ctx = context.WithoutCancel(ctx)
	if err := endRun(ctx, a, reply, o); err != nil {
		e := control.AsError(cli.Failure("unmount", reply.Dir, err))
		cli.PrintError(a.Stderr, e)
		if code == control.ExitDone {
			code = e.Code
		}
	}
	if code == control.ExitDone {
		return nil
	}
	return cli.ExitCode(code)
}

// cannotRun returns the error for a command that could not be started, with the exit code of a shell.
func cannotRun(name string, err error) error {
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = exitNotFound
	}
	cause := err
	var wrapped *exec.Error
	var path *os.PathError
	if errors.As(err, &wrapped) {
		cause = wrapped.Err
	} else if errors.As(err, &path) {
		cause = path.Err
	}
	return &control.Error{Code: code, Verb: "run", Object: name, Cause: cause.Error()}
}

// endRun unmounts after the command has ended, and prints the name of the session that stores the changes. If processes
// still use the mount after busyTime, endRun detaches the mount. If the daemon that served the mount has ended, endRun
// starts another daemon.
func endRun(ctx context.Context, a *cli.App, m control.MountReply, o runOptions) error {
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return err
	}
	request := control.UnmountRequest{Dir: m.Dir, Discard: o.discard, Keep: time.Duration(o.keep)}
	var reply control.UnmountReply
	// Processes that CMD has left running may need a moment to exit, so retry the unmount.
	for deadline := time.Now().Add(busyTime); ; time.Sleep(busyPoll) {
		reply, err = client.Unmount(ctx, request)
		if !mountedAt(m.Dir) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil && mountedAt(m.Dir) {
		cli.PrintError(a.Stderr, &control.Error{Verb: "run", Object: m.Dir,
			Cause: "some processes lost access to the mount, which they still used: " + control.AsError(err).Cause})
		request.Detach = true
		reply, err = client.Unmount(ctx, request)
	}
	if err != nil {
		return err
	}
	if reply.Session != "" {
		reportChangesOfRun(a, m, reply)
	}
	warnDiverged(a, "run", m.Dir, reply.SessionRemote, reply.DivergedRefs)
	if reply.Pending > 0 && !o.discard {
		return unsynced("run", m.Dir, control.SessionStatus{Name: m.Session, Pending: reply.Pending, Error: reply.Why})
	}
	return nil
}

// mountedAt reports whether artifactfs is mounted at dir in this mount namespace. It returns true if the mount table
// cannot be read.
func mountedAt(dir string) bool { return cli.CheckVisible("run", dir) == nil }

// reportChangesOfRun prints how to resume the session by its name, because the temporary directory has been removed.
func reportChangesOfRun(a *cli.App, m control.MountReply, reply control.UnmountReply) {
	what := cli.Plural(reply.Kept, "changed path")
	if reply.Kept == 0 {
		what = "git objects"
	}
	if !reply.Until.IsZero() {
		what += " until " + reply.Until.Local().Format(time.DateTime)
	}
	fmt.Fprintf(a.Stderr, "artifactfs: kept %s in session %s\n", what, reply.Session)
	fmt.Fprintf(a.Stderr,
		"hint: artifactfs run %s --session %s -- CMD resumes the session, artifactfs unmount --session %s "+
			"--discard deletes it\n", cli.ShellWord(m.Remote), reply.Session, reply.Session)
	for _, sub := range reply.Submodules {
		if sub.Session != "" {
			fmt.Fprintf(a.Stderr, "artifactfs: kept work of submodule %s in session %s\n", sub.Dir, sub.Session)
		}
	}
}
