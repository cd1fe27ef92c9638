package integration

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A switch to a commit with a name that no working tree can have is refused, as by git, and changes nothing. A mount
// that follows its branch stays where it is until the branch has another commit.
func TestMovesRefuseNamesThatCannotBeShown(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]func(r oddRepo) oddEntry{
		"long name":      func(r oddRepo) oddEntry { return r.file(strings.Repeat("日", 86), "long\n") },
		"long directory": func(r oddRepo) oddEntry { return r.dir(strings.Repeat("n", 300), r.file("in", "in\n")) },
		"dot git":        func(r oddRepo) oddEntry { return r.dir(".GIT", r.file("config", "c\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.oddRepo("r.git", object.SHA1)
			good := r.publish("main", r.tree(r.around(false, r.file("a", "1\n"), r.file("b", "1\n"))...))
			w.git(r.Path, "branch", "next", "main")
			bad := r.publish("next", r.tree(r.around(false, odd(r), r.file("a", "2\n"))...))
			better := r.publish("next", r.tree(r.around(false, r.file("a", "3\n"))...))
			w.git(r.Path, "branch", "bad", bad.String())
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			clone := w.clone(url)
			m := w.mount(url, "--wait", "git")
			if _, err := gittest.Git(t.Context(), clone, "switch", "--quiet", "bad"); err == nil {
				t.Fatal("git switch to the commit succeeded in a clone")
			}
			if res := w.afs("switch", "-C", m.Dir, "bad"); res.code == 0 || !strings.Contains(res.stderr, "odd/") {
				t.Errorf("switch: got %s, want a refusal that names the path", res)
			}
			same := func(what string) {
				t.Helper()
				if status := w.git(m.Dir, "status", "--porcelain"); status != "" {
					t.Errorf("status after %s: got %q, want none", what, status)
				}
				if got := namesBelow(t, m.path("odd")); got != "a\nb" {
					t.Errorf("files after %s: got %q, want a and b", what, got)
				}
				if got := w.git(m.Dir, "rev-parse", "HEAD"); got != good.String() {
					t.Errorf("HEAD after %s: got %s, want %s", what, got, good)
				}
			}
			same("the refused switch")
			w.unmount(m)

			f := w.mount(url, "--wait", "git", "--follow", "--follow-interval", "1s")
			m = f
			w.git(r.Path, "update-ref", "refs/heads/main", bad.String())
			await.Until(t, "the refused move in the status", func() bool {
				return strings.Contains(w.ok("status", f.Dir), "odd/")
			})
			same("a move that was refused")
			w.git(r.Path, "update-ref", "refs/heads/main", better.String())
			await.Until(t, "the move to the next commit",
				func() bool { return w.git(f.Dir, "rev-parse", "HEAD") == better.String() })
			if got := namesBelow(t, f.path("odd")); got != "a" {
				t.Errorf("files of the next commit: got %q, want a", got)
			}
		})
	}
}

// A switch between trees with the same names, of which one is not sorted and one has a name twice, shows what a new
// mount of the commit shows. git diff-tree names paths of such trees as removed that both trees have.
func TestMovesBetweenUnsortedTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.oddRepo("r.git", object.SHA1)
	commits := map[string]object.ID{}
	for branch, files := range map[string]string{"main": "a1 m1 z1", "unsorted": "z1 a1 m2", "twice": "a1 a2 m1 z1"} {
		var entries []oddEntry
		for _, f := range strings.Fields(files) {
			entries = append(entries, r.file(f[:1], f+"\n"))
		}
		commits[branch] = r.publish(branch, r.tree(r.around(false, entries...)...))
	}
	w.git(r.Path, "symbolic-ref", "HEAD", "refs/heads/main")
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	look := func(m mounted) string {
		return w.shell(m.Dir, "sh", "-c", "head odd/*; git ls-files --stage; git rev-parse HEAD")
	}
	want := map[string]string{}
	for branch := range commits {
		m := w.mount(url, "--wait", "git", "--ref", branch)
		want[branch] = look(m)
		w.unmount(m)
	}
	m := w.mount(url, "--wait", "git")
	before := "main"
	for _, branch := range []string{"unsorted", "twice", "main", "twice", "unsorted", "main"} {
		w.ok("switch", "-C", m.Dir, "--detach", commits[branch].String())
		if got := look(m); got != want[branch] {
			t.Errorf("mount after a switch from %s to %s:\n%s\nwant\n%s", before, branch, got, want[branch])
		}
		before = branch
	}
}
