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

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// A git that is killed while it changes refs leaves its locks; those of others stay theirs.
func TestLocksOfDeadGits(t *testing.T) {
	asGittest(t)
	work := t.TempDir()
	d := &Dir{path: filepath.Join(work, ".git"), workTree: work}
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
	branch := func() error { return d.update(t.Context(), []string{"refs/heads/new"}, "branch", "new", "main") }

	hook := filepath.Join(d.path, "hooks", "reference-transaction")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\n[ $1 != prepared ] || kill -9 $PPID\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := branch(); err == nil {
		t.Fatal("the hook killed nothing")
	}
	if locked() {
		t.Error("git was killed and its lock stays")
	}

	// The same, and we die as well.
	cmd := exec.Command("git", "-C", work, "branch", "new", "main")
	_ = cmd.Run()
	if !locked() {
		t.Fatal("git has left no lock")
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
		t.Errorf("the lock of a dead git stays: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.path, updatePrefix+"*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if err := branch(); err != nil || git("rev-parse", "new") != git("rev-parse", "main") {
		t.Errorf("afterwards: %v", err)
	}

	// One that is older than what we began is not of ours.
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old := syscall.Timeval{Sec: 1}
	if err := errors.Join(syscall.Utimes(lock, []syscall.Timeval{old, old}), os.WriteFile(note, []byte("refs/heads/new\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := d.BreakLocks(t.Context()); err != nil || !locked() {
		t.Errorf("somebody else's lock is gone: %v", err)
	}
}
