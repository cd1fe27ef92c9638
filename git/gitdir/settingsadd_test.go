package gitdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestAddedSettings compares the settings that stock git reads with those that were added, and checks that a lock of
// git is respected.
func TestAddedSettings(t *testing.T) {
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := git(t, repo.Path, "config", "--local", "--list")
	all := []Setting{{"remote.origin.url", "https://git.example.invalid/a b.git"},
		{"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"},
		{"remote.origin.fetch", "+refs/tags/*:refs/tags/*"}, {"branch.a.b/c.merge", `refs/heads/"a.b"`},
		{"user.name", "A; # \\ B"}, {"alias.st", "status -sb"}}
	if err := AddSettings(repo.Path, all); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(git(t, repo.Path, "config", "--local", "--list"), "\n")
	for _, line := range strings.Split(before, "\n") {
		if len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), line) {
			t.Errorf("setting %q was lost", line)
		}
	}
	for _, s := range all {
		if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+s.Name+"="+s.Value+"\n") {
			t.Errorf("git does not read %s=%s; it reads %q", s.Name, s.Value, got)
		}
	}
	if err := AddSettings(repo.Path, []Setting{{"branch.a.b/c.merge", "refs/heads/other"}}); err != nil {
		t.Fatal(err)
	}
	if got := git(t, repo.Path, "config", "--get-all", "branch.a.b/c.merge"); got != "refs/heads/other" {
		t.Errorf("setting that was added twice: got %q, want only the last value", got)
	}
	lock := filepath.Join(repo.Path, "config.lock")
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := AddSettings(repo.Path, all); err == nil {
		t.Error("settings were added while git holds the lock")
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Errorf("lock of git: %v", err)
	}
	if err := AddSettings(filepath.Join(repo.Path, "missing"), all); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing git directory: got %v, want %v", err, fs.ErrNotExist)
	}
}
