package gitdir

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestLocksOfDeadGits checks that lock files are removed that a killed git command has left while it changed refs, and
// that lock files of other processes are kept.
func TestLocksOfDeadGits(t *testing.T) {
	asGittest(t)
	work := t.TempDir()
	path := filepath.Join(work, ".git")
	d := &Dir{path: path, git: commands{path: path, workTree: work}}
	git := func(args ...string) string {
		t.Helper()
		out, err := gittest.Git(t.Context(), work, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	git("init", "--quiet", "--initial-branch=main")
	git("commit", "--quiet", "--allow-empty", "--message=one")
	git("branch", "other")
	lock := filepath.Join(d.path, "refs", "heads", "new.lock")
	locked := func() bool {
		_, err := os.Lstat(lock)
		return !errors.Is(err, fs.ErrNotExist)
	}
	branch := func() error {
		return d.git.update(t.Context(), []string{"refs/heads/new"}, "branch", "new", "main")
	}

	hook := filepath.Join(d.path, "hooks", "reference-transaction")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\n[ $1 != prepared ] || kill -9 $PPID\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := branch(); err == nil {
		t.Fatal("the hook did not kill git")
	}
	if locked() {
		t.Error("the lock file of the killed git still exists")
	}

	// The same happens, but this process is killed as well.
	cmd := exec.Command("git", "-C", work, "branch", "new", "main")
	_ = cmd.Run()
	if !locked() {
		t.Fatal("the killed git left no lock file")
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(d.path, updatePrefix+"1")
	if err := os.WriteFile(note, []byte("refs/heads/new\nrefs/heads/oth"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = exec.Command("git", "-C", work, "branch", "new", "main").Run()
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	if err := d.BreakLocks(t.Context()); err != nil || locked() {
		t.Errorf("the lock file of a killed git still exists: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.path, updatePrefix+"*")); len(left) > 0 {
		t.Errorf("files after the repair: got %q", left)
	}
	if err := branch(); err != nil || git("rev-parse", "new") != git("rev-parse", "main") {
		t.Errorf("update after the repair: %v", err)
	}

	// A lock file that is older than the recorded update belongs to another process.
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old := syscall.Timeval{Sec: 1}
	if err := errors.Join(syscall.Utimes(lock, []syscall.Timeval{old, old}),
		os.WriteFile(note, []byte("refs/heads/new\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := d.BreakLocks(t.Context()); err != nil || !locked() {
		t.Errorf("the lock file of another process was removed: %v", err)
	}
}
