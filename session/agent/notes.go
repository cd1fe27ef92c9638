package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/statedir"
)

// looseMost is how many objects become loose ones in the mount's git directory; more stay a pack, as with git fetch.
const looseMost = 100

// mergeNotes moves a notes ref in the mount's git directory to notes that were merged with those of other sessions, unless the
// user has moved it meanwhile. The session's repository holds them.
func (a *Agent) mergeNotes(ctx context.Context, ref string, old, merged object.ID) error {
	git := a.place.gitDir
	pack := gitAt(ctx, filepath.Join(a.place.home, statedir.SessionRepoName), "pack-objects", "-q", "--revs", "--stdout")
	pack.Stdin = strings.NewReader(fmt.Sprintf("%s\n^%s\n", merged, old))
	if err := pipeObjects(ctx, pack, git); err != nil {
		return fmt.Errorf("fetch %s: %w", ref, err)
	}
	a.mu.Lock()
	if a.merged == nil {
		a.merged = map[string]object.ID{}
	}
	a.merged[ref] = merged // before the ref moves: a capture that sees the move must find it here
	a.mu.Unlock()
	// Without the user's hooks: the user did not run this command.
	move := gitAt(ctx, git, "-c", "core.hooksPath="+os.DevNull, "update-ref", "-m", "notes of other sessions", ref, merged.String(), old.String())
	if out, err := move.CombinedOutput(); err != nil {
		return fmt.Errorf("move %s: %w: %s", ref, err, bytes.TrimSpace(out))
	}
	return nil
}

// mergedNotes returns the commit that mergeNotes moved a notes ref to last, or is about to move it to.
func (a *Agent) mergedNotes(ref string) object.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.merged[ref]
}

// pipeObjects puts the pack that a command prints into a git directory.
func pipeObjects(ctx context.Context, pack *exec.Cmd, to string) error {
	var stderr bytes.Buffer
	pack.Stderr = &stderr
	out, err := pack.StdoutPipe()
	if err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	in := bufio.NewReader(out)
	args := []string{"unpack-objects", "-q"}
	// gitformat-pack(5): "PACK", version, number of objects.
	if head, err := in.Peek(12); err == nil && binary.BigEndian.Uint32(head[8:]) > looseMost {
		args = []string{"index-pack", "--stdin"}
	}
	unpack := gitAt(ctx, to, args...)
	unpack.Stdin = in
	text, err := unpack.CombinedOutput()
	if err != nil {
		io.Copy(io.Discard, in) // pack-objects waits for a reader
		err = fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(text))
	}
	if packErr := pack.Wait(); packErr != nil {
		err = fmt.Errorf("git pack-objects: %w: %s", packErr, strings.TrimSpace(stderr.String()))
	}
	return err
}

// gitAt returns a git command in a git directory that uses no work tree and fetches nothing.
func gitAt(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := gitcmd.Isolated(ctx, append([]string{"--git-dir=" + dir, "--work-tree=" + dir}, args...)...)
	cmd.Dir, cmd.Env = dir, append(cmd.Env, gitcmd.Identity()...)
	return cmd
}
