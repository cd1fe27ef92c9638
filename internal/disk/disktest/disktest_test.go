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

// What was synced is there after every cut; what was not is there after some and missing after others.
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
	must(c.SyncDir(at("dir"))) // the name in dir; dir itself comes with the root
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
