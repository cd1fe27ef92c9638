package sessions

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// sessionSummaryCommand returns the command "session summary", which only reads the session.
func sessionSummaryCommand(a *cli.App) *cobra.Command {
	var of, remote, since string
	cmd := &cobra.Command{
		Use:   "summary [POINT]",
		Short: "Print the changes of a session as text for a merge request",
		Long: `Summary prints what a session has changed, as Markdown: a title, the commits, the changed files with their numbers of
lines, the git notes on the commits, the facts and the handoff, and each prompt of the transcript as one line. It is
meant as the description of a merge request, for a person or a model to finish; session promote --pull-request uses it.

POINT is a checkpoint (default: the present state). The files are compared with the commit of the mounted remote on
which the commits of the session are based; --since names another commit of the session, or a checkpoint.

` + addressHelp + `

Long lists are shortened; the totals count everything. --json prints the same data as an object.`,
		Example: `  artifactfs session summary
  artifactfs session summary fix-login@before-rename --since @~5
  artifactfs session summary https://git.example.org/work.git#session=fix-login
  artifactfs session summary --json | jq -r .title`,
		Args: cli.Arguments(0, 1, "[POINT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionSummary(cmd.Context(), a, of, remote, since, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	cmd.Flags().StringVar(&since, "since", "", "leave out the changes up to this commit or checkpoint `BASE`")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// sessionSummary requests the summary and prints it.
func sessionSummary(ctx context.Context, a *cli.App, of, remote, since, point string) error {
	w, id, err := workAt(ctx, a, "summary", of, remote, point)
	if err != nil {
		return err
	}
	reply, err := control.SessionSummary(ctx, w.client,
		control.SessionSummaryRequest{Of: w.of, SessionRemote: w.at, ID: id, Since: since})
	if err != nil {
		return cli.Failure("summarise", w.name(), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	_, err = fmt.Fprintf(a.Stdout, "# %s\n\n%s", cli.OneLine(reply.Title), markdown(reply))
	return err
}

// code returns a text as Markdown code on one line.
func code(text string) string {
	text = cli.OneLine(text)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}

// markdown returns the summary as Markdown, without its title.
func markdown(r control.SessionSummaryReply) string {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "## %s\n\n", title) }
	if r.TotalCommits > 0 {
		section(cli.Plural(r.TotalCommits, "commit"))
		for _, c := range r.Commits {
			fmt.Fprintf(&b, "- %s %s (%s)\n", c.ID[:min(10, len(c.ID))], cli.OneLine(c.Subject), cli.OneLine(c.Author))
		}
		more(&b, r.TotalCommits-int64(len(r.Commits)))
	}
	if r.TotalFiles > 0 {
		section(fmt.Sprintf("%s, +%d -%d", cli.Plural(r.TotalFiles, "file"), r.LinesAdded, r.LinesRemoved))
		for _, f := range r.Files {
			name := code(f.Path)
			if f.From != "" {
				name = code(f.From) + " → " + name
			}
			count := fmt.Sprintf("+%d -%d", f.Added, f.Removed)
			switch {
			case r.Uncounted:
				count = ""
			case f.Added < 0:
				count = "binary"
			}
			fmt.Fprintf(&b, "- %s %s %s\n", f.Status, name, count)
		}
		more(&b, r.TotalFiles-int64(len(r.Files)))
	}
	if r.Uncommitted > 0 {
		fmt.Fprintf(&b, "%s not committed.\n\n", cli.Plural(r.Uncommitted, "changed file"))
	}
	if r.Handoff != "" {
		section("Handoff")
		fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(r.Handoff))
	}
	if len(r.Facts) > 0 {
		section("Facts")
		for _, f := range r.Facts {
			fmt.Fprintf(&b, "- %s\n", cli.OneLine(f.Text))
		}
		more(&b, 0)
	}
	if len(r.Notes) > 0 {
		section("Notes")
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "- %s %s: %s\n", n.Commit[:min(10, len(n.Commit))], cli.OneLine(n.Ref), code(n.Text))
		}
		more(&b, 0)
	}
	if len(r.Prompts) > 0 {
		section("Prompts")
		for _, p := range r.Prompts {
			fmt.Fprintf(&b, "%d. %s\n", p.Turn, cli.OneLine(p.Text))
		}
		more(&b, r.TotalPrompts-int64(len(r.Prompts)))
	}
	if b.Len() == 0 {
		b.WriteString("Nothing has changed.\n\n")
	}
	fmt.Fprintf(&b, "Session %s", cli.OneLine(r.Session))
	if r.Checkpoint != "" {
		fmt.Fprintf(&b, ", checkpoint %s", r.Checkpoint)
	}
	b.WriteString(".\n")
	return b.String()
}

// more ends a list with a line that states how many entries were omitted, n, and with an empty line.
func more(b *strings.Builder, n int64) {
	if n > 0 {
		fmt.Fprintf(b, "- ... and %d more\n", n)
	}
	b.WriteString("\n")
}
