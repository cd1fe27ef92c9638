package worktrees

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
)

// pruning holds the arguments of the command "worktree prune".
type pruning struct {
	of, expire string
	dryRun     bool
}

// pruneCommand returns the command "worktree prune".
func pruneCommand(a *cli.App) *cobra.Command {
	var x pruning
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what is left of trees whose daemon has died",
		Long: `Prune removes the dead mounts of the family, which a daemon has left that was killed together with its supervisor, and
their empty directories. It deletes no session: artifactfs session resume mounts each of them again. Then it runs git
worktree prune in each mount of the family, for the worktrees that git worktree add has made there. In a clone that is
not a mount, and in its trees, it also runs git worktree prune in the clone.

--expire keeps what was changed after TIME, which git parses (3.days.ago, 2026-11-29).`,
		Example: `  artifactfs worktree prune -n
  artifactfs worktree prune -C fix-login --expire 3.days.ago`,
		Args:              cli.Arguments(0, 0, "no arguments"),
		RunE:              func(cmd *cobra.Command, args []string) error { return x.run(cmd.Context(), a) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&x.dryRun, "dry-run", "n", false, "remove nothing; print what would be removed")
	f.StringVar(&x.expire, "expire", "", "keep what was changed after `TIME`")
	ofFlag(a, cmd, &x.of)
	return cmd
}

// pruned is an element of the output of "worktree prune --json".
type pruned struct {
	Path    string `json:"path"`
	Session string `json:"session,omitempty"` // session that was mounted there, and is kept; missing: git has removed it
	Why     string `json:"why"`
}

// run removes dead mounts and prints them, with -v or -n.
func (x pruning) run(ctx context.Context, a *cli.App) error {
	g, err := groupOf(ctx, a, "prune worktrees", x.of, false)
	if err != nil {
		return err
	}
	until, err := x.until(ctx)
	if err != nil {
		return err
	}
	gone := []pruned{}
	var errs []error
	if g.clone != nil {
		lines, err := x.pruneLinked(ctx, g.clone.dir)
		gone, errs = append(gone, lines...), append(errs, err)
	}
	for _, m := range g.members {
		if m.mount != nil {
			// Otherwise git would prune the repository that contains the directory.
			if up, err := git(ctx, m.Dir, "rev-parse", "--show-cdup"); err != nil || up != "" {
				if err == nil {
					err = errors.New("git uses another working tree there")
				}
				errs = append(errs, cmp.Or(cli.CheckVisible("prune worktrees", m.Dir),
					cli.Failure("prune worktrees", m.Dir, err)))
				continue
			}
			lines, err := x.pruneLinked(ctx, m.Dir)
			gone, errs = append(gone, lines...), append(errs, err)
			continue
		}
		trees := m.trees(ctx, "")
		if trees[0].Prunable == "" || lastUse(m.SessionInfo).After(until) {
			continue
		}
		if !x.dryRun {
			if _, err := mountpoint.RemoveDead(ctx, m.Dir); err != nil {
				errs = append(errs, cli.Failure("prune worktree", m.Dir, err))
				continue
			}
			_ = os.Remove(m.Dir) // a directory with files stays
		}
		gone = append(gone, pruned{m.Dir, m.Name, trees[0].Prunable})
	}
	if a.JSON {
		return cli.ReportAll(a, append(errs, cli.PrintJSON(a.Stdout, map[string]any{"pruned": gone})))
	}
	for _, p := range gone {
		if !x.dryRun && !a.Verbose {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "Removing %s: %s\n", cli.OneLine(p.Path), cli.OneLine(p.Why)); err != nil {
			return cli.Printed(err)
		}
	}
	return cli.ReportAll(a, errs)
}

// until returns the time of --expire, or the present one without the flag.
func (x pruning) until(ctx context.Context) (time.Time, error) {
	now := time.Now()
	if x.expire == "" {
		return now, nil
	}
	// git prints 0 for "never", and a time in the far future for "now".
	out, err := gitcmd.Output(gitcmd.New(ctx, "-c", "artifactfs.expire="+x.expire, "config", "--type=expiry-date", "--get",
		"artifactfs.expire"))
	n, parseErr := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
	if err != nil || parseErr != nil {
		return now, &control.Error{Code: control.ExitUsage, Verb: "prune worktrees", Object: "--expire " + x.expire,
			Cause: "git cannot parse the time"}
	}
	return time.Unix(int64(min(n, uint64(now.Unix()))), 0), nil
}

// lastUse returns the time of the last checkpoint of a session, or of its last mount.
func lastUse(s control.SessionInfo) (last time.Time) {
	if s.Last != nil {
		last = s.Last.Time
	}
	for _, t := range s.History {
		if t.Time.After(last) {
			last = t.Time
		}
	}
	return last
}

// pruneLinked runs git worktree prune in the mount at dir, and returns what git has removed.
func (x pruning) pruneLinked(ctx context.Context, dir string) (gone []pruned, err error) {
	args := []string{"-C", dir, "worktree", "prune", "-v"}
	if x.dryRun {
		args = append(args, "-n")
	}
	if x.expire != "" {
		args = append(args, "--expire="+x.expire)
	}
	cmd := gitcmd.New(ctx, args...)
	out, err := cmd.CombinedOutput() // git prints the lines on stderr
	if err != nil {
		return nil, cli.Failure("prune worktrees", dir, gitcmd.Failed(cmd, err, out))
	}
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Removing "); ok {
			path, why, _ := strings.Cut(rest, ": ")
			gone = append(gone, pruned{Path: path, Why: why})
		}
	}
	return slices.Clip(gone), nil
}
