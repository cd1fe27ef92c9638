package gitdir

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// TestLinkedWorkTree checks that git finds the same tree through the link, that another link shows it another tree, and
// that Open keeps the link as long as it refers to the tree of the mount.
func TestLinkedWorkTree(t *testing.T) {
	repo, commits := source(t, object.SHA1)
	top := t.TempDir()
	path, tree, other := filepath.Join(top, "git"), filepath.Join(top, "tree"), filepath.Join(top, "other")
	for _, dir := range []string{tree, other} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Format: object.SHA1, WorkTree: tree, Remote: "https://git.example.invalid/r.git",
		Objects: filepath.Join(repo.Path, "objects"), Ref: "refs/heads/main", Commit: commits[4]}
	if _, err := Create(path, o); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call finds the link of the first one
		dir, err := LinkWorkTree(context.Background(), path, tree)
		if err != nil || dir != filepath.Join(path, linkDir) {
			t.Fatalf("link: got %q, %v", dir, err)
		}
		if got := git(t, path, "rev-parse", "--show-toplevel"); got != tree {
			t.Errorf("working tree through the link: got %q, want %q", got, tree)
		}
	}
	if _, _, err := Open(path, o); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(path, linkDir, LinkName)
	if got := git(t, path, "config", "core.worktree"); got != link {
		t.Errorf("core.worktree after Open: got %q, want the link %q", got, link)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if got := git(t, path, "rev-parse", "--show-toplevel"); got != other {
		t.Errorf("working tree through another link: got %q, want %q", got, other)
	}
	if _, _, err := Open(path, o); err != nil {
		t.Fatal(err)
	}
	if got := git(t, path, "config", "core.worktree"); got != tree {
		t.Errorf("core.worktree after Open with a wrong link: got %q, want %q", got, tree)
	}

	// The git directory of another tree does not change.
	for _, setting := range []string{"../other", other, ""} {
		git(t, path, "config", "core.worktree", setting)
		before, err := os.ReadFile(filepath.Join(path, "config"))
		if err != nil {
			t.Fatal(err)
		}
		dir, err := LinkWorkTree(context.Background(), path, tree)
		if after, readErr := os.ReadFile(filepath.Join(path, "config")); err != nil || dir != "" || readErr != nil ||
			string(after) != string(before) {
			t.Errorf("link with core.worktree %q: got %q, %v, configuration\n%s", setting, dir, err, after)
		}
	}
}
