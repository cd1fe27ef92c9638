// Package sessions contains the subcommands of "artifactfs session". Each file contains one subcommand or several
// related ones.
package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
)

// CheckpointNames is a help topic. It explains how commands name a checkpoint of this host or of other hosts.
const CheckpointNames = `Checkpoints are made automatically, and by artifactfs checkpoint. artifactfs session log lists them.

Names of a checkpoint:
  @, @~1         the newest checkpoint; the one before the newest
  01M80Q4Z       its id, or a unique prefix of the id
  before-rename  the name of a pin; a pin takes precedence over all names below
  10m, 2h30m     the newest checkpoint that is at least this old (also 90s, 3d, 1w)
  14:05          the newest checkpoint at that time, today or yesterday; also '2025-11-22 14:05' and RFC 3339
  2025-11-22     the last checkpoint on or before that day
  turn:3         the checkpoint at the beginning of the third turn of the transcript
  HEAD           the first checkpoint with the present commit as HEAD: the files right after that commit
  SESSION@NAME   a checkpoint of another session; SESSION@: the newest one of that session
Times without a zone are in the time zone of the daemon.

Sessions are stored in a git repository, the session remote. It is the repository of --session-remote of artifactfs
mount, by default one below the state directory. Any machine that can read the session remote can resume a session
(session resume), fork it (session fork), and inspect it (session list, log, show and diff with --session-remote URL).
session link prints one URL that names session remote, session and checkpoint.`

// SessionCommand returns the command "session" with its subcommands, and with the hidden commands of other packages.
func SessionCommand(a *cli.App, hidden ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "session COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Inspect, restore, fork and resume sessions",
		Long: `A session keeps the changes and commits that are made in a mount; it outlives the mount. It is saved in checkpoints. A
checkpoint contains all files at one moment, with git's index, HEAD, branches and stashes. The daemon makes checkpoints
after a pause in writing, before an unmount, and before git commands that may discard changes; artifactfs checkpoint
makes one at once. Checkpoints change nothing that git shows. @ is the newest checkpoint, and @~1 the one before it;
artifactfs help checkpoints lists all ways to name one.

-C selects the session, by the directory of its mount or by its name. The default is the session of the mount that
contains the current directory. With --session-remote URL, sessions of another machine are inspected and resumed.`,
		Example: `  artifactfs session log
  artifactfs session diff @~1 @ --stat
  artifactfs session restore @~1 src/main.c
  artifactfs session fork /tmp/try
  artifactfs session resume fix-login /srv/fix --session-remote https://git.example.org/work.git`,
		Args:                       commandOf("session"),
		RunE:                       func(cmd *cobra.Command, args []string) error { return cmd.Help() },
		SuggestionsMinimumDistance: 2,
	}
	addCommands(cmd, a)
	cmd.AddCommand(hidden...)
	return cmd
}

// commandOf returns a check of the arguments of the command verb, which only has subcommands: any argument is an
// unknown command.
func commandOf(verb string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		e := &control.Error{Code: control.ExitUsage, Verb: verb,
			Cause: fmt.Sprintf("unknown command %q", args[0]), Hint: "artifactfs " + verb + " --help"}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			e.Hint = "did you mean " + verb + " " + near[0] + "?"
		}
		return e
	}
}

// work is the session to which a command applies, with the way to reach it.
type work struct {
	// client is a client of the daemon that serves the session, or of the shared daemon.
	client *control.Client
	of     string      // name of the session or directory of its mount, as it is sent in requests
	remote string      // session remote on which the session is looked up; "" if it is looked up on this host
	at     string      // session remote with the credentials for this command, as it is sent in requests
	mount  *cli.Served // mount of the session, or nil if the session is not mounted
}

// name returns the name of the session for error messages: the directory of its mount if the session is mounted.
func (w work) name() string {
	if w.mount != nil {
		return w.mount.Dir
	}
	return "session " + w.of
}

// SessionOf finds a session by its name, by the directory of its mount, or by a directory inside the mount. If name is
// empty, it finds the session of the mount that contains the current directory. The client of the result is connected
// to the daemon that serves the mount, or to the shared daemon if the session is not mounted.
func SessionOf(ctx context.Context, a *cli.App, verb, name string) (work, error) {
	if name == "" {
		m, err := a.Find(ctx, verb, ".")
		if e := control.AsError(err); e != nil && e.Code == control.ExitNotMounted {
			e.Cause, e.Hint = "current directory is not in a mount",
				"add -C DIR|SESSION; artifactfs session list shows the sessions"
			return work{}, e
		}
		return work{client: m.Client, of: m.Dir, mount: &m}, err
	}
	// Below a mount, name may also be the directory of a session that is not mounted.
	if strings.Contains(name, "/") {
		if m, err := a.Find(ctx, verb, name); err == nil && slices.Contains(cli.Spellings(name), m.Dir) {
			return work{client: m.Client, of: m.Dir, mount: &m}, nil
		}
	}
	all, asked := a.Mounts(ctx)
	// If a session and a directory have the same name, the name means the session.
	named := slices.DeleteFunc(slices.Clone(all), func(m cli.Served) bool { return m.Session.Name != name })
	slices.SortStableFunc(named, func(x, y cli.Served) int { return cmp.Compare(rank(x), rank(y)) })
	if len(named) > 0 && named[0].Mounted() {
		return work{client: named[0].Client, of: named[0].Dir, mount: &named[0]}, nil
	}
	of := name
	if session, ok := cli.FindUnmounted(all, name); ok && len(named) == 0 {
		of = session.Session.Name
	} else if len(named) == 0 && isDirectory(name) {
		m, err := cli.Find(all, asked, verb, name)
		return work{client: m.Client, of: m.Dir, mount: &m}, err
	}
	if e := control.ValidSession(of); e != nil {
		return work{}, &control.Error{Code: control.ExitUsage, Verb: verb, Object: name,
			Cause: "argument is neither a directory nor a valid session name",
			Hint:  "run artifactfs session list to see the sessions"}
	}
	if sockets, err := a.Sockets(ctx); err == nil && len(sockets) == 0 && len(named) == 0 && of == name {
		return work{}, noSession(verb, of) // Return this error without starting a daemon.
	}
	client, err := a.EnsureDaemon(ctx)
	return work{client: client, of: of}, err
}

// Session returns the name of the session, or "" for a mount without a session.
func (w work) Session() string {
	if w.mount != nil {
		return w.mount.Session.Name
	}
	return w.of
}

// asGiven returns the session w in the form in which the user of a token reads and writes it. If the token was given to
// this command (--token-file or $ARTIFACTFS_SESSION_TOKEN), and is not the token of the mount, the session is looked up
// on its session remote, so that the remote records whose token was used. Otherwise asGiven returns w unchanged.
func (w work) asGiven(ctx context.Context, a *cli.App) (work, error) {
	if w.at != "" || w.mount == nil || a.TokenFile == "" && a.SessionToken == "" {
		return w, nil
	}
	remote := w.mount.Session.SessionRemote
	at, err := hosting.GivenToken(ctx, a, remote)
	if err != nil || at == "" {
		return w, err
	}
	w.of, w.at = w.mount.Session.Name, at
	return w, nil
}

// isDirectory reports whether a word on the command line means a directory: it contains a slash, or is the name of an
// existing directory. The name of a session never contains a slash.
func isDirectory(name string) bool {
	if name == "." || name == ".." || strings.Contains(name, "/") {
		return true
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// rank returns the position of a mount in the order of the mounts of one session: writable mounts come first, then
// read-only mounts, and then the session without a mount.
func rank(m cli.Served) int {
	switch {
	case m.Mounted() && !m.ReadOnly:
		return 0
	case m.Mounted():
		return 1
	}
	return 2
}

// Mounted returns the mount of the session, or an error if the session is not mounted. The parameter verb names the
// command in the error.
func (w work) Mounted(verb string) (cli.Served, error) {
	if w.mount == nil {
		return cli.Served{}, &control.Error{Code: control.ExitNotMounted, Verb: verb, Object: "session " + w.of,
			Cause: "session is not mounted",
			Hint:  "run artifactfs session resume " + w.of + " DIR to mount it"}
	}
	return *w.mount, nil
}

// ofFlag adds the flag -C, which selects the session.
func ofFlag(a *cli.App, cmd *cobra.Command, of *string) {
	cmd.Flags().StringVarP(of, "of", "C", "",
		"use the session that is mounted at or above DIR, or that has the name SESSION\n"+
			"(`DIR|SESSION`; default: the current directory)")
	if err := cmd.RegisterFlagCompletionFunc("of", CompleteSessions(a, 1<<10)); err != nil {
		panic(err) // The error means that the flag does not exist, as in cli.CompleteFlag.
	}
}

// CompleteSessions completes the names of sessions for a command that takes at most as many arguments as the parameter
// most states.
func CompleteSessions(a *cli.App, most int) cobra.CompletionFunc {
	return a.CompleteListed(most, func(m cli.Served) (choice, about string) { return m.Session.Name, m.Dir },
		cobra.ShellCompDirectiveDefault)
}

// sessionListCommand returns the command "session list". With --deleted it lists the trash instead.
func sessionListCommand(a *cli.App) *cobra.Command {
	var deleted bool
	var remote string
	var only filter
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions, mounted or not mounted",
		Long: `List prints a line for each session of the state directory: its state, the number of checkpoints, the age of the newest
checkpoint, the number of refs that are not on the session remote yet, the directory where the session is mounted or was
last mounted, and the mounted remote. If a session has an owner or a title (session set), it prints them, too.

A session is active while it is mounted, and paused otherwise. It is paused (interrupted) if its mount died without an
unmount. A session that is not mounted and has not changed for 7 days is stale: session delete removes it, and session
gc --all drops old checkpoints of all sessions.

--owner and --tag select sessions; of several --tag, a session must have all. With --session-remote, list prints all
sessions on that git repository, also those that artifactfs serve has archived. With --deleted, it prints the sessions
that session undelete can restore.`,
		Example: `  artifactfs session list
  artifactfs session list --session-remote https://git.example.org/work.git
  artifactfs session list --tag release --owner alice
  artifactfs session list --deleted
  artifactfs session list --json | jq -r '.sessions[].name'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if deleted {
				return sessionListDeleted(cmd.Context(), a, remote)
			}
			return sessionList(cmd.Context(), a, remote, only)
		},
	}
	cmd.Flags().BoolVar(&deleted, "deleted", false, "list the sessions that were deleted in the last 7 days")
	cmd.Flags().StringVar(&only.owner, "owner", "", "list only the sessions of `USER`")
	cmd.Flags().StringArrayVar(&only.tags, "tag", nil, "list only sessions with this `TAG`")
	farFlag(a, cmd, &remote)
	return cmd
}

// sessions returns the sessions of this host. The socket of a killed daemon still accepts connections until the kernel
// has closed the socket. Therefore, if no daemon replies, sessions lists the sockets again, for at most cli.StatusTime.
func sessions(ctx context.Context, a *cli.App) ([]control.SessionInfo, error) {
	for until := time.Now().Add(cli.StatusTime); ; {
		all, err := askSessions(ctx, a)
		if a.Socket != "" || !errors.Is(err, control.ErrNoServer) || time.Now().After(until) {
			return all, err
		}
		select {
		case <-time.After(cli.EndPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// All returns the sessions of this host, mounted or not.
func All(ctx context.Context, a *cli.App) ([]control.SessionInfo, error) { return sessions(ctx, a) }

// askSessions queries all daemons concurrently. Every daemon knows all sessions, but a daemon knows more details of the
// sessions that it serves. Daemons that have ended since the sockets were listed are ignored. If all daemons have
// ended, askSessions returns control.ErrNoServer.
func askSessions(ctx context.Context, a *cli.App) ([]control.SessionInfo, error) {
	sockets, err := a.Sockets(ctx)
	if err != nil {
		return nil, err
	}
	if len(sockets) == 0 {
		session, err := a.Mounts(ctx)
		if err != nil || len(session) == 0 {
			return nil, err // No daemon is needed, because there are no sessions.
		}
		if len(session) == 1 && session[0].Mounted() { // only the daemon of this mount can be reached, as in a container
			reply, err := session[0].Client.Sessions(ctx)
			return reply.Sessions, err
		}
		client, err := a.EnsureDaemon(ctx)
		if err != nil {
			return nil, err
		}
		reply, err := client.Sessions(ctx)
		return reply.Sessions, err
	}
	replies, errs := make([]control.SessionsReply, len(sockets)), make([]error, len(sockets))
	var wg sync.WaitGroup
	for i, socket := range sockets {
		wg.Go(func() {
			client, err := control.Dial(ctx, socket)
			if err == nil {
				replies[i], err = client.Sessions(ctx)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	ended := func(err error) bool { return errors.Is(err, control.ErrNoServer) }
	if a.Socket == "" && slices.ContainsFunc(errs, func(err error) bool { return !ended(err) }) {
		errs = slices.DeleteFunc(errs, ended)
	}
	// Prefer the reply of the daemon that serves a session, because it has the session's current state.
	best := map[string]control.SessionInfo{}
	for _, r := range replies {
		for _, s := range r.Sessions {
			if known, ok := best[s.Name]; !ok || s.Mounted && !known.Mounted {
				best[s.Name] = s
			}
		}
	}
	all := make([]control.SessionInfo, 0, len(best))
	for _, s := range best {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y control.SessionInfo) int { return cmp.Compare(x.Name, y.Name) })
	return all, errors.Join(errs...)
}

// sessionList prints a table of sessions.
func sessionList(ctx context.Context, a *cli.App, remote string, only filter) error {
	all, asked := sessionsAt(ctx, a, remote)
	all = only.apply(all)
	if a.JSON {
		if all == nil {
			all = []control.SessionInfo{}
		}
		return errors.Join(cli.PrintJSON(a.Stdout, control.SessionsReply{Sessions: all}), asked)
	}
	if len(all) == 0 {
		return asked
	}
	now := time.Now()
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	titles := slices.ContainsFunc(all, func(s control.SessionInfo) bool { return s.Title != "" || s.Owner != "" })
	fmt.Fprintln(w, "SESSION\tSTATE\tCHECKPOINTS\tLAST\tPENDING\t"+titleColumns(titles, "OWNER", "TITLE")+"DIR\tREMOTE")
	for _, s := range all {
		last, dir := "-", s.Dir
		if s.LastCheckpointAt != nil {
			last = cli.Ago(*s.LastCheckpointAt, now)
		}
		if dir == "" {
			dir = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\t%s\n", s.Name, stateText(s, now), cli.Count(s.Checkpoints), last,
			cli.Count(s.Pending),
			titleColumns(titles, s.Owner, s.Title), cli.OneLine(dir), s.Remote)
	}
	if err := w.Flush(); err != nil {
		return cli.Printed(err)
	}
	return asked
}

// sessionsAt returns the sessions on the session remote in the parameter named, including sessions that a server
// (artifactfs serve) has archived. If named is "", it returns the sessions of this host.
func sessionsAt(ctx context.Context, a *cli.App, named string) ([]control.SessionInfo, error) {
	remote, err := loginAt(ctx, a, "list", named)
	if err != nil {
		return nil, err
	}
	if remote == "" {
		return sessions(ctx, a)
	}
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := client.SessionsOn(ctx, control.SessionsOnRequest{SessionRemote: remote})
	if err != nil {
		return nil, cli.Failure("list", "sessions", err)
	}
	archived, err := hosting.Archived(ctx, a, named)
	all := append(reply.Sessions, archived...)
	slices.SortFunc(all, func(x, y control.SessionInfo) int { return cmp.Compare(x.Name, y.Name) })
	return all, err
}

// stateText returns the state of a session as text, with remarks such as an interruption or a takeover by another
// machine.
func stateText(s control.SessionInfo, now time.Time) string {
	state := cmp.Or(s.State, "-")
	if n := len(s.History); n > 0 && s.History[n-1].State == s.State && s.History[n-1].Reason == "interrupted" {
		state += " (interrupted)"
	}
	if s.TakenOverBy != "" {
		state += " (taken over by " + s.TakenOverBy + ")"
	}
	if s.Stale {
		state += ", stale"
	}
	if s.Expired(now) {
		state += ", expired"
	}
	if s.Profile.Held() {
		state += ", on hold"
	}
	return state
}
