package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// unmountOptions holds the arguments of the command "unmount".
type unmountOptions struct {
	// dirs and sessions are the directories and session names on the command line.
	dirs, sessions []string
	// all is the value of --all, which selects every mount of the state directory; discard is the value of --discard,
	// which deletes the sessions.
	all, discard bool
	// yes is the value of --yes, which skips the confirmation of --discard; detach is the value of --detach, which
	// unmounts directories in use.
	yes, detach bool
	// timeout is the longest wait for the session remote; 0 means that the command does not wait.
	timeout time.Duration
}

// unmountCommand returns the command "unmount". Its arguments are checked as a whole before anything is unmounted.
func unmountCommand(a *cli.App) *cobra.Command {
	var o unmountOptions
	cmd := &cobra.Command{
		Use:     "unmount [DIR...] [--session NAME] [--all]",
		Aliases: []string{"umount"},
		Short:   "Unmount directories",
		Long: `Unmount unmounts the named directories, or the mounts of the named sessions. It removes a directory that mount has
created. Submodules that were mounted with DIR are unmounted with it. Fetched contents stay in the cache for the next
mount.

Changes are kept on this host, and unmount prints the command that resumes the session. Before it unmounts, it makes a
checkpoint and waits until the checkpoint and all commits are on the session remote, but at most for --timeout. If a
part is not pushed by then, the next mount pushes it, and the exit code is 5.

With --discard, unmount also deletes the session, on this host and on its session remote. A session that is not mounted
is named by --session or by the directory where it was mounted last. On a terminal, unmount asks for confirmation;
elsewhere --yes is required. A last checkpoint is made, and for 7 days the command that unmount prints restores the
session and mounts it again.

Unmount fails if a process uses the mount, or if the mount is also attached at another place, as in a container or by a
bind mount; the error names them. With --detach it unmounts anyway: all data written so far is kept, and these processes
lose access to the files.

Unmount also removes a dead mount, which a daemon that was killed has left; --all removes those of all sessions.`,
		Example: `  artifactfs unmount git
  artifactfs unmount /srv/a /srv/b
  artifactfs unmount git --discard
  artifactfs unmount git --discard --yes && artifactfs session undelete NAME --mount
  artifactfs unmount --session fix-login
  artifactfs unmount --all        # also ends the background daemon`,
		Args: func(cmd *cobra.Command, args []string) error {
			named := len(args) + len(o.sessions)
			switch {
			case o.all && named > 0:
				return errors.New("want either directories and sessions, or --all")
			case o.timeout < 0:
				return errors.New("--timeout must not be negative")
			case o.all && o.discard:
				return errors.New("--discard and --all exclude each other: name what to discard")
			case o.yes && !o.discard:
				return errors.New("--yes requires --discard")
			case !o.all && named == 0:
				return errors.New("want a directory, --session NAME, or --all")
			}
			for _, name := range o.sessions {
				if err := control.ValidSession(name); err != nil {
					return errors.New(err.Cause)
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dirs = args
			return unmountMounts(cmd.Context(), a, o)
		},
		ValidArgsFunction: a.CompleteMounts(1 << 10),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.sessions, "session", nil,
		"unmount the session `NAME`, at whatever directory it is mounted; may be repeated")
	f.BoolVar(&o.discard, "discard", false, "delete the session; session undelete can restore it for 7 days")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation of --discard")
	f.BoolVar(&o.detach, "detach", false, "unmount even if a process uses the mount")
	f.DurationVar(&o.timeout, "timeout", unmountTime, "longest `WAIT` for the session remote; 0: do not wait")
	f.BoolVar(&o.all, "all", false, "unmount every mount of the state directory, and end the background daemon")
	return cmd
}

// unmountTime is the default of --timeout.
const unmountTime = 30 * time.Second

// unmounted is the result for one mount or session.
type unmounted struct {
	control.UnmountReply
	Discarded bool `json:"discarded,omitempty"`
}

// unmountMounts unmounts the selected mounts. It continues after a failure. The first error determines the exit code,
// and the other errors are printed before the first one. With --all, unmountMounts also ends the shared daemon if every
// mount was unmounted.
func unmountMounts(ctx context.Context, a *cli.App, o unmountOptions) error {
	mounts, asked := a.Mounts(ctx)
	done := []unmounted{}
	var errs []error
	if !o.all && !o.discard {
		done, o.dirs, errs = removeDead(ctx, a, mounts, o.dirs, cli.Spellings)
	}
	targets, wrong := choose(mounts, asked, o)
	errs = append(errs, wrong...)
	var late []control.UnmountReply // replies about sessions that may have refs that are missing on the session remote
	for _, m := range targets {
		if o.discard && !o.yes {
			if err := cli.Confirm(a, "discard", cmp.Or(m.Dir, "session "+m.Session.Name)); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		reply, err := unmountOne(ctx, a, m, o)
		if err != nil && o.all && control.AsError(err).Code == control.ExitNotMounted {
			continue // another process has unmounted the directory since the mounts were listed
		}
		if err != nil {
			errs = append(errs, cli.Failure("unmount", m.Dir, err))
			continue
		}
		done = append(done, reply)
		if !a.JSON && !a.Quiet {
			what := "unmounted " + reply.Dir
			if !m.Mounted() {
				what = "discarded session " + m.Session.Name
			}
			fmt.Fprintln(a.Stdout, what)
		}
		if reply.NotRemoved != "" {
			fmt.Fprintf(a.Stderr,
				"artifactfs: %s\nhint: run artifactfs session delete %s --session-remote URL to delete it there\n",
				cli.OneLine(reply.NotRemoved), m.Session.Name)
		}
		if !a.Quiet {
			cli.PrintTrashed(a, m.MountStatus, reply.UnmountReply)
		}
		if reply.Session != "" {
			cli.ReportChanges(a, m.MountStatus, reply.Kept)
		}
		for _, sub := range reply.Submodules {
			if sub.Session != "" {
				reportChangesOfSubmodule(a, m.MountStatus, sub)
			}
			late = append(late, sub)
		}
		late = append(late, reply.UnmountReply)
	}
	if o.all {
		// A daemon that did not reply may serve the other mounts.
		dirs, err := deadMounts(a.State)
		var dead []unmounted
		var failed []error
		if err == nil && asked == nil {
			dead, _, failed = removeDead(ctx, a, mounts, dirs, func(dir string) []string { return []string{dir} })
			done = append(done, dead...)
		}
		// End the daemon only if no mount is left. It does not serve dead ones.
		if errs = append(errs, err); errors.Join(errs...) == nil {
			errs = append(errs, endDaemon(ctx, a))
		}
		errs = append(errs, failed...)
	}
	if a.JSON {
		errs = append(errs, cli.PrintJSON(a.Stdout, map[string]any{"unmounted": done}))
	}
	for _, r := range late {
		warnDiverged(a, "unmount", r.Dir, r.SessionRemote, r.DivergedRefs)
		if r.Pending > 0 && !o.discard {
			errs = append(errs,
				unsynced("unmount", r.Dir, control.SessionStatus{Name: r.Session, Pending: r.Pending, Error: r.Why}))
		}
	}
	return cli.ReportAll(a, errs)
}

// deadMounts returns the recorded directories of mounts at which a mount of artifactfs is. It looks only into the table
// of mounts: the other directories may be on file systems that do not answer.
func deadMounts(state string) ([]string, error) {
	dirs, err := statedir.Homes{State: state, Log: zap.NewNop()}.MountDirs()
	if err != nil {
		return nil, err
	}
	table, err := mountinfo.Self()
	return slices.DeleteFunc(dirs, func(dir string) bool { return !cli.HasMount(table, dir) }), err
}

// removeDead removes dead mounts, whose daemons have ended without unmounting, at those of the directories dirs that
// have one. It returns the other directories in rest.
func removeDead(ctx context.Context, a *cli.App, mounts []cli.Served, dirs []string,
	spellings func(dir string) []string) (done []unmounted, rest []string, errs []error) {
	done = []unmounted{}
	for _, dir := range dirs {
		removed := false
		for _, spelling := range spellings(dir) {
			if slices.ContainsFunc(mounts, func(m cli.Served) bool { return m.Mounted() && m.Dir == spelling }) {
				break
			}
			var err error
			if removed, err = mountpoint.RemoveDead(ctx, spelling); err != nil {
				errs = append(errs, cli.Failure("unmount", spelling, err))
			}
			if !removed {
				continue
			}
			reply := control.UnmountReply{Dir: spelling}
			session, kept := cli.FindUnmounted(mounts, spelling)
			if kept {
				reply.ID, reply.Session, reply.Kept = session.ID, session.Session.Name, session.Overlay.Changed
			}
			done = append(done, unmounted{UnmountReply: reply})
			if !a.JSON && !a.Quiet {
				fmt.Fprintf(a.Stdout, "unmounted %s (its daemon had ended)\n", spelling)
			}
			if kept {
				cli.ReportChanges(a, session.MountStatus, reply.Kept)
			}
			break
		}
		if !removed {
			rest = append(rest, dir)
		}
	}
	return done, rest, errs
}

// choose returns the mounts and sessions that the arguments select. It returns an error for each argument that selects
// nothing or that names a directory below the root of a mount. With --discard, the directory at which a session was
// last mounted selects that session. The parameter asked is the error that the survey of the daemons has returned.
func choose(mounts []cli.Served, asked error, o unmountOptions) (targets []cli.Served, errs []error) {
	for _, dir := range o.dirs {
		m, err := cli.Find(mounts, asked, "unmount", dir)
		if err == nil && !isDir(m.Dir, dir) {
			e := cli.NotMounted("unmount", dir)
			e.Hint = "the directory is inside the mount at " + m.Dir
			err = e
		}
		if session, ok := cli.FindUnmounted(mounts, dir); ok && err != nil && o.discard {
			m, err = session, nil
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		targets = append(targets, m)
	}
	for _, name := range o.sessions {
		at := slices.IndexFunc(mounts, func(m cli.Served) bool { return m.Session.Name == name })
		switch {
		case at >= 0 && (mounts[at].Mounted() || o.discard):
			targets = append(targets, mounts[at])
		case at >= 0:
			errs = append(errs, &control.Error{Code: control.ExitNotMounted, Verb: "unmount", Object: "session " + name,
				Cause: "session is not mounted",
				Hint:  "add --discard to delete the session and its changes"})
		case asked != nil:
			errs = append(errs, asked)
		default:
			errs = append(errs, &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotFound, Verb: "unmount",
				Object: "session " + name, Cause: "no such session", Hint: "run artifactfs list to see the mounts and sessions"})
		}
	}
	if o.all {
		for _, m := range mounts {
			if m.Mounted() && m.SubmoduleOf == "" { // submodules are unmounted together with the mount that contains them
				targets = append(targets, m)
			}
		}
		errs = append(errs, asked)
	}
	return targets, errs
}

// unmountOne unmounts one mount, or discards one unmounted session.
func unmountOne(ctx context.Context, a *cli.App, m cli.Served, o unmountOptions) (unmounted, error) {
	if !m.Mounted() {
		until, err := discardUnmounted(ctx, a, m.Session.Name)
		return unmounted{control.UnmountReply{ID: m.ID, Dir: m.Dir, Trashed: m.Session.Name, Until: until}, true}, err
	}
	reply, err := m.Client.Unmount(ctx, control.UnmountRequest{Dir: m.Dir, Discard: o.discard, Trash: o.discard,
		Detach: o.detach, Timeout: unmountWait(o.timeout)})
	return unmounted{reply, o.discard}, err
}

// discardUnmounted moves a session that is not mounted to the trash, and returns the time at which the session is
// removed from the trash. If the session has a session remote, the daemon moves the session; otherwise this process
// does so.
func discardUnmounted(ctx context.Context, a *cli.App, name string) (until time.Time, err error) {
	if !catalog.Elsewhere(a.State, name) {
		return catalog.Discard(a.State, name)
	}
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return until, err
	}
	reply, err := client.SessionDelete(ctx, control.SessionDeleteRequest{Of: name})
	if err == nil {
		cli.PrintStays(a, reply)
	}
	return reply.Until, err
}

// unmountWait converts the value of --timeout to the value of a request. In a request, a negative value means that the
// daemon does not wait.
func unmountWait(t time.Duration) time.Duration {
	if t == 0 {
		return -1
	}
	return t
}

// reportChangesOfSubmodule prints which session has the changes of a submodule.
func reportChangesOfSubmodule(a *cli.App, parent control.MountStatus, sub control.UnmountReply) {
	what := cli.Plural(sub.Kept, "changed path")
	if sub.Kept == 0 {
		what = "git objects"
	}
	fmt.Fprintf(a.Stderr, "artifactfs: kept %s of submodule %s in session %s (%s --recurse-submodules resumes it)\n",
		what, sub.Dir, sub.Session, cli.ResumeCommand(parent))
}

// endDaemon ends the shared daemon if it is running. A daemon in the foreground ends with its mount, so endDaemon does
// nothing about it.
func endDaemon(ctx context.Context, a *cli.App) error {
	client, err := control.Dial(ctx, a.DaemonSocket())
	if err == nil {
		err = client.Shutdown(ctx)
	}
	if errors.Is(err, control.ErrNoServer) {
		return nil
	}
	return err
}

// isDir reports whether dir is another spelling of the mount's directory. It returns false for a directory below the
// mount.
func isDir(mounted, dir string) bool {
	for _, spelling := range cli.Spellings(dir) {
		if spelling == mounted {
			return true
		}
	}
	return false
}
