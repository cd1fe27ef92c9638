package gitdir

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func forFormats(t *testing.T, test func(t *testing.T, f object.Format)) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) { test(t, f) })
	}
}

// git runs stock git on a git directory.
func git(t *testing.T, gitDir string, args ...string) string {
	t.Helper()
	out, err := gittest.Git(context.Background(), t.TempDir(), append([]string{"--git-dir", gitDir}, args...)...)
	if err != nil {
		t.Fatalf("git %s failed: %v", strings.Join(args, " "), err)
	}
	return out
}

func source(t *testing.T, f object.Format) (*gittest.Repo, []object.ID) {
	t.Helper()
	repo, err := gittest.New(filepath.Join(t.TempDir(), "source.git"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	commits, err := repo.History(5)
	if err != nil {
		t.Fatal(err)
	}
	return repo, commits
}

func TestStockGitReadsIt(t *testing.T) {
	forFormats(t, func(t *testing.T, f object.Format) {
		repo, commits := source(t, f)
		tip := commits[len(commits)-1]
		path, tree := filepath.Join(t.TempDir(), "git"), t.TempDir()
		d, err := Create(path, Options{
			Format: f, WorkTree: tree, Remote: "https://git.example.invalid/it's \"odd\".git",
			Objects: filepath.Join(repo.Path, "objects"),
			Ref:     "refs/heads/main", Commit: tip, Shallow: []object.ID{commits[3]},
			Partial: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ want, command string }{
			{"refs/heads/main", "symbolic-ref HEAD"},
			{tip.String(), "rev-parse HEAD"},
			{tip.String(), "rev-parse origin/main"},
			{"2", "rev-list --count HEAD"},
			{"true", "rev-parse --is-shallow-repository"},
			{tree, "config core.worktree"},
			{"true", "config remote.origin.promisor"},
			{"https://git.example.invalid/it's \"odd\".git", "config remote.origin.url"},
			{"origin/main", "rev-parse --abbrev-ref main@{upstream}"},
			{f.String(), "rev-parse --show-object-format"},
		} {
			if got := git(t, path, strings.Fields(c.command)...); got != c.want {
				t.Errorf("git %s printed %q, want %q", c.command, got, c.want)
			}
		}
		remote := []packedrefs.Ref{{Name: "refs/heads/main", ID: tip}, {Name: "refs/heads/old", ID: commits[0]},
			{Name: "refs/tags/v1", ID: commits[1]}, {Name: "refs/pull/1/head", ID: tip}}
		if err := d.SetRefs(remote); err != nil {
			t.Fatal(err)
		}
		if err := d.SetShallow(nil); err != nil {
			t.Fatal(err)
		}
		if got := git(t, path, "for-each-ref",
			"--format=%(refname)"); got != "refs/heads/main\nrefs/remotes/origin/main\nrefs/remotes/origin/old\nrefs/tags/v1" {
			t.Errorf("refs: got %q", got)
		}
		if got := git(t, path, "rev-list", "--count", "HEAD"); got != "5" {
			t.Errorf("got %s commits without a shallow mark", got)
		}
		git(t, path, "fsck", "--strict")
	})
}

func TestDetachedHead(t *testing.T) {
	repo, commits := source(t, object.SHA1)
	for name, ref := range map[string]string{"commit": "", "tag": "refs/tags/v1"} {
		path := filepath.Join(t.TempDir(), "git")
		_, err := Create(path, Options{WorkTree: t.TempDir(), Objects: filepath.Join(repo.Path, "objects"), Ref: ref,
			Commit: commits[2]})
		if err != nil {
			t.Fatal(err)
		}
		if head, err := os.ReadFile(filepath.Join(path, "HEAD")); err != nil || string(head) != commits[2].String()+"\n" {
			t.Errorf("case %s: got HEAD %q, %v", name, head, err)
		}
		if got := git(t, path, "rev-parse", "HEAD"); got != commits[2].String() {
			t.Errorf("case %s: got HEAD commit %s", name, got)
		}
	}
}

func TestUnbornBranch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "git")
	if _, err := Create(path, Options{WorkTree: t.TempDir(), Objects: t.TempDir(), Ref: "refs/heads/trunk"}); err != nil {
		t.Fatal(err)
	}
	if got := git(t, path, "symbolic-ref", "HEAD"); got != "refs/heads/trunk" {
		t.Errorf("HEAD: got %s", got)
	}
	if config, err := os.ReadFile(filepath.Join(path, "config")); err != nil ||
		strings.Contains(string(config), "partial") || strings.Contains(string(config), "promisor") {
		t.Errorf("the git directory is marked as a partial clone, but is complete: %s", config)
	}
	if got := git(t, path, "for-each-ref"); got != "" {
		t.Errorf("refs of an empty repository: got %q", got)
	}
}

// TestOpenGoesOn checks that a git directory that is opened again keeps all changes.
func TestOpenGoesOn(t *testing.T) {
	forFormats(t, func(t *testing.T, f object.Format) {
		repo, commits := source(t, f)
		tip := commits[len(commits)-1]
		path := filepath.Join(t.TempDir(), "git [1]")
		o := Options{Format: f, WorkTree: t.TempDir(), Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
			Ref: "refs/heads/main", Commit: tip}
		if _, ok, err := Open(path, o); ok || err != nil {
			t.Fatalf("open without a git directory: got %v, %v", ok, err)
		}
		if _, err := Create(path, o); err != nil {
			t.Fatal(err)
		}
		if own, err := HasOwnObjects(path); own || err != nil {
			t.Errorf("owned objects of a new git directory: got %v, %v", own, err)
		}
		git(t, path, "config", "user.name", "N")
		git(t, path, "branch", "mine", commits[0].String())
		git(t, path, "update-ref", "refs/heads/main", commits[1].String())
		git(t, path, "tag", "v1", commits[0].String())
		git(t, path, "pack-refs", "--all")
		o.WorkTree = t.TempDir()
		d, ok, err := Open(path, o)
		if !ok || err != nil {
			t.Fatalf("open the existing git directory: got %v, %v", ok, err)
		}
		if err := d.SetRefs([]packedrefs.Ref{{Name: "refs/heads/main", ID: tip}, {Name: "refs/tags/v1", ID: tip},
			{Name: "refs/tags/v2", ID: tip}}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ want, command string }{
			{o.WorkTree, "config core.worktree"}, {"N", "config user.name"},
			{commits[0].String(), "rev-parse mine"}, {commits[1].String(), "rev-parse main"},
			{tip.String(), "rev-parse origin/main"},
			{commits[0].String(), "rev-parse v1"}, {tip.String(), "rev-parse v2"},
		} {
			if got := git(t, path, strings.Fields(c.command)...); got != c.want {
				t.Errorf("git %s printed %q, want %q", c.command, got, c.want)
			}
		}
		git(t, path, "commit-tree", "-m", "own", tip.String()+"^{tree}")
		if own, err := HasOwnObjects(path); !own || err != nil {
			t.Errorf("owned objects after a commit: got %v, %v", own, err)
		}
	})
}

// TestOwnPacks checks that packs from a remote have a promisor mark, and that other packs contain owned objects.
func TestOwnPacks(t *testing.T) {
	path := t.TempDir()
	pack := filepath.Join(path, "objects", "pack")
	if err := os.MkdirAll(pack, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		own  bool
	}{{"pack-1.promisor", false}, {"pack-1.pack", false}, {"pack-2.pack", true}} {
		if err := os.WriteFile(filepath.Join(pack, c.name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if own, err := HasOwnObjects(path); own != c.own || err != nil {
			t.Errorf("owned objects with %s: got %v, %v", c.name, own, err)
		}
	}
}

func TestCheckoutSettings(t *testing.T) {
	config := filepath.Join(t.TempDir(), "gitconfig")
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	if s := ReadCheckout(context.Background(), t.TempDir(), nil).Settings(nil); s.AutoCRLF != "" || s.EOL != "" {
		t.Errorf("settings without a configuration: got %+v", s)
	}
	if err := os.WriteFile(config, []byte("[core]\n\tautocrlf = Input\n\teol = crlf\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := ReadCheckout(context.Background(), t.TempDir(), nil).Settings(nil); s.AutoCRLF != "input" || s.EOL != "crlf" {
		t.Errorf("settings: got %+v", s)
	}
}
