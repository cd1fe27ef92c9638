package disk

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestSweepTemp checks that SweepTemp removes the temporary files of killed processes, and no files that a process
// uses.
func TestSweepTemp(t *testing.T) {
	dir := t.TempDir()
	used, removeDir, err := TempDir(dir, "mirror")
	if err != nil {
		t.Fatal(err)
	}
	file, removeFile, err := TempFile(dir, "cache-value")
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"merge-123.tmp/objects/pack", "compare-4.tmp", "session.json.AAAA.tmp",
		"new.json.AAAA.tmp", "kept-1", "kept.json"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, "session.json.AAAA.tmp"), old, old); err != nil {
		t.Fatal(err)
	}
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if err := SweepTemp(dir); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Base(file.Name()), "kept-1", "kept.json", filepath.Base(used), "new.json.AAAA.tmp"}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("files after the sweep: got %q, want %q", got, want)
	}
	for _, remove := range []func() error{removeDir, removeFile} {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	if got := names(); !slices.Equal(got, []string{"kept-1", "kept.json", "new.json.AAAA.tmp"}) {
		t.Errorf("files after their removal: got %q", got)
	}
}
