package catalog

import (
	"slices"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// TestErasureByTimeInFork checks that an erasure by time is recorded by its time in a fork, also if only memory of the
// parent was erased: forks of the fork on other hosts repeat it.
func TestErasureByTimeInFork(t *testing.T) {
	w := newWorld(t)
	s := w.session("f", control.RemoteEmbedded)
	repo, err := w.Homes.OpenSessionRepo(s.home, s.record, true)
	w.must(err)
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	record := func(name string) {
		t.Helper()
		_, err := transcript.Record(t.Context(), repo, transcript.Batch{Session: name, Lane: "main", Memory: true,
			Checkpoint: session.NewCheckpointID(at), Time: at, Lines: []string{`{"agent_session":"a"}`}})
		w.must(err)
	}
	record("parent")
	head, err := repo.Ref(session.TranscriptRef("parent"))
	w.must(err)
	w.must(repo.Update(t.Context(), []session.RefChange{{Name: session.TranscriptRef("f"), New: head}}))
	record("f")
	w.must(repo.Close())

	before := at.Add(time.Minute)
	reply, err := w.SessionErase(t.Context(), control.SessionEraseRequest{Of: "f", Before: before, Except: []string{"f"}})
	if err != nil || len(reply.Erased) != 0 || reply.Memory != 1 {
		t.Errorf("erased: %+v, %v, want a line of memory", reply, err)
	}
	repo, err = w.Homes.OpenSessionRepo(s.home, s.record, true)
	w.must(err)
	defer repo.Close()
	meta, _, err := session.ReadMeta(repo, "f")
	if err != nil || len(meta.Erased) != 1 || !meta.Erased[0].Before.Equal(before) || len(meta.Erased[0].IDs) != 0 ||
		!slices.Equal(meta.Erased[0].Except, []string{"f"}) {
		t.Errorf("recorded erasures: %+v, %v", meta.Erased, err)
	}
}
