package writeback

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/session"
)

func TestDivergence(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, p.Origin.Path)
	p.copier()
	q := p.queue(to, QueueOptions{})
	one := p.Commit("a", "one")
	await.Until(t, "the first commit is pushed", func() bool { return to.ref("refs/heads/main") == one.String() })
	// Another user pushes a commit to the branch.
	theirs := run(t, to.dir, "", "-c", "user.name=b", "-c", "user.email=b@c", "commit-tree", "-p", one.String(), "-m",
		"theirs", one.String()+"^{tree}")
	run(t, to.dir, "", "update-ref", "refs/heads/main", theirs)
	two := p.Commit("a", "two")
	diverged := session.DivergedRef(sessionName, "refs/heads/main")
	await.Until(t, "our commit is pushed beside theirs", func() bool { return to.ref(diverged) == two.String() })
	wantSync(t, q) // after this, everything is pushed
	want := []Diverged{{Ref: "refs/heads/main", There: "refs/heads/main", Ours: diverged}}
	if st := q.Status(); !slices.Equal(st.Diverged, want) {
		t.Errorf("diverged refs: got %+v, want %+v", st.Diverged, want)
	}
	if got := to.ref("refs/heads/main"); got != theirs {
		t.Fatalf("the other user's commit is lost: main is %s", got)
	}
	three := p.Commit("a", "three")
	await.Until(t, "our next commit is pushed beside theirs", func() bool { return to.ref(diverged) == three.String() })
	// A new process reports the same diverged refs.
	q = p.reopen(q, to, QueueOptions{})
	wantSync(t, q)
	if st := q.Status(); !slices.Equal(st.Diverged, want) {
		t.Errorf("diverged refs as another process sees them: got %+v, want %+v", st.Diverged, want)
	}
	// After the other commit was merged, no ref is diverged.
	run(t, p.Work, "", "fetch", "-q", to.dir, "main")
	run(t, p.Work, "", "merge", "-q", "-m", "both", "FETCH_HEAD")
	merged := run(t, p.Work, "", "rev-parse", "HEAD")
	await.Until(t, "the merge is pushed",
		func() bool { return to.ref("refs/heads/main") == merged && to.ref(diverged) == "" })
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged) != 0 {
		t.Errorf("status after the merge: got %+v, want no diverged ref", st)
	}
	// A ref that was removed on the session remote is pushed again. If it was removed in the mount and changed on the
	// session remote, the session remote keeps its commit.
	run(t, to.dir, "", "update-ref", "-d", "refs/heads/main")
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != merged || len(q.Status().Notices) == 0 {
		t.Errorf("ref that was removed on the session remote: got %q; notices %q", got, q.Status().Notices)
	}
}

// TestMovedBackByAnotherMount checks the case that another mount resumes the session from a checkpoint, so that it sets
// the branch back and keeps the later commits under another name. This mount does not undo that. It pushes the branch
// again after a new commit, or if no ref keeps its commits.
func TestMovedBackByAnotherMount(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, p.Origin.Path)
	p.copier()
	q := p.queue(to, QueueOptions{})
	one := p.Commit("a", "one")
	p.Carried(one)
	wantSync(t, q)
	two := p.Commit("a", "two")
	p.Carried(two)
	wantSync(t, q)
	moveBack := func(kept object.ID) {
		t.Helper()
		if !kept.IsZero() {
			run(t, to.dir, "", "update-ref", session.KeptPrefix(sessionName)+string(session.NewCheckpointID(time.Now())),
				kept.String())
		}
		run(t, to.dir, "", "update-ref", session.CarriedRef(sessionName, "refs/heads/main"), one.String())
		run(t, to.dir, "", "update-ref", "refs/heads/main", one.String())
		wantSync(t, q)
	}
	moveBack(two)
	if got, st := to.ref("refs/heads/main"), q.Status(); got != one.String() || st.Pending != 0 || len(st.Diverged) != 0 ||
		len(st.Notices) != 1 {
		t.Errorf("main that another mount has moved back is %s, status %+v, want %s, nothing pending and one notice", got, st,
			one)
	}
	three := p.Commit("a", "three")
	p.Carried(three)
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != three.String() {
		t.Errorf("main after the next commit: got %s, want %s", got, three)
	}
	moveBack(object.ID{}) // as after a restore from a backup
	if got := to.ref("refs/heads/main"); got != three.String() {
		t.Errorf("main whose last commit nothing keeps: got %s, want %s", got, three)
	}
}

// TestOwnRefsChangedByOthers checks the case that another machine changes refs that only this session writes.
func TestOwnRefsChangedByOthers(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, p.Origin.Path)
	repo, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	meta := session.MetaRef(sessionName)
	commit := func(dir, parent string) object.ID {
		args := []string{"-c", "user.name=b", "-c", "user.email=b@c", "commit-tree", "-m", time.Now().String()}
		if parent != "" {
			args = append(args, "-p", parent)
		}
		return object.MustID(run(t, dir, "", append(args, run(t, dir, "", "mktree"))...))
	}
	set := func(ref string, old, id object.ID) {
		t.Helper()
		if err := repo.Update(t.Context(), []session.RefChange{{Name: ref, Old: old, New: id}}); err != nil {
			t.Fatal(err)
		}
	}
	first := commit(p.Session, "")
	set(meta, object.ID{}, first)
	var mu sync.Mutex
	var taken []Taken
	q := p.queue(to, QueueOptions{Taken: func(k Taken) { mu.Lock(); defer mu.Unlock(); taken = append(taken, k) }})
	before := p.Checkpoint("manual")
	wantSync(t, q)
	theirs := commit(to.dir, first.String())
	run(t, to.dir, "", "update-ref", meta, theirs.String())
	ours := commit(p.Session, first.String())
	set(meta, first, ours)
	p.Checkpoint("manual")
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync of a lane that another machine has: got %v", err)
	}
	lane := session.SegmentRef(sessionName, "main", 1)
	if got := to.ref(lane); got != before.Commit.String() {
		t.Errorf("a checkpoint was pushed to a lane that another machine has: %s", got)
	}
	await.Until(t, "the take-over is reported", func() bool { mu.Lock(); defer mu.Unlock(); return len(taken) > 0 })
	if taken[0] != (Taken{Ref: meta, Theirs: theirs}) || !repo.Owned(theirs) {
		t.Errorf("reported refs: got %v; their commit was fetched: %v", taken, repo.Owned(theirs))
	}
	// The local metadata becomes a successor of that of the other machine, so that the refs are not diverged any more.
	set(meta, ours, commit(p.Session, theirs.String()))
	wantSync(t, q)
	if n := len(taken); n != 1 {
		t.Errorf("the take-over was reported %d times", n)
	}
	// A repository that has lost all its refs removes none on the session remote.
	q.Close()
	for _, ref := range strings.Fields(run(t, p.Session, "", "for-each-ref", "--format=%(refname)")) {
		run(t, p.Session, "", "update-ref", "-d", ref)
	}
	q = p.queue(to, QueueOptions{})
	awaitFailure(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := q.Sync(ctx, nil); !errors.Is(err, errNoMeta) || to.ref(lane) == "" {
		t.Errorf("sync without refs: got %v", err)
	}
}
