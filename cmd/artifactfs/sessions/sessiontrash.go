package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// sessionDeleteCommand returns the command "session delete". A deleted session stays in the trash for 7 days.
func sessionDeleteCommand(a *cli.App) *cobra.Command {
	var of, remote string
	var yes, takeOver bool
	cmd := &cobra.Command{
		Use:   "delete [DIR|SESSION] [--yes]",
		Short: "Delete a session on this host and on its session remote",
		Long: `Delete deletes a session on this host and on its session remote: its checkpoints, branches, tags, notes and claim. The
session must not be mounted, and no other machine may use it, unless --take-over is given. With --session-remote, the
session need not exist on this host.

On a terminal, delete asks for confirmation; elsewhere --yes is required. For 7 days, the command that delete prints
restores the session, and mounts it where it was mounted last. After that, the next session delete or session gc removes
it permanently.

git servers refuse to delete the branch that HEAD of the repository points to. Delete prints a warning for such a
branch.`,
		Example: `  artifactfs session delete fix-login
  artifactfs session delete fix-login --session-remote https://git.example.org/work.git --yes`,
		Args: func(cmd *cobra.Command, args []string) error { return atMostOne(cmd, args, of) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionDelete(cmd.Context(), a, cmp.Or(of, cli.First(args)), remote, yes, takeOver)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&remote, "session-remote", "",
		"the git repository `URL` that has the session (default: the session remote of\n"+
			"the session on this host)")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&takeOver, "take-over", false, "delete the session even if another machine seems to use it")
	ofFlag(a, cmd, &of)
	return cmd
}

// deleteAt returns the session remote for a request to delete a session. The daemon has credentials for a mounted
// session, but not for a session that is not mounted. If the session is not mounted and this user has a token for the
// server of the session remote, the result contains this token.
func deleteAt(ctx context.Context, a *cli.App, w work, remote string) (string, error) {
	if remote != "" || w.mount != nil {
		return loginAt(ctx, a, "delete", remote)
	}
	all, err := sessions(ctx, a)
	if err != nil {
		return "", nil // The daemon then deletes the session with the credentials that git has.
	}
	for _, s := range all {
		if s.Name == w.of {
			return withNewToken(ctx, a, s.SessionRemote)
		}
	}
	return "", nil
}

// at returns the session remote for the request to restore the session, with a token under the same conditions as
// deleteAt.
func (u undeletion) at(ctx context.Context, a *cli.App, client *control.Client) (string, error) {
	if u.remote != "" {
		return loginAt(ctx, a, "undelete", u.remote)
	}
	trash, err := client.SessionTrash(ctx, control.SessionTrashRequest{})
	if err != nil {
		return "", nil // Ignore the error: the request to restore the session fails with the same cause.
	}
	for _, s := range trash.Deleted {
		if s.Name == u.session && (u.deleted == 0 || s.At.Unix() == u.deleted) {
			return withNewToken(ctx, a, s.Remote)
		}
	}
	return "", nil
}

// withNewToken returns the URL of a session remote with a token, or "" if this user has no token for it.
func withNewToken(ctx context.Context, a *cli.App, remote string) (string, error) {
	at, err := hosting.WithToken(ctx, a, remote)
	if err != nil || at == remote {
		return "", err
	}
	return at, nil
}

// loginAt returns a session remote in the form in which it is sent in a request: as an absolute path, or as a URL with
// the credentials for it.
func loginAt(ctx context.Context, a *cli.App, verb, remote string) (string, error) {
	remote, err := cli.FarRemote(verb, remote)
	if err != nil {
		return "", err
	}
	return hosting.WithToken(ctx, a, remote)
}

// sessionDelete moves a session to the trash, after a confirmation, and prints how to restore it.
func sessionDelete(ctx context.Context, a *cli.App, of, remote string, yes, takeOver bool) error {
	var w work
	// With a session remote, the session may be unknown on this host, so its name is used without a lookup on this host.
	if remote == "" || of == "" || isDirectory(of) {
		var err error
		if w, err = SessionOf(ctx, a, "delete", of); err != nil {
			return err
		}
	} else {
		client, err := a.EnsureDaemon(ctx)
		if err != nil {
			return err
		}
		w = work{client: client, of: of}
	}
	if !yes {
		if err := cli.Confirm(a, "delete", w.name()); err != nil {
			return err
		}
	}
	at, err := deleteAt(ctx, a, w, remote)
	if err != nil {
		return err
	}
	reply, err := w.client.SessionDelete(ctx, control.SessionDeleteRequest{Of: w.of, Remote: at, TakeOver: takeOver})
	if err != nil {
		return cli.Failure("delete", w.name(), err)
	}
	cli.PrintStays(a, reply)
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	back := "artifactfs session undelete " + reply.Session
	if reply.Local {
		back += " --mount"
	} else {
		back += " --session-remote " + cli.ShellWord(statedir.WithoutSecrets(at))
	}
	back += cli.DeletedAt(reply.Until)
	fmt.Fprintf(a.Stdout, "deleted session %s\n", reply.Session)
	if !a.Quiet {
		fmt.Fprintf(a.Stderr, "artifactfs: %s restores it until %s\n", back, reply.Until.Local().Format(time.DateTime))
	}
	return nil
}

// undeletion holds the arguments of the command "session undelete".
type undeletion struct {
	session, remote string
	mount           bool   // whether to mount the session
	dir             string // directory to mount it at; "": the one where it was mounted last
	deleted         int64  // time of the deletion, in seconds since 1970; 0: the last one
}

// sessionUndeleteCommand returns the command "session undelete", which restores a session and, with --mount, mounts it.
func sessionUndeleteCommand(a *cli.App) *cobra.Command {
	var u undeletion
	cmd := &cobra.Command{
		Use:   "undelete SESSION [--mount [DIR]]",
		Short: "Restore a deleted session",
		Long: `Undelete restores a session that was deleted in the last 7 days, on this host and on its session remote. If
several deleted sessions have the same name, it restores the one that was deleted last, or at the time that --deleted
states: the command that each deletion prints has it. With --session-remote, the session need not have been on this
host.

With --mount, undelete also mounts the session at DIR, as artifactfs session resume does without further flags. The
default of DIR is the directory where the session was mounted last. If a DIR that is given is not empty, nothing is
restored. If the mount fails later, the session stays restored, and the error names the command that mounts it.`,
		Example: `  artifactfs session undelete fix-login
  artifactfs session undelete fix-login --mount
  artifactfs session undelete fix-login --mount /srv/fix
  artifactfs session undelete fix-login --session-remote https://git.example.org/work.git`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && !u.mount {
				return errors.New("DIR requires --mount")
			}
			return cli.Arguments(1, 2, "SESSION [--mount [DIR]]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := control.ValidSession(args[0]); err != nil {
				return cli.Usage(cmd, errors.New(err.Cause))
			}
			u.session, u.dir = args[0], cli.First(args[1:])
			return u.run(cmd.Context(), a)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&u.mount, "mount", false, "mount the session too, at DIR")
	f.StringVar(&u.remote, "session-remote", "", "the git repository `URL` on which the session was deleted")
	f.Int64Var(&u.deleted, "deleted", 0, "time of the deletion, in `SECONDS` since 1970 (default: the last one)")
	return cmd
}

// run restores the session, mounts it if that is asked for, and prints the result.
func (u undeletion) run(ctx context.Context, a *cli.App) error {
	if u.dir != "" {
		dir, err := filepath.Abs(u.dir)
		if err == nil {
			err = mountpoint.Check(dir)
		}
		if err != nil {
			return fault.Explain("mount", u.dir, err)
		}
		u.dir = dir
	}
	var err error
	if u.remote, err = cli.FarRemote("undelete", u.remote); err != nil {
		return err
	}
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return err
	}
	at, err := u.at(ctx, a, client)
	if err != nil {
		return err
	}
	r := control.SessionUndeleteRequest{Session: u.session, Remote: at}
	if u.deleted != 0 {
		r.Deleted = time.Unix(u.deleted, 0).UTC()
	}
	reply, err := client.SessionUndelete(ctx, r)
	if err != nil {
		return cli.Failure("undelete", "session "+u.session, err)
	}
	cli.PrintStays(a, reply)
	if !a.JSON {
		if _, err := fmt.Fprintf(a.Stdout, "restored session %s\n", reply.Session); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	}
	if !u.mount {
		if a.JSON {
			return cli.PrintJSON(a.Stdout, reply)
		}
		return nil
	}
	if reply.Local { // the record of the session names its session remote
		u.remote = ""
	}
	start := time.Now()
	mount, err := u.resume(ctx, a)
	switch {
	case err != nil:
		return u.onlyRestored(err)
	case a.JSON:
		return cli.PrintJSON(a.Stdout, undeleted{reply, mount})
	}
	return printWork(a, "resumed session "+mount.Session, mount, time.Since(start))
}

// undeleted is the output of "session undelete --mount --json".
type undeleted struct {
	control.SessionDeleteReply
	Mount control.MountReply `json:"mount"`
}

// resume mounts the restored session with the default values of the flags of "session resume".
func (u undeletion) resume(ctx context.Context, a *cli.App) (control.MountReply, error) {
	var o mounts.MountOptions
	flags := &cobra.Command{Use: "resume"}
	flags.SetContext(ctx)
	o.AddFlags(flags)
	o.Request.SessionOptions.Remote = u.remote
	return resumption{o, u.session, u.dir}.mount(a, flags)
}

// onlyRestored returns the error for a session that was restored, but could not be mounted because of err. It has the
// command that mounts the session. If there is something else at the directory, this command needs another one.
func (u undeletion) onlyRestored(err error) error {
	cause := control.AsError(err)
	command := "artifactfs session resume " + u.session
	if dir := cmp.Or(u.dir, cause.Object); filepath.IsAbs(dir) && mountpoint.Check(dir) != nil {
		command += " DIR"
	} else if u.dir != "" {
		command += " " + cli.ShellWord(u.dir)
	}
	if u.remote != "" {
		command += " --session-remote " + cli.ShellWord(statedir.WithoutSecrets(u.remote))
	}
	hint := command + " mounts it"
	if cause.Hint != "" {
		hint = cause.Hint + "; " + hint
	}
	return &control.Error{Code: cause.Code, Kind: cause.ErrorCode(), Verb: "mount", Object: "session " + u.session,
		Cause: "session is restored, but not mounted: " + cause.Cause, Hint: hint}
}

// sessionListDeleted prints the sessions that session undelete can restore.
func sessionListDeleted(ctx context.Context, a *cli.App, remote string) error {
	at, err := loginAt(ctx, a, "list", remote)
	if err != nil {
		return err
	}
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return err
	}
	reply, err := client.SessionTrash(ctx, control.SessionTrashRequest{Remote: at})
	if err != nil {
		return cli.Failure("list", "deleted sessions", err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	if len(reply.Deleted) == 0 {
		return nil
	}
	now := time.Now()
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tDELETED\tUNTIL\tSESSION REMOTE")
	for _, s := range reply.Deleted {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, cli.Ago(s.At, now), s.Until.Local().Format(time.DateTime), s.Remote)
	}
	return cli.Printed(w.Flush())
}

// sessionGCAll runs session gc on every session of the state directory. It continues after an error.
func sessionGCAll(ctx context.Context, a *cli.App, r control.SessionGCRequest) error {
	all, asked := sessions(ctx, a)
	errs := []error{asked}
	for _, s := range all {
		if !a.JSON {
			fmt.Fprintf(a.Stdout, "%s: ", s.Name)
		}
		if s.Profile.Held() {
			if !a.JSON {
				fmt.Fprintln(a.Stdout, "on hold, nothing is dropped")
			}
			continue
		}
		err := sessionGC(ctx, a, s.Name, r)
		if err != nil && !a.JSON {
			fmt.Fprintln(a.Stdout, "failed")
		}
		errs = append(errs, err)
	}
	return cli.ReportAll(a, errs)
}
