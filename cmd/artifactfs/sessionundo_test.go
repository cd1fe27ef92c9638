package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// newUndo serves a session in which claude has changed x and y in a call, and codex then y.
func newUndo(t *testing.T) (*afs, *sessionsOf) {
	t.Helper()
	a, s, _ := newWork(t)
	at := time.Now().Add(-3 * time.Minute)
	const checkpointC = "01J9ZK5W0R3N5P7Q9S1V2X4Y60"
	record := func(text string) control.TranscriptRecord {
		return control.TranscriptRecord{ID: fmt.Sprint("R", len(text)), Time: at, Turn: 2, Record: json.RawMessage(text)}
	}
	change := func(path, old, now string) control.PathChange {
		return control.PathChange{Path: path, Status: "M", OldMode: "100644", Old: old, NewMode: "100644", New: now}
	}
	call := func(kind, agent, id, checkpoint string) control.TranscriptRecord {
		return record(fmt.Sprintf(`{"type":%q,"agent":%q,"agent_session":"s","tool":"Bash","call":%q,"checkpoint":%q,`+
			`"input":{"command":"make x"}}`, kind, agent, id, checkpoint))
	}
	s.set(func() {
		s.checkpoints = []control.Checkpoint{{ID: checkpointC, Tree: "3", Time: at, Head: "f00"},
			{ID: checkpointB, Tree: "2", Time: at, Head: "f00"}, {ID: checkpointA, Tree: "1", Time: at, Head: "abc"}}
		s.diffs = map[string][]control.PathChange{
			checkpointA + " " + checkpointB: {change("x", "0", "1"), change("y", "0", "1")},
			checkpointB + " " + checkpointC: {change("y", "1", "2")},
			checkpointC + " " + checkpointA: {change("x", "1", "0"), change("y", "2", "0")},
			checkpointC + " " + checkpointB: {change("y", "2", "1")},
		}
		s.records = []control.TranscriptRecord{call("tool_call", "claude", "toolu_1", checkpointA),
			call("tool_result", "claude", "toolu_1", checkpointB), call("tool_call", "codex", "call_2", checkpointB),
			call("tool_result", "codex", "call_2", checkpointC)}
		s.restore = control.RestoreReply{Dir: a.dir + "/app", Before: &control.Checkpoint{ID: checkpointC},
			Changes: []control.PathChange{change("x", "1", "0")}, Kept: []string{}}
		s.checkpoint.ID = "01J9ZK6W0R3N5P7Q9S1V2X4Y60"
	})
	return a, s
}

// requests returns the requests of one type since the last call.
func requests[T any](s *sessionsOf) (list []T) {
	s.set(func() {
		for _, r := range s.asked {
			if r, ok := r.(T); ok {
				list = append(list, r)
			}
		}
	})
	return list
}

func TestSessionUndo(t *testing.T) {
	a, s := newUndo(t)
	dir := a.dir + "/app"
	r := a.run("session", "undo", "toolu", "-C", "app")
	want := "artifactfs: undo " + dir + ": 1 path was changed by somebody else since: y (codex)\nhint: --keep-others " +
		"leaves them as they are, --with-others restores them too, --dry-run lists the changes\n"
	if r.code != control.ExitFailed || r.stdout != "" || r.stderr != want || len(requests[control.RestoreRequest](s)) > 0 {
		t.Errorf("undo of what somebody else has changed, too: got %+v", r)
	}
	if r := a.run("session", "undo", "toolu", "-C", "app", "--json"); r.code != control.ExitFailed ||
		!strings.Contains(r.stdout, `"code":"conflict"`) {
		t.Errorf("undo --json of what somebody else has changed, too: got %+v", r)
	}
	s.set(func() { s.restore.DryRun = true })
	r = a.run("session", "undo", "toolu", "-n", "-C", "app")
	want = "would change (1)\n  M  x\nchanged by somebody else (1)\n  y  codex\n" +
		"1 path of Bash \"make x\" of turn 2 (3 min ago) would be as in " + checkpointA + "\n"
	if q := requests[control.RestoreRequest](s); r.code != 0 || r.stdout != want || len(q) != 1 || !q[0].DryRun ||
		!slices.Equal(q[0].Paths, []string{"x", "y"}) || len(requests[control.CheckpointRequest](s)) > 0 ||
		len(requests[control.SessionRecordRequest](s)) > 0 {
		t.Errorf("undo --dry-run: got %+v, and the request %+v", r, q)
	}
	s.set(func() { s.restore.DryRun, s.asked = false, nil })
	r = a.run("session", "undo", "toolu", "--keep-others", "-C", "app")
	want = "changed by somebody else, so left unchanged: y\nundid Bash \"make x\" of turn 2 (3 min ago): 1 path as in " +
		checkpointA + "\n"
	notes := "artifactfs: HEAD stays at f00 (git reset --soft abc takes its commits back)\n" +
		"artifactfs: saved the previous state (artifactfs session redo -C " + dir + " brings it back)\n"
	if r.code != 0 || r.stdout != want || r.stderr != notes {
		t.Errorf("undo --keep-others: got %+v\nwant %s%s", r, want, notes)
	}
	restored, made, records := requests[control.RestoreRequest](s), requests[control.CheckpointRequest](s),
		requests[control.SessionRecordRequest](s)
	if len(restored) != 1 || restored[0].Dir != dir || restored[0].ID != checkpointA || restored[0].DryRun ||
		!slices.Equal(restored[0].Paths, []string{"x"}) {
		t.Errorf("requests of undo --keep-others: got %+v", restored)
	}
	if len(made) != 1 || made[0].Message != `after undo of Bash "make x" of turn 2` || len(records) != 1 ||
		!strings.Contains(records[0].Lines[0], `"of":"toolu_1"`) {
		t.Errorf("undo made the checkpoint %+v and the record %+v", made, records)
	}
	s.set(func() { s.asked = nil })
	r = a.run("session", "undo", "-C", "work", "--json", "--with-others")
	var reply struct {
		Of, To, Before string
		HeadMoved      bool `json:"head_moved"`
		Others         []any
	}
	if err := json.Unmarshal([]byte(r.stdout), &reply); err != nil || reply.Of != "call_2" || reply.To != checkpointB ||
		reply.Before == "" || reply.HeadMoved || reply.Others == nil || len(reply.Others) != 0 {
		t.Errorf("undo --json of the last call: got %+v, %v", r, err)
	}
	if q := requests[control.RestoreRequest](s); len(q) != 1 || !slices.Equal(q[0].Paths, []string{"y"}) {
		t.Errorf("undo of the last call sent the requests %+v", q)
	}
	if r := a.run("session", "undo", "7", "-C", "app"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "no tool call of turn 7 may have changed files") {
		t.Errorf("undo of a turn that does not exist: got %+v", r)
	}
	if r := a.run("session", "undo", "--keep-others", "--with-others", "-C", "app"); r.code != control.ExitUsage {
		t.Errorf("undo with both flags: got %+v", r)
	}
	if r := a.run("session", "undo", "-C", "old"); r.code != control.ExitNotMounted {
		t.Errorf("undo in a session that does not exist: got %+v", r)
	}
}

func TestSessionRedo(t *testing.T) {
	a, s := newUndo(t)
	if r := a.run("session", "redo", "-C", "app"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "nothing was undone that can be redone") {
		t.Errorf("redo without an undo: got %+v", r)
	}
	s.set(func() {
		s.records[2].Record = json.RawMessage(`{"type":"undo","of":"toolu_1","to":"` + checkpointA + `","before":"` +
			checkpointB + `","after":"` + s.checkpoints[0].ID + `"}`)
		s.records = s.records[:3]
		s.diff.Changes = []control.PathChange{{Path: "x", Status: "M"}}
	})
	r := a.run("session", "redo", "-C", "app")
	if want := "redid Bash \"make x\" of turn 2 (3 min ago): 1 path as in " + checkpointB +
		"\n"; r.code != 0 || r.stdout != want || r.stderr != "" {
		t.Errorf("redo: got %+v, want %s", r, want)
	}
	records := requests[control.SessionRecordRequest](s)
	if q := requests[control.RestoreRequest](s); len(q) != 1 || q[0].ID != checkpointB ||
		!slices.Equal(q[0].Paths, []string{"y"}) || len(records) != 1 ||
		!strings.Contains(records[0].Lines[0], `"type":"redo"`) {
		t.Errorf("redo sent the requests %+v and %+v", q, records)
	}
}
