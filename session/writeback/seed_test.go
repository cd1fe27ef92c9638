package writeback

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestSeed checks that an empty session remote receives the history first, which takes one request to the mounted
// remote.
func TestSeed(t *testing.T) {
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t, object.SHA1)
			serve, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(p.Origin.Path)})
			if err != nil {
				t.Fatal(err)
			}
			defer serve.Close()
			origin, err := transport.Open(serve.URL("origin"), transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer origin.Close()
			to := newTestRemote(t, kind, object.SHA1, "")
			p.copier()
			one := p.Commit("d/new.txt", "one")
			await.Until(t, "the copier has copied the ref",
				func() bool { return p.InSession("refs/heads/main") == one.String() })
			checkpoint := p.Checkpoint("manual")
			q := p.queue(to, QueueOptions{Origin: origin})
			defer q.Close()
			wantSync(t, q)
			if to.ref("refs/heads/main") != one.String() || !q.Has(checkpoint) || q.Status().Mode != ModeSeed {
				t.Errorf("status after the push: got %+v, want main and the checkpoint pushed in seed mode", q.Status())
			}
			run(t, to.dir, "", "fsck", "--strict")
			if n := len(serve.Log().Requests()); n > 5 {
				t.Errorf("got %d requests to the mounted remote:\n%s", n, serve.Log())
			}
			into := filepath.Join(t.TempDir(), "clone")
			run(t, "/", "", "clone", "-q", to.dir, into)
			if left, _ := filepath.Glob(filepath.Join(q.o.Dir, "*")); len(left) > 0 {
				t.Errorf("temporary files after the seed: %v", left)
			}
			// Commit a file that belongs to a commit outside of the pushed history.
			run(t, p.Origin.Path, "", "branch", "side", "main")
			side, err := p.Origin.Commit("side", map[string]gittest.File{"side.txt": {Data: []byte("from the side")}}, "side")
			if err != nil {
				t.Fatal(err)
			}
			run(t, p.Store, "", "fetch", "-q", "origin", side.String())
			run(t, p.Work, "", "read-tree", "--prefix=side/", side.String())
			run(t, p.Work, "", "commit", "-q", "-m", "side")
			p.Carried(object.MustID(run(t, p.Work, "", "rev-parse", "HEAD")))
			q2 := p.reopen(q, to, QueueOptions{Origin: origin, Store: p})
			wantSync(t, q2)
			run(t, to.dir, "", "fsck", "--strict")
		})
	}
}

// TestSeedToOldServer checks a push to an empty session remote with an old server that cannot state which commits it
// has.
func TestSeedToOldServer(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "http", object.SHA1, "")
	to.server.Inject(gittest.Fault{Kind: gittest.NoV2})
	p.copier()
	one := p.Commit("a", "one")
	p.Carried(one)
	q := p.queue(to, QueueOptions{})
	wantSync(t, q)
	if got := to.ref("refs/heads/main"); got != one.String() || q.Status().Mode != ModeSeed {
		t.Errorf("main on the session remote: got %q; status %+v", got, q.Status())
	}
}

// TestSeedFails checks that the queue does not request the history repeatedly if the mounted remote cannot send it, and
// that Sync returns the error.
func TestSeedFails(t *testing.T) {
	p := newPlace(t, object.SHA1)
	serve, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(p.Origin.Path)})
	if err != nil {
		t.Fatal(err)
	}
	defer serve.Close()
	origin, err := transport.Open(serve.URL("origin"), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close()
	to := newTestRemote(t, "http", object.SHA1, "")
	broken := serve.Inject(gittest.Fault{Kind: gittest.Garbage, On: gittest.Fetch})
	p.copier()
	p.Carried(p.Commit("a", "one"))
	q := p.queue(to, QueueOptions{Origin: origin})
	for range 3 {
		if err := syncAll(t, q); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sync without the history: got %v", err)
		}
	}
	p.Carried(p.Commit("a", "two"))
	if st := q.Status(); st.Failure == nil || st.Pending == 0 || st.Mode != ModeSeed {
		t.Errorf("status without the history: got %+v, want pending refs and a failure in seed mode", st)
	}
	if n := broken.Hits(); n != 1 {
		t.Errorf("the mounted remote received %d requests, want 1", n)
	}
	broken.Remove()
	q = p.reopen(q, to, QueueOptions{Origin: origin})
	wantSync(t, q)
}

// TestSeedAfterOtherPush checks that after a failed push of the history, the queue finds out that the session remote
// has got the history in another way, and continues.
func TestSeedAfterOtherPush(t *testing.T) {
	p := newPlace(t, object.SHA1)
	serve, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(p.Origin.Path)})
	if err != nil {
		t.Fatal(err)
	}
	defer serve.Close()
	origin, err := transport.Open(serve.URL("origin"), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close()
	to := newTestRemote(t, "http", object.SHA1, "")
	serve.Inject(gittest.Fault{Kind: gittest.Garbage, On: gittest.Fetch})
	p.copier()
	p.Carried(p.Commit("a", "one"))
	q := p.queue(to, QueueOptions{Origin: origin})
	defer q.Close()
	if err := syncAll(t, q); err == nil || q.Status().Failure == nil {
		t.Fatalf("sync without the history: got error %v and status %+v, want a failure", err, q.Status())
	}
	run(t, p.Origin.Path, "", "push", "-q", to.dir, "main:refs/heads/theirs")
	wantSync(t, q)
	if st := q.Status(); st.Failure != nil || st.Pending != 0 {
		t.Errorf("status with the history on the session remote: got %+v, want nothing pending", st)
	}
}
