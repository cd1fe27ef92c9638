package gitdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
)

func locks(t *testing.T) (d *Dir, lock string) {
	t.Helper()
	d = &Dir{path: t.TempDir(), format: object.SHA1}
	return d, filepath.Join(d.path, "index.lock")
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A lock that git holds for a moment is waited for; one that stays is told of.
func TestLockIndexWaits(t *testing.T) {
	d, lock := locks(t)
	write(t, lock, "")
	time.AfterFunc(100*time.Millisecond, func() { os.Remove(lock) })
	l, err := d.LockIndex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if other, err := d.LockIndex(t.Context()); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v, %v", other, err)
	}
	if err := l.Release(); err != nil || there(lock) {
		t.Errorf("after the release: %v", err)
	}
}

// A lock that was given up may be somebody else's at once.
func TestReleaseSparesTheNextLock(t *testing.T) {
	d, lock := locks(t)
	for _, replaced := range []bool{true, false} {
		l, err := d.LockIndex(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if replaced {
			err = l.Replace(&index.Index{Format: d.format, Version: index.Version}, time.Now())
		} else {
			err = l.Release()
		}
		if err != nil || there(lock) {
			t.Fatalf("replaced %t: %v", replaced, err)
		}
		write(t, lock, "git's")
		if err := l.Release(); err != nil || !there(lock) {
			t.Errorf("replaced %t: git's lock is gone: %v", replaced, err)
		}
		if err := os.Remove(lock); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(d.path, lockPrefix+"*")); len(left) > 0 || !there(filepath.Join(d.path, "index")) {
		t.Errorf("left: %q", left)
	}
}

// What a process left that was killed goes; what git has locked stays, with a whole index in it.
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
		t.Error("what a dead process of ours left stays")
	}
	write(t, lock, "an index")
	if err := d.BreakLocks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !there(lock) {
		t.Error("git's lock is gone")
	}
}
