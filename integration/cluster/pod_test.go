package cluster

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestPod is a pod that reads, writes and commits in a volume.
func TestPod(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	hashedRepo(t, filepath.Join(dir, "app.git"), 100)
	_, err := gittest.NewReceiver(filepath.Join(dir, "s.git"), gittest.RepoOptions{})
	check(t, err)
	s := serve(t, gittest.ServerOptions{Root: dir})
	check(t, w.Apply(pod{name: "first", image: nodeImage, command: "sleep 1000000", attributes: map[string]string{
		"remote": s.URL("app.git"), "sessionRemote": s.URL("s.git")}}.yaml()))
	check(t, w.WaitReady(t.Context(), "default", "app=first", 1))
	for _, c := range []struct{ command, want string }{
		{"ls /work/dir00 | wc -l", "5"},
		{"echo new >/work/new && cat /work/new", "new"},
		{"cd /work && git status --porcelain", "?? new"},
		{"cd /work && git add new && git -c user.name=n -c user.email=n@example.org commit -qm new && git log --format=%s",
			"new\nfiles with hashes as names"},
	} {
		got, err := w.exec("first", c.command)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q (%v), want %q", c.command, got, err, c.want)
		}
	}
	w.remove(t, "app=first")
	check(t, w.Wait(t.Context(), "the volume is gone", w.volumesLeft))
	refs, err := gittest.Git(t.Context(), filepath.Join(dir, "s.git"), "for-each-ref")
	check(t, err)
	if !strings.Contains(refs, "default-first-work") {
		t.Errorf("refs of the session remote:\n%s", refs)
	}
	t.Log(refs)
}
