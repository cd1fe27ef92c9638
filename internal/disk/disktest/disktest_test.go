package disktest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
)

func TestNthOperationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	fs := Faulty(disk.OS, Nth(2, syscall.ENOSPC))
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("abcd"), 0); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("second operation: %d, %v", n, err)
	}
	if n, err := f.WriteAt([]byte("abcd"), 0); n != 4 || err != nil {
		t.Errorf("third operation: %d, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestCrashLeavesWhatWasSynced checks that synced data exists after every simulated power cut, and that other data
// exists after some power cuts and is lost after others.
func TestCrashLeavesWhatWasSynced(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := NewCrashFS(root)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(root, name) }
	must(c.Mkdir(at("dir"), 0o700))
	f, err := c.OpenFile(at("new"), os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	old := bytes.Repeat([]byte{1}, 3*4096)
	_, err = f.WriteAt(old, 0)
	must(errors.Join(err, f.DataSync()))
	must(c.Rename(at("new"), at("dir/moved")))
	must(c.SyncDir(at("dir"))) // saves the names in dir; the name dir itself is in root
	must(c.SyncDir(root))
	must(f.Allocate(0, 0, 4*4096))
	m, err := f.Map(0, 4*4096, disk.MapPopulate)
	must(err)
	for i := range m {
		m[i] = 2
	}
	must(c.Rename(at("dir/moved"), at("dir/again")))
	loose, err := c.OpenFile(at("loose"), os.O_RDWR|os.O_CREATE, 0o600)
	must(errors.Join(err, loose.Close()))
	seen := map[string]int{}
	for seed := range uint64(100) {
		dst := filepath.Join(t.TempDir(), "cut")
		must(c.Crash(dst, seed))
		if _, err := os.Stat(filepath.Join(dst, "loose")); err == nil {
			seen["loose"]++
		}
		moved, err1 := os.ReadFile(filepath.Join(dst, "dir/moved"))
		again, err2 := os.ReadFile(filepath.Join(dst, "dir/again"))
		if (err1 == nil) == (err2 == nil) {
			t.Fatalf("seed %d: a rename by half: %v, %v", seed, err1, err2)
		}
		if err2 == nil {
			seen["renamed"]++
		}
		b := append(moved, again...)
		if len(b) != len(old) && len(b) != len(m) {
			t.Fatalf("seed %d: %d bytes", seed, len(b))
		}
		for off := 0; off < len(b); off += 4096 {
			page := b[off : off+4096]
			if bytes.Count(page, page[:1]) != 4096 || page[0] == 0 && off < len(old) {
				t.Fatalf("seed %d: page at %d is of no moment", seed, off)
			}
			seen[string('0'+rune(page[0]))]++
		}
	}
	for _, what := range []string{"loose", "renamed", "1", "2"} {
		if seen[what] == 0 || seen[what] == 100 {
			t.Errorf("%s after %d cuts", what, seen[what])
		}
	}
	must(errors.Join(f.Unmap(m), f.Close()))
}

// TestReplacedFileSurvivesPowerCuts checks that a file that WriteFileOn replaces is either the complete old file or the
// complete new file after a power cut between any two operations.
func TestReplacedFileSurvivesPowerCuts(t *testing.T) {
	old, data := bytes.Repeat([]byte("old"), 3000), bytes.Repeat([]byte("new"), 5000)
	kept, replaced := 0, 0
	for seed := range uint64(8) {
		for n := 1; ; n++ {
			root := filepath.Join(t.TempDir(), "root")
			if err := os.Mkdir(root, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, "file")
			if err := os.WriteFile(path, old, 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := NewCrashFS(root)
			if err != nil {
				t.Fatal(err)
			}
			after := filepath.Join(t.TempDir(), "after")
			cut := false
			err = disk.WriteFileOn(Faulty(c, func(op Op) error {
				if op.N != n {
					return nil
				}
				cut = true
				return c.Crash(after, seed)
			}), path, data, 0o640)
			if err != nil {
				t.Fatal(err)
			}
			if !cut { // there is no operation n, so cut the power after the call
				if err := c.Crash(after, seed); err != nil {
					t.Fatal(err)
				}
			}
			got, err := os.ReadFile(filepath.Join(after, "file"))
			switch {
			case err == nil && bytes.Equal(got, old):
				kept++
			case err == nil && bytes.Equal(got, data):
				replaced++
			default:
				t.Errorf("power cut before operation %d, seed %d: file has %d bytes, is neither the old nor the new one: %v", n,
					seed, len(got), err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if !cut {
				break
			}
		}
	}
	if kept == 0 || replaced == 0 {
		t.Errorf("%d cuts left the old file, %d the new one: both must occur", kept, replaced)
	}
}

// TestReplacingFailsWhole checks that, if an operation fails, WriteFileOn returns its error, the old file is unchanged,
// and no temporary file remains.
func TestReplacingFailsWhole(t *testing.T) {
	for n := 1; ; n++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "file")
		if err := disk.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := disk.WriteFileOn(Faulty(disk.OS, Nth(n, syscall.ENOSPC)), path, []byte("new"), 0o600)
		if err == nil {
			if n < 5 {
				t.Errorf("only %d operations were made to fail: open, write, sync, close and rename must be among them", n-1)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("operation %d failed with ENOSPC, but the error is %v", n, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "old" {
			t.Errorf("operation %d failed: file contains %q, %v", n, text, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("operation %d failed: directory has %d entries, %v", n, len(entries), err)
		}
	}
}

// TestMkdirAllOutlivesAPowerCut checks that all directories that MkdirAll has created exist after a power cut.
func TestMkdirAllOutlivesAPowerCut(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := NewCrashFS(root)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // in the second call, the directories exist already
		if err := disk.MkdirAll(c, filepath.Join(root, "a/b/c"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range uint64(20) {
		left := filepath.Join(t.TempDir(), "left")
		if err := c.Crash(left, seed); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(left, "a/b/c")); err != nil {
			t.Fatalf("power cut %d: %v", seed, err)
		}
	}
}
