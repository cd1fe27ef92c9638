package worktrees

import (
	"os"
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

// The trees of a clone get its ignore rules and attributes.
func TestInfoOfAClone(t *testing.T) {
	c := newClone(t)
	for name, text := range map[string]string{"exclude": "dist\n", "attributes": "*.bin filter=lfs\n", "none": ""} {
		path := filepath.Join(c.common, "info", name)
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := c.info(name); err != nil || string(got) != text {
			t.Errorf("info/%s: got %q, %v, want %q", name, got, err, text)
		}
	}
	if err := os.Truncate(filepath.Join(c.common, "info", "exclude"), maxInfo+1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.info("exclude"); err == nil {
		t.Error("a file that is too large for a request is accepted")
	}
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
