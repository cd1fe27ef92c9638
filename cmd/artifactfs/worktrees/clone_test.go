package worktrees

import (
	"path/filepath"
	"testing"
)

// newClone returns a clone that is a new repository with one commit, on the branch main.
func newClone(t *testing.T) clone {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "app")
	do(t, ".", "init", "-q", "-b", "main", dir)
	do(t, dir, "-c", "user.name=A", "-c", "user.email=a@b.invalid", "commit", "-q", "--allow-empty", "-m", "first")
	c, ok := findClone(t.Context(), dir)
	if !ok {
		t.Fatalf("no clone was found at %s", dir)
	}
	return c
}

// do runs git in dir and returns its output.
func do(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t.Context(), dir, args...)
	if err != nil {
		t.Fatalf("git %v: %v", args, err)
	}
	return out
}

// valueOf returns the value that the trees of c have for a setting, or "".
func valueOf(t *testing.T, c clone, name string) (value string) {
	t.Helper()
	all, _, err := c.settings(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Name == name {
			value = s.Value
		}
	}
	return value
}

// The trees of a clone store the files of git-lfs in the clone, where it would store them itself.
func TestTreesStoreLFSFilesInTheClone(t *testing.T) {
	c := newClone(t)
	for _, step := range [][2]string{
		{"", filepath.Join(c.common, "lfs")},
		{"media", filepath.Join(c.common, "media")},
		{"/srv/lfs", "/srv/lfs"},
	} {
		if step[0] != "" {
			do(t, c.dir, "config", "lfs.storage", step[0])
		}
		if got := valueOf(t, c, "lfs.storage"); got != step[1] {
			t.Errorf("lfs.storage of a tree of a clone with %q: got %q, want %q", step[0], got, step[1])
		}
	}
}
