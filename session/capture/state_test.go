package capture_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// staged writes an index from a checkpoint state, and returns the output of git ls-files for it.
func (w *world) staged(s session.State) string {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "elsewhere")
	w.git(w.dir, "init", "-q", "--object-format="+w.repo.Format().String(), dir)
	must(w.t, os.WriteFile(filepath.Join(dir, ".git/objects/info/alternates"),
		[]byte(filepath.Join(w.repo.Dir(), "objects")+"\n"), 0o644))
	w.git(dir, "read-tree", s.Index.Tree.String())
	var lines strings.Builder
	gone := map[string]bool{}
	for _, e := range s.Index.Special {
		if e.Stage > 0 && !gone[e.Path] {
			gone[e.Path] = true
			fmt.Fprintf(&lines, "0 %s\t%s\n", strings.Repeat("0", 2*w.repo.Format().Size()), e.Path)
		}
		if !e.IntentToAdd {
			fmt.Fprintf(&lines, "%o %s %d\t%s\n", uint32(e.Mode), e.ID, e.Stage, e.Path)
		}
	}
	cmd := exec.Command("git", "update-index", "--index-info")
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gittest.Env(), strings.NewReader(lines.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("git update-index: %v: %s", err, out)
	}
	for _, e := range s.Index.Special {
		switch {
		case e.IntentToAdd:
			must(w.t, os.MkdirAll(filepath.Join(dir, filepath.Dir(e.Path)), 0o755))
			must(w.t, os.WriteFile(filepath.Join(dir, e.Path), nil, 0o644))
			w.git(dir, "add", "-N", "-f", e.Path)
		case e.SkipWorktree:
			w.git(dir, "update-index", "--skip-worktree", e.Path)
		case e.AssumeValid:
			w.git(dir, "update-index", "--assume-unchanged", e.Path)
		}
	}
	return w.git(dir, "ls-files", "--stage", "-v")
}

// TestStateIsGits checks that a checkpoint state contains all data of git: all kinds of index entries, stashes, a merge
// in progress, and refs.
func TestStateIsGits(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) { testState(t, f) })
	}
}

func testState(t *testing.T, f object.Format) {
	w := newWorld(t, f, map[string]gittest.File{"a": text("a\n"), "b": text("b\n"), "dir/c": text("c\n"),
		"dir/sub/d": text("d\n"), "x.sh": {Data: []byte("x\n"), Mode: "100755"}})
	check := func(step string) session.State {
		t.Helper()
		p, _ := w.checkpoint(session.Manual)
		s, err := w.repo.State(p)
		if err != nil {
			t.Fatalf("read the checkpoint state after %s: %v", step, err)
		}
		if got, want := w.staged(s), w.git(w.plain, "ls-files", "--stage", "-v"); got != want {
			t.Errorf("%s: index entries:\n%s\nwant\n%s", step, got, want)
		}
		head, _ := gittest.Git(w.ctx, w.plain, "symbolic-ref", "-q", "HEAD")
		if s.Branch != head || p.Branch != head || s.Head.String() != w.git(w.plain, "rev-parse", "HEAD") ||
			s.Head != p.Head {
			t.Errorf("%s: HEAD: got branch %q and commit %s, want those of git", step, s.Branch, s.Head)
		}
		var refs []string
		for _, r := range append(s.Refs, s.Remote...) {
			refs = append(refs, r.ID.String()+" "+r.Name)
		}
		if got, want := strings.Join(refs, "\n"), w.git(w.plain, "for-each-ref", "--format=%(objectname) %(refname)",
			"refs/heads", "refs/notes", "refs/stash", "refs/tags")+
			"\n"+w.git(w.plain, "for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes"); got != want {
			t.Errorf("%s: refs: got\n%s\nwant\n%s", step, got, want)
		}
		var stashes []string
		for _, stash := range s.Stashes {
			stashes = append(stashes, stash.Commit.String()+" "+stash.Message)
		}
		if got, want := strings.Join(stashes, "\n"), w.git(w.plain, "stash", "list", "--format=%H %gs"); got != want {
			t.Errorf("%s: stashes: got\n%s\nwant\n%s", step, got, want)
		}
		// The session repository has all objects that were created in the session, and does not need the git directory.
		w.git(w.repo.Dir(), "rev-list", "--objects", "--missing=error", p.Commit.String())
		return s
	}
	check("as mounted")
	w.write("a", "staged\n")
	w.write("new/file", "new\n")
	w.git(w.plain, "add", "-A")
	w.write("a", "and edited\n")
	w.write("ita", "later\n")
	w.git(w.plain, "add", "-N", "ita")
	w.git(w.plain, "update-index", "--chmod=+x", "b")
	w.git(w.plain, "update-index", "--skip-worktree", "dir/c")
	w.git(w.plain, "update-index", "--assume-unchanged", "x.sh")
	check("staged in many ways")
	w.git(w.plain, "update-index", "--no-skip-worktree", "dir/c")
	w.git(w.plain, "update-index", "--no-assume-unchanged", "x.sh")
	w.git(w.plain, "commit", "-q", "-a", "-m", "mine")
	w.git(w.plain, "tag", "-a", "-m", "t", "v1")
	w.git(w.plain, "tag", "light")
	w.git(w.plain, "notes", "add", "-m", "note")
	w.git(w.plain, "branch", "other", "HEAD~")
	w.git(w.plain, "tag", "-a", "-m", "of a tag", "v2", "v1")
	w.git(w.plain, "commit", "-q", "--allow-empty", "-m", "only the tag's")
	w.git(w.plain, "tag", "-a", "-m", "t", "v3")
	tagged := w.git(w.plain, "rev-parse", "HEAD")
	w.git(w.plain, "reset", "-q", "--soft", "HEAD~")
	s := check("refs")
	p, _ := w.checkpoint(session.Manual)
	if all := w.git(w.repo.Dir(), "rev-list", p.Commit.String()); !strings.Contains(all, tagged) {
		t.Errorf("the object of a tag is not reachable from the checkpoint")
	}
	for _, name := range []string{"v1", "v2", "v3"} {
		id := w.git(w.plain, "rev-parse", name)
		if got := strings.TrimSpace(string(s.Tags[object.MustID(id)])); got != w.git(w.plain, "cat-file", "tag", name) {
			t.Errorf("tag %s: got %q", name, got)
		}
	}
	if len(s.Tags) != 3 {
		t.Errorf("tags of the state: got %v", s.Tags)
	}
	for i := range 3 {
		must(t, os.WriteFile(w.at("b"), []byte(fmt.Sprint("stash ", i)), 0o755))
		w.git(w.plain, "stash", "push", "-q", "-m", fmt.Sprint("number ", i))
	}
	check("stashes")
	w.git(w.plain, "stash", "drop", "-q", "stash@{1}")
	check("one dropped")

	w.git(w.plain, "checkout", "-q", "other")
	must(t, os.WriteFile(w.at("a"), []byte("theirs\n"), 0o644))
	w.git(w.plain, "commit", "-q", "-a", "-m", "theirs")
	if w.gitMay("merge", "main") == nil {
		t.Fatal("git caused no conflict")
	}
	s = check("a conflict")
	if string(s.Files["MERGE_HEAD"].Content) != w.git(w.plain, "rev-parse", "main")+"\n" {
		t.Errorf("files of the operation in progress: got %v", s.Files)
	}
	w.git(w.plain, "merge", "--abort")
	if w.gitMay("rebase", "main") == nil {
		t.Fatal("git caused no conflict")
	}
	s = check("a rebase")
	if len(s.Files["rebase-merge/onto"].Content) == 0 {
		t.Errorf("files of the operation in progress: got %v", s.Files)
	}
	w.git(w.plain, "rebase", "--abort")
	w.git(w.plain, "checkout", "-q", "--detach", "main")
	check("detached")
	w.git(w.plain, "update-index", "--split-index")
	w.git(w.plain, "rm", "-q", "--cached", "dir/c")
	check("a split index")
	w.git(w.plain, "pack-refs", "--all")
	w.git(w.plain, "gc", "-q", "--prune=now")
	w.git(w.plain, "commit", "-q", "-m", "after gc")
	check("packed")
	w.git(w.repo.Dir(), "fsck")
}

// TestUnchangedState checks that an unchanged state causes no checkpoint, and is encoded as the same tree.
func TestUnchangedState(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	w.write("a", "b\n")
	w.git(w.plain, "add", "-A")
	w.git(w.plain, "commit", "-q", "-m", "tagged")
	w.git(w.plain, "tag", "-a", "-m", "t", "v1")
	w.git(w.plain, "tag", "-a", "-m", "t", "v2")
	p, _ := w.checkpoint(session.Manual)
	w.git(w.plain, "update-index", "--refresh", "--really-refresh", "--force-write-index")
	if q, r := w.checkpoint(session.Idle); r.Made || q.ID != p.ID {
		t.Errorf("an index with the same entries caused checkpoint %+v", q)
	}
	first, err := w.repo.State(p)
	must(t, err)
	w.restart()
	if q, r := w.checkpoint(session.Idle); r.Made || q.ID != p.ID {
		t.Errorf("a restart caused checkpoint %+v", q)
	}
	w.write("a", "c\n")
	q, _ := w.checkpoint(session.Idle)
	second, err := w.repo.State(q)
	must(t, err)
	if !reflect.DeepEqual(first, second) {
		t.Errorf("state before and after the restart: got %+v and %+v", first, second)
	}
}
