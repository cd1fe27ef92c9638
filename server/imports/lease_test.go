package imports

import (
	"context"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestALateAttemptChangesNothing delays the fetch of the first attempt, until another node has the lease and has
// imported newer commits. The first node does not notice that it has lost the lease, and must change nothing.
func TestALateAttemptChangesNothing(t *testing.T) {
	for name, save := range map[string]time.Duration{"before it stores progress": time.Hour,
		"while it stores progress": quick.save} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			u := newUpstream(t, object.SHA1)
			u.commit(t, "main")
			u.commit(t, "main")
			stall := u.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 50, Times: 1})
			late := newNode(t, dir, "late", Options{})
			late.Close() // stops the loop of the node
			r := late.create(t, "r", "sha1")
			if err := late.Start(t.Context(), r, Request{URL: u.url, Depth: 1}, records.Cause{}); err != nil {
				t.Fatal(err)
			}
			late.pace.save = save
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				late.run(context.Background(), r.ID)
			}()
			await.Until(t, "the first node fetches", func() bool { return stall.Hits() > 0 })
			newest := u.commit(t, "main")
			n := newNode(t, dir, "n", Options{})
			if s := n.end(t, r); s.State != Succeeded {
				t.Fatalf("import of the second node has ended with %+v", s)
			}
			before, status := n.repo(t, r.ID), n.status(t, r)
			stall.Remove()
			<-ended
			if after := n.repo(t, r.ID); after != before {
				t.Errorf("the late attempt has changed the repository: %+v, want %+v", after, before)
			}
			if after := n.status(t, r); after != status {
				t.Errorf("the late attempt has changed the import: %+v, want %+v", after, status)
			}
			if got, want := n.refs(t, r.ID), map[string]string{"refs/heads/main": newest}; !maps.Equal(got, want) {
				t.Errorf("refs %v, want %v", got, want)
			}
			n.fsck(t, r.ID)
			newest = u.commit(t, "main")
			n.succeed(t, r, Request{})
			if got := n.refs(t, r.ID)["refs/heads/main"]; got != newest {
				t.Errorf("main after the next import is %s, want %s", got, newest)
			}
		})
	}
}

func (n node) status(t *testing.T, r records.Repo) Status {
	t.Helper()
	s, err := n.Status(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAnImportEndsIfTheDatabaseDoesNotAnswer locks the table of leases in PostgreSQL, so that the renewal of the lease
// hangs, and checks that the import ends.
func TestAnImportEndsIfTheDatabaseDoesNotAnswer(t *testing.T) {
	server, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", err)
	}
	defer server.Close()
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	stall := u.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 50})
	defer stall.Remove()
	url := server.URL("postgres")
	n, err := openNodeAt(url+"&lock_timeout=0", t.TempDir(), "n", Options{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer n.db.Close()
	defer n.set.Close()
	defer n.Close()
	r := n.create(t, "r", "sha1")
	if err := n.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "git fetches", func() bool { return stall.Hits() > 0 })
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE leases IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the import has ended", func() bool {
		left, err := os.ReadDir(n.o.Scratch)
		return err == nil && len(left) == 0 // no other attempt can begin now
	})
}
