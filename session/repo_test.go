package session_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := gittest.Git(context.Background(), dir, args...)
	if err != nil {
		t.Fatalf("git %s failed: %v", strings.Join(args, " "), err)
	}
	return out
}

func open(t *testing.T, dir string, o session.RepoOptions) *session.Repo {
	t.Helper()
	r, err := session.OpenRepo(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func outgoing(t *testing.T, f object.Format, typ object.Type, content string) odb.Outgoing {
	t.Helper()
	o, err := session.Outgoing(f, typ, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// commits writes n commits of an empty tree and returns their ids.
func commits(t *testing.T, r *session.Repo, n int) []object.ID {
	t.Helper()
	tree := outgoing(t, r.Format(), object.Tree, "")
	all, ids := []odb.Outgoing{tree}, []object.ID{}
	for i := range n {
		c := outgoing(t, r.Format(), object.Commit,
			fmt.Sprintf("tree %s\nauthor a <a> %d +0000\ncommitter a <a> %d +0000\n\nm\n", tree.ID, i, i))
		all, ids = append(all, c), append(ids, c.ID)
	}
	if err := r.Write(context.Background(), all); err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestRefsAreAsGitSeesThem makes random changes of refs, some of them by git, and checks that git, a second Repo and a
// map have the same result.
func TestRefsAreAsGitSeesThem(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) { testRefs(t, f) })
	}
}

func testRefs(t *testing.T, f object.Format) {
	dir := filepath.Join(t.TempDir(), "s.git")
	r := open(t, dir, session.RepoOptions{Format: f, Session: "s"})
	other := open(t, dir, session.RepoOptions{Format: f, Session: "s", ReadOnly: true})
	ids := commits(t, r, 5)
	names := []string{"refs/heads/a", "refs/heads/a/b", "refs/heads/a/b/c", "refs/heads/main", "refs/tags/v1",
		"refs/notes/x", session.SegmentRef("s", "main", 1)}
	want := map[string]object.ID{}
	rng := rand.New(rand.NewPCG(1, uint64(f)))
	ctx := context.Background()
	for step := range 300 {
		switch rng.IntN(12) {
		case 0:
			git(t, dir, "pack-refs", "--all")
			continue
		case 1:
			name := names[3+rng.IntN(3)]
			id := ids[rng.IntN(len(ids))]
			git(t, dir, "update-ref", name, id.String())
			want[name] = id
			continue
		}
		next := map[string]object.ID{}
		for k, v := range want {
			next[k] = v
		}
		var changes []session.RefChange
		fits := true
		for _, i := range rng.Perm(len(names))[:1+rng.IntN(3)] {
			c := session.RefChange{Name: names[i], Old: want[names[i]]}
			if rng.IntN(3) > 0 {
				c.New = ids[rng.IntN(len(ids))]
				next[c.Name] = c.New
			} else {
				delete(next, c.Name)
			}
			if rng.IntN(8) == 0 {
				c.Old = object.MustID(strings.Repeat("1", 2*f.Size()))
				fits = false
			}
			changes = append(changes, c)
		}
		clash := false
		for a := range next {
			for b := range next {
				clash = clash || strings.HasPrefix(a, b+"/")
			}
		}
		err := r.Update(ctx, changes)
		switch {
		case !fits && !errors.Is(err, session.ErrRefMoved):
			t.Fatalf("step %d: update with a wrong old value: got %v, want ErrRefMoved", step, err)
		case fits && !clash && err != nil:
			t.Fatalf("step %d: make changes %+v of refs %v: %v", step, changes, want, err)
		case fits && clash && err == nil:
			t.Fatalf("step %d: changes %+v of refs %v: got no error, but two of the names exclude each other", step,
				changes, want)
		case err == nil:
			want = next
		case fits:
			// Refs that prevent the creation of others may have been deleted first.
			for _, c := range changes {
				if got, err := r.Ref(c.Name); err == nil && got.IsZero() {
					delete(want, c.Name)
				}
			}
		}
		var lines []string
		for name, id := range want {
			lines = append(lines, id.String()+" "+name)
		}
		slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[f.Size()*2:], b[f.Size()*2:]) })
		text := strings.Join(lines, "\n")
		if got := git(t, dir, "for-each-ref", "--format=%(objectname) %(refname)"); got != text {
			t.Fatalf("step %d: refs that git lists: got\n%s\nwant\n%s", step, got, text)
		}
		for _, from := range []*session.Repo{r, other} {
			refs, err := from.Refs("refs/")
			if err != nil || listed(refs) != text {
				t.Fatalf("step %d: Refs: got\n%s\nwant\n%s (error %v)", step, listed(refs), text, err)
			}
			for _, name := range names {
				if got, err := from.Ref(name); err != nil || got != want[name] {
					t.Fatalf("step %d: value of %s: got %s, want %s (error %v)", step, name, got, want[name], err)
				}
			}
			heads, err := from.Refs("refs/heads/a")
			if err != nil || slices.ContainsFunc(heads,
				func(r packedrefs.Ref) bool { return !strings.HasPrefix(r.Name, "refs/heads/a") }) {
				t.Fatalf("step %d: refs that begin with refs/heads/a: got %v, %v", step, heads, err)
			}
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, "refs", "*", "*.lock"))
	if len(left) > 0 {
		t.Errorf("lock files after all updates: got %v, want none", left)
	}
	git(t, dir, "fsck", "--strict")
}

func listed(refs []packedrefs.Ref) string {
	var lines []string
	for _, r := range refs {
		lines = append(lines, r.ID.String()+" "+r.Name)
	}
	return strings.Join(lines, "\n")
}

// TestLeftoverLocks checks that Update takes over the lock file of a killed process of artifactfs, and waits for a
// lock file of git.
func TestLeftoverLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s.git")
	r := open(t, dir, session.RepoOptions{Session: "s"})
	ids := commits(t, r, 2)
	ctx := context.Background()
	if err := r.Update(ctx, []session.RefChange{{Name: "refs/heads/x", New: ids[0]}}); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(dir, "refs/heads/x.lock")
	if err := os.Link(filepath.Join(dir, "artifactfs.lock"), lock); err != nil {
		t.Fatal(err)
	}
	if err := r.Update(ctx, []session.RefChange{{Name: "refs/heads/x", Old: ids[0], New: ids[1]}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := r.Update(short, []session.RefChange{{Name: "refs/heads/x", Old: ids[1], New: ids[0]}}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("update while git holds the lock: got %v, want context.DeadlineExceeded", err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if got := git(t, dir, "rev-parse", "refs/heads/x"); got != ids[1].String() {
		t.Errorf("refs/heads/x: got %s, want %s", got, ids[1])
	}
}

// TestBreakLocks checks that git cannot push to a ref whose lock file was left by a killed process of artifactfs, until
// BreakLocks has removed the file. BreakLocks keeps the lock files of git, and those of a process that is changing
// refs.
func TestBreakLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s.git")
	r := open(t, dir, session.RepoOptions{Session: "s"})
	ids := commits(t, r, 2)
	if err := r.Update(t.Context(), []session.RefChange{{Name: "refs/heads/x", New: ids[0]}}); err != nil {
		t.Fatal(err)
	}
	ours, lock := filepath.Join(dir, "artifactfs.lock"), filepath.Join(dir, "refs/heads/x.lock")
	packed, others := filepath.Join(dir, "packed-refs.lock"), filepath.Join(dir, "refs/heads/y.lock")
	if err := errors.Join(os.Link(ours, lock), os.Link(ours, packed), os.WriteFile(others, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	unlock, err := disk.Lock(ours)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.BreakLocks(dir); err != nil {
		t.Errorf("BreakLocks while a process changes refs: got %v", err)
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Errorf("lock of a living process: got %v", err)
	}
	unlock()
	if err := session.BreakLocks(dir); err != nil {
		t.Errorf("BreakLocks: got %v", err)
	}
	for file, want := range map[string]error{lock: fs.ErrNotExist, packed: fs.ErrNotExist, others: nil, ours: nil} {
		if _, err := os.Lstat(file); !errors.Is(err, want) {
			t.Errorf("%s after BreakLocks: got %v, want %v", file, err, want)
		}
	}
	git(t, dir, "update-ref", "refs/heads/x", ids[1].String(), ids[0].String())
	if err := session.BreakLocks(t.TempDir()); err != nil {
		t.Errorf("BreakLocks of another directory: got %v", err)
	}
}

// TestCommitGraphBesideShallow checks that a store with a complete history and a commit-graph does not change the
// history of a repository that is shallow.
func TestCommitGraphBesideShallow(t *testing.T) {
	dir := t.TempDir()
	remote, err := gittest.New(filepath.Join(dir, "remote.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	history, err := remote.History(5)
	if err != nil {
		t.Fatal(err)
	}
	git(t, remote.Path, "gc", "-q")
	git(t, remote.Path, "commit-graph", "write", "--reachable")
	r := open(t, filepath.Join(dir, "s.git"), session.RepoOptions{Session: "s", Remote: "file://" + remote.Path,
		Borrow: []string{filepath.Join(remote.Path, "objects")}})
	tip := history[4]
	tree, err := r.Commit(tip)
	if err != nil || len(tree.Parents) != 1 {
		t.Fatalf("read the last commit of the remote: got %+v, %v, want one parent", tree, err)
	}
	mine := outgoing(t, object.SHA1, object.Commit,
		fmt.Sprintf("tree %s\nparent %s\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nm\n", tree.Tree, tip))
	ctx := context.Background()
	if err := r.Write(ctx, []odb.Outgoing{mine}); err != nil {
		t.Fatal(err)
	}
	if err := r.SetShallow([]object.ID{tip}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Shallow(); err != nil || !slices.Equal(got, []object.ID{tip}) {
		t.Errorf("Shallow: got %v, %v, want %s", got, err, tip)
	}
	if err := r.Update(ctx, []session.RefChange{{Name: "refs/heads/main", New: mine.ID}}); err != nil {
		t.Fatal(err)
	}
	if out := git(t, r.Dir(), "fsck", "--no-dangling"); out != "" {
		t.Errorf("git fsck: got output %s, want none", out)
	}
	if got := git(t, r.Dir(), "rev-list", "--count", "main"); got != "2" {
		t.Errorf("commits of main: got %s, want 2", got)
	}
	git(t, dir, "clone", "-q", "s.git", "clone")
	if got := git(t, filepath.Join(dir, "clone"), "rev-parse", "HEAD"); got != mine.ID.String() {
		t.Errorf("HEAD of the clone: got %s, want %s", got, mine.ID)
	}
	git(t, filepath.Join(dir, "clone"), "fsck")
	if !r.Owned(mine.ID) || r.Owned(tip) || !r.Remotes(tip) || r.Remotes(mine.ID) {
		t.Error("Owned or Remotes is wrong for the new commit or for the commit of the remote")
	}
}

// The queue that pushes refs is not woken by refs that stay on this host.
func TestChangedLeavesOutRestoredTrees(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "r.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
	id := commits(t, r, 1)[0]
	restored := session.RestoredRef("s", session.NewCheckpointID(time.Now()))
	for _, name := range []string{restored, "refs/heads/main"} {
		if err := r.Update(t.Context(), []session.RefChange{{Name: name, New: id}}); err != nil {
			t.Fatal(err)
		}
		if got, want := len(r.Changed()), map[bool]int{false: 1}[name == restored]; got != want {
			t.Errorf("tokens after a change of %s: got %d, want %d", name, got, want)
		}
	}
}

// TestRefsWaitForTheirObjects checks that a ref never points to an object that a power failure could still remove.
func TestRefsWaitForTheirObjects(t *testing.T) {
	ctx := t.Context()
	r := open(t, filepath.Join(t.TempDir(), "r.git"), session.RepoOptions{Format: object.SHA1, Session: "s"})
	ids := commits(t, r, 2)
	const name, gone = "refs/heads/a", "refs/heads/gone"
	if err := r.Update(ctx, []session.RefChange{{Name: name, New: ids[0]}, {Name: gone, New: ids[0]}}); err != nil {
		t.Fatal(err)
	}
	asked := 0
	lost := errors.New("disk error of the test")
	changes := []session.RefChange{{Name: name, Old: ids[0], New: ids[1]}, {Name: gone, Old: ids[0]},
		{Name: "refs/heads/new", New: ids[1]}}
	for _, c := range changes {
		before, err := r.Ref(c.Name)
		if err != nil {
			t.Fatal(err)
		}
		err = r.UpdateAfter(ctx, []session.RefChange{c}, func() error {
			asked++
			if now, err := r.Ref(c.Name); err != nil || now != before {
				t.Errorf("%s changed before its objects were on disk: got %s, want %s (error %v)", c.Name, now, before, err)
			}
			return lost
		})
		if !errors.Is(err, lost) {
			t.Errorf("update stopped by the test at %s: got %v", c.Name, err)
		}
		if now, err := r.Ref(c.Name); err != nil || now != before {
			t.Errorf("%s changed although its objects could not be synced: got %s, want %s (error %v)", c.Name, now, before, err)
		}
	}
	if asked != len(changes) {
		t.Errorf("calls of ready: got %d, want %d", asked, len(changes))
	}
	if err := r.UpdateAfter(ctx, changes, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	git(t, r.Dir(), "fsck", "--strict")

	tree := outgoing(t, r.Format(), object.Tree, "")
	last := outgoing(t, r.Format(), object.Commit,
		fmt.Sprintf("tree %s\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nlast\n", tree.ID))
	moved := []session.RefChange{{Name: name, Old: ids[0], New: last.ID}}
	if err := r.Record(ctx, []odb.Outgoing{last}, moved); !errors.Is(err, session.ErrRefMoved) {
		t.Errorf("record with an old value that is out of date: got %v, want ErrRefMoved", err)
	}
	moved[0].Old = ids[1]
	if err := r.Record(ctx, []odb.Outgoing{last}, moved); err != nil {
		t.Fatal(err)
	}
	if now, err := r.Ref(name); err != nil || now != last.ID || !r.Owned(last.ID) {
		t.Errorf("%s after Record: got %s, %v, want %s", name, now, err, last.ID)
	}
}
