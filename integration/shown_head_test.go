package integration

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestShownBranchIsHead checks that the commands that mount a session again, and list, print the branch that HEAD is
// on, and not the one that was mounted first.
func TestShownBranchIsHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sized(3, 3)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work")
	w.git(m.Dir, "switch", "-q", "-c", "fix")
	base := w.git(m.Dir, "rev-parse", "--short=12", "HEAD")
	want := func(what, out, branch string) {
		t.Helper()
		if !strings.Contains(out, "mounted ") || !strings.Contains(out, "("+branch+", ") {
			t.Errorf("%s: got %q, want the branch %s", what, out, branch)
		}
	}
	if out := w.ok("list"); !strings.Contains(out, "fix") || strings.Contains(out, "main") {
		t.Errorf("list of a mount on another branch: got %q", out)
	}
	m.checkpoint()
	want("fork", w.ok("session", "fork", "work", m.Dir+"-copy"), "fix")
	want("fork with a branch", w.ok("session", "fork", "work", m.Dir+"-new", "-b", "new"), "new")
	w.ok("unmount", m.Dir)
	want("resume", w.ok("session", "resume", "work"), "fix")
	w.ok("unmount", m.Dir, "--discard", "--yes")
	want("undelete", w.ok("session", "undelete", "work", "--mount"), "fix")
	w.git(m.Dir, "switch", "-q", "main")
	w.git(m.Dir, "commit", "-q", "--allow-empty", "-m", "more")
	w.git(m.Dir, "switch", "-q", "--detach")
	now := w.git(m.Dir, "rev-parse", "--short=12", "HEAD")
	w.ok("unmount", m.Dir)
	if out := w.ok("session", "resume", "work"); now == base {
		t.Fatal("no commit was made")
	} else {
		want("resume with a detached HEAD", out, now)
	}
}
