package hosting

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/server/client"
)

// repoArchiveCommand returns the command "repo archive".
func repoArchiveCommand(a *cli.App, o *Connection) *cobra.Command {
	return &cobra.Command{
		Use:   "archive NAMESPACE/NAME [SESSION...]",
		Short: "Archive sessions of a repository, or list archived sessions",
		Long: `Archive moves sessions out of a repository: each becomes one file in the object store, its refs disappear, and the packs
of the repository shrink. An archived session is not shown to git, and costs nothing but its bytes. repo reopen, or
session reopen with a link, brings it back as it was. Sessions that are active or on hold are not archived.

Without sessions, archive lists the archived ones. The retention of a namespace archives sessions automatically
(namespace retention).`,
		Example: `  artifactfs repo archive team/app fix-login try-2
  artifactfs repo archive team/app`,
		Args: cli.Arguments(1, 101, "NAMESPACE/NAME [SESSION...]"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			n, err := parseName(args[0])
			if err != nil {
				return err
			}
			if len(args) > 1 {
				return archiveSessions(cmd.Context(), a, c, n, args[1:])
			}
			return printList(a, "archived", 0, c.Extensions().Archived(cmd.Context(), n.namespace, n.repo),
				"SESSION\tSTATE\tSIZE\tCHANGED\tARCHIVED\tOWNER\tTITLE", func(s client.ArchivedSession) string {
					return columns(s.Session, s.State, cli.BytesOf(s.Bytes), ago(s.Changed), ago(s.Archived),
						cli.OrDash(s.Owner), cli.OrDash(s.Title))
				})
		}),
	}
}

// ago returns as text how long ago t was, or "-" if t is nil.
func ago(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return cli.Ago(*t, time.Now())
}

// archiveSessions archives sessions and prints the result.
func archiveSessions(ctx context.Context, a *cli.App, c *Access, n name, sessions []string) error {
	r, err := c.Extensions().Archive(ctx, n.namespace, n.repo, sessions...)
	if err != nil {
		return err
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, r)
	}
	for _, s := range r.Archived {
		if !a.JSON {
			fmt.Fprintln(a.Stdout, "archived", s)
		}
	}
	for _, f := range r.Failed {
		err = errors.Join(err, &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "archive",
			Object: "session " + f.Session, Cause: f.Error})
	}
	return err
}

// repoReopenCommand returns the command "repo reopen".
func repoReopenCommand(a *cli.App, o *Connection) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "reopen NAMESPACE/NAME SESSION [-m REASON]",
		Short: "Bring an archived session back",
		Long: `Reopen brings an archived session back: its checkpoints, branches and transcript are in the repository again, and it can
be mounted.`,
		Example: `  artifactfs repo reopen team/app fix-login`,
		Args:    cli.Arguments(2, 2, "NAMESPACE/NAME SESSION"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			n, err := parseName(args[0])
			if err == nil {
				err = c.Extensions().Reopen(cmd.Context(), n.namespace, n.repo, args[1], reason)
			}
			if err != nil {
				return err
			}
			return PrintDone(a, "reopened", args[1])
		}),
	}
	cmd.Flags().StringVarP(&reason, "message", "m", "", "the `REASON` to record")
	return cmd
}

// Archive archives a session of a session remote. It returns false if Known knows no login for the remote: then the
// remote has no archive that this command can use.
func Archive(ctx context.Context, a *cli.App, remote, session string) (bool, error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return false, err
	}
	_, err = c.Extensions().Archive(ctx, n.namespace, n.repo, session)
	return err == nil, explain(c, err)
}

// Archived returns the archived sessions of a session remote. It returns none if Known knows no login for the remote,
// or if the server has no archive.
func Archived(ctx context.Context, a *cli.App, remote string) (all []control.SessionInfo, err error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return nil, err
	}
	for s, err := range c.Extensions().Archived(ctx, n.namespace, n.repo) {
		if errors.Is(err, client.ErrNotFound) {
			return all, nil
		}
		if err != nil {
			return all, explain(c, err)
		}
		i := control.SessionInfo{SessionStatus: control.SessionStatus{Name: s.Session, SessionRemote: remote, State: s.State,
			LastCheckpointAt: s.Changed}, Profile: profile.Profile{Title: s.Title, Owner: s.Owner, Tags: s.Tags}}
		all = append(all, i)
	}
	return all, nil
}

// Reopen returns an archived session to its session remote. Reopen returns false if the session is not archived, or if
// Known knows no login for the remote.
func Reopen(ctx context.Context, a *cli.App, remote, session, reason string) (bool, error) {
	c, n, err := known(a, remote)
	if err != nil || c == nil {
		return false, err
	}
	err = c.Extensions().Reopen(ctx, n.namespace, n.repo, session, reason)
	if errors.Is(err, client.ErrNotFound) {
		return false, nil
	}
	return err == nil, explain(c, err)
}

// namespaceRetentionCommand returns the command "namespace retention".
func namespaceRetentionCommand(a *cli.App, o *Connection) *cobra.Command {
	var set string
	var remove, dryRun, now bool
	cmd := &cobra.Command{
		Use:   "retention NAMESPACE [--set FILE | --remove | --dry-run | --run]",
		Short: "Show, set or try the rules by which a server closes, archives and deletes sessions",
		Long: `Retention prints the rules of a namespace. artifactfs serve applies them every hour to the sessions of all repositories
of the namespace: it closes, archives and deletes sessions that were not changed for a time, and erases old records of
transcripts. Sessions that are active or on hold are never touched. Deleted sessions are in the trash first (session
undelete), until trash_after has passed. Every action has an entry in the audit log and an event.

--dry-run lists each session with what is done to it, when and why. --run applies the rules at once.

A file with rules has this form. Of several rules for the same action, the first one that matches a session applies.
  {"version": 1, "expired": "archive", "trash_after": "14d", "rules": [
    {"tags": ["draft"], "delete_after": "30d"},
    {"states": ["closed"], "archive_after": "7d"},
    {"repo": "app-*", "close_after": "30d", "archive_after": "90d", "transcripts_after": "180d"}]}`,
		Example: `  artifactfs namespace retention team --set rules.json
  artifactfs namespace retention team --dry-run`,
		Args: cli.Arguments(1, 1, "NAMESPACE"),
		RunE: o.run(a, func(cmd *cobra.Command, c *Access, args []string) error {
			ctx, x := cmd.Context(), c.Extensions()
			switch {
			case set != "":
				return setRetention(ctx, a, x, args[0], set)
			case remove:
				if err := x.DeleteRetention(ctx, args[0]); err != nil {
					return err
				}
				return PrintDone(a, "removed", args[0])
			case dryRun:
				s, err := x.RetentionPlan(ctx, args[0])
				return errors.Join(err, printSteps(a, s, true))
			case now:
				s, err := x.RunRetention(ctx, args[0])
				return errors.Join(err, printSteps(a, s, false))
			}
			rules, err := x.Retention(ctx, args[0])
			if err != nil {
				return err
			}
			return cli.PrintJSON(a.Stdout, rules)
		}),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&set, "set", "", "replace the rules by those in `FILE`; - reads stdin")
	f.BoolVar(&remove, "remove", false, "remove the rules")
	f.BoolVarP(&dryRun, "dry-run", "n", false, "only list what the rules do to each session, when and why")
	f.BoolVar(&now, "run", false, "apply the rules now, and list what was done")
	cmd.MarkFlagsMutuallyExclusive("set", "remove", "dry-run", "run")
	return cmd
}

// setRetention reads retention rules from a file and sends them to the server.
func setRetention(ctx context.Context, a *cli.App, x client.Extensions, namespace, file string) error {
	in := io.Reader(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return &control.Error{Code: control.ExitUsage, Verb: "read", Object: file, Cause: cli.Reason(err)}
		}
		defer f.Close()
		in = f
	}
	rules, err := io.ReadAll(io.LimitReader(in, 1<<20))
	if err == nil && !json.Valid(rules) {
		return &control.Error{Code: control.ExitUsage, Verb: "read", Object: file, Cause: "file does not contain JSON",
			Hint: "artifactfs namespace retention --help shows an example"}
	}
	if err == nil {
		err = x.SetRetention(ctx, namespace, rules)
	}
	if err != nil {
		return err
	}
	return PrintDone(a, "set", namespace)
}

// printSteps prints the steps of a retention plan or of a retention run. It returns an error if steps of a run have
// failed.
func printSteps(a *cli.App, s client.RetentionSteps, plan bool) error {
	var failed error
	if s.Error != nil {
		failed = &control.Error{Code: control.ExitFailed, Verb: "apply", Object: "retention", Cause: *s.Error,
			Hint: "the next run tries again"}
	}
	if a.JSON {
		return errors.Join(cli.PrintJSON(a.Stdout, s), failed)
	}
	if len(s.Steps) == 0 {
		return failed
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REPOSITORY\tSESSION\tSTATE\tACTION\tDUE\tWHY")
	now := time.Now()
	for _, step := range s.Steps {
		due := "-"
		switch {
		case step.Due.IsZero():
		case !plan || !now.Before(step.Due):
			due = "now"
		default:
			due = step.Due.Local().Format(time.DateTime)
		}
		fmt.Fprintln(w, columns(step.Repo, step.Session, step.State, step.Action, due, cli.OneLine(step.Why)))
	}
	return errors.Join(w.Flush(), failed)
}
