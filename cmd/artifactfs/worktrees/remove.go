package worktrees

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
)

// removeCommand returns the command "worktree remove".
func removeCommand(a *cli.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove PATH",
		Short: "Remove a working tree, and keep its session in the trash",
		Long: `Remove unmounts the fork at PATH, removes the directory, and moves the session to the trash. It makes a last checkpoint
before, and prints the one command that brings everything back for 7 days: files, index, branches, stashes, commits and
the transcript.

As git worktree remove, it refuses a tree with modified or untracked files, unless --force is given. It also refuses a
tree with commits or stashes that neither its parent nor a remote has: the branches of a fork are its own, and are
removed with it. artifactfs session merge takes its work over into another tree.

The tree from which all others were forked is never removed. A worktree that git worktree add has made is removed by
git. If it is in the mount of its repository, a checkpoint of the mount keeps what was in it, except ignored files.
Elsewhere nothing would keep it, so --force is refused.`,
		Example: `  artifactfs worktree remove ../fix
  artifactfs worktree remove --force ../fix`,
		Args: cli.Arguments(1, 1, "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return remove(cmd.Context(), a, args[0], force)
		},
		ValidArgsFunction: a.CompleteMounts(1),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove a tree with changes or with commits of its own, too")
	return cmd
}

// removed is the output of "worktree remove --json".
type removed struct {
	Path       string    `json:"path"`
	Session    string    `json:"session,omitempty"`    // session in the trash; missing: nothing was done in the tree
	Until      time.Time `json:"until,omitzero"`       // end of the time for which the session can be restored
	Restore    string    `json:"restore,omitempty"`    // command that restores the session and mounts it at Path
	Checkpoint string    `json:"checkpoint,omitempty"` // checkpoint with the last state of a linked worktree
}

// refusal returns the error of a tree that is not removed.
func refusal(path, hint, format string, args ...any) error {
	return &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "remove worktree", Object: path,
		Cause: fmt.Sprintf(format, args...), Hint: hint}
}

// remove removes the tree at path and prints how it can be brought back.
func remove(ctx context.Context, a *cli.App, path string, force bool) error {
	all, asked := a.Mounts(ctx)
	m, err := cli.Find(all, asked, "remove worktree", path)
	if err != nil || !slices.Contains(cli.Spellings(path), m.Dir) {
		if s, ok := cli.FindUnmounted(all, path); ok {
			return removeUnmounted(ctx, a, s, path, force)
		}
		return removeLinked(ctx, a, path, m, force)
	}
	members, err := membersOf(ctx, a, m, path)
	if err != nil {
		return err
	}
	if !force {
		if err := checkUnused(ctx, path, m, members); err != nil {
			return err
		}
	}
	reply, err := m.Client.Unmount(ctx, control.UnmountRequest{Dir: m.Dir, Discard: true, Trash: true, Timeout: -1})
	if err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	return afterRemoval(a, m, reply)
}

// membersOf returns the family of the tree m, or an error if m is a main working tree, which is not removed.
func membersOf(ctx context.Context, a *cli.App, m cli.Served, path string) ([]member, error) {
	members, err := family(ctx, a, m.Session.Name, false)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(members, func(o member) bool { return o.Name == m.Session.Name })
	if m.Session.Name == "" || m.ReadOnly || at < 0 || isMain(ctx, members[at], m.MountStatus) {
		return nil, refusal(path, "run artifactfs unmount "+cli.ShellWord(m.Dir)+" to unmount it",
			"'%s' is a main working tree", path)
	}
	return members, nil
}

// afterRemoval removes the directory of the tree m that was unmounted, and prints the result.
func afterRemoval(a *cli.App, m cli.Served, reply control.UnmountReply) error {
	_ = os.Remove(m.Dir) // the daemon removes only directories that it has made; a directory with files stays
	if reply.NotRemoved != "" {
		fmt.Fprintf(a.Stderr,
			"artifactfs: %s\nhint: run artifactfs session delete %s --session-remote URL to delete it there\n",
			cli.OneLine(reply.NotRemoved), m.Session.Name)
	}
	if a.JSON {
		command, until := cli.RestoreCommand(m.MountStatus, reply)
		return cli.PrintJSON(a.Stdout, removed{Path: m.Dir, Session: reply.Trashed, Until: until, Restore: command})
	}
	if _, err := fmt.Fprintf(a.Stdout, "removed %s\n", m.Dir); err != nil {
		return cli.Printed(err)
	}
	cli.PrintTrashed(a, m.MountStatus, reply)
	return nil
}

// isMain reports whether the tree of a session, with the status of its mount, is the main tree: it is neither a fork
// nor a tree of a clone.
func isMain(ctx context.Context, o member, m control.MountStatus) bool {
	_, ok := cloneOf(ctx, m)
	return parentOf(o.SessionInfo) == "" && !ok
}

// checkUnused returns an error if the tree has changes, or commits or stashes that are neither on a remote nor in the
// tree of its parent, or in the clone of which it is a tree.
func checkUnused(ctx context.Context, path string, m cli.Served, members []member) error {
	const hint = "add --force to remove it nevertheless; its session stays in the trash for 7 days"
	changes, err := git(ctx, m.Dir, "status", "--porcelain", "--ignore-submodules=none")
	if err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	if changes != "" {
		return refusal(path, hint, "'%s' contains modified or untracked files", path)
	}
	revisions, err := heads(ctx, m.Dir)
	if err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	own, err := stashes(ctx, m.Dir)
	if err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	lack := "no remote has"
	exclude := func(dir string) {
		ids, err := git(ctx, dir, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/remotes", "refs/tags")
		if at, headErr := heads(ctx, dir); err == nil && headErr == nil {
			for _, id := range append(at, strings.Fields(ids)...) {
				revisions = append(revisions, "^"+id)
			}
			lack = "neither a remote nor " + dir + " has"
		}
	}
	if c, ok := cloneOf(ctx, m.MountStatus); ok {
		exclude(c.dir)
	}
	parent := ""
	if i := slices.IndexFunc(members, func(o member) bool { return o.Name == m.Session.Name }); i >= 0 {
		parent = parentOf(members[i].SessionInfo)
	}
	for _, o := range members {
		if o.Name != parent || o.mount == nil {
			continue
		}
		exclude(o.Dir)
		if its, err := stashes(ctx, o.Dir); err == nil {
			own = slices.DeleteFunc(own, func(id string) bool { return slices.Contains(its, id) })
		}
	}
	for _, c := range []struct{ what, refs string }{{"commits", "--branches"}, {"tagged commits", "--tags"}} {
		// Commits of the parent that this tree does not have are ignored, and not fetched.
		cmd := gitcmd.New(ctx, "-C", m.Dir, "rev-list", "--count", "--ignore-missing", c.refs, "--stdin", "--not",
			"--remotes")
		cmd.Stdin = strings.NewReader(strings.Join(append(revisions, ""), "\n"))
		cmd.Env = append(cmd.Env, gitcmd.NoFetch)
		out, err := gitcmd.Output(cmd)
		if err != nil {
			return cli.Failure("remove worktree", path, err)
		}
		if count := strings.TrimSpace(string(out)); count != "0" {
			return refusal(path, "run artifactfs session merge "+m.Session.Name+" in another tree to take them over, or "+hint,
				"'%s' contains %s that %s: %s", path, c.what, lack, count)
		}
	}
	if len(own) > 0 {
		return refusal(path, hint, "'%s' contains stashes that are nowhere else: %d", path, len(own))
	}
	return nil
}

// heads returns the commits of HEAD of the working tree at dir and of its linked worktrees.
func heads(ctx context.Context, dir string) (ids []string, err error) {
	text, err := git(ctx, dir, "worktree", "list", "--porcelain", "-z")
	for _, t := range parseTrees(text) {
		if strings.Trim(t.Head, "0") != "" { // HEAD of an unborn branch has no commit
			ids = append(ids, t.Head)
		}
	}
	return ids, err
}

// stashes returns the commits of the stashes of the tree at dir.
func stashes(ctx context.Context, dir string) ([]string, error) {
	text, err := git(ctx, dir, "stash", "list", "--format=%H")
	return strings.Fields(text), err
}

// removeUnmounted moves the session of a fork that is not mounted to the trash.
func removeUnmounted(ctx context.Context, a *cli.App, s cli.Served, path string, force bool) error {
	members, err := family(ctx, a, s.Session.Name, false)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(members, func(o member) bool { return o.Name == s.Session.Name })
	if at < 0 || isMain(ctx, members[at], s.MountStatus) {
		return refusal(path, "run artifactfs session delete "+s.Session.Name+" to delete the session",
			"'%s' is a main working tree", path)
	}
	if !force {
		return refusal(path, "run "+cli.ResumeCommand(s.MountStatus)+" to see its changes, or add --force to remove it",
			"session %s is not mounted", s.Session.Name)
	}
	client, err := a.EnsureDaemon(ctx)
	if err != nil {
		return err
	}
	reply, err := client.SessionDelete(ctx, control.SessionDeleteRequest{Of: s.Session.Name})
	if err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	cli.PrintStays(a, reply)
	if _, err := mountpoint.RemoveDead(ctx, s.Dir); err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	_ = os.Remove(s.Dir) // a directory with files stays
	trashed := control.UnmountReply{Dir: s.Dir, Trashed: reply.Session, Until: reply.Until}
	if a.JSON {
		command, until := cli.RestoreCommand(s.MountStatus, trashed)
		return cli.PrintJSON(a.Stdout, removed{Path: s.Dir, Session: reply.Session, Until: until, Restore: command})
	}
	if _, err := fmt.Fprintf(a.Stdout, "removed %s\n", s.Dir); err != nil {
		return cli.Printed(err)
	}
	cli.PrintTrashed(a, s.MountStatus, trashed)
	return nil
}

// removeLinked removes a worktree that git worktree add has made. If it is in the mount m, and of its repository, a
// checkpoint that contains it is made before.
func removeLinked(ctx context.Context, a *cli.App, path string, m cli.Served, force bool) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	top, err := git(ctx, abs, "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir")
	lines := strings.Split(top, "\n")
	if err != nil || len(lines) != 3 || !slices.Contains(cli.Spellings(path), lines[0]) || lines[1] == lines[2] {
		return &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: "remove worktree",
			Object: path, Cause: fmt.Sprintf("'%s' is not a working tree", path),
			Hint: "run artifactfs worktree list to see the trees"}
	}
	done := removed{Path: lines[0]}
	keeps := m.Mounted() && m.Session.Name != "" && !m.ReadOnly
	if keeps {
		common, err := git(ctx, m.Dir, "rev-parse", "--path-format=absolute", "--git-common-dir")
		keeps = err == nil && common == lines[2]
	}
	if force && !keeps {
		return refusal(path, "run git worktree remove --force "+cli.ShellWord(lines[0])+" in its repository, which keeps nothing",
			"no checkpoint can keep the linked worktree '%s'", path)
	}
	if keeps {
		reply, err := m.Client.Checkpoint(ctx, control.CheckpointRequest{Dir: m.Dir,
			Message: "before the removal of the worktree " + filepath.Base(lines[0])}, nil)
		if err != nil {
			return cli.Failure("remove worktree", path, err)
		}
		done.Checkpoint = reply.ID
	}
	args := []string{"worktree", "remove"}
	if force {
		args = append(args, "--force")
	}
	// The directory of the worktree is removed, so git runs in that of the repository.
	cmd := gitcmd.New(ctx, append(append([]string{"--git-dir=" + lines[2]}, args...), lines[0])...)
	if err := gitcmd.Run(cmd); err != nil {
		return cli.Failure("remove worktree", path, err)
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, done)
	}
	if _, err := fmt.Fprintf(a.Stdout, "removed %s\n", done.Path); err != nil || done.Checkpoint == "" || a.Quiet {
		return cli.Printed(err)
	}
	fmt.Fprintf(a.Stderr, "artifactfs: checkpoint %s of session %s has what was in it\n", done.Checkpoint, m.Session.Name)
	return nil
}
