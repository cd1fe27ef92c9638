package transcript

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// TestExpire checks that segments of removed checkpoints are removed when they are older than the retention, that turns
// keep their numbers, and that facts are kept.
func TestExpire(t *testing.T) {
	r := newRepo(t, object.SHA1)
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	checkpoints := map[string]session.CheckpointID{}
	for i, name := range []string{"a", "b", "pinned", "c", "young"} {
		at := now.AddDate(0, 0, -60+10*i)
		if name == "young" {
			at = now.AddDate(0, 0, -1)
		}
		checkpoints[name] = session.NewCheckpointID(at)
		for n := range 2 {
			_, err := Record(ctx, r, Batch{Session: "s", Lane: "main", Checkpoint: checkpoints[name],
				Time:  at.Add(time.Duration(n) * time.Second),
				Lines: []string{`{"role":"user","text":"` + name + `"}`, `{"role":"agent"}`}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, _, err := ChangeFacts(ctx, r, FactsChange{Session: "s", By: "x", Time: now, Add: []string{"a fact"}},
		nil); err != nil {
		t.Fatal(err)
	}
	expire := func(dry bool) int64 {
		t.Helper()
		n, err := Expire(ctx, r, ExpireRequest{Session: "s", Now: now, Keep: 30 * 24 * time.Hour, DryRun: dry,
			There: func(p session.CheckpointID) bool { return p == checkpoints["pinned"] }}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, _, err := Read(r, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := expire(true); n != 8 {
		t.Errorf("records that would be dropped: got %d, want those of a and b, 8", n)
	}
	if n := expire(false); n != 8 {
		t.Errorf("records that were dropped: got %d, want those of a and b, 8", n)
	}
	turns := map[string]int{}
	for _, l := range before {
		turns[l.ID] = l.Turn
	}
	after, head, err := Read(r, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	// The result is one tombstone and the unchanged records of the checkpoints pinned, c (20 days old) and young.
	if len(after) != 13 {
		t.Errorf("records after gc: got %d, want 12 and a tombstone", len(after))
	}
	for _, l := range after {
		if l.Turn != turns[l.ID] {
			t.Errorf("turn of record %s after gc: got %d, want %d", l.ID, l.Turn, turns[l.ID])
		}
	}
	if got := strings.TrimSpace(git(t, r.Dir(), "rev-list", "--count", head.String())); got != "1" {
		t.Errorf("commits of the transcript after gc: got %s, want 1, because older commits would still have the dropped records", got)
	}
	if n := expire(false); n != 0 {
		t.Errorf("records that a second gc dropped: got %d, want none", n)
	}
	facts, _, err := ReadFacts(r, "s", nil)
	if err != nil || len(facts.Facts) != 1 {
		t.Errorf("facts after gc: got %+v, %v, want the one fact", facts, err)
	}
}
