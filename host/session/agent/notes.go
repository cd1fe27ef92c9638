package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// maxLoose is the maximum number of objects that are unpacked into loose objects in the mount's git directory. More
// objects are stored as a pack, as git fetch does.
const maxLoose = 100

// mergedNotes updates notes refs in the mount's git directory, after notes of other sessions were merged into them, and
// records these updates.
type mergedNotes struct {
	mu sync.Mutex
	// newest merge commit of each notes ref, even if the update of the ref has not ended yet; protected by mu
	commits map[string]object.ID
}

// move updates a notes ref in the mount's git directory from old to merged, unless the user has changed the ref at the
// same time. It copies the objects of merged from the session repository.
func (n *mergedNotes) move(ctx context.Context, p place, ref string, old, merged object.ID) error {
	git := p.gitDir
	pack := gitAt(ctx, filepath.Join(p.home, statedir.SessionRepoName), "pack-objects", "-q", "--revs", "--stdout")
	pack.Stdin = strings.NewReader(fmt.Sprintf("%s\n^%s\n", merged, old))
	if err := pipeObjects(ctx, pack, git); err != nil {
		return fmt.Errorf("fetch %s: %w", ref, err)
	}
	n.mu.Lock()
	if n.commits == nil {
		n.commits = map[string]object.ID{}
	}
	// recorded before the update, so that a capture that reads the new value of the ref finds the commit here
	n.commits[ref] = merged
	n.mu.Unlock()
	// The user's hooks must not run, because the user did not start this command.
	move := gitAt(ctx, git, "-c", "core.hooksPath="+os.DevNull, "update-ref",
		"-m", "notes of other sessions", ref, merged.String(), old.String())
	if err := gitcmd.Run(move); err != nil {
		return fmt.Errorf("update ref %s: %w", ref, err)
	}
	return nil
}

// commit returns the last commit to which move has set the notes ref, or is about to set it, or the zero ID if there is
// none.
func (n *mergedNotes) commit(ref string) object.ID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.commits[ref]
}

// pipeObjects runs the command pack, which prints a pack, and stores the objects of the pack in the git directory to.
func pipeObjects(ctx context.Context, pack *exec.Cmd, to string) error {
	return gitcmd.Stream(pack, func(out io.Reader) error {
		in := bufio.NewReader(out)
		args := []string{"unpack-objects", "-q"}
		// The header of a pack is "PACK", the version, and the number of objects (gitformat-pack(5)).
		if head, err := in.Peek(12); err == nil && binary.BigEndian.Uint32(head[8:]) > maxLoose {
			args = []string{"index-pack", "--stdin"}
		}
		unpack := gitAt(ctx, to, args...)
		unpack.Stdin = in
		return gitcmd.Run(unpack)
	})
}

// gitAt returns a git command that uses the git directory dir and no working tree, and that fetches nothing.
func gitAt(ctx context.Context, dir string, args ...string) *exec.Cmd {
	r := gitcmd.Repo{Dir: dir, Base: gitcmd.IsolatedEnviron(), Options: []string{"--work-tree=" + dir},
		Env: gitcmd.Identity()}
	return r.Command(ctx, args...)
}
