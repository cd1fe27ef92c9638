package worktrees

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
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

// A branch is in use while it is rebased or bisected, although HEAD is detached then, and while the tree that has it is
// not mounted.
func TestBranchesInUse(t *testing.T) {
	c := newClone(t)
	user := []string{"-c", "user.name=A", "-c", "user.email=a@b.invalid", "-c", "sequence.editor=sed -i s/^pick/edit/"}
	commit := append(slices.Clone(user), "commit", "-q", "--allow-empty", "-m", "second")
	check := func(when, branch, want string) {
		t.Helper()
		members := []member{{head: "mounted", mount: &cli.Served{}}, {head: "unmounted"},
			{SessionInfo: control.SessionInfo{Last: &control.Checkpoint{Branch: "last"}}}}
		for i := range members {
			members[i].Dir = "/" + cmp.Or(members[i].head, "last")
		}
		if got, err := c.usedBy(t.Context(), members, branch); err != nil || got != want {
			t.Errorf("%s: %s is used by %q, %v, want %q", when, branch, got, err, want)
		}
	}
	do(t, c.dir, "checkout", "-q", "-b", "fix")
	do(t, c.dir, commit...)
	for branch, want := range map[string]string{"fix": c.dir, "main": "", "mounted": "/mounted", "unmounted": "/unmounted",
		"last": "/last"} {
		check("without an operation", branch, want)
	}
	do(t, c.dir, append(slices.Clone(user), "rebase", "-q", "-i", "HEAD^")...)
	check("during a rebase", "fix", c.dir)
	do(t, c.dir, "rebase", "--abort")
	do(t, c.dir, "bisect", "start", "HEAD", "HEAD^")
	do(t, c.dir, "checkout", "-q", "--detach")
	check("during a bisection", "fix", c.dir)
	do(t, c.dir, "bisect", "reset", "main")
	check("afterwards", "fix", "")
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

// The trees of a clone run its hooks. If the path of the hooks is relative, each tree has its own.
func TestHooksOfAClone(t *testing.T) {
	c := newClone(t)
	if got, want := valueOf(t, c, "core.hookspath"), filepath.Join(c.common, "hooks"); got != want {
		t.Errorf("default core.hooksPath of a tree: got %q, want %q", got, want)
	}
	for _, path := range []string{".githooks", "/srv/hooks", "~/hooks"} {
		do(t, c.dir, "config", "core.hooksPath", path)
		if got := valueOf(t, c, "core.hookspath"); got != path {
			t.Errorf("core.hooksPath of a tree: got %q, want %q", got, path)
		}
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
