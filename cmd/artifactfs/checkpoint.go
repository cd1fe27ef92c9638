package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// checkpointCommand returns the command "checkpoint". Without --json it prints only the ID of the checkpoint on stdout.
func checkpointCommand(a *cli.App) *cobra.Command {
	var r control.CheckpointRequest
	cmd := &cobra.Command{
		Use:   "checkpoint [DIR] [-m MESSAGE] [--pin NAME] [--sync]",
		Short: "Make a checkpoint of the working tree",
		Long: `Checkpoint saves all files of the mount at DIR (default: the mount that contains the current directory), the index,
HEAD, branches and stashes as they are now, and prints the id of the checkpoint. It creates no commit and no stash, and
it does not change the index. If nothing has changed since the newest checkpoint, it prints the id of that checkpoint.

The daemon also makes checkpoints automatically. A checkpoint leaves out files that git ignores. It also leaves out
files that git does not track, if they look like secrets (.env, *.pem, id_rsa, ...) or are larger than 50 MiB. The paths
that were left out are printed on stderr; ignored paths only with --verbose. The flags --checkpoint, --include,
--exclude, --no-deny-list and --max-file-size of mount change these rules (artifactfs mount --help --all).

With --sync, the command waits until the checkpoint is on the session remote. The exit code is 5 if it could not be
pushed.

artifactfs session --help lists the commands that use checkpoints, and artifactfs help checkpoints the ways to name
one. artifactfs session pin names a checkpoint that was made before.`,
		Example: `  artifactfs checkpoint
  artifactfs checkpoint /srv/app -m 'before the big rename' --pin before-rename
  id=$(artifactfs checkpoint app) && artifactfs session fork -C app "$id" /tmp/copy
  artifactfs checkpoint app --json | jq .left_out`,
		Args: func(cmd *cobra.Command, args []string) error {
			if r.Pin != "" {
				if err := session.ValidPin(r.Pin); err != nil {
					return fmt.Errorf("--pin: %w", err)
				}
				if cli.NamesCheckpoint(r.Pin) {
					return fmt.Errorf("--pin: %s is ambiguous, because it is also the name of a checkpoint", r.Pin)
				}
			}
			return cli.Arguments(0, 1, "[DIR]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return makeCheckpoint(cmd.Context(), a, here(args), r)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&r.Message, "message", "m", "", "`TEXT` that describes the checkpoint")
	f.StringVar(&r.Pin, "pin", "", "pin the checkpoint under `NAME`: gc keeps it until session unpin removes the name")
	f.BoolVar(&r.Sync, "sync", false, "wait until the checkpoint is on the session remote")
	return cmd
}

// here returns the directory argument of a command, by default the current directory.
func here(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return "."
}

// makeCheckpoint requests a checkpoint of the mount at dir from its daemon, and prints the checkpoint's ID. With
// --sync, it returns an error with exit code 5 if the checkpoint was not pushed.
func makeCheckpoint(ctx context.Context, a *cli.App, dir string, r control.CheckpointRequest) error {
	m, err := a.Find(ctx, "checkpoint", dir)
	if err != nil {
		return err
	}
	r.Dir = m.Dir
	p := a.NewProgress()
	reply, err := m.Client.Checkpoint(ctx, r, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("checkpoint", m.Dir, err)
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, reply)
	} else {
		_, err = fmt.Fprintln(a.Stdout, reply.ID)
		printLeftOut(a, reply)
	}
	if err == nil && r.Sync && !reply.Synced {
		err = &control.Error{Code: control.ExitUnsynced, Verb: "sync", Object: m.Dir,
			Cause: "checkpoint was created, but is not on the session remote yet",
			Hint:  "run artifactfs status " + cli.ShellWord(m.Dir) + " to see the cause"}
	}
	return err
}

// leftShown is the maximum number of paths that printLeftOut prints without --verbose.
const leftShown = 5

// printLeftOut prints the paths that exist in the working tree but that the checkpoint does not contain. Ignored paths
// are printed only with --verbose.
func printLeftOut(a *cli.App, c control.CheckpointReply) {
	if a.Verbose {
		what := "no changes since the last checkpoint"
		if c.Made {
			what = fmt.Sprintf("%s, %s new", cli.Plural(c.Changed, "changed path"), cli.BytesOf(c.Bytes))
		}
		fmt.Fprintf(a.Stderr, "artifactfs: %s; took %s, programs waited %s\n", what, milliseconds(c.Took),
			milliseconds(c.Paused))
	}
	var names []string
	ignored := 0
	for _, l := range c.LeftOut {
		if l.Why == "ignored" && !a.Verbose {
			ignored++
			continue
		}
		names = append(names, cli.LeftText(l))
	}
	// The reply lists only some of the paths. The field Excluded is the number of all paths that the checkpoint does not
	// contain.
	more := int(c.Checkpoint.Excluded) - ignored - len(names)
	if len(names) == 0 {
		return
	}
	if !a.Verbose && len(names) > leftShown {
		more += len(names) - leftShown
		names = names[:leftShown]
	}
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %s more", cli.Count(int64(more)))
	}
	fmt.Fprintln(a.Stderr, (&control.Error{Verb: "artifactfs: left out", Cause: text}).Error())
}

// milliseconds formats a number of milliseconds.
func milliseconds(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.3g ms", ms)
	}
	return cli.Seconds(time.Duration(ms * float64(time.Millisecond)))
}

// syncCommand returns the command "sync". The daemon pushes the session; the command waits until the push has ended.
func syncCommand(a *cli.App) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "sync [DIR] [--timeout WAIT]",
		Short: "Wait until everything in a session is on the session remote",
		Long: `Sync makes a checkpoint of the mount at DIR (default: the mount that contains the current directory) if something has
changed, and waits until the checkpoint and all commits, branches, tags and notes are on the session remote. If the
mount was made without --session-remote, the session remote is a repository below the state directory, and sync returns
at once.

If another session has changed the branch of the same name on the session remote, the branch of this session is pushed
under another name. A warning states that name and how to merge the two branches.

Exit code 5 means that a part was not pushed, for example because --timeout has passed. That part is stored on this
host, and the daemon retries the push.`,
		Example: `  artifactfs sync
  artifactfs sync /srv/app --timeout 1m && poweroff`,
		Args: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 {
				return errors.New("--timeout must not be negative")
			}
			return cli.Arguments(0, 1, "[DIR]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return syncSessions(cmd.Context(), a, here(args), timeout)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after `WAIT` (default: never)")
	return cmd
}

// syncSessions requests a push of the session at dir, waits at most timeout, and prints the result. Exit code 5 means
// that a part of the session was not pushed before the timeout.
func syncSessions(ctx context.Context, a *cli.App, dir string, timeout time.Duration) error {
	m, err := a.Find(ctx, "sync", dir)
	if err != nil {
		return err
	}
	p := a.NewProgress()
	reply, err := m.Client.Sync(ctx, control.SyncRequest{Dir: m.Dir, Timeout: timeout}, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("sync", m.Dir, err)
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, reply)
	}
	s := reply.Session
	warnDiverged(a, "sync", m.Dir, s.SessionRemote, s.DivergedRefs)
	// The sync itself succeeded, so the pending refs were created after it.
	if err == nil && s.Pending > 0 && s.Error != "" {
		err = unsynced("sync", m.Dir, s)
	}
	if err == nil && !a.JSON {
		err = printSynced(a.Stdout, s)
	}
	return err
}

// printSynced prints the name of the session remote to which the session was pushed.
func printSynced(w io.Writer, s control.SessionStatus) error {
	_, err := fmt.Fprintf(w, "session %s is on %s\n", s.Name, cli.SessionRemoteText(s))
	return err
}

// unsynced returns an error with exit code 5. It states how many refs are missing on the session remote, and why.
func unsynced(verb, dir string, s control.SessionStatus) error {
	cause := cli.Plural(s.Pending, "ref") + " not on the session remote yet"
	if s.Error != "" {
		cause += ": " + sentence(s.Error)
	}
	hint := "the changes are stored on this host, and the push is retried automatically"
	if verb != "sync" { // No daemon serves the mount any more, so none retries the push.
		hint = "the changes are stored on this host and will be pushed when session " + s.Name + " is mounted again"
	}
	return &control.Error{Code: control.ExitUnsynced, Verb: verb, Object: dir, Cause: cause, Hint: hint}
}

// warnDiverged prints a warning for each diverged ref, which the session remote stores under another name.
func warnDiverged(a *cli.App, verb, dir, remote string, refs []control.DivergedRef) {
	for _, d := range refs {
		cause, hint := divergedText(d, remote)
		cli.PrintError(a.Stderr, &control.Error{Verb: verb, Object: dir, Cause: "warning: " + cause, Hint: hint})
	}
}

// divergedText returns the reason why a ref could not be updated on the session remote, and a hint for the user.
func divergedText(d control.DivergedRef, remote string) (cause, hint string) {
	switch {
	case d.BlockedBy != "":
		return fmt.Sprintf("%s cannot be created on the session remote because of %s; the session remote has it as %s",
				d.RemoteRef, d.BlockedBy, d.KeptRef),
			"rename the branch, or mount with --session-branches PREFIX"
	case strings.HasPrefix(d.Ref, "refs/notes/"):
		return fmt.Sprintf("%s is not merged yet with the notes of other sessions; the session remote has it as %s",
				d.Ref, d.KeptRef),
			"the notes are merged automatically at the next push"
	}
	return fmt.Sprintf("%s was changed by another session; the session remote has this session's commits as %s",
			d.RemoteRef, d.KeptRef),
		fmt.Sprintf("to merge both, run in the mount: git fetch %s %s && git merge FETCH_HEAD",
			cli.ShellWord(remote), d.RemoteRef)
}

// sentence joins the lines of several errors to one line.
func sentence(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }
