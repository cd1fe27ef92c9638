package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// switchCommand returns the command "switch". The daemon changes the working tree and the index; this process runs the
// post-checkout hook.
func switchCommand(a *cli.App) *cobra.Command {
	var r control.SwitchRequest
	dir := "."
	cmd := &cobra.Command{
		Use:   "switch [-C DIR] [-c NAME] [--detach] [BRANCH|COMMIT|-]",
		Short: "Switch a mount to another branch without downloading its files",
		Long: `Switch changes the branch of the mount at DIR, as git switch does, but without downloading files: it changes only the
entries that differ, and their contents are fetched when they are read. - names the previous branch.

Local changes are kept. If the switch would overwrite one of them, it fails and changes nothing. For a branch that
exists only on the remote, switch creates a local branch that tracks it, as git switch does. The post-checkout hook of
the repository runs after the switch. With mount --git-dir inside, it runs only if the command is run in the container.

git switch and git checkout work too, but they download every file that they write.`,
		Example: `  artifactfs switch -C git next
  artifactfs switch --detach v2.44.0
  artifactfs switch -c fix origin/maint`,
		Args: cli.Arguments(0, 1, "[BRANCH|COMMIT|-]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				r.Ref = args[0]
			}
			return switchTo(cmd.Context(), a, dir, r)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&dir, "directory", "C", dir, "use the mount that contains `DIR`")
	f.StringVarP(&r.Create, "create", "c", "",
		"create the branch `NAME` at BRANCH or COMMIT (default: HEAD), and switch to it")
	f.BoolVar(&r.Detach, "detach", false, "switch to a commit or tag, and detach HEAD")
	return cmd
}

// switchTo requests the switch from the daemon, prints the result, and runs the post-checkout hook. The hook runs as a
// child of this process and not of the daemon, so that it has the user's environment and permissions.
func switchTo(ctx context.Context, a *cli.App, dir string, r control.SwitchRequest) error {
	if r.Ref == "" && r.Create == "" && !r.Detach {
		return &control.Error{Code: control.ExitUsage, Verb: "switch", Cause: "branch is missing",
			Hint: "artifactfs switch --help"}
	}
	if r.Create != "" && r.Detach {
		return &control.Error{Code: control.ExitUsage, Verb: "switch", Object: r.Create,
			Cause: "-c and --detach exclude each other"}
	}
	m, err := a.Find(ctx, "switch", dir)
	if err != nil {
		return err
	}
	r.Dir = m.Dir
	p := a.NewProgress()
	reply, err := m.Client.Switch(ctx, r, p.Show)
	p.Stop()
	if err != nil {
		return cli.Failure("switch", m.Dir, err)
	}
	if a.JSON {
		err = cli.PrintJSON(a.Stdout, reply)
	} else {
		printSwitch(a.Stdout, reply)
	}
	return errors.Join(err, postCheckout(ctx, a, m, reply))
}

// printSwitch prints the messages of git switch.
func printSwitch(w io.Writer, s control.SwitchReply) {
	for _, path := range s.Kept {
		fmt.Fprintf(w, "changed at the same time, so left unchanged: %s\n", path)
	}
	switch {
	case s.Branch == "":
		fmt.Fprintf(w, "HEAD is now at %.12s\n", s.Commit)
	case s.Created:
		fmt.Fprintf(w, "Switched to a new branch '%s'\n", s.Branch)
		if s.Upstream != "" {
			fmt.Fprintf(w, "branch '%s' set up to track '%s'.\n", s.Branch, s.Upstream)
		}
	case s.Branch == s.From:
		fmt.Fprintf(w, "Already on '%s'\n", s.Branch)
	default:
		fmt.Fprintf(w, "Switched to branch '%s'\n", s.Branch)
	}
}

// postCheckout runs the repository's post-checkout hook, if it exists, as the user who runs this command. It does not
// run a hook that programs in a container can change, unless this command runs in the container too.
func postCheckout(ctx context.Context, a *cli.App, m cli.Served, s control.SwitchReply) error {
	out, err := gitcmd.AsUser(ctx, "-C", s.Dir, "rev-parse", "--git-path", "hooks/post-checkout").Output()
	hook := strings.TrimSuffix(string(out), "\n")
	if !filepath.IsAbs(hook) {
		hook = filepath.Join(s.Dir, hook)
	}
	if info, statErr := os.Stat(hook); err != nil || statErr != nil || info.Mode()&0o111 == 0 {
		return nil
	}
	if dir, err := os.Lstat(filepath.Join(s.Dir, ".git")); err == nil && dir.IsDir() && !m.Guest() {
		fmt.Fprintln(a.Stderr, "the hook post-checkout was not run, because programs in a container can change it")
		return nil
	}
	cmd := exec.CommandContext(ctx, hook, s.FromCommit, s.Commit, "1")
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, a.Stderr, a.Stderr
	if err := cmd.Run(); err != nil {
		return &control.Error{Code: control.ExitFailed, Verb: "run", Object: hook, Cause: err.Error(),
			Hint: "the switch itself was successful"}
	}
	return nil
}
