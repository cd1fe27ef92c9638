package sessions

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// restoreOptions contains the flags of session restore.
type restoreOptions struct {
	// of is the session to change, as a name or a directory; "" means the session of the current directory.
	of string
	// remote is the session remote on which the other session is looked up.
	remote string
	// request is the request with the values of the other flags.
	request control.RestoreRequest
}

// sessionRestoreCommand returns the command "session restore". The daemon first makes a checkpoint, which can be
// restored to undo the change.
func sessionRestoreCommand(a *cli.App) *cobra.Command {
	var o restoreOptions
	var turn int
	cmd := &cobra.Command{
		Use:   "restore ID|--turn N [PATH...] [--staged] [--dry-run]",
		Short: "Restore files from a checkpoint",
		Long: `Restore changes the mounted working tree, or only PATHs in it, back to a checkpoint. No file is downloaded. Restore
first makes a checkpoint of the present state, and prints the command that restores it, so nothing is lost.

HEAD and branches do not move, and the index does not change without --staged. Files that checkpoints do not contain,
such as ignored files, stay unchanged. With --dry-run, restore only prints the changes.

If a program has removed the name .git from the mount, restore creates it again; with .git as the only PATH, it changes
nothing else.

--turn N is used instead of ID. It names the checkpoint at the beginning of turn N of the transcript, which was made
before the prompt of that turn was recorded.

PATHs are relative to the current directory, or to the directory of -C. A directory stands for everything below it.

` + addressHelp + `
Files are then replaced by those of the other session; artifactfs session merge combines the changes of both sessions.`,
		Example: `  artifactfs session restore @~1 --dry-run
  artifactfs session restore 10m
  artifactfs session restore 01J9ZK src/main.c docs
  artifactfs session restore try-2@ src/login.c
  artifactfs session restore --turn 3 src
  artifactfs session restore -C /srv/app before-rename --staged`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("turn") {
				return nil // all arguments are PATHs
			}
			return cli.Arguments(1, -1, "ID [PATH...]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("turn") {
				args = append([]string{fmt.Sprintf("turn:%d", turn)}, args...)
			}
			return sessionRestore(cmd.Context(), a, o, args[0], args[1:])
		},
		ValidArgsFunction: completeCheckpoints(a, &o.of, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&turn, "turn", 0, "restore the checkpoint at the beginning of turn `N` of the transcript")
	f.BoolVar(&o.request.Staged, "staged", false, "also restore the index")
	f.BoolVarP(&o.request.DryRun, "dry-run", "n", false, "only print what would change")
	ofFlag(a, cmd, &o.of)
	farFlag(a, cmd, &o.remote)
	return cmd
}

// sessionRestore restores paths from a checkpoint and prints the result.
func sessionRestore(ctx context.Context, a *cli.App, o restoreOptions, id string, paths []string) error {
	w, err := SessionOf(ctx, a, "restore", o.of)
	if err != nil {
		return err
	}
	m, err := w.Mounted("restore")
	if err != nil {
		return err
	}
	r := o.request
	r.Dir = m.Dir
	if r.Of, r.SessionRemote, r.ID, err = otherCheckpoint(ctx, a, "restore", o.remote, id); err != nil {
		return err
	}
	// The arguments PATH are relative to the current directory, or with -C to the directory that -C names.
	from := "."
	if o.of != "" && o.of != m.Session.Name {
		from = o.of
	} else if o.of != "" {
		from = m.Dir
	}
	if r.Paths, err = cli.PathsIn("restore", m.Dir, from, paths); err != nil {
		return err
	}
	p := a.NewProgress()
	reply, err := m.Client.Restore(ctx, r, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("restore", m.Dir, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	printRestore(a, reply, time.Now())
	return nil
}

// printRestore prints the changes that a restore has made, and the command that undoes the restore.
func printRestore(a *cli.App, r control.RestoreReply, now time.Time) {
	switch would := map[bool]string{true: " would be"}[r.DryRun]; {
	case r.Git:
		fmt.Fprintf(a.Stdout, ".git%s restored: git finds the repository again\n", would)
	case r.Checkpoint.ID == "":
		fmt.Fprintln(a.Stdout, ".git exists, so it was left unchanged")
	}
	if r.Checkpoint.ID == "" {
		return
	}
	changes := cli.Plural(int64(len(r.Changes)), "path")
	at := fmt.Sprintf("%s (%s)", r.Checkpoint.ID, cli.Ago(r.Checkpoint.Time, now))
	if r.DryRun {
		printChanges(a.Stdout, "would change", r.Changes)
		fmt.Fprintf(a.Stdout, "%s would be restored to %s\n", changes, at)
		return
	}
	if a.Verbose {
		printChanges(a.Stdout, "changed", r.Changes)
	}
	for _, path := range r.Kept {
		fmt.Fprintf(a.Stdout, "changed at the same time, so left unchanged: %s\n", cli.OneLine(path))
	}
	for _, path := range slices.Sorted(maps.Keys(r.Failed)) {
		fmt.Fprintf(a.Stdout, "linked worktree not restored: %s\n", cli.OneLine(path+": "+r.Failed[path]))
	}
	fmt.Fprintf(a.Stdout, "%s restored to %s\n", changes, at)
	cli.PrintReceipt(a, "restored", r.Receipt)
	if r.Before != nil && len(r.Changes) > 0 {
		fmt.Fprintf(a.Stderr,
			"artifactfs: saved the previous state (artifactfs session restore -C %s %s undoes the restore)\n",
			cli.ShellWord(r.Dir), r.Before.ID)
	}
}
