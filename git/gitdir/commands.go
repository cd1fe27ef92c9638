package gitdir

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/object"
)

// commands runs git commands on the git directory of a mount and its working tree, and removes the lock files of git
// commands that were killed. Dir uses it for all data that git itself must read or change. It needs no lock, because
// its fields do not change.
type commands struct {
	path, workTree string   // path is the git directory, and workTree is the root of the mount
	env            []string // environment of the user; empty: that of this process
}

// objects resolves names to object ids. The id of a name that cannot be resolved is zero.
func (c *commands) objects(ctx context.Context, names ...string) ([]object.ID, error) {
	out, err := c.output(ctx, []byte(strings.Join(names, "\n")+"\n"), "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return nil, err
	}
	ids := make([]object.ID, len(names))
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(names) {
		return nil, fmt.Errorf("look up objects: git printed %d lines for %d names", len(lines), len(names))
	}
	for i, line := range lines {
		// for a name that cannot be resolved, git prints "missing" or "ambiguous"
		if id, err := object.ParseID(line); err == nil {
			ids[i] = id
		}
	}
	return ids, nil
}

// output runs a git command on this directory and its working tree and returns the output. The command does not take
// optional locks, so it cannot disturb a git command of the user.
func (c *commands) output(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := c.command(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	return gitcmd.Output(cmd)
}

// command returns a git command that neither prompts the user nor fetches objects. It must not change HEAD or the
// configuration.
func (c *commands) command(ctx context.Context, args ...string) *exec.Cmd {
	r, err := guard.Open(ctx, c.path)
	cmd := c.in(ctx, r, args...)
	if err != nil {
		cmd.Err = err
	}
	return cmd
}

// in returns the git command of the method command in a repository that stands for the git directory.
func (c *commands) in(ctx context.Context, r gitcmd.Repo, args ...string) *exec.Cmd {
	r.Cwd, r.Options = "/", []string{"--work-tree", c.workTree, "--no-optional-locks"}
	r.Base, r.Env = gitcmd.Environ(environment(c.env)), []string{gitcmd.NoFetch, gitcmd.MagicPaths}
	return r.Command(ctx, args...)
}
