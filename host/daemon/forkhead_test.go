package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// TestAForkStartsOnItsOwnBranch checks HEAD and the branches of forks that start with another HEAD, from a session
// without and with changes, after a kill of the daemon, and that a fork which cannot start so leaves nothing.
func TestAForkStartsOnItsOwnBranch(t *testing.T) {
	t.Parallel()
	k, r, _ := parentSession(t)
	k.mount(r)
	fork := func(of, name string, head *control.NewHead) error {
		f := r
		f.Dir, f.Session = k.dir(name), name
		_, err := k.client.Fork(t.Context(), control.ForkRequest{Of: of, Mount: f, Head: head}, nil)
		return err
	}
	const head = "git symbolic-ref -q HEAD || echo detached; git rev-parse HEAD; git status --porcelain"
	want := strings.TrimSpace(k.sh(r.Dir, "git symbolic-ref HEAD"))
	commit := strings.TrimSpace(k.sh(r.Dir, "git rev-parse HEAD"))
	check := func(name, branch, changes string) {
		t.Helper()
		if got := k.sh(k.dir(name), head); got != branch+"\n"+commit+"\n"+changes {
			t.Errorf("HEAD of %s: got %q, want %s", name, got, branch)
		}
	}
	if err := fork("work", "clean", &control.NewHead{Branch: "clean"}); err != nil {
		t.Fatal(err)
	}
	check("clean", "refs/heads/clean", "")
	k.sh(r.Dir, "git branch old; git branch dir/name; echo new >new; git add new")
	if err := fork("work", "fix", &control.NewHead{Branch: "fix"}); err != nil {
		t.Fatal(err)
	}
	// The daemon is killed before git has read the git directory of the fork.
	k.kill()
	k.again()
	check("fix", "refs/heads/fix", "A  new\n")
	got := k.sh(k.dir("fix"), "git for-each-ref --format='%(refname)' refs/heads; git config branch.fix.merge || true")
	if got != "refs/heads/dir/name\nrefs/heads/fix\n"+want+"\nrefs/heads/old\n" {
		t.Errorf("branches of the fork: got %q", got)
	}
	if err := fork("fix", "again", nil); err != nil { // a fork of the fork starts on the same branch
		t.Fatal(err)
	}
	check("again", "refs/heads/fix", "A  new\n")
	if err := fork("work", "moved", &control.NewHead{Branch: "old", Reset: true}); err != nil {
		t.Fatal(err)
	}
	check("moved", "refs/heads/old", "A  new\n")
	if err := fork("work", "loose", &control.NewHead{Detach: true}); err != nil {
		t.Fatal(err)
	}
	check("loose", "detached", "A  new\n")

	// The fork is unmounted at once, perhaps before it has a git directory.
	if err := fork("work", "quick", &control.NewHead{Branch: "quick"}); err != nil {
		t.Fatal(err)
	}
	k.sh(k.dir("quick"), "echo mine >mine")
	k.unmount(k.dir("quick"))
	made, err := k.client.SessionLog(t.Context(), control.SessionLogRequest{Of: "quick"})
	if err != nil || len(made.Checkpoints) == 0 || made.Checkpoints[0].Branch != "quick" {
		t.Errorf("checkpoints of a fork that was unmounted at once: got %+v, %v, want one on its branch", made, err)
	}

	for name, cause := range map[string]string{"old": "branch already exists", "dir": "cannot exist beside another branch",
		"old/x": "cannot exist beside another branch"} {
		e := control.AsError(fork("work", "none", &control.NewHead{Branch: name}))
		if e == nil || e.ErrorCode() != control.CodeConflict || !strings.Contains(e.Cause, cause) {
			t.Errorf("fork on the branch %s: got %v, want %s", name, e, cause)
		}
	}
	k.sh(r.Dir, "d=$(git rev-parse --git-dir)/rebase-merge; mkdir $d; echo "+want+" >$d/head-name")
	if e := control.AsError(fork("work", "none", &control.NewHead{Branch: "none"})); e == nil ||
		!strings.Contains(e.Cause, "git is rebasing") {
		t.Errorf("fork on a branch during a rebase: got %v", e)
	}
	if _, err := os.Lstat(filepath.Join(k.state, "mounts", "none")); err == nil {
		t.Error("a fork that was refused has left its home")
	}
	for _, name := range []string{"clean", "fix", "again", "moved", "loose", "m"} {
		k.unmount(k.dir(name))
	}
}
