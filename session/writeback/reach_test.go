package writeback

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// TestReachOfMergedRef checks that a ref that another writer has changed does not count as moved any more
// when the local commit is a successor of the other one, so that Sync waits for it.
func TestReachOfMergedRef(t *testing.T) {
	repo, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"),
		session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	remote, err := transport.Open(filepath.Join(t.TempDir(), "nowhere.git"), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	if _, err := session.CreateMeta(t.Context(), repo, session.Meta{Session: "s"}, "joe"); err != nil {
		t.Fatal(err)
	}
	ref := session.MetaRef("s")
	theirs, err := repo.Ref(ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Claim(t.Context(), repo,
		session.ClaimRequest{Session: "s", Writer: session.Writer{State: "here"}}); err != nil {
		t.Fatal(err)
	}
	q := newQueue(QueueOptions{Repo: repo, Remote: thin.New(remote, "s", nil)})
	q.record.ledger = newLedger(remote.URL())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for moved, want := range map[object.ID]error{
		theirs: context.Canceled,
		object.MustID("1111111111111111111111111111111111111111"): ErrMoved,
	} {
		q.moved.set(map[string]object.ID{ref: moved})
		if err := q.Reach(ctx, ref); !errors.Is(err, want) {
			t.Errorf("sync with the ref moved to %s: got %v, want %v", moved, err, want)
		}
	}
}
