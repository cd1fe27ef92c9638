package integration

import (
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A state directory may have any name, also one that is a pattern of file names.
func TestStateDirectoryIsNoPattern(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.state = filepath.Join(w.root, "s[t]*?")
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(3, 3))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo one >one && git add one && git commit -qm one")
	m.checkpoint()
	fork := mounted{control.MountReply{Dir: w.place("fork")}, w}
	w.ok("session", "fork", "-C", m.Dir, fork.Dir, "--session", "fork", "--wait", "git")
	w.sh(fork.Dir, "echo theirs >one && git commit -qam theirs")
	fork.checkpoint()
	w.sh(m.Dir, "sed -i '$ a ours' d0000/f0000.txt && git commit -qam ours")
	w.ok("session", "merge", "fork", "-C", m.Dir)
	w.wantFile(m.path("one"), "theirs\n")
	w.git(m.Dir, "commit", "-qam", "merged")
	if got := w.git(m.Dir, "fsck", "--connectivity-only", "--no-dangling"); got != "" {
		t.Errorf("git fsck after the merge: got %q, want nothing", got)
	}
	before := w.look(m.Dir)
	w.unmount(m)
	w.ok("cache", "gc")
	again := w.bare(m.Remote, "--session", "work", "--wait", "git")
	w.same("resumed", before, w.look(again.Dir))
}
