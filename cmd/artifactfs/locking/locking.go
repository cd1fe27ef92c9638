// Package locking contains the commands that manage the locks of sessions: "session lock", "session unlock" and
// "session locks".
package locking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// flags holds the values of the flags of these commands.
type flags struct {
	of, remote string
	request    control.SessionLocksRequest
}

// add adds to cmd the flags that select the session and the session remote.
func (f *flags) add(a *cli.App, cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVarP(&f.of, "of", "C", "",
		"use the session that is mounted at or above DIR, or that has the name SESSION\n"+
			"(`DIR|SESSION`; default: the current directory)")
	name := func(m cli.Served) (choice, about string) { return m.Session.Name, m.Dir }
	sessions := a.CompleteListed(1<<10, name, cobra.ShellCompDirectiveDefault)
	if err := cmd.RegisterFlagCompletionFunc("of", sessions); err != nil {
		panic(err) // The error means that the flag does not exist, as in cli.CompleteFlag.
	}
	cmd.Flags().StringVar(&f.remote, "session-remote", "", "use the locks on the git repository `URL`, without a mount")
}

// Commands returns the commands "session lock", "session unlock" and "session locks".
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{lockCommand(a), unlockCommand(a), locksCommand(a)}
}

func lockCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "lock PATH|GLOB... [--ttl 1h] [-m REASON]",
		Short: "Keep other sessions from changing files",
		Long: `Lock reserves paths for the session. In the mounts of all other sessions of the same session remote, on all hosts, every
program that changes such a path gets "Permission denied" (EACCES): writing, creating, removing, renaming, chmod. They
learn of the lock within seconds, at most 30 s.

A lock on a directory is for everything in it. A glob has *, ? and [a-z], and ends in /** for everything below a
directory; quote it. PATHs are relative to the current directory, and need not exist.

The lock expires after --ttl. While the session is mounted, its mount renews the lock before that. A lock that overlaps
with one of another session is refused, and none of the paths is locked.

Locks do not keep other sessions from changing the path in a commit that they push.`,
		Example: `  artifactfs session lock src/login.c -m 'new login'
  artifactfs session lock assets 'doc/*.md' --ttl 20m
  artifactfs session lock db/schema.sql --json | jq -r '.done[].id'`,
		Args: cli.Arguments(1, 1000, "PATH|GLOB..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.request.Op, f.request.Patterns = control.LockAcquire, args
			return run(cmd.Context(), a, f)
		},
	}
	cmd.Flags().DurationVar(&f.request.TTL, "ttl", time.Hour, "`DURATION` of the lock, from 10s to 168h")
	cmd.Flags().StringVarP(&f.request.Reason, "message", "m", "", "`REASON`, which other users see")
	f.add(a, cmd)
	return cmd
}

func unlockCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "unlock PATH|GLOB|ID... [--force -m REASON]",
		Short: "Release locks",
		Long: `Unlock releases locks of the session, by the path or glob with which they were made, or by their ids. Closing and
deleting a session releases its locks, too.

--force also releases locks of other sessions. This leaves a record with user, time and REASON, which session locks
shows for 7 days.`,
		Example: `  artifactfs session unlock src/login.c
  artifactfs session unlock 01M80Q4Z --force -m 'alice is on holiday'`,
		Args: cli.Arguments(1, 1000, "PATH|GLOB|ID..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.request.Force && strings.TrimSpace(f.request.Reason) == "" {
				return cli.Usage(cmd, errors.New("--force needs -m REASON"))
			}
			f.request.Op, f.request.Patterns = control.LockRelease, args
			return run(cmd.Context(), a, f)
		},
	}
	cmd.Flags().BoolVar(&f.request.Force, "force", false, "also release locks of other sessions")
	cmd.Flags().StringVarP(&f.request.Reason, "message", "m", "", "`REASON` of --force")
	f.add(a, cmd)
	return cmd
}

func locksCommand(a *cli.App) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "List the locks of all sessions of a session remote",
		Long: `Locks prints the locks on the session remote, with the sessions and users that hold them, and the locks that were
released by force in the last 7 days. artifactfs status prints the changes that a mount has refused because of locks.

The field locks of the policy (session policy) states what mounts do: refuse changes of locked paths (the default),
warn, or ignore locks.`,
		Example: `  artifactfs session locks
  artifactfs session locks --session-remote https://git.example.org/work.git
  artifactfs session locks --json | jq -r '.locks[] | select(.mine | not).pattern'`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.request.Op = control.LockList
			return run(cmd.Context(), a, f)
		},
	}
	f.add(a, cmd)
	return cmd
}

// run sends the request and prints the result.
func run(ctx context.Context, a *cli.App, f flags) error {
	r := f.request
	client, served, err := f.find(ctx, a, &r)
	if err != nil {
		return err
	}
	r.Actor = session.Actor()
	if served != nil && r.Op != control.LockList {
		from := "."
		if f.of != "" {
			from = served.Dir
		}
		for i, p := range r.Patterns {
			if r.Op == control.LockRelease && !strings.ContainsAny(p, "./*") && len(p) >= 8 && strings.HasPrefix(p, "0") {
				continue // the argument is the ID of a lock, not a path
			}
			inside, err := cli.PathsIn(r.Op, served.Dir, from, []string{p})
			if err != nil {
				return err
			}
			if r.Patterns[i] = "**"; len(inside) > 0 {
				r.Patterns[i] = inside[0]
			}
		}
	}
	reply, err := control.SessionLocks(ctx, client, r)
	if err != nil {
		return cli.Failure(r.Op, strings.Join(r.Patterns, " "), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	return show(a, r.Op, reply, time.Now())
}

// find fills the request r with the session remote: the remote of a mounted session, or the value of --session-remote.
// It returns the mount and a client of the daemon; without a mount, it returns nil for the mount.
func (f *flags) find(ctx context.Context, a *cli.App,
	r *control.SessionLocksRequest) (*control.Client, *cli.Served, error) {
	remote, err := cli.FarRemote(r.Op, f.remote)
	if err != nil {
		return nil, nil, err
	}
	if remote != "" {
		if r.SessionRemote, err = hosting.WithToken(ctx, a, remote); err != nil {
			return nil, nil, err
		}
		r.Of = f.of
		client, err := a.EnsureDaemon(ctx)
		return client, nil, err
	}
	all, asked := a.Mounts(ctx)
	for i, m := range all {
		if f.of != "" && m.Session.Name == f.of && m.Mounted() {
			r.Of = m.Dir
			return m.Client, &all[i], nil
		}
	}
	dir := f.of
	if dir == "" {
		dir = "."
	}
	m, err := cli.Find(all, asked, r.Op, dir)
	if err == nil {
		r.Of = m.Dir
		return m.Client, &m, nil
	}
	if k, ok := cli.FindUnmounted(all, f.of); ok && f.of != "" {
		f.of = k.Session.Name
	}
	if f.of == "" || control.ValidSession(f.of) != nil {
		return nil, nil, err
	}
	r.Of = f.of
	client, err := a.EnsureDaemon(ctx)
	return client, nil, err
}

// show prints the reply to a request as text. The parameter op is the operation of the request.
func show(a *cli.App, op string, r control.SessionLocksReply, now time.Time) error {
	if op == control.LockList {
		return list(a.Stdout, r, now)
	}
	for _, l := range r.Done {
		switch {
		case op == control.LockRelease && l.Mine:
			fmt.Fprintf(a.Stdout, "unlocked %s\n", cli.OneLine(l.Pattern))
		case op == control.LockRelease:
			fmt.Fprintf(a.Stdout, "unlocked %s, which %s had locked\n", cli.OneLine(l.Pattern), holder(l))
		default:
			fmt.Fprintf(a.Stdout, "locked %s until %s (%s)\n", cli.OneLine(l.Pattern), l.Expires.Local().Format(time.DateTime),
				l.ID)
		}
	}
	for _, path := range r.Changed {
		fmt.Fprintf(a.Stderr, "artifactfs: %s\n", cli.OneLine(path))
	}
	if op == control.LockAcquire && r.Mode != "refuse" {
		fmt.Fprintf(a.Stderr, "artifactfs: the policy of the session remote says %q: other mounts do not refuse changes\n",
			r.Mode)
	}
	return nil
}

// list prints the locks of a reply as a table.
func list(out io.Writer, r control.SessionLocksReply, now time.Time) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tSESSION\tBY\tEXPIRES\tPATH\tREASON")
	for _, l := range r.Locks {
		expires := "expired"
		if left := l.Expires.Sub(now); left > 0 {
			expires = "in " + cli.Age(max(left, time.Second))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", l.ID, l.Session, cli.OneLine(l.Actor+"@"+l.Host), expires,
			cli.OneLine(l.Pattern), cli.OneLine(l.Reason))
	}
	if err := t.Flush(); err != nil {
		return cli.Printed(err)
	}
	for _, f := range r.Forced {
		fmt.Fprintf(out, "%s: %s released %s of %s: %s\n", f.Time.Local().Format(time.DateTime),
			cli.OneLine(f.Actor+"@"+f.Host),
			cli.OneLine(f.Lock.Pattern), holder(f.Lock), cli.OneLine(f.Reason))
	}
	return nil
}

func holder(l control.SessionLock) string {
	return fmt.Sprintf("session %s (%s)", l.Session, cli.OneLine(l.Actor+"@"+l.Host))
}
