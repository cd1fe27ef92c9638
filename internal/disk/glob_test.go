package disk

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func TestGlob(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]*")
	for _, name := range []string{"ab/one", "ab/two", "cd/three", "pack/x.idx", "abc"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string][]string{
		"??/*": {"ab/one", "ab/two", "cd/three"}, "pack/*.idx": {"pack/x.idx"}, "none/*": nil, "abc/*": nil, "abc": {"abc"},
	} {
		got, err := Glob(dir, pattern)
		for i := range want {
			want[i] = filepath.Join(dir, want[i])
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Glob(%q): got %q, %v, want %q", pattern, got, err, want)
		}
	}
	if got, err := Glob(filepath.Join(dir, "none"), "*"); err != nil || got != nil {
		t.Errorf("missing directory: got %q, %v, want nothing", got, err)
	}
}

// A directory that cannot be read is an error, and is not taken for an empty one.
func TestGlobReportsErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The next descriptor would have the lowest free number.
	full := old
	full.Cur = uint64(f.Fd())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	got, err := Glob(dir, "*")
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		t.Errorf("no free descriptors: got %q, want an error", got)
	}
}
