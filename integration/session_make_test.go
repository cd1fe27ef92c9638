package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A session remote at a path that does not exist is created. If the parent directory does not exist, mount fails.
func TestSessionRemoteIsCreated(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			w := newWorld(t)
			r := w.repo("r.git", f)
			must[object.ID](t)(r.Sized(3, 3))
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			at := filepath.Join(w.root, "new.git")
			none := w.afs("mount", url, w.place("none"), "--session", "work", "--session-remote",
				filepath.Join(w.root, "no/such/new.git"))
			if none.code != control.ExitUsage || !strings.Contains(none.stderr, "no/such does not exist") ||
				!strings.Contains(none.stderr, "mkdir -p") {
				t.Errorf("session remote below a missing directory: %s", none)
			}
			m := w.bare(url, "--session", "work", "--session-remote", at, "--wait", "git")
			if st, err := os.Stat(at); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("stat of the session remote: got %v, %v, want a directory of mode 0700", st, err)
			}
			w.sh(m.Dir, "echo new >new && git add new && git commit -qm new")
			m.checkpoint("--sync")
			if st := m.pushed(); st.Mode != "thin" {
				t.Errorf("status: got %+v", st)
			}
			before := w.look(m.Dir)
			w.unmount(m)
			w.sound(at)
			o := w.elsewhere()
			again := o.bare(url, "--session", "work", "--session-remote", at, "--wait", "git")
			w.same("resumed elsewhere", before, o.look(again.Dir))
			o.unmount(again)
		})
	}
}
