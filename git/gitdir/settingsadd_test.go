package gitdir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestAddedSettings compares the settings that stock git reads with those that were added.
func TestAddedSettings(t *testing.T) {
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(repo.Path, "config")
	add := func(settings []Setting) {
		t.Helper()
		text, err := os.ReadFile(name)
		c := config.New()
		var b bytes.Buffer
		if err = errors.Join(err, config.NewDecoder(bytes.NewReader(text)).Decode(c), addSettings(c, settings),
			config.NewEncoder(&b).Encode(c), os.WriteFile(name, b.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	before := git(t, repo.Path, "config", "--local", "--list")
	all := []Setting{{"remote.origin.url", "https://git.example.invalid/a b.git"},
		{"remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"},
		{"remote.origin.fetch", "+refs/tags/*:refs/tags/*"}, {"branch.a.b/c.merge", `refs/heads/"a.b"`},
		{"user.name", "A; # \\ B"}, {"alias.st", "status -sb"}}
	add(all)
	got := strings.Split(git(t, repo.Path, "config", "--local", "--list"), "\n")
	for _, line := range strings.Split(before, "\n") {
		if !slices.Contains(got, line) {
			t.Errorf("setting %q was lost", line)
		}
	}
	for _, s := range all {
		if !slices.Contains(got, s.Name+"="+s.Value) {
			t.Errorf("git does not read %s=%s; it reads %q", s.Name, s.Value, got)
		}
	}
	add([]Setting{{"branch.a.b/c.merge", "refs/heads/other"}})
	if got := git(t, repo.Path, "config", "--get-all", "branch.a.b/c.merge"); got != "refs/heads/other" {
		t.Errorf("setting that was added twice: got %q, want only the last value", got)
	}
	if err := addSettings(config.New(), []Setting{{"name", "x"}}); err == nil {
		t.Error("a setting without a section was added")
	}
}
