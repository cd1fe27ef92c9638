package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

func TestWriteFileReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("read back %q, %v", got, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files in the directory", len(entries))
	}
}

func TestWriteFileFailsWhole(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "taken"), []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files in the directory after a failure", len(entries))
	}
}

func TestReplaceKeepsTheOldFileAfterAnError(t *testing.T) {
	dir, broken := t.TempDir(), errors.New("broken")
	path := filepath.Join(dir, "file")
	if err := WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Replace(OS, path, 0o444, func(f File) error {
		_, err := f.WriteAt([]byte("new"), 0)
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("file after the error: got %q, %v, want old", got, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files in the directory after the error", len(entries))
	}
}

// TestUnlockedIsFreeWhoeverHasACopy checks that a released lock is free even if a child process that is being started
// has a copy of the descriptor.
func TestUnlockedIsFreeWhoeverHasACopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); target == path {
			n, err := strconv.Atoi(filepath.Base(fd))
			if err != nil {
				t.Fatal(err)
			}
			c, err := syscall.Dup(n)
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Close(c)
			copies++
			break
		}
	}
	unlock()
	again, err := TryLock(path)
	if err != nil || copies != 1 {
		t.Fatalf("%d copies: %v", copies, err)
	}
	again()
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
	waited := make(chan error)
	go func() {
		unlock, err := Lock(path)
		if err == nil {
			unlock()
		}
		waited <- err
	}()
	unlock()
	if err := <-waited; err != nil {
		t.Error(err)
	}
}
