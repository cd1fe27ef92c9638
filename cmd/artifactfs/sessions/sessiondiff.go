package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// diffOptions holds the flags of "session diff".
type diffOptions struct {
	// of is the session that -C names, and remote is the value of --session-remote.
	of, remote string
	// stat, nameOnly and nameStatus select the output format; at most one is set.
	stat, nameOnly, nameStatus bool
}

// sessionDiffCommand returns the command "session diff". The daemon computes the diff and fetches missing contents.
func sessionDiffCommand(a *cli.App) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff [A [B]] [--stat|--name-only|--name-status]",
		Short: "Show what has changed between two checkpoints",
		Long: `Diff prints the changes from checkpoint A to checkpoint B, in the format of git diff. Without B, it compares A with the
present working tree, and makes a checkpoint of the working tree for this. Without arguments, it prints all changes of
the session since the commit from which the session was started.

` + addressHelp + `
With --session-remote and one SESSION, diff prints all changes of that session.

With --name-only or --name-status, diff fetches no contents; otherwise it fetches the contents that it compares.`,
		Example: `  artifactfs session diff
  artifactfs session diff @ --name-status
  artifactfs session diff @~1 @ --stat
  artifactfs session diff -C fix-login 01J9ZK before-rename
  artifactfs session diff try-1@ try-2@ --name-only
  artifactfs session diff --session-remote https://git.example.org/work.git fix-login --stat`,
		Args: func(cmd *cobra.Command, args []string) error {
			n := 0
			for _, is := range []bool{o.stat, o.nameOnly, o.nameStatus} {
				if is {
					n++
				}
			}
			if n > 1 {
				return errors.New("--stat, --name-only and --name-status exclude each other")
			}
			return cli.Arguments(0, 2, "[A [B]]")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionDiff(cmd.Context(), a, o, append(args, "", "")[:2])
		},
		ValidArgsFunction: completeCheckpoints(a, &o.of, 2),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.stat, "stat", false, "print only the numbers of changed lines of each file")
	f.BoolVar(&o.nameOnly, "name-only", false, "print only the changed paths")
	f.BoolVar(&o.nameStatus, "name-status", false,
		"print only the changed paths, each with A (added), M (modified), D (deleted)\nor T (changed type)")
	ofFlag(a, cmd, &o.of)
	farFlag(a, cmd, &o.remote)
	return cmd
}

// diffEnds finds the sessions and checkpoints of both ends of a comparison. If the name of the first end is empty, this
// end is the start of the session. If the name of the second end is empty, this end is the working tree.
func diffEnds(ctx context.Context, a *cli.App, o diffOptions,
	words []string) (r control.SessionDiffRequest, w work, err error) {
	from, to := words[0], words[1]
	x, fromCheckpoint, err := workAt(ctx, a, "diff", o.of, o.remote, from)
	if err != nil {
		return r, w, err
	}
	switch w = x; {
	case to != "":
		if w, to, err = workAt(ctx, a, "diff", o.of, o.remote, to); err != nil {
			return r, w, err
		}
	case namesSession(from) && o.remote == "":
		// compare with the working tree that contains the current directory, if it is in a mount
		if current, err := SessionOf(ctx, a, "diff", ""); err == nil {
			w = current
		}
	}
	r = control.SessionDiffRequest{Of: w.of, SessionRemote: w.at, A: fromCheckpoint, B: to}
	if x.of != w.of || x.remote != w.remote {
		r.AOf, r.ARemote = x.of, x.at
	}
	return r, w, nil
}

// sessionDiff requests the comparison and prints it in the selected format.
func sessionDiff(ctx context.Context, a *cli.App, o diffOptions, words []string) error {
	r, w, err := diffEnds(ctx, a, o, words)
	if err != nil {
		return err
	}
	names := o.nameOnly || o.nameStatus
	r.Patch, r.Stat = !names && !o.stat, o.stat
	reply, err := w.client.SessionDiff(ctx, r)
	if err != nil {
		return cli.Failure("diff", w.name(), err)
	}
	switch {
	case a.JSON:
		if reply.Changes == nil {
			reply.Changes = []control.PathChange{}
		}
		return cli.PrintJSON(a.Stdout, reply)
	case o.stat:
		return printStat(a.Stdout, reply.Changes)
	case names:
		for _, c := range reply.Changes {
			text := c.Path
			if o.nameStatus {
				text = c.Status + "\t" + c.Path
			}
			if _, err := fmt.Fprintln(a.Stdout, text); err != nil {
				return cli.Printed(err)
			}
		}
		return nil
	}
	_, err = io.WriteString(a.Stdout, reply.Patch)
	return cli.Printed(err)
}

// printStat prints the line counts in the form of git diff --stat, without the bars.
func printStat(out io.Writer, changes []control.PathChange) error {
	if len(changes) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var added, removed int64
	for _, c := range changes {
		lines := "binary"
		if c.Added >= 0 && c.Removed >= 0 {
			lines = fmt.Sprintf("+%s\t-%s", cli.Count(c.Added), cli.Count(c.Removed))
			added, removed = added+c.Added, removed+c.Removed
		}
		fmt.Fprintf(w, "%s  %s\t%s\n", c.Status, cli.OneLine(c.Path), lines)
	}
	w.Flush()
	_, err := fmt.Fprintf(out, "%s, +%s -%s\n", cli.Plural(int64(len(changes)), "path"), cli.Count(added),
		cli.Count(removed))
	return err
}
