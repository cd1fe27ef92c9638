package transcript

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// memoryWorld is a transcript with records and memory.
type memoryWorld struct {
	t *testing.T
	r *session.Repo
}

// add appends lines at a time, for a checkpoint that was made then.
func (w memoryWorld) add(at time.Time, memory bool, lines ...string) {
	w.t.Helper()
	if _, err := Record(w.t.Context(), w.r, Batch{Session: "work", Lane: "main", Checkpoint: session.NewCheckpointID(at),
		Time: at, Lines: lines, Memory: memory}); err != nil {
		w.t.Fatal(err)
	}
}

// texts returns the records, and the lines of memory of all pages.
func (w memoryWorld) texts() (records, memory []string) {
	w.t.Helper()
	lines, _, err := Read(w.r, "work", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range lines {
		records = append(records, string(l.Record))
	}
	for after := ""; ; {
		page, next, err := (Source{Repo: w.r}).ReadMemory("work", after)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, l := range page {
			memory = append(memory, string(l.Record))
		}
		if next == "" {
			return records, memory
		}
		if next <= after {
			w.t.Fatalf("page after %q ends at %q", after, next)
		}
		after = next
	}
}

// TestMemoryIsBesideTheRecords checks that memory is stored without secrets, is not among the records, and is in the
// same commits.
func TestMemoryIsBesideTheRecords(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		w := memoryWorld{t, newRepo(t, f)}
		at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
		w.add(at, true, `{"type":"prompt","n":1,"line":{"password":"hunter2"}}`)
		w.add(at.Add(time.Hour), false, `{"type":"prompt","n":2}`)
		w.add(at.Add(25*time.Hour), true, `{"n":3}`)
		records, memory := w.texts()
		if len(records) != 1 || len(memory) != 2 || !strings.Contains(memory[0], "[redacted password]") {
			t.Errorf("records %q, memory %q", records, memory)
		}
		git(t, w.r.Dir(), "fsck", "--strict")
		out := git(t, w.r.Dir(), "ls-tree", "-r", "--name-only", session.TranscriptRef("work"))
		if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 ||
			!MemoryPath(lines[0]) || !MemoryPath(lines[1]) || MemoryPath(lines[2]) {
			t.Errorf("files: %q", lines)
		}
	}
}

// TestMemoryInPages checks that pages have all lines once.
func TestMemoryInPages(t *testing.T) {
	w := memoryWorld{t, newRepo(t, object.SHA1)}
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	for i := range 12 {
		w.add(at.Add(time.Duration(i)*time.Hour), true, fmt.Sprintf(`{"n":%d,"x":%q}`, i, strings.Repeat("x ", 150<<10)))
	}
	_, memory := w.texts()
	seen := map[string]bool{}
	for _, m := range memory {
		seen[m[:8]] = true
	}
	if len(memory) != 12 || len(seen) != 12 {
		t.Errorf("got %d lines, %d different ones, want 12", len(memory), len(seen))
	}
}

// TestErasedMemory checks that an erasure removes the memory that contains the erased records, and makes it
// unreachable.
func TestErasedMemory(t *testing.T) {
	w := memoryWorld{t, newRepo(t, object.SHA1)}
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	w.add(at, false, `{"agent_session":"a","text":"first"}`, `{"agent_session":"b","text":"other"}`)
	// The memory is stored at the end of a turn, so a line in it may be older than its record.
	w.add(at.Add(time.Hour), true,
		`{"agent_session":"a","time":"2026-11-22T03:04:05Z","line":"a-old"}`,
		`{"agent_session":"a","time":"2026-11-22T04:04:00Z","line":"a-new"}`,
		`{"agent_session":"b","time":5,"line":"b"}`)
	erase := func(e EraseRequest) (int, int) {
		t.Helper()
		e.Session, e.Stone = "work", Tombstone{Time: at, By: "x"}
		ids, n, err := Erase(t.Context(), w.r, e, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := git(t, w.r.Dir(), "rev-list", "--count", session.TranscriptRef("work")); n > 0 && got != "1\n" {
			t.Errorf("commits after an erasure: %s, so the old lines are reachable", got)
		}
		return len(ids), n
	}
	if ids, n := erase(EraseRequest{Before: at.Add(time.Minute), Except: []string{"x", "work"}}); ids != 0 || n != 0 {
		t.Errorf("erasure of other sessions removed %d records and %d lines", ids, n)
	}
	if ids, n := erase(EraseRequest{Before: at.Add(-time.Minute), IDs: map[string]bool{"no": true}}); ids != 0 || n != 0 {
		t.Errorf("erasure of nothing removed %d records and %d lines", ids, n)
	}
	lines, _, err := Read(w.r, "work", nil)
	if err != nil {
		t.Fatal(err)
	}
	if ids, n := erase(EraseRequest{IDs: map[string]bool{lines[1].ID: true}}); ids != 1 || n != 1 {
		t.Errorf("erasure of a record of b removed %d records and %d lines, want 1 and 1", ids, n)
	}
	if ids, n := erase(EraseRequest{Before: at.Add(time.Minute)}); ids != 1 || n != 1 {
		t.Errorf("erasure by time removed %d records and %d lines, want 1 and 1", ids, n)
	}
	if _, memory := w.texts(); len(memory) != 1 || !strings.Contains(memory[0], "a-new") {
		t.Errorf("memory left: %q, want the new line of a", memory)
	}
	if ids, n := erase(EraseRequest{Before: at.Add(24 * time.Hour)}); ids != 0 || n != 1 {
		t.Errorf("erasure of all memory removed %d records and %d lines, want 0 and 1", ids, n)
	}
	if out := git(t, w.r.Dir(), "ls-tree", "--name-only", session.TranscriptRef("work")); out != "2026-11-22\n" {
		t.Errorf("root after all memory was erased: %q", out)
	}
	git(t, w.r.Dir(), "fsck", "--strict")
}

// TestErasedMemoryInForks checks that an erasure by time in a fork removes the lines of the parent, also if the parent
// has lost no records, and neither what the fork has added to the same conversation, nor the rest of the conversation.
func TestErasedMemoryInForks(t *testing.T) {
	w := memoryWorld{t, newRepo(t, object.SHA1)}
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	for i, name := range []string{"parent", "parent"} {
		if _, err := Record(t.Context(), w.r, Batch{Session: name, Lane: "main", Checkpoint: session.NewCheckpointID(at),
			Time: at.Add(time.Duration(i) * time.Hour), Memory: true,
			Lines: []string{fmt.Sprintf(`{"agent_session":"a","line":"%s %d"}`, name, i)}}); err != nil {
			t.Fatal(err)
		}
	}
	// The transcript of the fork begins with that of the parent.
	parent, err := w.r.Ref(session.TranscriptRef("parent"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.r.Record(t.Context(), nil, []session.RefChange{{Name: session.TranscriptRef("fork"), New: parent}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Record(t.Context(), w.r, Batch{Session: "fork", Lane: "main", Checkpoint: session.NewCheckpointID(at),
		Time: at, Memory: true, Lines: []string{`{"agent_session":"a","line":"fork"}`}}); err != nil {
		t.Fatal(err)
	}
	ids, n, err := Erase(t.Context(), w.r, EraseRequest{Session: "fork", Before: at.Add(time.Minute),
		Except: []string{"fork"}, Stone: Tombstone{Time: at, By: "x"}}, nil)
	if err != nil || len(ids) != 0 || n != 1 {
		t.Errorf("erased %d records and %d lines, %v, want 0 and 1", len(ids), n, err)
	}
	lines, _, err := (Source{Repo: w.r}).ReadMemory("fork", "")
	left := ""
	for _, l := range lines {
		left += string(l.Record)
	}
	if err != nil || len(lines) != 2 || strings.Contains(left, "parent 0") || !strings.Contains(left, `"fork"`) {
		t.Errorf("left: %s, %v", left, err)
	}
}

// TestExpiredMemory checks that the retention removes memory together with the records, and also without any records.
func TestExpiredMemory(t *testing.T) {
	for _, records := range []bool{true, false} {
		w := memoryWorld{t, newRepo(t, object.SHA1)}
		now := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
		var kept session.CheckpointID
		for _, days := range []int{60, 50, 1} {
			at := now.AddDate(0, 0, -days)
			if records {
				w.add(at, false, `{"text":"x"}`)
			}
			w.add(at, true, fmt.Sprintf(`{"days":%d}`, days))
			if days == 50 {
				lines, _, err := (Source{Repo: w.r}).ReadMemory("work", "")
				if err != nil {
					t.Fatal(err)
				}
				kept = lines[len(lines)-1].Checkpoint
			}
		}
		for _, dry := range []bool{true, false, false} {
			if _, err := Expire(t.Context(), w.r, ExpireRequest{Session: "work", Now: now, Keep: 30 * 24 * time.Hour,
				There: func(id session.CheckpointID) bool { return id == kept }, DryRun: dry}, nil); err != nil {
				t.Fatal(err)
			}
			want := 2
			if dry {
				want = 3
			}
			if _, memory := w.texts(); len(memory) != want {
				t.Errorf("records %v, dry run %v: memory left %q, want %d lines", records, dry, memory, want)
			}
		}
	}
}

// TestMemoryIsNotFetchedInVain checks that memory is not fetched if nothing is removed.
func TestMemoryIsNotFetchedInVain(t *testing.T) {
	w := memoryWorld{t, newRepo(t, object.SHA1)}
	now := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	old := now.AddDate(0, 0, -60)
	w.add(old, false, `{"type":"prompt","text":"x"}`)
	w.add(old, true, `{"n":1}`)
	lines, _, err := (Source{Repo: w.r}).ReadMemory("work", "")
	if err != nil || len(lines) != 1 {
		t.Fatal(len(lines), err)
	}
	kept := lines[0].Checkpoint
	expire := func() (int64, error) {
		return Expire(t.Context(), w.r, ExpireRequest{Session: "work", Now: now, Keep: 30 * 24 * time.Hour,
			There: func(id session.CheckpointID) bool { return id == kept }}, nil)
	}
	if n, err := expire(); err != nil || n != 1 {
		t.Fatalf("expired %d records, %v, want 1", n, err)
	}
	head, err := Head(w.r, "work")
	if err != nil {
		t.Fatal(err)
	}
	files, err := (Source{Repo: w.r}).memoryFiles(head)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	// From now on, the contents of the memory are missing on this host.
	id, dir := files[0].ID.String(), w.r.Dir()
	script := `mv objects/pack old && mkdir objects/pack && for p in old/*.pack; do git unpack-objects -q <"$p"; done`
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(dir, "objects", id[:2], id[2:])); err != nil {
		t.Fatal(err)
	}
	w.r.Close()
	if w.r, err = session.OpenRepo(dir, session.RepoOptions{Format: object.SHA1, Session: "work"}); err != nil {
		t.Fatal(err)
	}
	defer w.r.Close()
	if n, err := expire(); err != nil || n != 0 {
		t.Errorf("expired again: %d records, %v", n, err)
	}
	no := EraseRequest{Session: "work", IDs: map[string]bool{"no": true}}
	if ids, n, err := Erase(t.Context(), w.r, no, nil); err != nil || len(ids)+n != 0 {
		t.Errorf("erased %d records and %d lines, %v", len(ids), n, err)
	}
	// Without the contents, the memory cannot be erased.
	if ids, n, err := Erase(t.Context(), w.r, EraseRequest{Session: "work", Before: now}, nil); err == nil {
		t.Errorf("erased %d records and %d lines of memory that is missing", len(ids), n)
	}
}
