package gitdir

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestUpdateDoesNotWaitForever checks that a git command is killed that waits for a pipe in the git directory.
func TestUpdateDoesNotWaitForever(t *testing.T) {
	asGittest(t)
	work := t.TempDir()
	path := filepath.Join(work, ".git")
	for _, args := range [][]string{{"init", "--quiet", "--initial-branch=main"},
		{"commit", "--quiet", "--allow-empty", "--message=one"}} {
		if _, err := gittest.Git(t.Context(), work, args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(path, "refs", "heads", "new"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := commands{path: path, workTree: work}
	ended := make(chan error, 1)
	go func() {
		ended <- c.updateWithin(t.Context(), time.Second, []string{"refs/heads/new"}, "branch", "new", "main")
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("git has made a branch where a pipe is")
		}
	case <-time.After(time.Minute):
		t.Error("git waits for a pipe")
	}
	if left, err := filepath.Glob(filepath.Join(path, updatePrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("notes that were left: %v, %v", left, err)
	}
}
