package writeback

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// TestBrokenRefs checks that a ref whose file is empty after a power failure does not count as removed, so that the
// session remote keeps the ref.
func TestBrokenRefs(t *testing.T) {
	p := newPlace(t, object.SHA1)
	to := newTestRemote(t, "path", object.SHA1, p.Origin.Path)
	p.copier()
	p.Carried(p.Commit("a", "one"))
	checkpoint := p.Checkpoint("manual")
	segment, pin := session.SegmentRef(sessionName, "main", 1), session.PinPrefix(sessionName)+"keep"
	if err := session.SetPin(t.Context(), p.Repo, sessionName, "keep", checkpoint); err != nil {
		t.Fatal(err)
	}
	q := p.queue(to, QueueOptions{})
	wantSync(t, q)
	for _, ref := range []string{segment, pin} {
		if err := os.WriteFile(filepath.Join(p.Repo.Dir(), ref), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	two := p.Commit("a", "two")
	p.Carried(two)
	err := syncAll(t, q)
	for _, ref := range []string{segment, pin} {
		if got := to.ref(ref); got != checkpoint.Commit.String() {
			t.Errorf("%s on the session remote: got %q, want %v (sync: %v)", ref, got, checkpoint.Commit, err)
		}
	}
	// The ref of a segment is set to the newest checkpoint on this host, even if the session remote has an older one.
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	newer := p.Checkpoint("manual")
	if newer.ID <= checkpoint.ID {
		t.Fatalf("new checkpoint %s does not sort after the previous one, %s", newer.ID, checkpoint.ID)
	}
	unknown := session.PinPrefix(sessionName) + "unknown"
	for _, ref := range []string{segment, pin, unknown} {
		if err := os.WriteFile(filepath.Join(p.Repo.Dir(), ref), []byte("0000"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := session.GC(t.Context(), p.Repo, session.GCOptions{Session: sessionName, Now: time.Now()}); !errors.Is(err,
		session.ErrBroken) {
		t.Errorf("gc with broken refs: got %v, want ErrBroken", err)
	}
	url := to.open(transport.Options{}).URL()
	mended, err := Mend(t.Context(), p.Repo, url)
	if err != nil || len(mended) != 3 {
		t.Fatalf("Mend: got %v, %v, want 3 repaired refs", mended, err)
	}
	for ref, want := range map[string]object.ID{segment: newer.Commit, pin: checkpoint.Commit, unknown: {}} {
		if got, err := p.Repo.Ref(ref); err != nil || got != want {
			t.Errorf("%s after Mend: got %v, want %v (error %v)", ref, got, want, err)
		}
	}
	if mended, err := Mend(t.Context(), p.Repo, url); err != nil || len(mended) != 0 {
		t.Errorf("Mend without broken refs: got %v, %v, want nothing repaired", mended, err)
	}
	q = p.queue(to, QueueOptions{})
	wantSync(t, q)
	if got := to.ref(segment); got != newer.Commit.String() {
		t.Errorf("%s on the session remote: got %s, want %s", segment, got, newer.Commit)
	}
}
