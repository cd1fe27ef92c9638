package sessions

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// sessionLogCommand returns the command "session log".
func sessionLogCommand(a *cli.App) *cobra.Command {
	var of, remote string
	var limit int
	cmd := &cobra.Command{
		Use:   "log [DIR|SESSION] [-n NUMBER]",
		Short: "List the checkpoints of a session, newest first",
		Long: `Log prints a line for each checkpoint of a session, newest first. The columns:
  ID        the id; * after it means that the checkpoint is not on the session remote yet
  MADE      the age
  WHY       the reason: manual, idle, interval, git (a branch, HEAD or stash moved), turn (a prompt was recorded),
            before-risk, removal (many files were removed), unmount, shutdown, discard, restore or fork
  CHANGED   number of paths that differ from the previous checkpoint
  NEW       size of the new objects
  RECORDED  number of transcript records since the previous checkpoint, if there are any
  BRANCH    the branch, or the commit if HEAD is detached
  MESSAGE   the names of pins in brackets, and the message

artifactfs help checkpoints lists the ways to name a checkpoint. With --session-remote URL, SESSION is looked up on that
git repository.`,
		Example: `  artifactfs session log
  artifactfs session log /srv/app -n 5
  artifactfs session log fix-login --session-remote https://git.example.org/work.git
  artifactfs session log fix-login --json | jq -r '.checkpoints[0].id'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return errors.New("-n must not be negative")
			}
			return atMostOne(cmd, args, of)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionLog(cmd.Context(), a, cmp.Or(of, cli.First(args)), remote, limit)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	cmd.Flags().IntVarP(&limit, "number", "n", 0, "print at most `NUMBER` checkpoints (default: all)")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// atMostOne checks the arguments of commands that accept the session either as an argument or as the value of -C.
func atMostOne(cmd *cobra.Command, args []string, of string) error {
	if of != "" && len(args) > 0 {
		return errors.New("session is named twice: by an argument and by -C")
	}
	return cli.Arguments(0, 1, "[DIR|SESSION]")(cmd, args)
}

// sessionLog prints the checkpoints of a session.
func sessionLog(ctx context.Context, a *cli.App, of, remote string, limit int) error {
	_, link, err := cli.LinkIn("log", of)
	if err != nil {
		return err
	}
	var w work
	if link || remote != "" {
		w, _, err = workAt(ctx, a, "log", "", remote, of)
	} else {
		w, err = SessionOf(ctx, a, "log", of)
	}
	if err != nil {
		return err
	}
	reply, err := w.client.SessionLog(ctx, control.SessionLogRequest{Of: w.of, SessionRemote: w.at, Limit: limit})
	if err != nil {
		return cli.Failure("log", w.name(), err)
	}
	if a.JSON {
		if reply.Checkpoints == nil {
			reply.Checkpoints = []control.Checkpoint{}
		}
		return cli.PrintJSON(a.Stdout, reply)
	}
	return printCheckpoints(a.Stdout, reply.Checkpoints, time.Now())
}

// printCheckpoints prints a table of checkpoints. An asterisk marks the checkpoints that are not pushed. The column
// RECORDED is printed only if at least one checkpoint has records.
func printCheckpoints(out io.Writer, checkpoints []control.Checkpoint, now time.Time) error {
	if len(checkpoints) == 0 {
		return nil
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	recorded := slices.ContainsFunc(checkpoints, func(p control.Checkpoint) bool { return p.Recorded > 0 })
	column := func(text string) string {
		if !recorded {
			return ""
		}
		return text + "\t"
	}
	fmt.Fprintln(w, "ID\tMADE\tWHY\tCHANGED\tNEW\t"+column("RECORDED")+"BRANCH\tMESSAGE")
	for _, p := range checkpoints {
		id := p.ID
		if !p.Synced {
			id += "*"
		}
		message := cli.OneLine(p.Message)
		if len(p.Pins) > 0 {
			message = strings.TrimSpace("[" + strings.Join(p.Pins, ", ") + "] " + message)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\t%s\n", id, cli.Ago(p.Time, now), p.Reason, cli.Count(p.Changed),
			cli.BytesOf(p.Bytes),
			column(cli.Count(p.Recorded)), branchText(p), message)
	}
	w.Flush()
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return cli.Printed(err)
		}
	}
	return nil
}

// branchText returns the branch of a checkpoint, or the commit if HEAD was detached.
func branchText(p control.Checkpoint) string {
	if p.Branch == "" && p.Head != "" {
		return p.Head[:min(12, len(p.Head))]
	}
	return cli.OrDash(p.Branch)
}

// sessionShowCommand returns the command "session show".
func sessionShowCommand(a *cli.App) *cobra.Command {
	var of, remote string
	cmd := &cobra.Command{
		Use:   "show [ID]",
		Short: "Print the details of a checkpoint",
		Long: `Show prints the details of a checkpoint (default: the newest): its time and reason, the commit of HEAD, the changes
since the previous checkpoint, the staged changes, the paths that were left out with the reason, and the commands that
fork the checkpoint and resume the session. It also prints how the session remote refers to the history of the mounted
remote (--session-base of mount), and the number of bytes sent and received. Without ID, if the session is mounted and
was changed since its newest checkpoint, show makes a checkpoint first; @ means the newest one as it is.

` + addressHelp + `
With --session-remote, SESSION alone means its newest checkpoint.`,
		Example: `  artifactfs session show
  artifactfs session show @~2 -C fix-login
  artifactfs session show fix-login@before-rename
  artifactfs session show https://git.example.org/work.git#session=fix-login
  artifactfs session show before-rename --json | jq .left_out`,
		Args: cli.Arguments(0, 1, "[ID]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sessionShow(cmd.Context(), a, of, remote, cli.First(args))
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// completeCheckpoints completes the IDs and pins of a session's latest checkpoints.
func completeCheckpoints(a *cli.App, of *string, most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := control.StateDir(a.State)
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		a.State = state
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w, err := SessionOf(ctx, a, "complete", *of)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		reply, _ := w.client.SessionLog(ctx, control.SessionLogRequest{Of: w.of, Limit: 20})
		var ids []cobra.Completion
		now := time.Now()
		for _, p := range reply.Checkpoints {
			what := cli.Ago(p.Time, now) + ", " + cli.OneLine(cmp.Or(p.Message, p.Reason))
			for _, pin := range p.Pins {
				ids = append(ids, cobra.CompletionWithDesc(pin, what))
			}
			ids = append(ids, cobra.CompletionWithDesc(p.ID, what))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// sessionShow prints the details of a checkpoint.
func sessionShow(ctx context.Context, a *cli.App, of, remote, id string) error {
	w, id, err := workAt(ctx, a, "show", of, remote, id)
	if err != nil {
		return err
	}
	reply, err := w.client.SessionShow(ctx, control.SessionShowRequest{Of: w.of, SessionRemote: w.at, ID: id})
	if err != nil {
		return cli.Failure("show", cmp.Or(id, w.name()), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	printShow(a.Stdout, reply, time.Now())
	return nil
}

// pathsShown is the maximum number of paths in each list of printShow.
const pathsShown = 100

// printShow prints the details of a checkpoint as text.
func printShow(out io.Writer, s control.SessionShowReply, now time.Time) {
	fmt.Fprintln(out, s.ID)
	line := func(label, format string, args ...any) { cli.PrintLine(out, label, format, args...) }
	if s.Message != "" {
		line("message", "%s", s.Message)
	}
	line("made", "%s (%s), %s", s.Time.Local().Format("2006-01-02 15:04:05"), cli.Ago(s.Time, now), s.Reason)
	line("session", "%s, lane %s", s.Session, s.Lane)
	printProfile(out, s.Profile)
	if len(s.Pins) > 0 {
		line("pins", "%s", strings.Join(s.Pins, ", "))
	}
	switch {
	case s.Branch != "" && s.Head != "":
		line("head", "%s at %.12s", s.Branch, s.Head)
	case s.Branch != "":
		line("head", "%s, which has no commit", s.Branch)
	default:
		line("head", "%.12s", s.Head)
	}
	if s.RemoteBranch != "" {
		line("branch", "%s on the session remote", s.RemoteBranch)
	}
	line("commit", "%s", s.Commit)
	where := "yes"
	if !s.Synced {
		where = "not yet"
	}
	line("pushed", "%s", where)
	if s.Status.SessionRemote != "" {
		line("remote", "%s", cli.PushedText(s.Status, now))
	}
	if s.Status.Sent+s.Status.Received > 0 {
		line("traffic", "%s", cli.TrafficText(s.Status))
	}
	if s.Link != "" {
		line("link", "%s", s.Link)
	}
	line("fork", "%s", s.ForkCommand)
	line("resume", "%s", s.ResumeCommand)
	if s.Records > 0 {
		line("records", "%s of the transcript", cli.Plural(s.Records, "line"))
	}
	since := "since the previous checkpoint"
	if s.Prev == "" {
		since = "since the session started"
	}
	printChanges(out, "changed "+since, s.Changes)
	printChanges(out, "staged", s.Staged)
	if len(s.Since) > 0 {
		fmt.Fprintf(out, "recorded %s (%s)\n", since, cli.Count(int64(len(s.Since))))
	}
	for i, r := range s.Since {
		if i == pathsShown {
			fmt.Fprintf(out, "  ... and %s more (artifactfs session transcript)\n", cli.Count(int64(len(s.Since)-i)))
			break
		}
		kind, text, sub := readRecord(r)
		if sub != "" {
			kind = "  " + sub + ": " + kind
		}
		fmt.Fprintf(out, "  %s  %s\n", kind, shortened(cli.OneLine(text)))
	}
	if s.Excluded > 0 {
		fmt.Fprintf(out, "left out (%s)\n", cli.Count(s.Excluded))
		for i, l := range s.LeftOut {
			if i == pathsShown {
				break
			}
			fmt.Fprintf(out, "  %s\n", cli.OneLine(cli.LeftText(l)))
		}
		if more := s.Excluded - int64(min(len(s.LeftOut), pathsShown)); more > 0 {
			fmt.Fprintf(out, "  ... and %s more\n", cli.Count(more))
		}
	}
}

// printChanges prints a title and a list of changed paths, or nothing if there are none.
func printChanges(out io.Writer, title string, changes []control.PathChange) {
	if len(changes) == 0 {
		return
	}
	fmt.Fprintf(out, "%s (%s)\n", title, cli.Count(int64(len(changes))))
	for i, c := range changes {
		if i == pathsShown {
			fmt.Fprintf(out, "  ... and %s more (--json has all)\n", cli.Count(int64(len(changes)-i)))
			break
		}
		fmt.Fprintf(out, "  %s  %s\n", c.Status, cli.OneLine(c.Path))
	}
}
