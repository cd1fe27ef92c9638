package capture_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/worktree"
)

// linkedWorld returns a world with a mount that contains linked worktrees.
func linkedWorld(t *testing.T, files map[string]gittest.File) *world {
	w := newWorld(t, object.SHA1, files)
	w.o.Dir, w.o.Rules = w.plain, capture.Rules{}
	w.openCapturer()
	return w
}

// mirror copies the files of the clone at a path to the Tree.
func (w *world) mirror(path string) {
	w.t.Helper()
	if dir := filepath.Dir(path); dir != "." {
		if _, err := w.tree.Resolve(w.ctx, dir); err != nil {
			w.mirrorDir(dir)
		}
	}
	must(w.t, filepath.WalkDir(w.at(path), func(at string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(w.plain, at)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			w.mirrorDir(rel)
			return nil
		}
		text, err := os.ReadFile(at)
		must(w.t, err)
		dir, name := w.parent(rel)
		if _, err := w.tree.Resolve(w.ctx, rel); err != nil {
			_, err := w.tree.Mknod(w.ctx, dir, name, syscall.S_IFREG|0o644, 0, cred)
			must(w.t, err)
		}
		w.put(rel, string(text))
		return nil
	}))
}

// mirrorDir creates a directory and its parents in the Tree.
func (w *world) mirrorDir(path string) {
	if _, err := w.tree.Resolve(w.ctx, path); path == "." || err == nil {
		return
	}
	w.mirrorDir(filepath.Dir(path))
	n, name := w.parent(path)
	_, err := w.tree.Mkdir(w.ctx, n, name, 0o755, worktree.Cred{})
	must(w.t, err)
}

// addWorktree runs git worktree add in the clone.
func (w *world) addWorktree(path string, args ...string) {
	w.t.Helper()
	w.git(w.plain, slices.Concat([]string{"worktree", "add", "-q", path}, args)...)
	w.mirror(path)
}

// linked returns the linked worktrees that a checkpoint contains.
func (w *world) linked(p session.Checkpoint) []session.Worktree {
	w.t.Helper()
	s, err := w.repo.State(p)
	must(w.t, err)
	list, err := s.Worktrees(w.repo.Format())
	must(w.t, err)
	return list
}

// checkLinked makes a checkpoint, and compares the linked worktree at the path in it with the tree that git makes
// there.
func (w *world) checkLinked(step, path string) session.Checkpoint {
	w.t.Helper()
	p, report := w.checkpoint(session.Manual)
	list := w.linked(p)
	i := slices.IndexFunc(list, func(l session.Worktree) bool { return l.Path == path })
	if i < 0 {
		w.t.Fatalf("%s: the checkpoint has no linked worktree %s, but %+v; left out %+v", step, path, list, report.Left)
	}
	l, dir := list[i], w.at(path)
	scratch := filepath.Join(w.dir, "scratch")
	own := w.git(dir, "rev-parse", "--absolute-git-dir")
	text, err := os.ReadFile(filepath.Join(own, "index"))
	must(w.t, err)
	must(w.t, os.WriteFile(scratch, text, 0o600))
	run := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = dir, append(gittest.Env(), "GIT_INDEX_FILE="+scratch)
		out, err := cmd.CombinedOutput()
		if err != nil {
			w.t.Fatalf("%s: git %s: %v: %s", step, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("add", "-A")
	want := run("write-tree")
	if got := w.withoutEmpty(w.git(w.repo.Dir(), "rev-parse", l.Files.String()+":"+path)); got != want {
		w.t.Errorf("%s: files of %s: got tree %s, want %s:\n%s", step, path, got, want, w.diff(want, got))
	}
	if got, want := w.staged(session.State{Index: l.Index}), w.git(dir, "ls-files", "--stage", "-v"); got != want {
		w.t.Errorf("%s: index of %s:\n%s\nwant\n%s", step, path, got, want)
	}
	branch, _ := gittest.Git(w.ctx, dir, "symbolic-ref", "-q", "HEAD")
	if l.Branch != branch || l.Commit.String() != w.git(dir, "rev-parse", "HEAD") {
		w.t.Errorf("%s: HEAD of %s: got %q and %s", step, path, l.Branch, l.Commit)
	}
	// The tree of the checkpoint contains only the main working tree.
	if shown := w.git(w.repo.Dir(), "ls-tree", "-r", "-t", "--name-only", p.Tree.String()); strings.Contains(shown, path) {
		w.t.Errorf("%s: tree of the checkpoint:\n%s\nwant no linked worktree", step, shown)
	}
	for _, o := range report.Left {
		if o.Why == session.Linked {
			w.t.Errorf("%s: left out %+v, want no linked worktree", step, o)
		}
	}
	w.git(w.repo.Dir(), "fsck", "--strict")
	w.idle(step)
	return p
}

// idle checks that no checkpoint is made if nothing has changed, neither by this process nor by a new one.
func (w *world) idle(step string) {
	w.t.Helper()
	for range 2 {
		if p, r := w.checkpoint(session.Idle); r.Made {
			w.t.Errorf("%s: a checkpoint was made although nothing has changed: %+v", step, p)
		}
		w.openCapturer()
	}
}

// TestLinkedWorktree checks that checkpoints contain the files, the index and HEAD of a linked worktree, whether or not
// its directory is ignored.
func TestLinkedWorktree(t *testing.T) {
	for _, ignore := range []string{"*.o\n", "*.o\n.agents/\n"} {
		t.Run(fmt.Sprintf("%q", ignore), func(t *testing.T) {
			const dir = ".agents/trees/a"
			w := linkedWorld(t, map[string]gittest.File{".gitignore": text(ignore), "src/a": text("a\n"), "src/b": text("b\n"),
				"c": text("c\n")})
			w.check("begin")
			w.addWorktree(dir, "-b", "a")
			w.checkLinked("added", dir)
			w.write(dir+"/src/a", "changed\n")
			w.write(dir+"/src/new", "new\n")
			w.write(dir+"/out/x.o", "ignored\n")
			w.checkLinked("changed", dir)
			w.write(dir+"/.gitignore", "*.tmp\n!x.o\n")
			w.write(dir+"/x.tmp", "ignored\n")
			w.checkLinked("own rules", dir)
			w.git(w.at(dir), "add", "src/a")
			w.write(dir+"/src/a", "changed again\n")
			w.checkLinked("staged", dir)
			w.git(w.at(dir), "add", "-f", "x.tmp")
			w.checkLinked("ignored file added", dir)
			w.git(w.at(dir), "rm", "-q", "--cached", "x.tmp")
			w.checkLinked("ignored file removed from the index", dir)
			w.git(w.at(dir), "commit", "-q", "-m", "mine")
			w.checkLinked("committed", dir)
			w.git(w.at(dir), "checkout", "-q", "--detach")
			w.git(w.at(dir), "commit", "-q", "--allow-empty", "-m", "detached")
			w.checkLinked("detached", dir)
			w.git(w.at(dir), "update-index", "--assume-unchanged", "c")
			w.checkLinked("flags", dir)
			w.write("c", "main\n")
			w.checkLinked("main changed", dir)
			w.addWorktree(dir+"/sub/b", "-b", "b")
			w.write(dir+"/sub/b/in", "in\n")
			w.checkLinked("one in the other", dir+"/sub/b")
			w.git(w.plain, "worktree", "remove", "--force", dir+"/sub/b")
			w.mirrorGone(dir + "/sub/b")
			w.checkLinked("inner removed", dir)
			w.git(w.plain, "worktree", "remove", "--force", dir)
			w.mirrorGone(dir)
			p, r := w.checkpoint(session.Manual)
			if list := w.linked(p); !r.Made || len(list) > 0 {
				t.Errorf("after git worktree remove: made %v, linked worktrees %+v", r.Made, list)
			}
			w.idle("removed")
			w.emptyDirs("removed", p)
		})
	}
}

// mirrorGone removes a directory of the Tree that was removed in the clone.
func (w *world) mirrorGone(path string) {
	w.t.Helper()
	n, err := w.tree.Resolve(w.ctx, path)
	must(w.t, err)
	var list []worktree.Entry
	must(w.t, w.tree.ReadDir(w.ctx, n, 0, func(e worktree.Entry) bool {
		e.Name = strings.Clone(e.Name)
		list = append(list, e)
		return true
	}))
	for _, e := range list {
		if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			w.mirrorGone(filepath.Join(path, e.Name))
		} else {
			must(w.t, w.tree.Unlink(w.ctx, n, e.Name))
		}
	}
	dir, name := w.parent(path)
	must(w.t, w.tree.Rmdir(w.ctx, dir, name))
}

// TestLinkedWorktreeRules checks that conflicts and secrets in a linked worktree are treated as in the main working
// tree.
func TestLinkedWorktreeRules(t *testing.T) {
	w := linkedWorld(t, map[string]gittest.File{"a": text("a\n"), ".gitattributes": text("*.txt text eol=lf\n"),
		"x.txt": text("x\n")})
	w.o.Converts = func(_ context.Context, path string) (bool, error) { return path == "x.txt", nil }
	w.openCapturer()
	w.addWorktree("t/a", "-b", "a")
	w.write("t/a/.env", "KEY=1\n")
	p, r := w.checkpoint(session.Manual)
	if len(r.Left) != 1 || r.Left[0].Path != "t/a/.env" || r.Left[0].Why != session.Secret {
		t.Errorf("left out: got %+v, want the secret", r.Left)
	}
	l := w.linked(p)[0]
	if list := w.git(w.repo.Dir(), "ls-tree", "-r", "--name-only", l.Files.String()); strings.Contains(list, ".env") ||
		strings.Contains(list, "a/.git\n") {
		t.Errorf("files of the linked worktree:\n%s\nwant neither the secret nor .git", list)
	}
	for _, name := range []string{"a", "x.txt"} {
		if w.repo.Owned(object.MustID(w.git(w.plain, "rev-parse", "HEAD:"+name))) {
			t.Errorf("the checkpoint stores %s of the linked worktree, which HEAD has", name)
		}
	}
	w.remove("t/a/.env")
	w.write("t/a/x.txt", "one\r\ntwo\r\n")
	w.checkLinked("converted", "t/a")
	w.git(w.at("t/a"), "commit", "-q", "-am", "theirs")
	w.git(w.at("t/a"), "checkout", "-q", "-b", "other", "HEAD^")
	w.write("t/a/x.txt", "three\n")
	w.git(w.at("t/a"), "commit", "-q", "-am", "ours")
	if _, err := gittest.Git(w.ctx, w.at("t/a"), "merge", "a"); err == nil {
		t.Fatal("the merge has no conflict")
	}
	w.mirror("t/a")
	w.checkLinked("conflict", "t/a")
	w.git(w.at("t/a"), "checkout", "-q", "--theirs", "x.txt")
	w.git(w.at("t/a"), "add", "x.txt")
	w.mirror("t/a")
	w.checkLinked("resolved", "t/a")
	must(t, os.WriteFile(w.at(".git/worktrees/a/HEAD"), []byte("broken\n"), 0o644))
	q, r := w.checkpoint(session.Manual)
	if list := w.linked(q); len(list) > 0 || !slices.ContainsFunc(r.Left,
		func(o capture.LeftOut) bool { return o.Path == "t/a/" && o.Why == session.Linked }) {
		t.Errorf("with a broken HEAD: linked worktrees %+v, left out %+v", list, r.Left)
	}
}

// TestLinkedWorktreeRemoved checks that the checkpoint of removed files contains a linked worktree that was removed
// together with many files that no earlier checkpoint contains.
func TestLinkedWorktreeRemoved(t *testing.T) {
	for _, ignore := range []string{"*.o\n", "*.o\nt/\n"} {
		w := linkedWorld(t, map[string]gittest.File{".gitignore": text(ignore), "a": text("a\n")})
		must(t, w.tree.Close())
		w.keep = true
		w.openTree()
		w.openCapturer()
		w.addWorktree("t/a", "-b", "a")
		w.write("t/a/.gitignore", "*.tmp\n")
		before := w.checkLinked("added", "t/a")
		for i := range 9 {
			w.write(fmt.Sprintf("t/a/new/%d", i), fmt.Sprint(i))
			w.write(fmt.Sprintf("t/a/new/%d.tmp", i), "ignored")
		}
		w.write("t/a/a", "changed\n")
		w.git(w.plain, "worktree", "remove", "--force", "t/a")
		w.mirrorGone("t/a")
		if _, _, many := w.tree.Removals().Requested(); !many {
			t.Fatal("the removal requested no checkpoint")
		}
		p, r := w.checkpoint(session.Removal)
		list := w.linked(p)
		if !r.Made || len(list) != 1 || list[0].Path != "t/a" || list[0].Branch != "refs/heads/a" ||
			list[0].Index.Tree != w.linked(before)[0].Index.Tree {
			t.Fatalf("checkpoint of the removed files: made %v, linked worktrees %+v", r.Made, list)
		}
		if got := w.git(w.repo.Dir(), "ls-tree", "-r", "--name-only",
			list[0].Files.String()+
				":t/a"); got != ".gitignore\na\nnew/0\nnew/1\nnew/2\nnew/3\nnew/4\nnew/5\nnew/6\nnew/7\nnew/8" {
			t.Errorf("files of the linked worktree: got %s", got)
		}
		if got := w.git(w.repo.Dir(), "cat-file", "-p", list[0].Files.String()+":t/a/a"); got != "changed" {
			t.Errorf("contents of a file: got %q", got)
		}
		if p.Tree != before.Tree {
			t.Errorf("tree of the checkpoint: %s", w.diff(before.Tree.String(), p.Tree.String()))
		}
		q, _ := w.checkpoint(session.Manual)
		if list := w.linked(q); len(list) > 0 {
			t.Errorf("after the removal: linked worktrees %+v", list)
		}
		w.idle("removed")
	}
}
