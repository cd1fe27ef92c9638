package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// Before a compaction the hook makes a checkpoint, and records the texts that the compaction removes, each once.
func TestCompactionKeepsTexts(t *testing.T) {
	w := newAgentWorld(t)
	m, s := mountStatus(w.dir), &sessionsOf{}
	m.ReadOnly, m.Session.Name = false, "work"
	w.daemon.set(func() { w.daemon.mounts, w.daemon.fakeSessions = []control.MountStatus{m}, s })
	file := filepath.Join(w.afs.dir, "c.jsonl")
	var text strings.Builder
	add := func(part string) {
		text.WriteString(`{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"` + part + " " +
			strings.Repeat(`\u00e9`, 100<<10) + `"}]}}` + "\n")
	}
	for _, part := range []string{"one", "two", "three"} {
		add(part)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	compact := func(member, printed string) (titles, records []string, requests int) {
		t.Helper()
		s.set(func() { s.asked = nil })
		cmd := w.command("session", "hook", "claude")
		cmd.Stdin = strings.NewReader(`{"hook_event_name":"PreCompact","session_id":"c-1","trigger":"auto",` + member +
			`"transcript_path":"` + file + `","cwd":"` + w.dir + `"}`)
		if out, err := cmd.CombinedOutput(); err != nil || printed == "" && len(out) > 0 ||
			!strings.Contains(string(out), printed) {
			t.Fatalf("hook before a compaction: got %v: %s", err, out)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, asked := range s.asked {
			switch r := asked.(type) {
			case control.CheckpointRequest:
				titles = append(titles, r.Message)
			case control.SessionRecordRequest:
				records, requests = append(records, r.Lines...), requests+1
			}
		}
		return titles, records, requests
	}
	if _, records, _ := compact(`"agent_id":"sub-1",`, ""); len(records) != 1 || strings.Contains(records[0], "kept") {
		t.Errorf("compaction of a sub-agent: got %d records, the last is %s", len(records), records[len(records)-1])
	}
	titles, records, requests := compact("", "")
	if len(titles) != 1 || titles[0] != "before compaction auto" || len(records) != 4 || requests != 2 {
		t.Fatalf("first compaction: got checkpoints %q, %d records in %d requests", titles, len(records), requests)
	}
	var last struct {
		Type, Trigger string
		Kept          int
	}
	if err := json.Unmarshal([]byte(records[3]), &last); err != nil || last.Type != "compact" || last.Trigger != "auto" ||
		last.Kept != 3 || !strings.Contains(records[0], `"text":"one `) || !strings.Contains(records[2], `"text":"three `) {
		t.Errorf("records of the first compaction: got %s, error %v", records[3], err)
	}
	if _, records, _ := compact("", ""); len(records) != 1 || strings.Contains(records[0], "kept") {
		t.Errorf("a compaction that is repeated: got %d records, the last is %s", len(records), records[len(records)-1])
	}

	// The second request fails, and the next compaction continues with its texts.
	for i := range 12 {
		add(fmt.Sprintf("%02d", i))
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.set(func() { s.refused = `"text":"07 ` })
	if _, records, requests := compact("", "no space left"); requests != 3 {
		t.Errorf("a compaction whose second request fails: got %d requests with %d records", requests, len(records))
	}
	s.set(func() { s.refused = "" })
	if _, records, _ := compact("", ""); len(records) != 6 || !strings.Contains(records[0], `"text":"07 `) {
		t.Errorf("a compaction after one that has failed: got %d records, the first is %.100s", len(records), records[0])
	}
}
