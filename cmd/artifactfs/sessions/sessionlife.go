package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// sessionPinCommand returns the command "session pin". The name of a pin must not look like the name of a checkpoint.
func sessionPinCommand(a *cli.App) *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use:   "pin [ID] NAME",
		Short: "Name a checkpoint that was made before, so that gc keeps it",
		Long: `Pin gives a checkpoint (default: the newest) a name. session gc keeps checkpoints that have a name. If NAME is already
the name of another checkpoint of the session, it moves to this one. artifactfs checkpoint --pin makes a checkpoint of
the present files and names it.`,
		Example: `  artifactfs session pin before-rename
  artifactfs session pin @~3 works -C fix-login`,
		Args: cli.Arguments(1, 2, "[ID] NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, id := args[len(args)-1], "@"
			if len(args) > 1 {
				id = args[0]
			}
			if cli.NamesCheckpoint(name) {
				return cli.Usage(cmd, fmt.Errorf("NAME is missing: want [ID] NAME, and %s is a checkpoint", name))
			}
			if err := session.ValidPin(name); err != nil {
				return cli.Usage(cmd, err)
			}
			return sessionSet(cmd.Context(), a, of, "pin", control.SessionSetRequest{Pin: name, ID: id},
				"pinned "+name+" in session")
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	ofFlag(a, cmd, &of)
	return cmd
}

// sessionUnpinCommand returns the command "session unpin".
func sessionUnpinCommand(a *cli.App) *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use:   "unpin NAME",
		Short: "Remove the name of a checkpoint",
		Long: `Unpin removes a name that session pin or checkpoint --pin has set. session gc then treats the checkpoint like others of
its age.`,
		Example: `  artifactfs session unpin before-rename`,
		Args:    cli.Arguments(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := session.ValidName(args[0]); err != nil {
				return cli.Usage(cmd, err)
			}
			return sessionSet(cmd.Context(), a, of, "unpin", control.SessionSetRequest{Pin: args[0], Unpin: true},
				"unpinned "+args[0]+" in session")
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	ofFlag(a, cmd, &of)
	return cmd
}

// sessionSet requests a change of a session's state or pins. Then it prints the text in the parameter done, followed by
// the session's name.
func sessionSet(ctx context.Context, a *cli.App, of, verb string, r control.SessionSetRequest, done string) error {
	w, err := lifeWork(ctx, a, verb, "", "", of)
	if err != nil {
		return err
	}
	r.Of, r.SessionRemote, r.Actor = w.of, w.at, session.Actor()
	info, err := w.client.SessionSet(ctx, r)
	var none *control.Error
	if r.State == string(session.Open) && errors.As(err, &none) && none.Kind == control.CodeNotFound && w.remote != "" {
		// Reopen the session first if it is archived: the session remote does not list archived sessions.
		var back bool
		if back, err = hosting.Reopen(ctx, a, w.remote, w.of, r.Reason); err == nil && !back {
			err = none
		}
		info.Name = w.of
	}
	if err == nil && r.State == string(session.Archived) && w.remote != "" {
		_, err = hosting.Archive(ctx, a, w.remote, w.of)
	}
	if err != nil {
		return cli.Failure(verb, w.name(), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, info)
	}
	_, err = fmt.Fprintln(a.Stdout, strings.TrimSpace(done+" "+info.Name))
	return err
}

// sessionStates lists the commands that change the state of a session, with their help texts.
var sessionStates = []struct{ verb, state, done, short, long, example string }{
	{"pause", string(session.Paused), "paused session",
		"Release a session whose mount has died, so that others can resume it",
		`Pause releases the claim on a session whose mount has died, so that another machine can resume the session. An unmount
does this automatically.`, `  artifactfs session pause fix-login -m 'the machine is gone'`},
	{"close", string(session.Closed), "closed session", "Mark a session as finished, so that it cannot be mounted",
		`Close marks a session as finished. All its checkpoints are kept, but it cannot be mounted until session reopen. The
session must not be mounted.`, `  artifactfs session close fix-login -m merged`},
	{"archive", string(session.Archived), "archived session",
		"Close a session, and let gc keep only its newest and pinned checkpoints",
		`Archive closes a session, so that it cannot be mounted until session reopen. The next session gc keeps only its newest
and its pinned checkpoints. The session must not be mounted. With a link to artifactfs serve, the session also becomes
one file in the object store of the server, with all its checkpoints, and leaves the repository (repo archive).`,
		`  artifactfs session archive fix-login && artifactfs session gc fix-login
  artifactfs session archive https://git.example.org/git/team/app.git#session=fix-login`},
	{"reopen", string(session.Open), "reopened session", "Undo close or archive",
		`Reopen undoes session close and session archive: the session can be mounted again. With a link, it also brings a session
back that artifactfs serve has archived.`, `  artifactfs session reopen fix-login
  artifactfs session reopen https://git.example.org/git/team/app.git#session=fix-login`},
}

// sessionStateCommands returns the commands that sessionStates lists.
func sessionStateCommands(a *cli.App) (cmds []*cobra.Command) {
	for _, s := range sessionStates {
		var of, reason string
		cmd := &cobra.Command{
			Use:   s.verb + " [DIR|SESSION|LINK] [-m REASON]",
			Short: s.short,
			Long: s.long +
				"\n\nThe session records the change with its time, its author ($ARTIFACTFS_ACTOR, else user and host) and the reason.",
			Example: s.example,
			Args:    func(cmd *cobra.Command, args []string) error { return atMostOne(cmd, args, of) },
			RunE: func(cmd *cobra.Command, args []string) error {
				return sessionSet(cmd.Context(), a, cmp.Or(of, cli.First(args)), s.verb,
					control.SessionSetRequest{State: s.state, Reason: reason}, s.done)
			},
			ValidArgsFunction: CompleteSessions(a, 1),
		}
		cmd.Flags().StringVarP(&reason, "message", "m", "", "the `REASON` to record")
		ofFlag(a, cmd, &of)
		cmds = append(cmds, cmd)
	}
	return cmds
}

// sessionGCCommand returns the command "session gc". The daemon that serves the session drops the checkpoints; if the
// session is not mounted, the shared daemon drops them.
func sessionGCCommand(a *cli.App) *cobra.Command {
	var of string
	var all, daily cli.Days
	var dryRun, each bool
	cmd := &cobra.Command{
		Use:   "gc [DIR|SESSION] [--all] [--dry-run]",
		Short: "Drop old checkpoints, on this host and on the session remote",
		Long: `Gc drops old checkpoints of a session, and the objects that only these checkpoints contain, on this host and on the
session remote. It keeps the newest checkpoint, the pinned ones, those younger than --keep-all, and of the older ones
the last of each day (UTC) up to the age of --keep-daily. Of an archived session it keeps only the newest checkpoint and
the pinned ones.

Gc also drops records of the transcript that are older than --keep-daily and belong to a dropped checkpoint. Turns keep
their numbers. Gc never drops facts, the handoff, branches, tags, notes, or earlier values of rewritten branches.

Sessions that were deleted more than 7 days ago are removed permanently.`,
		Example: `  artifactfs session gc --dry-run
  artifactfs session gc fix-login --keep-all 1d --keep-daily 7d
  artifactfs session gc --all`,
		Args: func(cmd *cobra.Command, args []string) error { return atMostOne(cmd, args, of) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if each {
				if of != "" || len(args) > 0 {
					return cli.Usage(cmd, errors.New("want either a session or --all"))
				}
				return sessionGCAll(cmd.Context(), a, control.SessionGCRequest{DryRun: dryRun, All: time.Duration(all),
					Daily: time.Duration(daily)})
			}
			return sessionGC(cmd.Context(), a, cmp.Or(of, cli.First(args)),
				control.SessionGCRequest{DryRun: dryRun, All: time.Duration(all), Daily: time.Duration(daily)})
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&dryRun, "dry-run", "n", false, "only print what would be dropped")
	f.BoolVar(&each, "all", false, "drop checkpoints of all sessions of the state directory")
	f.Var(&all, "keep-all", "keep all checkpoints that are younger than `AGE` (default 7d)")
	f.Var(&daily, "keep-daily", "of the older ones keep the last of each day, up to this `AGE` (default 30d)")
	ofFlag(a, cmd, &of)
	return cmd
}

// sessionGC drops old checkpoints of a session and prints the result.
func sessionGC(ctx context.Context, a *cli.App, of string, r control.SessionGCRequest) error {
	w, err := SessionOf(ctx, a, "gc", of)
	if err != nil {
		return err
	}
	r.Of = w.of
	p := a.NewProgress()
	reply, err := w.client.SessionGC(ctx, r, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("gc", w.name(), err)
	}
	if a.JSON {
		if reply.Dropped == nil {
			reply.Dropped = []control.Checkpoint{}
		}
		return cli.PrintJSON(a.Stdout, reply)
	}
	if r.DryRun || a.Verbose {
		if err := printCheckpoints(a.Stdout, reply.Dropped, time.Now()); err != nil {
			return err
		}
	}
	what := cli.Plural(int64(len(reply.Dropped)), "checkpoint")
	if reply.Records > 0 {
		what += " and " + cli.Plural(reply.Records, "record")
	}
	text := fmt.Sprintf("dropped %s, kept %s, %s became free", what, cli.Count(reply.Kept), cli.BytesOf(reply.Bytes))
	if r.DryRun {
		text = fmt.Sprintf("would drop %s and keep %s", what, cli.Count(reply.Kept))
	}
	_, err = fmt.Fprintln(a.Stdout, text)
	return err
}
