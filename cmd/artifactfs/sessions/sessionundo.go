package sessions

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/session/undo"
)

// undoHelp is the part of the help texts of undo and redo that both have in common.
const undoHelp = `If somebody else has also changed some of these files since, nothing is restored, unless
--keep-others leaves these files as they are, or --with-others restores them with the others. --dry-run only lists what
would change, and who else has changed it.

HEAD, branches and the index do not move. Files that checkpoints do not contain, such as ignored files, stay unchanged.`

// undoCommands returns the commands "session undo" and "session redo".
func undoCommands(a *cli.App) []*cobra.Command {
	var of string
	var o undo.Options
	var keep, with bool
	undoing := &cobra.Command{
		Use:   "undo [TURN|CALL] [--dry-run] [--keep-others|--with-others]",
		Short: "Undo what a coding agent has changed in its last tool call, or in a turn",
		Long: `Undo restores the files that a tool call of a coding agent has changed to their state before the call, and
leaves all other files as they are. Without arguments, this is the newest call that has changed files and was not
undone; so each further undo goes one call back. TURN is the number of a turn of session transcript, and means all calls
of that turn. CALL is the beginning of the id of a call, which session transcript --json prints in record.call.

The hooks of agents (artifactfs agent install) make a checkpoint before and after each call, so undo knows what the call
has changed, and what the user or another agent has changed in the meantime. What a program changes that a call has left
running counts as changed by somebody else. If the end of a call is not recorded, because its agent was killed or
interrupted, its changes count as those of somebody else from the next checkpoint on. The undo itself is recorded, and
session redo takes it back.

` + undoHelp,
		Example: `  artifactfs session undo
  artifactfs session undo --dry-run
  artifactfs session undo 3 --keep-others
  artifactfs session undo toolu_01AbC -C /srv/app`,
		Args: cli.Arguments(0, 1, "[TURN|CALL]"),
	}
	redoing := &cobra.Command{
		Use:   "redo [--dry-run] [--keep-others|--with-others]",
		Short: "Restore what the last undo has changed",
		Long: `Redo restores the files that the newest session undo has changed to their state before it. Each further redo
takes back one more undo.

The agent whose call was undone counts as somebody else, if it has changed the files again.

` + undoHelp,
		Example: `  artifactfs session redo
  artifactfs session redo --dry-run -C /srv/app`,
		Args: cli.Arguments(0, 0, "no arguments"),
	}
	run := func(cmd *cobra.Command, args []string) error {
		if keep && with {
			return cli.Usage(cmd, errors.New("--keep-others and --with-others exclude each other"))
		}
		verb, carryOut := cmd.Name(), undo.Undo
		if cmd == redoing {
			carryOut = undo.Redo
		}
		w, err := SessionOf(cmd.Context(), a, verb, of)
		if err != nil {
			return err
		}
		m, err := w.Mounted(verb)
		if err != nil {
			return err
		}
		p := a.NewProgress()
		o.Dir, o.Name, o.Show = m.Dir, cli.First(args), p.Show
		if o.Others = undo.Refuse; keep {
			o.Others = undo.Keep
		} else if with {
			o.Others = undo.Include
		}
		if o.Unsure = nil; !a.JSON {
			o.Unsure = func() {
				fmt.Fprintln(a.Stderr, "artifactfs: the beginning or the end of a call is not recorded, so changes of others may "+
					"count as its own")
			}
		}
		reply, err := carryOut(cmd.Context(), m.Client, o)
		p.Stop()
		switch {
		case err != nil:
			return cli.Failure(verb, m.Dir, err)
		case a.JSON:
			return cli.PrintJSON(a.Stdout, reply)
		}
		undone{reply, verb}.print(a.Stdout, a.Stderr, a.Verbose, time.Now())
		return nil
	}
	for _, cmd := range []*cobra.Command{undoing, redoing} {
		cmd.RunE, cmd.ValidArgsFunction = run, cobra.NoFileCompletions
		f := cmd.Flags()
		f.SortFlags = false
		f.BoolVarP(&o.DryRun, "dry-run", "n", false, "only print what would change")
		f.BoolVar(&keep, "keep-others", false, "leave the files as they are that somebody else has changed, too")
		f.BoolVar(&with, "with-others", false, "also restore the files that somebody else has changed")
		ofFlag(a, cmd, &of)
	}
	return []*cobra.Command{undoing, redoing}
}

// undone is the result of an undo or redo; verb is the name of the command.
type undone struct {
	undo.Reply
	verb string
}

// print prints what was changed to out, and advice to the user to notes.
func (r undone) print(out, notes io.Writer, verbose bool, now time.Time) {
	title := r.Title
	if r.Time != nil {
		title += " (" + cli.Ago(*r.Time, now) + ")"
	}
	paths := cli.Plural(int64(len(r.Changes)), "path")
	switch {
	case r.DryRun:
		printChanges(out, "would change", r.Changes)
		r.printOthers(out)
		fmt.Fprintf(out, "%s of %s would be as in %s\n", paths, title, r.To)
	case len(r.Changes) == 0:
		r.printKept(out)
		fmt.Fprintf(out, "nothing to %s of %s\n", r.verb, title)
	default:
		if verbose {
			printChanges(out, "changed", r.Changes)
		}
		r.printKept(out)
		did := map[string]string{"undo": "undid", "redo": "redid"}[r.verb]
		fmt.Fprintf(out, "%s %s: %s as in %s\n", did, title, paths, r.To)
	}
	if n := len(r.Later); n > 0 && len(r.Changes) > 0 {
		fmt.Fprintf(notes, "artifactfs: later changes by the same agent are taken back with it: %s\n",
			cli.Plural(int64(n), "path"))
	}
	if r.HeadMoved && r.HeadBefore != "" {
		fmt.Fprintf(notes, "artifactfs: HEAD stays at %.12s (git reset --soft %.12s takes its commits back)\n", r.Head,
			r.HeadBefore)
	} else if r.HeadMoved {
		fmt.Fprintf(notes, "artifactfs: HEAD stays at %.12s\n", r.Head)
	}
	if r.Before != "" && r.verb == "undo" {
		fmt.Fprintf(notes, "artifactfs: saved the previous state (artifactfs session redo -C %s brings it back)\n",
			cli.ShellWord(r.Dir))
	}
}

// printKept prints the paths that were left unchanged, because others have changed them.
func (r undone) printKept(out io.Writer) {
	for i, path := range r.Kept {
		if i == pathsShown {
			fmt.Fprintf(out, "... and %s more (--json has all)\n", cli.Count(int64(len(r.Kept)-i)))
			break
		}
		fmt.Fprintf(out, "changed by somebody else, so left unchanged: %s\n", cli.OneLine(path))
	}
}

// printOthers prints the paths that somebody else has changed, and the agents that may have done so.
func (r undone) printOthers(out io.Writer) {
	if len(r.Others) == 0 {
		return
	}
	fmt.Fprintf(out, "changed by somebody else (%s)\n", cli.Count(int64(len(r.Others))))
	for i, o := range r.Others {
		if i == pathsShown {
			fmt.Fprintf(out, "  ... and %s more (--json has all)\n", cli.Count(int64(len(r.Others)-i)))
			break
		}
		fmt.Fprintf(out, "  %s  %s\n", cli.OneLine(o.Path), cmp.Or(o.By, "no agent"))
	}
}
