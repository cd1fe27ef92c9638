package writeback

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

func TestQueue(t *testing.T) {
	for _, kind := range []string{"path", "http", "ssh"} {
		for _, f := range formatsOf(kind) {
			t.Run(fmt.Sprintf("%s/%v", kind, f), func(t *testing.T) {
				p := newPlace(t, f)
				to := newTestRemote(t, kind, f, p.Origin.Path)
				p.copier()
				one := p.Commit("d/new.txt", "one")
				q := p.queue(to, QueueOptions{})
				await.Until(t, "the first commit is pushed", func() bool { return to.ref("refs/heads/main") == one.String() })
				checkpoint := p.Checkpoint("manual")
				start := time.Now()
				two := p.Commit("two.txt", "two")
				await.Until(t, "the second commit is pushed", func() bool { return to.ref("refs/heads/main") == two.String() })
				t.Logf("on the session remote within %v", time.Since(start))
				wantSync(t, q)
				if got := to.ref(session.SegmentRef(sessionName, "main", 1)); got != checkpoint.Commit.String() ||
					!q.Has(checkpoint) {
					t.Errorf("ref of checkpoint %v on the session remote: got %q", checkpoint.Commit, got)
				}
				if st := q.Status(); st.Mode != ModeShared {
					t.Errorf("mode of the session remote: got %q", st.Mode)
				}
				// After git commit --amend, the branch on the session remote still has the commit that this session has
				// pushed, so it is changed, and the old commit is kept.
				three := p.Commit("two.txt", "three", "--amend")
				run(t, p.Work, "", "branch", "topic")
				run(t, p.Work, "", "tag", "-a", "-m", "v", "v1")
				await.Until(t, "the amended commit is pushed", func() bool { return to.ref("refs/heads/main") == three.String() })
				await.Until(t, "the tag is pushed", func() bool { return to.ref("refs/tags/v1") != "" })
				wantSync(t, q)
				kept := strings.Fields(run(t, to.dir, "", "for-each-ref", "--format=%(objectname)",
					session.KeptPrefix(sessionName)))
				if !slices.Contains(kept, two.String()) {
					t.Errorf("kept commits on the session remote: got %v, want %v", kept, two)
				}
				run(t, p.Work, "", "branch", "-D", "topic")
				await.Until(t, "the branch is removed on the session remote",
					func() bool { return to.ref("refs/heads/topic") == "" })
				run(t, to.dir, "", "fsck", "--strict")
				if p.Repo.Owned(p.Base) {
					t.Error("the base commit counts as owned")
				}
			})
		}
	}
}

// TestLostAnswer checks that the queue finds out whether a push was made if its answer was lost, even if the ref has
// changed since.
func TestLostAnswer(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	q := p.queue(to, QueueOptions{})
	one := p.Commit("a", "one")
	p.Carried(one)
	wantSync(t, q)
	isPost := func(r gittest.Request) bool { return r.Method == "POST" }
	cut := to.server.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Push, Match: isPost, Times: 1})
	// No push succeeds after this one, whatever number of requests a busy machine sends before it.
	away := to.server.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Push,
		Match: func(r gittest.Request) bool { return cut.Hits() > 0 && r.Method != "POST" }})
	two := p.Commit("a", "two")
	p.Carried(two)
	await.Until(t, "a push is done, and its response is lost",
		func() bool { return cut.Hits() == 1 && to.ref("refs/heads/main") == two.String() })
	q.Close()
	three := p.Commit("a", "three", "--amend")
	p.Carried(three)
	away.Remove()
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if st := q.Status(); to.ref("refs/heads/main") != three.String() || len(st.Diverged) > 0 {
		t.Errorf("status after the outage: got %+v, want main pushed and no diverged ref", st)
	}
}

// TestLatePush checks the case that a server completes a push after the process that sent it has ended
// and its successor has listed the refs. The successor recognizes the new commit as one that the session has pushed.
func TestLatePush(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	q := p.queue(to, QueueOptions{})
	one := p.Commit("a", "one")
	p.Carried(one)
	wantSync(t, q)
	// The next push waits in a hook until the push after it has begun. That push continues when the first one has
	// changed the branch.
	hook := "#!/bin/sh\n" +
		"if mkdir first 2>/dev/null; then until [ -e second ]; do sleep 0.01; done; exit 0; fi\n" +
		"if mkdir second 2>/dev/null; then while [ \"$(git rev-parse refs/heads/main)\" = " + one.String() +
		" ]; do sleep 0.01; done; fi\n"
	if err := os.WriteFile(filepath.Join(to.dir, "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	two := p.Commit("a", "two")
	p.Carried(two)
	await.Until(t, "a push waits in the server",
		func() bool { _, err := os.Stat(filepath.Join(to.dir, "first")); return err == nil })
	q.Close()
	three := p.Commit("a", "three", "--amend")
	p.Carried(three)
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if _, err := os.Stat(filepath.Join(to.dir, "second")); err != nil {
		t.Errorf("the second push did not overtake the first: %v", err)
	}
	if st := q.Status(); to.ref("refs/heads/main") != three.String() || len(st.Diverged)+len(st.Notices) > 0 {
		t.Errorf("main after a late push of two: got %s, want three, %s; diverged %v, notices %q", to.ref("refs/heads/main"),
			three, st.Diverged, st.Notices)
	}
}

// TestQueueEndsAnywhere checks that no commit is lost and none is pushed twice if a queue ends at any moment, or if
// connections break.
func TestQueueEndsAnywhere(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, p.Origin.Path)
	p.copier()
	run(t, to.dir, "", "config", "core.logAllRefUpdates", "always")
	remote := to.open(transport.Options{})
	var tips []object.ID
	var checkpoints []session.Checkpoint
	for i := range 25 {
		q := p.queue(to, QueueOptions{Remote: remote})
		args := []string{}
		if i%3 == 2 {
			args = append(args, "--amend")
		}
		tips = append(tips, p.Commit("a", fmt.Sprint(i), args...))
		checkpoints = append(checkpoints, p.Checkpoint("idle"))
		var fault *gittest.Injection
		switch i % 4 {
		case 1:
			fault = to.server.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Push, After: int64(i * 7 % 300), Skip: i % 3})
		case 2:
			fault = to.server.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Push, Skip: i % 3})
		}
		time.Sleep(time.Duration(i*i%60) * time.Millisecond) // different moments
		q.Close()
		if fault != nil {
			fault.Remove()
		}
	}
	p.Carried(tips[len(tips)-1])
	q := p.queue(to, QueueOptions{Remote: remote})
	wantSync(t, q)
	if st := q.Status(); len(st.Diverged)+len(st.Moved)+len(st.Notices) > 0 {
		t.Errorf("status after the push: got %+v, want no diverged ref, no moved ref and no notice", st)
	}
	if got := to.ref("refs/heads/main"); got != tips[len(tips)-1].String() {
		t.Errorf("main on the session remote: got %s", got)
	}
	chain := strings.Fields(run(t, to.dir, "", "rev-list", "--first-parent", "-25",
		session.SegmentRef(sessionName, "main", 1)))
	for i, id := range chain {
		if id != checkpoints[len(checkpoints)-1-i].Commit.String() {
			t.Errorf("checkpoint %d from the end: got %s", i, id)
		}
	}
	// Each commit was pushed once: no ref was set to the same commit twice.
	seen := map[string]bool{}
	for _, id := range strings.Fields(run(t, to.dir, "", "log", "-g", "--format=%H", "refs/heads/main")) {
		if seen[id] {
			t.Errorf("main was moved to %s twice", id)
		}
		seen[id] = true
	}
	run(t, to.dir, "", "fsck", "--strict")
}

func FuzzLedger(f *testing.F) {
	l := newLedger("https://host/x y")
	id := object.MustID(strings.Repeat("12", 20))
	l.mode, l.synced, l.baseCommits[id] = ModeSeed, time.Unix(5, 6), true
	l.refs["refs/heads/a"] = remoteRef{acked: id, sent: []object.ID{id, {}}}
	l.refs["refs/heads/b"] = remoteRef{acked: id, sent: []object.ID{{}}}
	l.refs["refs/heads/c"] = remoteRef{acked: id}
	f.Add(l.encode())
	f.Add([]byte(ledgerHead + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLedger(object.SHA1, text)
		if err != nil {
			return
		}
		again, err := parseLedger(object.SHA1, l.encode())
		if err != nil || !reflect.DeepEqual(again.refs, l.refs) || again.remote != l.remote || again.mode != l.mode {
			t.Errorf("ledger %q was read as %+v, then as %+v (%v)", text, l, again, err)
		}
	})
}

// TestDelay runs a measurement of the time until a commit is on a session remote with a round-trip time of 50 ms.
func TestDelay(t *testing.T) {
	for _, kind := range []string{"http", "ssh"} {
		p := newPlace(t, object.SHA1)
		to := newTestRemote(t, kind, object.SHA1, p.Origin.Path)
		to.server.SetRTT(50 * time.Millisecond)
		p.copier()
		p.queue(to, QueueOptions{})
		for i := range 4 {
			id := p.Commit("a", fmt.Sprint(i))
			start := time.Now()
			await.Until(t, "the commit is pushed", func() bool { return to.ref("refs/heads/main") == id.String() })
			t.Logf("%s, commit %d: %v", kind, i, time.Since(start))
		}
	}
}

// TestDrain checks that Drain returns when the session remote has answered the push in progress, and that no push
// begins after that.
func TestDrain(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	started := filepath.Join(t.TempDir(), "started")
	hook := "#!/bin/sh\ntouch " + started + "\nsleep 0.5\n"
	if err := errors.Join(os.MkdirAll(filepath.Join(to.dir, "hooks"), 0o755),
		os.WriteFile(filepath.Join(to.dir, "hooks", "pre-receive"), []byte(hook), 0o755)); err != nil {
		t.Fatal(err)
	}
	p.copier()
	p.Carried(p.Commit("a", "one"))
	q := p.queue(to, QueueOptions{BaseURL: baseURL})
	await.Until(t, "the server has received a push", func() bool { _, err := os.Stat(started); return err == nil })
	q.Drain(t.Context())
	refs := run(t, to.dir, "", "for-each-ref")
	if refs == "" {
		t.Error("the session remote has no refs after Drain, although it had received a push")
	}
	p.Carried(p.Commit("a", "two"))
	q.Wake()
	time.Sleep(100 * time.Millisecond)
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if now := run(t, to.dir, "", "for-each-ref"); now != refs {
		t.Errorf("refs of the session remote after Drain: got %s, want %s", now, refs)
	}
}
