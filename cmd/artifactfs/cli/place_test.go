package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSpellingsOfAShownMount checks that paths below the directory at which a process sees a mount are translated, but
// only if that directory really shows the mount.
func TestSpellingsOfAShownMount(t *testing.T) {
	top := t.TempDir()
	top, err := filepath.EvalSymlinks(top)
	if err != nil {
		t.Fatal(err)
	}
	dir, at, other := filepath.Join(top, "fork"), filepath.Join(top, "app"), filepath.Join(top, "other")
	for _, d := range []string{dir, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A link to the directory is the same directory, like a mount that is shown there.
	if err := os.Symlink(dir, at); err != nil {
		t.Fatal(err)
	}
	t.Setenv(ShownDirVariable, dir)
	t.Setenv(ShownAtVariable, at)
	for path, want := range map[string]string{at: dir, at + "/a/b": dir + "/a/b", at + "x": at + "x", dir: dir,
		other: other} {
		if got := Spellings(path); !slices.Contains(got, want) || path != want && slices.Contains(got, path) {
			t.Errorf("Spellings(%q): got %q, want %q", path, got, want)
		}
	}
	t.Setenv(ShownAtVariable, other)
	if got := Spellings(other); slices.ContainsFunc(got, func(s string) bool { return s != other }) {
		t.Errorf("Spellings of a directory that does not show the mount: got %q", got)
	}
}
