package sessions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// approvalHelp is a part of several help texts: it explains how to name a request for approval.
const approvalHelp = `REQUEST is the id of a request, or its beginning: of the session of the current directory, or of the session that -C
selects. SESSION@REQUEST names a request of another session. With --session-remote URL, or with the link
URL#session=SESSION@REQUEST that session review request has printed, no mount is needed on this host. --to URL is
needed if the request is for a branch of another repository than the session remote.`

// reviewRequestCommand returns the command "session review request".
func reviewRequestCommand(a *cli.App) *cobra.Command {
	var of, remote, into, to string
	r := control.SessionApproveRequest{Op: control.ApproveRequest}
	action := cli.NewChoice(&r.Action, "", control.ApproveMerge, control.ApprovePromote, control.ApproveDelete)
	cmd := &cobra.Command{
		Use:   "request [ID|SESSION@[ID]|LINK] --for merge|promote|delete",
		Short: "Ask reviewers to approve the merge, the promotion or the deletion of a session",
		Long: `Request asks for an approval of the newest checkpoint of a session, and prints the id of the request and the
commands for reviewers. If the session is mounted, it makes a checkpoint first, and waits until the checkpoint and all
commits are on the session remote. Reviewers on other machines need only the link that is printed.

An approval is bound to content: to the files that the branch will have, to the commit at which the branch is now, and
to the action. Other files or commits in the session void the request, and so does another commit on the branch.
  --for merge    merge into a branch of the session remote (--into, default: the branch to which HEAD points)
  --for promote  push to a branch of the mounted remote, or of another repository (--to URL:BRANCH)
  --for delete   deletion of the session
All changes must be committed with git, except for --for delete, because only commits can be pushed to a branch. If the
branch can be fast-forwarded, the approval is for the files of the session's commit, otherwise for the files after a
merge; a merge with conflicts is refused.

The policy of the repository decides how many users must approve (artifactfs session policy). --reviewers only states
who is asked.

` + addressHelp,
		Example: `  artifactfs session review request --for merge --reviewers alice,bob -m 'fixes the login'
  artifactfs session review request --for promote --to https://git.example.org/app.git:main --expires 8h
  artifactfs session review request --for delete -C fix-login`,
		Args: cli.Arguments(0, 1, "[ID|SESSION@[ID]|LINK]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case r.Action == "":
				return cli.Usage(cmd, errors.New("--for is missing: want merge, promote or delete"))
			case to != "" && r.Action != control.ApprovePromote:
				return cli.Usage(cmd, errors.New("--to is possible only with --for promote"))
			case into != "" && r.Action != control.ApproveMerge:
				return cli.Usage(cmd, errors.New("--into is possible only with --for merge"))
			case r.Expires <= 0:
				return cli.Usage(cmd, errors.New("--expires must be a positive duration, such as 24h"))
			}
			if r.To, r.Branch = splitTarget(to); r.To == control.RemoteOrigin {
				r.To = ""
			}
			if into != "" {
				r.Branch = into
			}
			var err error
			if r.To, err = loginAt(cmd.Context(), a, "review request", r.To); err != nil {
				return err
			}
			return requestApproval(cmd.Context(), a, of, remote, cli.First(args), r)
		},
		ValidArgsFunction: completeCheckpoints(a, &of, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(action, "for", "the `ACTION` to approve: merge, promote or delete")
	cli.CompleteFlag(cmd, "for", control.ApproveMerge, control.ApprovePromote, control.ApproveDelete)
	f.StringVar(&into, "into", "", "the `BRANCH` of the session remote into which the session will be merged")
	f.StringVar(&to, "to", "", "the commits will be pushed to `URL[:BRANCH]` (default: the mounted remote; :BRANCH\n"+
		"alone is a branch of the mounted remote)")
	f.StringSliceVar(&r.Reviewers, "reviewers", nil, "the users who are asked to approve (`NAME,...`)")
	f.DurationVar(&r.Expires, "expires", 24*time.Hour, "the request expires after this `TIME`")
	f.StringVarP(&r.Text, "message", "m", "", "the `TEXT` for the reviewers")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// requestApproval pushes a mounted session, adds the request, and prints it with the commands for reviewers.
func requestApproval(ctx context.Context, a *cli.App, of, remote, word string, r control.SessionApproveRequest) error {
	w, id, err := workAt(ctx, a, "review request", of, remote, word)
	if err == nil {
		w, err = reviewed(ctx, a, w)
	}
	if err != nil {
		return err
	}
	r.Of, r.SessionRemote, r.ID, r.Actor = w.of, w.at, id, session.Actor()
	if w.mount != nil && !w.mount.ReadOnly {
		p := a.NewProgress()
		_, err := w.client.Sync(ctx, control.SyncRequest{Dir: w.mount.Dir}, p.Show)
		p.Stop()
		// The session remote may refuse a branch because the branch is protected. This must not prevent the request, so
		// ignore the exit code for unsynced sessions. The daemon checks that the newest checkpoint was pushed, and a
		// checkpoint contains all commits.
		if e := control.AsError(err); err != nil && e.Code != control.ExitUnsynced {
			return cli.Failure("request approval of", w.name(), err)
		}
	}
	reply, err := w.client.SessionApprove(ctx, r)
	if err != nil {
		return cli.Failure("request approval of", w.name(), err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	to := ""
	if reply.To != "" {
		to = " --to " + cli.ShellWord(reply.To)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "request %s of session %s: %s, %s\n", reply.Approval.ID, reply.Approval.Session,
		actionText(reply.Approval),
		changeText(reply))
	if !a.Quiet {
		link := cli.ShellWord(reply.Link)
		fmt.Fprintf(&text, "status: %s\n", approvalStatus(reply.Approval))
		fmt.Fprintf(&text, "reviewers can run, on any machine that can read the session remote:\n")
		fmt.Fprintf(&text, "  artifactfs session show %s\n", cli.ShellWord(reply.Show))
		fmt.Fprintf(&text, "  artifactfs session review grant %s%s\n", link, to)
		fmt.Fprintf(&text, "  artifactfs session review deny %s%s -m REASON\n", link, to)
	}
	if _, err := fmt.Fprint(a.Stdout, text.String()); err != nil {
		return cli.Printed(err)
	}
	if reply.Token == "" && !a.Quiet {
		fmt.Fprintln(a.Stderr, "artifactfs: the server of the repository stores approvals, but does not enforce them")
	}
	return nil
}

// reviewed returns a session together with the session remote and the credentials for a request about approvals. If the
// session is not mounted, the daemon has no credentials for its server, as for a deletion (deleteAt).
func reviewed(ctx context.Context, a *cli.App, w work) (work, error) {
	w, err := w.asGiven(ctx, a)
	if err == nil && w.at == "" && w.mount == nil {
		w.at, err = deleteAt(ctx, a, w, "")
	}
	return w, err
}

// actionText describes the action for which approval is requested.
func actionText(r control.Approval) string {
	switch r.Action {
	case control.ApproveMerge:
		return "merge into " + r.Branch
	case control.ApprovePromote:
		return "push to " + r.Branch + " of " + r.Repository
	}
	return "delete"
}

// changeText describes the size of the change for which approval is requested.
func changeText(r control.SessionApproveReply) string {
	c := r.Changes
	text := fmt.Sprintf("files +%d ~%d -%d, lines +%d -%d", c.Added, c.Modified, c.Removed, c.LinesAdded, c.LinesRemoved)
	if r.Merge {
		text += ", after a merge"
	}
	return text
}

// approvalStatus describes the state of a request for approval.
func approvalStatus(r control.Approval) string {
	text := r.Status
	if r.Status == "open" && r.Missing != "" {
		text += ", needs " + r.Missing
	}
	if r.Moved && (r.Status == "open" || r.Status == "granted") {
		text += "; " + r.Branch + " has moved since"
	}
	return text
}

// answerCommand returns a command that answers a request for approval, or withdraws the request. The parameter op is a
// value of control.SessionApproveRequest.Op.
func answerCommand(a *cli.App, op, verb, short, long, example string) *cobra.Command {
	var of, remote, to string
	r := control.SessionApproveRequest{Op: op}
	cmd := &cobra.Command{
		Use:     verb + " REQUEST|SESSION@REQUEST|LINK [-m TEXT]",
		Short:   short,
		Long:    long + "\n\n" + approvalHelp,
		Example: example,
		Args:    cli.Arguments(1, 1, "REQUEST|SESSION@REQUEST|LINK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, id, err := workAt(cmd.Context(), a, "review "+verb, of, remote, args[0])
			if err != nil {
				return err
			}
			if id == "" || id[0] == '@' {
				return cli.Usage(cmd,
					errors.New("REQUEST is missing: want SESSION@REQUEST; artifactfs session review list shows the requests"))
			}
			if r.To, err = loginAt(cmd.Context(), a, "review "+verb, to); err != nil {
				return err
			}
			if w, err = reviewed(cmd.Context(), a, w); err != nil {
				return err
			}
			r.Of, r.SessionRemote, r.Request, r.Actor = w.of, w.at, id, session.Actor()
			reply, err := w.client.SessionApprove(cmd.Context(), r)
			if err != nil {
				return cli.Failure(verb, w.name(), err)
			}
			return printAnswer(a, op, reply)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&r.Text, "message", "m", "", "the `REASON` to record")
	f.StringVar(&to, "to", "",
		"the repository `URL` that has the branch (default: the session remote, else the\nmounted remote)")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// printAnswer prints the state of a request for approval after an answer. The parameter op is a value of
// control.SessionApproveRequest.Op.
func printAnswer(a *cli.App, op string, reply control.SessionApproveReply) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	done := map[string]string{control.ApproveGrant: "granted", control.ApproveDeny: "denied",
		control.ApproveWithdraw: "took back"}[op]
	text := fmt.Sprintf("%s request %s of session %s: %s", done, reply.Approval.ID, reply.Approval.Session,
		actionText(reply.Approval))
	if op == control.ApproveGrant {
		text += ", " + changeText(reply)
	}
	_, err := fmt.Fprintf(a.Stdout, "%s\nstatus: %s\n", text, approvalStatus(reply.Approval))
	if err != nil {
		return cli.Printed(err)
	}
	if op == control.ApproveGrant && !reply.Counted {
		fmt.Fprintf(a.Stderr, "artifactfs: the policy does not count this grant of %s\n", reply.Actor)
	}
	return nil
}

// reviewListCommand returns the command "session review list".
func reviewListCommand(a *cli.App) *cobra.Command {
	var of, remote, to string
	var all bool
	cmd := &cobra.Command{
		Use:   "list [SESSION|LINK] [--all]",
		Short: "List the requests for approval of a session",
		Long: `List prints the requests for approval of a session that wait for reviewers or are granted, and the newest request.
It lists the requests on the session remote and, for a session of this host, those on the mounted remote. A request is
void if the session was changed after the checkpoint that was reviewed; if the session is mounted and was changed,
list makes a checkpoint first. --all also prints all requests that are void, denied, withdrawn or expired.

` + addressHelp,
		Example: `  artifactfs session review list
  artifactfs session review list https://git.example.org/work.git#session=fix-login --all
  artifactfs session review list --json | jq -r '.approvals[] | select(.status == "granted").id'`,
		Args: func(cmd *cobra.Command, args []string) error { return atMostOne(cmd, args, of) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return approvals(cmd.Context(), a, of, remote, to, cli.First(args), all)
		},
		ValidArgsFunction: CompleteSessions(a, 1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&all, "all", false, "also list requests that are void, denied, withdrawn or expired")
	f.StringVar(&to, "to", "",
		"list the requests in the repository `URL` (default: the session remote and the\nmounted remote)")
	ofFlag(a, cmd, &of)
	farFlag(a, cmd, &remote)
	return cmd
}

// approvals prints a table of requests for approval. The parameter word is the name of a session, a link, or "".
func approvals(ctx context.Context, a *cli.App, of, remote, to, word string, all bool) error {
	// Unlike in other commands, a word without "@" is the name of a session, because a list needs no checkpoint.
	if _, link, _ := cli.LinkIn("review list", word); !link && of == "" && remote == "" {
		of, word = word, ""
		of, _, _ = strings.Cut(of, "@")
	}
	w, _, err := workAt(ctx, a, "review list", of, remote, word)
	if err != nil {
		return err
	}
	at, err := loginAt(ctx, a, "review list", to)
	if err != nil {
		return err
	}
	if w, err = reviewed(ctx, a, w); err != nil {
		return err
	}
	reply, err := w.client.SessionApprovals(ctx, control.SessionApprovalsRequest{Of: w.of, SessionRemote: w.at, To: at})
	if err != nil {
		return cli.Failure("list approvals of", w.name(), err)
	}
	for _, why := range reply.Unread {
		fmt.Fprintf(a.Stderr, "artifactfs: requests on the mounted remote are missing: %s\n", why)
	}
	if !all {
		newest := ""
		if len(reply.Approvals) > 0 {
			newest = reply.Approvals[0].ID
		}
		reply.Approvals = slices.DeleteFunc(reply.Approvals, func(r control.Approval) bool {
			return r.Status != "open" && r.Status != "granted" && r.ID != newest
		})
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	if len(reply.Approvals) == 0 {
		return nil
	}
	now := time.Now()
	t := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REQUEST\tACTION\tTARGET\tSTATUS\tGRANTED BY\tMISSING\tEXPIRES")
	for _, r := range reply.Approvals {
		target, grants, missing := r.Branch, voters(r.Grants), r.Missing
		if target == "" {
			target = "-"
		}
		if r.Repository != reply.Repository {
			target += " of " + r.Repository
		}
		if r.Moved && (r.Status == "open" || r.Status == "granted") {
			missing = "new request, because " + r.Branch + " has moved"
		} else if r.Status != "open" || missing == "" {
			missing = "-"
		}
		expires := "-"
		if r.Expires.After(now) {
			expires = "in " + cli.Age(r.Expires.Sub(now))
		}
		status := r.Status
		if r.Status == "denied" {
			status += " by " + voters(r.Denials)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Action, target, status, grants, missing, expires)
	}
	return cli.Printed(t.Flush())
}

// voters returns the names of the users who have voted, or "-" if there are none.
func voters(votes []control.Vote) string {
	var names []string
	for _, v := range votes {
		names = append(names, v.Actor)
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}
