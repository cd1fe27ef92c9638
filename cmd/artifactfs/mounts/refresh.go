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
the same as git fetch for this branch: it only updates origin/BRANCH.

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
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "refresh", dir)
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
		behind := ""
		if r.Behind != nil {
			behind = ", " + cli.Plural(*r.Behind, "commit") + " ahead"
		}
		fmt.Fprintf(out, "%s: still at %.12s; origin/%s is at %.12s%s\n", r.Branch, r.From, r.Branch, r.To, behind)
		if r.Why != "" {
			fmt.Fprintf(hints, "artifactfs: not moved: %s\n", r.Why)
		} else {
			fmt.Fprintf(hints, "hint: git merge --ff-only origin/%s updates the branch; a mount made with --follow does so automatically\n",
				r.Branch)
		}
	}
}
