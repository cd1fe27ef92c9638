package writeback

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/await"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

func TestDivergence(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "path", object.SHA1, p.origin.Path)
	p.copier(RefCopierOptions{})
	q := p.queue(to, QueueOptions{})
	one := p.commit("a", "one")
	await.Until(t, "the first commit", func() bool { return to.ref("refs/heads/main") == one.String() })
	// Somebody else commits there.
	theirs := run(t, to.dir, "", "-c", "user.name=b", "-c", "user.email=b@c", "commit-tree", "-p", one.String(), "-m", "theirs", one.String()+"^{tree}")
	run(t, to.dir, "", "update-ref", "refs/heads/main", theirs)
	two := p.commit("a", "two")
	diverged := session.DivergedRef(sessionName, "refs/heads/main")
	await.Until(t, "ours beside theirs", func() bool { return to.ref(diverged) == two.String() })
	wantSync(t, q) // all is there
	want := []Diverged{{Ref: "refs/heads/main", There: "refs/heads/main", Ours: diverged}}
	if st := q.Status(); !slices.Equal(st.Diverged, want) {
		t.Errorf("diverged refs: got %+v, want %+v", st.Diverged, want)
	}
	if got := to.ref("refs/heads/main"); got != theirs {
		t.Fatalf("theirs is lost: %s", got)
	}
	three := p.commit("a", "three")
	await.Until(t, "ours going on", func() bool { return to.ref(diverged) == three.String() })
	// A new process sees it the same way.
	q = p.reopen(q, to, QueueOptions{})
	wantSync(t, q)
	if st := q.Status(); !slices.Equal(st.Diverged, want) {
		t.Errorf("diverged refs as another process sees them: got %+v, want %+v", st.Diverged, want)
	}
	// Merged: all is well.
	run(t, p.work, "", "fetch", "-q", to.dir, "main")
	run(t, p.work, "", "merge", "-q", "-m", "both", "FETCH_HEAD")
	merged := run(t, p.work, "", "rev-parse", "HEAD")
	await.Until(t, "the merge", func() bool { return to.ref("refs/heads/main") == merged && to.ref(diverged) == "" })
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged) != 0 {
		t.Errorf("status after the merge: got %+v, want no diverged ref", st)
	}
	// Removed there, by whomever: it is sent again. Removed here while moved there: theirs stays.
	run(t, to.dir, "", "update-ref", "-d", "refs/heads/main")
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != merged || len(q.Status().Notices) == 0 {
		t.Errorf("a lost ref is %q; %q", got, q.Status().Notices)
	}
}

// The session's own refs, moved by another machine.
func TestTaken(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newFar(t, "path", object.SHA1, p.origin.Path)
	repo, err := p.open()
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
	first := commit(p.session, "")
	set(meta, object.ID{}, first)
	var mu sync.Mutex
	var taken []Taken
	q := p.queue(to, QueueOptions{Taken: func(k Taken) { mu.Lock(); defer mu.Unlock(); taken = append(taken, k) }})
	before := p.checkpoint("manual")
	wantSync(t, q)
	theirs := commit(to.dir, first.String())
	run(t, to.dir, "", "update-ref", meta, theirs.String())
	ours := commit(p.session, first.String())
	set(meta, first, ours)
	p.checkpoint("manual")
	if err := syncAll(t, q); !errors.Is(err, ErrMoved) {
		t.Errorf("sync: %v", err)
	}
	lane := session.SegmentRef(sessionName, "main", 1)
	if got := to.ref(lane); got != before.Commit.String() {
		t.Errorf("a checkpoint was sent to a lane that another machine has: %s", got)
	}
	await.Until(t, "the news", func() bool { mu.Lock(); defer mu.Unlock(); return len(taken) > 0 })
	if taken[0] != (Taken{Ref: meta, Theirs: theirs}) || !repo.Owned(theirs) {
		t.Errorf("told %v, here: %v", taken, repo.Owned(theirs))
	}
	// Ours goes on top of theirs: settled.
	set(meta, ours, commit(p.session, theirs.String()))
	wantSync(t, q)
	if n := len(taken); n != 1 {
		t.Errorf("told %d times", n)
	}
	// A repository that has lost its refs removes nothing there.
	q.Close()
	for _, ref := range strings.Fields(run(t, p.session, "", "for-each-ref", "--format=%(refname)")) {
		run(t, p.session, "", "update-ref", "-d", ref)
	}
	q = p.queue(to, QueueOptions{})
	awaitFailure(t, q)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := q.Sync(ctx, nil); !errors.Is(err, errNoMeta) || to.ref(lane) == "" {
		t.Errorf("sync without refs: %v", err)
	}
}
