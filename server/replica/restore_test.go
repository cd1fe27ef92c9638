package replica_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/server/replica"
)

// TestReplicaFollowsARestoredDatabase undoes the last push in the database while a node has a replica with it, and
// increases the generation again by another push.
func TestReplicaFollowsARestoredDatabase(t *testing.T) {
	dir := t.TempDir()
	b := replicatest.New(t, dir, "", replica.Options{})
	other, err := replica.Open(replica.Options{Dir: filepath.Join(dir, "other"), Records: b.DB, Objects: b.Objects})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	refs := func(s *replica.Set, id string) string {
		r, err := s.Acquire(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		text, err := os.ReadFile(filepath.Join(r.Dir, "packed-refs"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	src := b.Create(t, "repo", object.SHA1)
	src.Write(t, "main", "file", "kept")
	restore := replicatest.Backup(t, filepath.Join(dir, "records.db"))
	kept := refs(other, src.ID)
	src.Write(t, "lost", "file", "lost")
	refs(other, src.ID)
	restore()
	if got := refs(other, src.ID); got != kept {
		t.Errorf("refs after a restore:\n%s, want\n%s", got, kept)
	}
	src.Write(t, "again", "file", "lost again")
	lost := refs(other, src.ID)
	restore()
	src.Write(t, "new", "file", "new")
	if got, want := refs(other, src.ID), refs(b.Set, src.ID); got != want || got == lost {
		t.Errorf("refs after a restore and a push:\n%s, want\n%s", got, want)
	}
}
