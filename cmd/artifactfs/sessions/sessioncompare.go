package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

const (
	tableWidth = 100 // maximum width of the output in columns
	mostAlone  = 40  // maximum number of paths in the table that only one of the sessions has changed
)

// sessionCompareCommand returns the command "session compare", which only reads checkpoints.
func sessionCompareCommand(a *cli.App) *cobra.Command {
	var remote string
	cmd := &cobra.Command{
		Use:   "compare SESSION[@ID]|LINK SESSION[@ID]|LINK...",
		Short: "Show the changes of several sessions, and which of them conflict",
		Long: `Compare compares the changes of two or more sessions, for example several attempts at the same task. For each session it
prints the users who worked in it, and the numbers of files and lines that were changed since the base. The base is the
checkpoint from which all of them were forked, or else the commit from which the session was started. Then it lists the
changed paths. For a path that two or more sessions have changed, it prints a verdict:
  same      the contents are the same
  clean     git merges the contents without a conflict
  conflict  session merge would leave conflict markers, or cannot merge the contents
Compare changes nothing. It fetches only contents of changed files.

SESSION is the name of a session on this host, mounted or not. A session that is not on this host is looked up on the
session remote of the mount that contains the current directory. Without @ID, the newest state is compared: if the
session is mounted on this host and was changed, compare makes a checkpoint first, and a session without changes is
compared as it was started. @, @~1 and so on without SESSION name checkpoints of the session that is mounted at the
current directory. With --session-remote URL, sessions are looked up on that git repository, and no mount is needed on
this host. A link, URL#session=SESSION@ID, names the session remote, the session and the checkpoint.

--json prints all changes of each session, and the verdict for each pair of sessions.`,
		Example: `  artifactfs session compare try-1 try-2 try-3
  artifactfs session compare @ fix-login@before-rename
  artifactfs session compare --session-remote https://git.example.org/work.git try-1 try-2
  artifactfs session compare try-1 try-2 --json | jq -r '.shared[] | select(.verdict == "conflict").path'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("want two or more arguments SESSION[@ID] or LINK")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command,
			args []string) error {
			return sessionCompare(cmd.Context(), a, remote, args)
		},
		ValidArgsFunction: CompleteSessions(a, 1<<10),
	}
	farFlag(a, cmd, &remote)
	return cmd
}

// comparedSessions parses the words that name checkpoints. It returns the request and a client of the daemon that
// serves the first mounted session among them; if none is mounted, the client is connected to the shared daemon. A
// session that this host does not know is not an error if the current directory is in a mount: the daemon of that mount
// then looks the session up.
func comparedSessions(ctx context.Context, a *cli.App, remote string,
	words []string) (r control.SessionCompareRequest, client *control.Client, err error) {
	current, currentErr := SessionOf(ctx, a, "compare", "")
	if currentErr == nil && current.mount != nil {
		r.Dir = current.mount.Dir
	}
	for _, word := range words {
		var side control.CompareSide
		if side.Of, side.SessionRemote, side.ID, err = otherCheckpoint(ctx, a, "compare", remote, word); err != nil {
			return r, nil, err
		}
		switch {
		case side.Of == "" && strings.HasPrefix(word, "@"):
			if currentErr != nil {
				return r, nil, currentErr
			}
			side.Of, client = current.of, current.client
		case side.Of == "":
			side.Of, side.ID = word, ""
		}
		if side.SessionRemote == "" && side.Of != current.of {
			w, err := SessionOf(ctx, a, "compare", side.Of)
			switch e := control.AsError(err); {
			case err == nil && (w.mount != nil || client == nil):
				side.Of, client = w.of, w.client
			case err == nil:
				side.Of = w.of
			case e.Code != control.ExitNotMounted || r.Dir == "":
				return r, nil, err
			}
		}
		r.Sides = append(r.Sides, side)
	}
	if client == nil {
		client, err = a.EnsureDaemon(ctx)
	}
	return r, client, err
}

// sessionCompare requests the comparison and prints it.
func sessionCompare(ctx context.Context, a *cli.App, remote string, words []string) error {
	r, client, err := comparedSessions(ctx, a, remote, words)
	if err != nil {
		return err
	}
	reply, err := client.SessionCompare(ctx, r)
	if err != nil {
		return cli.Failure("compare", "sessions", err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	return printCompared(a.Stdout, reply)
}

// printCompared prints a table of the compared sessions and a table of the paths, at most tableWidth columns wide.
func printCompared(out io.Writer, r control.SessionCompareReply) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tSESSION@CHECKPOINT\tBASE\tFILES\tLINES\tWHO")
	for i, s := range r.Sides {
		base := s.Base[:min(10, len(s.Base))]
		if s.BaseCheckpoint != "" {
			_, base, _ = strings.Cut(s.BaseCheckpoint, "@")
			base = "@" + base[:min(9, len(base))]
		}
		if base == "" {
			base = "-"
		}
		name := lastChars(s.Checkpoint.Session, 24)
		if id := s.Checkpoint.ID; id != "" {
			name += "@" + id[:min(12, len(id))]
		} else {
			name += ", unchanged"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t+%d ~%d -%d\t+%d -%d\t%s\n", sideName(i), name, base,
			s.Added, s.Modified, s.Removed, s.LinesAdded, s.LinesRemoved, strings.Join(s.Users, ", "))
	}
	w.Flush()
	fmt.Fprintln(&text)
	paths, shared := changedPaths(r)
	width := tableWidth - 3*len(r.Sides) - 34
	alone := 0
	for _, p := range paths {
		if p.Verdict == "" {
			if alone++; alone > mostAlone {
				continue
			}
		}
		fmt.Fprintf(&text, "%-*s", width, lastChars(cli.OneLine(p.Path), width-1))
		for _, status := range p.Status {
			if status == "" {
				status = "."
			}
			fmt.Fprintf(&text, "%3s", status)
		}
		fmt.Fprintf(&text, "  %s\n", verdictText(p))
	}
	if alone > mostAlone {
		fmt.Fprintf(&text, "... and %s changed by one side only (--json shows all)\n",
			cli.Plural(int64(alone-mostAlone), "path"))
	}
	if len(paths) > 0 {
		fmt.Fprintln(&text)
	}
	var conflicts int64
	for _, p := range r.Shared {
		if p.Verdict == control.VerdictConflict {
			conflicts++
		}
	}
	fmt.Fprintf(&text, "%s changed, %d by two or more, %d in conflict\n", cli.Plural(int64(len(paths)), "path"),
		shared, conflicts)
	// The columns of the first table have no maximum width, so each line is cut to tableWidth.
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(out, firstChars(strings.TrimRight(line, " \n"), tableWidth)); err != nil {
			return cli.Printed(err)
		}
	}
	return nil
}

// changedPaths returns the paths that the sessions have changed. Paths that several sessions have changed come first;
// the result shared is the number of these paths.
func changedPaths(r control.SessionCompareReply) (paths []control.SharedPath, shared int) {
	paths = append(paths, r.Shared...)
	seen := map[string]bool{}
	for _, p := range paths {
		seen[p.Path] = true
	}
	for i, s := range r.Sides {
		for _, c := range s.Changes {
			if !seen[c.Path] {
				status := make([]string, len(r.Sides))
				status[i] = c.Status
				paths = append(paths, control.SharedPath{Path: c.Path, Status: status})
			}
		}
	}
	return paths, len(r.Shared)
}

// verdictText returns the verdict on a path. For a conflict, the text names the conflicting sessions.
func verdictText(p control.SharedPath) string {
	if p.Verdict != control.VerdictConflict {
		return string(p.Verdict)
	}
	text := "conflict"
	for _, pair := range p.Pairs {
		if pair.Verdict == control.VerdictConflict {
			text += " " + sideName(pair.A) + "-" + sideName(pair.B)
		}
	}
	return text
}

// sideName returns the letter that stands for the session number i in the table.
func sideName(i int) string { return string(rune('A' + i)) }

// firstChars returns the first characters of a text. If the text is longer than width, it is cut to this width and ends
// in "...". The function lastChars returns the last characters in the same way.
func firstChars(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:width-3]) + "..."
	}
	return text
}

func lastChars(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return "..." + string(r[len(r)-width+3:])
	}
	return text
}
