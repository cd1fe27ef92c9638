package gitdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
)

func locks(t *testing.T) (d *Dir, lock string) {
	t.Helper()
	dir := t.TempDir()
	d = &Dir{path: dir, git: commands{path: dir}, format: object.SHA1}
	return d, filepath.Join(d.path, "index.lock")
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestLockIndexWaits checks that Lock waits for a lock file that git holds for a short time. If the lock file remains,
// Lock returns an error that names it.
func TestLockIndexWaits(t *testing.T) {
	d, lock := locks(t)
	write(t, lock, "")
	time.AfterFunc(100*time.Millisecond, func() { os.Remove(lock) })
	l, err := d.LockIndex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if other, err := d.LockIndex(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("second Lock: got %v, %v", other, err)
	}
	if err := l.Release(); err != nil || there(lock) {
		t.Errorf("release the lock: %v, or the lock file still exists", err)
	}
}

// TestReleaseSparesTheNextLock checks that a release does not remove the lock file that another process may create
// immediately after it.
func TestReleaseSparesTheNextLock(t *testing.T) {
	d, lock := locks(t)
	for _, replaced := range []bool{true, false} {
		l, err := d.LockIndex(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if replaced {
			err = l.Replace(&index.Index{Format: d.format, Version: index.Version}, time.Now())
		}
		if err = errors.Join(err, l.Release()); err != nil || there(lock) {
			t.Fatalf("replaced %t: %v", replaced, err)
		}
		write(t, lock, "git's")
		if err := l.Release(); err != nil || !there(lock) {
			t.Errorf("replaced %t: git's lock file was removed: %v", replaced, err)
		}
		if err := os.Remove(lock); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(d.path, lockPrefix+"*")); len(left) > 0 ||
		!there(filepath.Join(d.path, "index")) {
		t.Errorf("files after the release: got %q", left)
	}
}

// TestBreakLock checks that a lock file of a killed artifactfs process is removed, and that a lock file of git, which
// contains a complete index, is kept.
func TestBreakLock(t *testing.T) {
	d, lock := locks(t)
	made := filepath.Join(d.path, lockPrefix+"1")
	write(t, made, "an index")
	if _, err := d.LockIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.BreakLocks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if there(lock) || there(made) {
		t.Error("the lock file of a killed artifactfs process still exists")
	}
	write(t, lock, "an index")
	if err := d.BreakLocks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !there(lock) {
		t.Error("git's lock file was removed")
	}
}

// TestRestoreAfterReplace checks that Restore undoes Replace: it restores the previous index, or removes the new one if
// there was none.
func TestRestoreAfterReplace(t *testing.T) {
	d, _ := locks(t)
	name := filepath.Join(d.path, "index")
	for _, before := range []string{"", "an index"} {
		if before != "" {
			write(t, name, before)
		}
		l, err := d.LockIndex(t.Context())
		if err == nil {
			err = l.Replace(&index.Index{Format: d.format, Version: index.Version}, time.Now())
		}
		if err == nil {
			err = errors.Join(l.Restore(), l.Release())
		}
		text, readErr := os.ReadFile(name)
		if err != nil || string(text) != before || (readErr == nil) != (before != "") {
			t.Errorf("index after Restore: got %q, %v, %v, want %q", text, readErr, err, before)
		}
		if left, _ := filepath.Glob(filepath.Join(d.path, lockPrefix+"*")); len(left) > 0 {
			t.Errorf("files after the release: got %q, want none", left)
		}
	}
}
