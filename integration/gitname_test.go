package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// If a program has removed ".git" from a mount, status and doctor say so, and the command that they print brings it
// back, for programs that have seen that the name was gone, too.
func TestGitNameRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("git name"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--session", "work", "--wait", "git", "--checkpoint", "off")
	clone := w.clone(url)
	same := func(when string) {
		t.Helper()
		for _, args := range [][]string{{"status", "--porcelain=v2", "--branch"}, {"log", "--oneline", "-3"},
			{"branch", "-a"}} {
			if got, want := w.git(m.Dir, args...), w.git(clone, args...); got != want {
				t.Errorf("git %v %s: got\n%s\nwant\n%s", args, when, got, want)
			}
		}
	}
	same("at first")
	for name, remove := range map[string]string{"removed": "rm -rf .git", "renamed": "mv .git gone && rm gone"} {
		w.sh(m.Dir, remove+" && ! test -e .git")
		status := w.ok("status", m.Dir)
		hint :=
			regexp.MustCompile(`note +the name .git was removed, .*; run artifactfs (session restore .*) to restore it`).FindStringSubmatch(status)
		if hint == nil {
			t.Fatalf("status after .git was %s: got\n%swant a note with a command", name, status)
		}
		if got := w.afs("doctor", "--offline"); !strings.Contains(got.stdout, "the name .git was removed") ||
			!strings.Contains(got.stdout, hint[1]) {
			t.Errorf("doctor after .git was %s: got %s, want the same command", name, got)
		}
		if got := w.ok(strings.Fields(hint[1])...); got != ".git restored: git finds the repository again\n" {
			t.Errorf("%s: got %q", hint[1], got)
		}
		if got := w.ok(strings.Fields(hint[1])...); got != ".git exists, so it was left unchanged\n" {
			t.Errorf("%s once more: got %q", hint[1], got)
		}
		same("after .git was " + name + " and restored")
		if got := w.ok("status", m.Dir); strings.Contains(got, ".git was removed") {
			t.Errorf("status after the restore: got\n%s", got)
		}
	}
	// With everything else, too, as by rm -rf DIR/*.
	base := m.checkpoint("-m", "all")
	w.sh(m.Dir, "rm -rf * .git")
	if got := w.ok("session", "restore", "-C", m.Dir, base.ID); !strings.HasPrefix(got, ".git restored") {
		t.Errorf("restore of everything: got %q", got)
	}
	w.compareTrees(m.Dir, clone)
	same("after everything was removed and restored")

	// A repository that the user has made there stays.
	w.sh(m.Dir, "rm .git && git init -q .")
	if got := w.ok("session", "restore", "-C", m.Dir, base.ID, ".git"); got != ".git exists, so it was left unchanged\n" {
		t.Errorf("restore over a repository of the user: got %q", got)
	}
	w.sh(m.Dir, "rm -rf .git")
	w.ok("daemon", "--upgrade")
	w.ok("session", "restore", "-C", m.Dir, base.ID, ".git")
	same("after a takeover")
	w.sh(m.Dir, "rm -rf .git")
	w.unmount(m)
	w.ok("mount", url, m.Dir, "--session", "work", "--wait", "git")
	same("after another mount")

	// If files of the git directory itself are removed, as in a clone, the newest checkpoint has git's state.
	m.checkpoint("-m", "whole again")
	head := w.sh(m.Dir, "cat .git/HEAD && rm .git/HEAD")
	hint :=
		regexp.MustCompile(`note +HEAD was removed from the git directory, .*; run artifactfs (session fork .*) NEWDIR to mount`).FindStringSubmatch(
			w.ok("status", m.Dir))
	if hint == nil {
		t.Fatal("status without HEAD: got no note with a command")
	}
	fork := w.place("fork")
	w.ok(append(strings.Fields(hint[1]), fork, "--wait", "git")...)
	w.compareTrees(fork, clone)
	if got := w.git(fork, "status", "--porcelain=v2"); got != "" {
		t.Errorf("git status in the fork: got %q, want nothing", got)
	}
	check2(w, os.WriteFile(filepath.Join(m.gitDir(), "HEAD"), []byte(head), 0o600))
}
