package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestNoGitWithoutIndex resumes a session whose index is lost and cannot be written. With an empty index, a commit of
// one file would remove all others, so git finds no repository, and the status names the cause, until the index exists.
func TestNoGitWithoutIndex(t *testing.T) {
	for name, args := range map[string][]string{"outside": nil, "inside": {"--git-dir", "inside"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.oddRepo("r.git", object.SHA1)
			tip := r.publish("main", r.tree(r.around(true)...))
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			args = append([]string{"--session", "s", "--wait", "git"}, args...)
			m := w.bare(url, args...)
			write := func() {
				t.Helper()
				if err := os.WriteFile(m.path("root"), []byte("changed\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write()
			w.git(m.Dir, "commit", "-qam", "mine")
			mine := w.git(m.Dir, "rev-parse", "HEAD")
			w.unmount(m)
			if err := os.Remove(filepath.Join(m.gitDir(), "index")); err != nil {
				t.Fatal(err)
			}
			obstacle := filepath.Join(m.gitDir(), "index.lock")
			if err := os.MkdirAll(filepath.Join(obstacle, "x"), 0o755); err != nil {
				t.Fatal(err)
			}
			out := w.ok("mount", url, m.Dir, "--json", "--session", "s", "--history", "none", "--prefetch", "none")
			if err := json.Unmarshal([]byte(out), &m.MountReply); err != nil {
				t.Fatal(err)
			}
			check := func(when string) {
				t.Helper()
				st := m.await("status names the cause "+when, func(st control.MountStatus) bool { return st.Error != "" })
				if st.GitReady || !strings.Contains(st.Error, "write index") || st.State != control.StateDegraded {
					t.Errorf("status %s: got git ready %v, state %s, error %q, want a degraded mount whose index cannot be written",
						when, st.GitReady, st.State, st.Error)
				}
				write()
				for _, command := range []string{"status", "add root", "commit -qam two", "reset --hard", "log",
					"--git-dir=" + m.gitDir() + " --work-tree=. status"} {
					cmd := exec.Command("git", strings.Fields(command)...)
					cmd.Dir = m.Dir
					if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 128 {
						t.Errorf("%s, git %s: got %q, %v, want exit code 128", when, command, out, err)
					}
				}
				if got, err := os.ReadFile(m.path("plain/a")); err != nil || string(got) != "a\n" {
					t.Errorf("read %s: got %q, %v", when, got, err)
				}
			}
			check("after the mount")
			if err := syscall.Kill(w.serving(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			check("after the daemon was killed")
			if err := os.RemoveAll(obstacle); err != nil {
				t.Fatal(err)
			}
			m.await("git works", func(st control.MountStatus) bool { return st.GitReady })
			w.git(m.Dir, "add", "root")
			if got := w.git(m.Dir, "log", "--format=%H"); got != mine+"\n"+tip.String() {
				t.Errorf("commits after the index was written: got %q, want %s and %s", got, mine, tip)
			}
			if got := w.git(m.Dir, "ls-files"); got != "plain/a\nplain/b\nroot" {
				t.Errorf("index: got %q", got)
			}
		})
	}
}
