package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestUnmountAllRemovesDeadMounts checks that unmount --all removes the mounts that a killed daemon has left, with and
// without changes, and that it keeps their sessions.
func TestUnmountAllRemovesDeadMounts(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("dead"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	changed, clean := w.bare(url, "--session", "changed"), w.bare(url)
	w.check(os.WriteFile(filepath.Join(changed.Dir, "kept"), []byte("kept\n"), 0o644))
	for _, again := range []bool{false, true} {
		w.killDaemon()
		want := []string{changed.Dir, clean.Dir}
		if again { // another daemon serves another mount
			want = []string{changed.Dir, w.bare(url).Dir}
		}
		if at := mountsBelow(w.root); len(at) != 2 {
			t.Fatalf("mounts after the daemon was killed: %s, want two", at)
		}
		out := w.ok("unmount", "--all")
		for _, dir := range want {
			if !strings.Contains(out, "unmounted "+dir) {
				t.Errorf("unmount --all printed %q, want %s", out, dir)
			}
		}
		if at := mountsBelow(w.root); len(at) > 0 {
			t.Errorf("mounts after unmount --all: %s", at)
		}
		w.ok("session", "resume", "changed")
		w.wantFile(changed.path("kept"), "kept\n")
	}
}
