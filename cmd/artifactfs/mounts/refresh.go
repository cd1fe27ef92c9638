package mounts

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
)

// followMounted is the value of --follow without an argument.
const followMounted = "HEAD"

// completeFollow checks the flag --follow and adds its value to the request.
func (o *MountOptions) completeFollow(cmd *cobra.Command) error {
	r := &o.Request
	fail := func(cause, hint string) error {
		return &control.Error{Code: control.ExitUsage, Verb: cmd.Name(), Cause: cause, Hint: hint}
	}
	// The flag --follow-interval has a default, but a request without --follow must not contain an interval.
	interval := r.FollowInterval
	r.FollowInterval = 0
	switch {
	case o.follow == "":
		return nil
	case interval <= 0:
		return fail("--follow-interval must be positive", "an example is --follow-interval 30s")
	case r.ReadOnly && r.Session != "":
		return fail("--follow is not possible for a read-only mount of a session", "omit --session")
	case o.follow != followMounted && r.Ref != "" && r.Ref != o.follow:
		return fail("--follow="+o.follow+" and --ref "+r.Ref+" name different branches", "omit --ref")
	case o.follow != followMounted:
		r.Ref = o.follow
	}
	r.Follow, r.FollowInterval = true, interval
	return nil
}

// RefreshCommand returns the command "refresh".
func RefreshCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh [DIR]",
		Short: "Fetch the new commits of the mounted branch, and update a mount that follows it",
		Long: `Refresh fetches the new commits and trees of the mounted branch from the remote, without file contents. A mount that was
made with --follow moves to the new commit at once, unless local changes prevent it. In any other mount, refresh does
the same as git fetch for this branch: it only updates origin/BRANCH (or as the remote is called). If the branch was
rewritten there, or has other commits here, refresh prints what git can do about it.

A git server can run it after a push (from a webhook, or in a post-receive hook: ssh host artifactfs refresh /srv/app),
so that mounts do not wait for --follow-interval. Refresh also requests refused objects again, whose answers were
invalid three times. The default of DIR is the current directory.`,
		Example: `  artifactfs refresh
  artifactfs refresh /srv/app --json | jq -r .to`,
		Args: cli.Arguments(0, 1, "[DIR]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return refreshMounts(cmd.Context(), a, dir)
		},
	}
}

// refreshMounts requests a refresh from the daemon of the mount at dir, and prints the result.
func refreshMounts(ctx context.Context, a *cli.App, dir string) error {
	m, err := a.Find(ctx, "refresh", dir)
	if err != nil {
		return err
	}
	p := a.NewProgress()
	reply, err := m.Client.Refresh(ctx, control.RefreshRequest{Dir: m.Dir}, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("refresh", m.Dir, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, reply)
	}
	printRefresh(a.Stdout, a.Stderr, reply)
	return nil
}

// printRefresh prints the old and the new commit, and a hint if the mount was not updated.
func printRefresh(out, hints io.Writer, r control.RefreshReply) {
	switch {
	case r.Moved:
		fmt.Fprintf(out, "%s: %.12s..%.12s, %s changed\n", r.Branch, r.From, r.To, cli.Plural(r.Paths, "path"))
	case r.From == r.To:
		fmt.Fprintf(out, "%s: already at %.12s\n", r.Branch, r.To)
	default:
		fmt.Fprintf(out, "%s: still at %.12s; %s is at %.12s%s\n", r.Branch, r.From, r.Tracking, r.To, distanceText(r))
		if r.Why != "" {
			fmt.Fprintf(hints, "artifactfs: not moved: %s\n", r.Why)
		}
		if hint := refreshHint(r); hint != "" {
			fmt.Fprintf(hints, "hint: %s\n", hint)
		}
	}
}

// distanceText describes how many commits HEAD and the branch on the remote are apart.
func distanceText(r control.RefreshReply) string {
	switch {
	case r.Ahead == nil || r.Behind == nil:
		return ""
	case *r.Ahead == 0:
		return ", " + cli.Plural(*r.Behind, "commit") + " ahead"
	case *r.Behind == 0:
		return ", " + cli.Plural(*r.Ahead, "commit") + " behind"
	}
	return fmt.Sprintf("; they have diverged: %s and %s are on one side only", cli.Plural(*r.Ahead, "commit"),
		cli.Plural(*r.Behind, "commit"))
}

// refreshHint returns what the user can do if a refresh has not updated the branch, or "" if there is nothing to do. It
// gives the same advice as git status, and more if the branch was rewritten on the remote.
func refreshHint(r control.RefreshReply) string {
	if r.Ahead == nil || r.Behind == nil || r.Head != r.Branch {
		return ""
	}
	t := control.ShellWord(r.Tracking)
	switch {
	case *r.Ahead == 0 && r.Why != "":
		return ""
	case *r.Ahead == 0:
		return "git merge --ff-only " + t + " updates the branch; a mount made with --follow does so automatically"
	case *r.Behind == 0 && r.Own:
		return "git push publishes the commits of this branch"
	case *r.Behind == 0:
		return fmt.Sprintf("the branch was moved back on the remote; git reset --keep %s does the same here, and git push would undo it there", t)
	case r.Own:
		return "git pull --rebase moves the commits of this branch onto those of the remote, and git pull --no-rebase merges both"
	}
	return fmt.Sprintf("the branch was rewritten on the remote; git reset --keep %s takes that over (it has no commits of its own here)", t)
}
