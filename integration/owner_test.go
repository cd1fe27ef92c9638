package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// With --git-dir inside, .git belongs to the user of --uid, although the daemon runs as root and changes the same
// directory.
func TestGitDirBelongsToItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which mounts for another user")
	}
	w := newWorld(t)
	w.history("app.git")
	letIn(t, w.root)
	id := strconv.Itoa(nobody)
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("app.git"), "--git-dir", "inside", "--uid", id, "--gid", id,
		"--allow-other", "--wait", "git")
	letIn(t, filepath.Dir(m.Dir))
	asUser := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = m.Dir
		cmd.Env = append(os.Environ(), "HOME="+m.Dir, "GIT_AUTHOR_NAME=u", "GIT_AUTHOR_EMAIL=u@x", "GIT_COMMITTER_NAME=u",
			"GIT_COMMITTER_EMAIL=u@x")
		out, err := runAsNobody(cmd)
		if err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
		return out
	}
	branch :=
		strings.TrimSpace(asUser(`git symbolic-ref --short HEAD; echo one > new.txt; git add new.txt; git commit -qm one; git checkout -q -b work/a`))
	w.ok("switch", "-C", m.Dir, branch) // git runs as root in the same directory
	asUser(`git checkout -q work/a; echo two >> new.txt; git commit -qam two; git tag -a -m x v1; git fetch -q; git status --porcelain | grep . && exit 1; true`)
	syscall.Kill(w.serving(), syscall.SIGKILL)
	asUser(`echo three >> new.txt; git commit -qam three; .git/artifactfs/helper checkpoint -m x`)
	for _, c := range []struct {
		dir  string
		want uint32
	}{{m.path(".git"), nobody}, {m.gitDir(), 0}} {
		check(t, filepath.WalkDir(c.dir, func(path string, d os.DirEntry, err error) error {
			if path == m.path(".git/artifactfs") {
				return filepath.SkipDir // has files of the host
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Sys().(*syscall.Stat_t).Uid != c.want {
				t.Errorf("owner of %s: got %d, want %d", path, info.Sys().(*syscall.Stat_t).Uid, c.want)
			}
			return err
		}))
	}
}
