package writeback

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// TestAdopt checks that adopted refs are recorded for the session remote from which they were fetched, and for no
// other.
func TestAdopt(t *testing.T) {
	repo, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"),
		session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	id, next := object.MustID("1111111111111111111111111111111111111111"),
		object.MustID("2222222222222222222222222222222222222222")
	refs := map[string]object.ID{"refs/heads/main": id, "refs/afs/meta/s": id}
	if err := Adopt(repo, "https://host/x", session.Layout{Session: sessionName, Own: true}, refs,
		map[string]object.ID{"refs/afs/meta/s": next}); err != nil {
		t.Fatal(err)
	}
	l, err := readLedger(repo, "https://host/x")
	if err != nil ||
		!reflect.DeepEqual(l.refs, map[string]remoteRef{"refs/heads/main": {acked: id},
			"refs/afs/meta/s": {acked: id, sent: []object.ID{next}}}) {
		t.Errorf("ledger after the adoption: got %+v, %v", l, err)
	}
	if l, err = readLedger(repo, "https://host/y"); err != nil || len(l.refs) != 0 {
		t.Errorf("ledger for another session remote: got %+v, %v, want no refs", l, err)
	}
}
