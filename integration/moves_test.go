package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A switch over files that a program has overwritten without reading them, so that their committed contents are not on
// this host, is refused or carries the changes like git switch, with the same exit code.
func TestSwitchOverUnreadFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("unread.git", object.SHA1)
	files := map[string]gittest.File{}
	for _, name := range []string{"same", "changed", "gone", "mode"} {
		files["a/"+name] = gittest.File{Data: []byte("committed " + name + "\n")}
	}
	w.commit(r, files)
	w.git(r.Path, "branch", "old")
	w.commit(r, map[string]gittest.File{"a/changed": {Data: []byte("new\n")}, "a/gone": {Delete: true},
		"a/come": {Data: []byte("come\n")},
		"a/mode": {Data: []byte("committed mode\n"), Mode: "100755"}})
	url := w.serve(gittest.ServerOptions{}).URL("unread.git")
	for i, edit := range []string{
		"echo mine >a/same", "echo mine >a/changed", "echo new >a/changed", "echo mine >a/come", "echo come >a/come",
		"echo mine >a/gone",
		"echo mine >a/mode", "chmod -x a/mode", "rm a/changed", "mv a b", "echo mine >a/changed; git add a",
		"echo mine >a/same; git add a",
	} {
		clone := w.clone(url)
		m, _ := w.mountAt(url, filepath.Join(w.root, fmt.Sprintf("unread-%d", i)), "--prefetch", "none")
		for _, dir := range []string{clone, m.Dir} {
			if out, err := exec.Command("sh", "-ec", "cd "+dir+" && "+edit).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", edit, err, out)
			}
		}
		out, _ := exec.Command("git", "-C", clone, "switch", "-q", "old").CombinedOutput()
		got := w.afs("switch", "-C", m.Dir, "old")
		want := 0
		if strings.Contains(string(out), "Aborting") {
			want = 1
		}
		if got.code != want {
			t.Errorf("%s: %s\ngit switch:\n%s", edit, got, out)
		}
		for _, args := range [][]string{{"status", "--porcelain"}, {"rev-parse", "--abbrev-ref", "HEAD"},
			{"ls-files", "-s"}} {
			if got, want := w.git(m.Dir, args...), w.git(clone, args...); got != want {
				t.Errorf("%s: git %q:\n%s\nwant:\n%s", edit, args, got, want)
			}
		}
		w.unmount(m)
	}
}
