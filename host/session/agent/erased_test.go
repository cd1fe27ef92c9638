package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// TestErasuresOfParentsByTime checks that a fork erases the old records that its parent has erased, keeps those that
// were made in the parent or in the fork itself, and records that for its own forks.
func TestErasuresOfParentsByTime(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{})
	repo, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.End(EndRequest{Opened: true})
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	before := ""
	for _, name := range []string{"origin", "parent", "s"} {
		if before != "" { // the transcript of a fork begins with that of its parent
			head, err := repo.Ref(session.TranscriptRef(before))
			if err != nil {
				t.Fatal(err)
			}
			if err := repo.Update(t.Context(),
				[]session.RefChange{{Name: session.TranscriptRef(name), New: head}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := transcript.Record(t.Context(), repo, transcript.Batch{Session: name, Lane: "main",
			Checkpoint: session.NewCheckpointID(at), Time: at, Lines: []string{`{"of":"` + name + `"}`}}); err != nil {
			t.Fatal(err)
		}
		before = name
	}
	// The parent has erased what is of its own parent.
	erasure := session.Erasure{Before: at.Add(time.Minute), Except: []string{"parent"}, Time: at.Add(time.Hour), By: "b"}
	if err := (parentErasures{a}).repeat(t.Context(), repo, erasure); err != nil {
		t.Fatal(err)
	}
	lines, _, err := transcript.Read(repo, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	left := ""
	for _, l := range lines {
		left += string(l.Record)
	}
	if len(lines) != 3 || strings.Contains(left, "origin") || !strings.Contains(left, "parent") ||
		!strings.Contains(left, `"s"`) {
		t.Errorf("records that are left: %s", left)
	}
	meta, _, err := session.ReadMeta(repo, "s")
	if err != nil || len(meta.Erased) != 1 || !meta.Erased[0].Before.Equal(erasure.Before) ||
		!slices.Equal(meta.Erased[0].Except, []string{"parent", "s"}) {
		t.Errorf("recorded erasures: %+v, %v", meta.Erased, err)
	}
}
