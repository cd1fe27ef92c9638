package guard

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// repository creates a repository with a commit and its guarded directory, and returns the path of its git directory.
func repository(t *testing.T, format string) string {
	t.Helper()
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	path := filepath.Join(t.TempDir(), "git")
	run(t, gitcmd.Repo{Dir: path}, "init", "--quiet", "--bare", "--object-format="+format, "--initial-branch=main", path)
	run(t, gitcmd.Repo{Dir: path}, "config", "core.bare", "false")
	tree := run(t, gitcmd.Repo{Dir: path}, "write-tree")
	commit := run(t, gitcmd.Repo{Dir: path}, "-c", "user.name=u", "-c", "user.email=u@x", "commit-tree", "-m", "one", tree)
	run(t, gitcmd.Repo{Dir: path}, "update-ref", "HEAD", commit)
	if err := Create(path, []string{filepath.Join(path, "objects")}); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, r gitcmd.Repo, args ...string) string {
	t.Helper()
	r.Cwd = "/"
	out, err := r.Output(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func open(t *testing.T, path string) gitcmd.Repo {
	t.Helper()
	r, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOpen checks that the guarded directory always has the refs of the git directory, and only settings with plain
// values.
func TestOpen(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		path := repository(t, format)
		plain := gitcmd.Repo{Dir: path}
		run(t, plain, "config", "core.autocrlf", "input")
		run(t, plain, "config", "user.name", `A "B" \ C; #`)
		run(t, plain, "config", "core.eol", "lf\n[filter \"a\"]\nclean = x")
		included := filepath.Join(t.TempDir(), "included")
		run(t, plain, "config", "--file", included, "filter.b.clean", "x")
		for _, key := range []string{"core.hookspath", "core.fsmonitor", "core.excludesfile", "core.attributesfile",
			"core.worktree", "filter.a.clean",
			"remote.a.url", "include.path", "gpg.program", "diff.external", "merge.a.driver", "alias.status",
			"core.sshcommand"} {
			run(t, plain, "config", key, included)
		}
		r := open(t, path)
		want := `core.autocrlf=input core.bare=true core.filemode=true core.repositoryformatversion=1`
		if format == "sha256" {
			want += " extensions.objectformat=sha256"
		}
		lines := strings.Split(run(t, r, "config", "--local", "--includes", "--list"), "\n")
		got := map[string]bool{}
		for _, line := range lines {
			got[line] = true
		}
		for _, line := range append(strings.Split(want, " "), `user.name=A "B" \ C; #`) {
			if !got[line] {
				t.Errorf("settings of the guarded directory lack %s: %q", line, lines)
			}
			delete(got, line)
		}
		if len(got) > 0 {
			t.Errorf("settings of the guarded directory: %v are there too", got)
		}
		run(t, plain, "config", "core.autocrlf", "true")
		run(t, plain, "branch", "other")
		run(t, plain, "symbolic-ref", "HEAD", "refs/heads/other")
		r = open(t, path)
		if a, b := run(t, r, "config", "core.autocrlf"), run(t, r, "symbolic-ref", "HEAD"); a != "true" ||
			b != "refs/heads/other" {
			t.Errorf("after changes: got core.autocrlf %s, HEAD %s", a, b)
		}
	}
}

// TestUpdate checks that changes that a command makes to HEAD and reflogs in the guarded directory are made in the git
// directory.
func TestUpdate(t *testing.T) {
	path := repository(t, "sha1")
	plain := gitcmd.Repo{Dir: path}
	move := func(args ...string) error {
		return Update(t.Context(), path, func(r gitcmd.Repo) error {
			run(t, r, args...)
			if _, err := os.Lstat(filepath.Join(path, "HEAD.lock")); err != nil {
				t.Errorf("HEAD is not locked during the change: %v", err)
			}
			return nil
		})
	}
	// A command that was killed has left its lock file.
	if err := Update(t.Context(), path,
		func(r gitcmd.Repo) error { return os.WriteFile(filepath.Join(r.Dir, "HEAD.lock"), nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"branch", "--no-track", "next", "main"},
		{"symbolic-ref", "-m", "moved", "HEAD", "refs/heads/next"}} {
		if err := move(args...); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, plain, "symbolic-ref", "HEAD"); got != "refs/heads/next" {
		t.Errorf("HEAD: got %s", got)
	}
	if err := move("update-ref", "--no-deref", "HEAD", run(t, plain, "rev-parse", "main")); err != nil {
		t.Fatal(err)
	}
	if got, want := run(t, plain, "rev-parse", "--symbolic-full-name", "HEAD"), "HEAD"; got != want {
		t.Errorf("detached HEAD: got %s", got)
	}
	if err := Configure(t.Context(), path, [2]string{"branch.next.remote", "origin"}); err != nil {
		t.Fatal(err)
	}
	if got := run(t, plain, "config", "branch.next.remote"); got != "origin" {
		t.Errorf("setting: got %q", got)
	}
	for _, name := range []string{"HEAD.lock", "config.lock"} {
		if _, err := os.Lstat(filepath.Join(path, name)); err == nil {
			t.Errorf("%s was left", name)
		}
	}
	// Another process holds the lock.
	if err := os.WriteFile(filepath.Join(path, "HEAD.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Update(ctx, path, func(gitcmd.Repo) error { t.Error("the command ran"); return nil }); err == nil {
		t.Error("change of a locked HEAD: got no error")
	}
}

// TestNotPlain checks that the files that the daemon copies must not be symbolic links or lead to other files.
func TestNotPlain(t *testing.T) {
	for _, name := range []string{"HEAD", "config"} {
		path := repository(t, "sha1")
		elsewhere := filepath.Join(t.TempDir(), "elsewhere")
		if err := os.Rename(filepath.Join(path, name), elsewhere); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path); err == nil {
			t.Errorf("%s is a symbolic link: got no error", name)
		}
		if err := Configure(t.Context(), path, [2]string{"a.b", "c"}); name == "config" && err == nil {
			t.Error("change of a configuration that is a symbolic link: got no error")
		}
	}
}

func TestMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which may mount")
	}
	path := repository(t, "sha1")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call has nothing to do
		if err := Mount(path); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { Unmount(path) })
	if _, err := os.ReadFile(filepath.Join(path, "link")); err == nil {
		t.Error("a link was followed")
	}
	run(t, open(t, path), "rev-parse", "HEAD", "HEAD:")
	for range 2 {
		if err := Unmount(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.ReadFile(filepath.Join(path, "link")); err != nil {
		t.Errorf("after Unmount: %v", err)
	}
}
