// Package worktrees contains the command "worktree", which has the words of git worktree. The working trees that it
// makes are forks of a session: mounts with a git directory of their own.
package worktrees

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// WorktreeCommand returns the command "worktree" with its subcommands.
func WorktreeCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "worktree COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Work on several branches at once, each in a tree of its own",
		Long: `Worktree makes further working trees of a mount, with the words of git worktree. Each is a fork of the session: a mount
with files, index, branches, stashes and checkpoints of its own. It is there at once, whatever the size of the
repository, and what is done in it changes no other tree.

Because each tree has branches of its own, commits made in one are not in the others. artifactfs session merge SESSION
merges the work of another tree. Worktrees that git worktree add has made in a mount are listed and removed, too.

In a clone that is not a mount, the trees are mounts of the clone, as if it were a server on this host. Their branches
appear in the clone, as with git worktree.

There is no lock, move or repair: artifactfs session set --hold protects the session of a tree from removal, and a
session can be unmounted and resumed at another directory.`,
		Example: `  artifactfs worktree add ../fix
  artifactfs worktree add -b fix-login ../fix origin/main
  artifactfs worktree list
  artifactfs worktree remove ../fix`,
		Args: unknownWord,
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.AddCommand(addCommand(a), listCommand(a), removeCommand(a), pruneCommand(a))
	return cmd
}

// instead has hints for the subcommands of git worktree that this command does not have.
var instead = map[string]string{
	"lock":   "artifactfs session set --hold REASON protects the session of a tree from removal",
	"unlock": "artifactfs session set --no-hold permits the removal of the session of a tree",
	"move":   "run artifactfs unmount DIR, and then artifactfs session resume SESSION NEWDIR",
	"repair": "run artifactfs doctor to see what is wrong",
}

// unknownWord refuses all arguments, because they are no subcommands.
func unknownWord(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &control.Error{Code: control.ExitUsage, Verb: "worktree", Cause: fmt.Sprintf("unknown command %q", args[0]),
		Hint: cmp.Or(instead[args[0]], "artifactfs worktree --help")}
}

// ofFlag adds the flag -C, which selects the tree whose session is forked, or whose trees are listed.
func ofFlag(a *cli.App, cmd *cobra.Command, of *string) {
	cmd.Flags().StringVarP(of, "of", "C", "",
		"use the tree at or above DIR, or that of SESSION (`DIR|SESSION`; default: the current\n"+
			"directory); PATH stays relative to the current directory")
	if err := cmd.RegisterFlagCompletionFunc("of", sessions.CompleteSessions(a, 1<<10)); err != nil {
		panic(err) // the error means that the flag does not exist
	}
}

// git runs git in a directory and returns its output without the last newline. git finds the repository as it would
// for the user in this directory. It does not lock the index of the user's tree only to read it.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := gitcmd.New(ctx, append([]string{"-C", dir}, args...)...)
	cmd.Env = append(cmd.Env, gitcmd.NoLocks)
	out, err := gitcmd.Output(cmd)
	return strings.TrimSuffix(string(out), "\n"), err
}

// checkVisible returns an error unless artifactfs is mounted at dir in this mount namespace, and git uses the tree of
// the mount there. Otherwise git would change the repository that contains dir.
func checkVisible(ctx context.Context, dir string) error {
	if err := cli.CheckVisible("add worktree", dir); err != nil {
		return err
	}
	top, err := git(ctx, dir, "rev-parse", "--show-toplevel")
	if err == nil && top != dir {
		err = fmt.Errorf("git uses the working tree %s in %s", top, dir)
	}
	return err
}

// member is a session of a family: a session, its forks, and their forks.
type member struct {
	control.SessionInfo
	mount *cli.Served // mount of the session; nil if it is not mounted
	head  string      // short name of the branch of HEAD, or a commit, also of a session that is not mounted; "": unknown
}

// uses reports whether the tree of the session, which need not be mounted, has checked out a branch, or will check it
// out again when an operation in progress ends.
func (m member) uses(ctx context.Context, branch string) bool {
	if m.head == "" && m.mount == nil && m.Last != nil {
		m.head = m.Last.Branch
	}
	return m.head == branch || m.mount != nil && isID(m.head) && returnsTo(ctx, m.Dir, branch)
}

// isID reports whether the name of HEAD is the id of a commit: HEAD is detached.
func isID(head string) bool {
	_, err := hex.DecodeString(head)
	return err == nil && len(head) >= 40
}

// returnsTo reports whether a rebase or a bisection that is in progress in the working tree at dir, and has detached
// HEAD, will move a branch or check it out again.
func returnsTo(ctx context.Context, dir, branch string) bool {
	gitDir, err := git(ctx, dir, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return false
	}
	ref := "refs/heads/" + branch
	for file, line := range map[string]string{"rebase-merge/head-name": ref, "rebase-apply/head-name": ref,
		"rebase-merge/update-refs": ref, "BISECT_START": branch} {
		text, err := os.ReadFile(filepath.Join(gitDir, file))
		if err == nil && slices.Contains(strings.Split(string(text), "\n"), line) {
			return true
		}
	}
	return false
}

// family returns the members of the family of a session: first the session from which all others were forked, directly
// or not, and then the others by their directories. If the parent of a session is not on this host, the session is the
// first of its family. If counted is set, the mounts of the members have the numbers of changed paths.
func family(ctx context.Context, a *cli.App, name string, counted bool) ([]member, error) {
	all, mounts, err := sessionsAndMounts(ctx, a, counted)
	return familyOf(name, all, mounts), err
}

// sessionsAndMounts returns the sessions and the mounts of this host. If counted is set, the mounts have the numbers of
// changed paths.
func sessionsAndMounts(ctx context.Context, a *cli.App, counted bool) ([]control.SessionInfo, []cli.Served, error) {
	all, err := sessions.All(ctx, a)
	if err != nil || !counted {
		mounts, mountErr := a.Mounts(ctx)
		return all, mounts, cmp.Or(err, mountErr)
	}
	survey, err := a.Survey(ctx)
	return all, survey.Mounts, err
}

// familyOf is family with the sessions and mounts of this host.
func familyOf(name string, all []control.SessionInfo, mounts []cli.Served) []member {
	known, children := map[string]control.SessionInfo{}, map[string][]control.SessionInfo{}
	for _, s := range all {
		known[s.Name] = s
		children[parentOf(s)] = append(children[parentOf(s)], s)
	}
	seen := map[string]bool{}
	for parent := parentOf(known[name]); parent != "" && known[parent].Name != "" && !seen[parent]; {
		seen[parent], name = true, parent
		parent = parentOf(known[name])
	}
	var members []member
	seen = map[string]bool{name: true}
	for next := []control.SessionInfo{known[name]}; len(next) > 0; next = next[1:] {
		m := member{SessionInfo: next[0]}
		for i, s := range mounts {
			if s.ReadOnly || s.Session.Name != m.Name || m.mount != nil {
				continue
			}
			if m.head = s.Head; s.Mounted() {
				m.mount, m.Dir = &mounts[i], s.Dir
			}
		}
		if m.Name != "" {
			members = append(members, m)
		}
		for _, child := range children[m.Name] {
			if !seen[child.Name] && m.Name != "" {
				seen[child.Name] = true
				next = append(next, child)
			}
		}
	}
	if len(members) > 1 {
		slices.SortFunc(members[1:], func(x, y member) int { return cmp.Compare(x.Dir, y.Dir) })
	}
	return members
}

// parentOf returns the name of the session from which s was forked, or "".
func parentOf(s control.SessionInfo) string {
	parent, _, _ := strings.Cut(s.Parent, " ")
	return parent
}
