package mcp

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/undo"
)

// TestUndo checks that the tool undo restores what a call has changed, and that the error about changes of others says
// which argument allows them.
func TestUndo(t *testing.T) {
	a := newAgentOf(t, "+undo")
	a.history = []control.Checkpoint{{ID: "P2", Tree: "2"}, {ID: "P1", Tree: "1"}}
	record := func(kind, agent, call, checkpoint string) {
		text := fmt.Sprintf(`{"type":%q,"agent":%q,"tool":"Edit","call":%q,"checkpoint":%q}`, kind, agent, call, checkpoint)
		a.transcript = append(a.transcript, control.TranscriptRecord{Turn: 1, Record: json.RawMessage(text)})
	}
	record("tool_call", "claude", "c", "P1")
	record("tool_result", "claude", "c", "P2")
	change := control.PathChange{Path: "x", Status: "M", OldMode: "100644", Old: "0", NewMode: "100644", New: "1"}
	a.changes = []control.PathChange{change}
	restore := control.RestoreRequest{Dir: dir, ID: "P1", Paths: []string{"x"}, DryRun: true}
	for _, of := range []string{"", `"of": "c", `, `"of": "1", `} {
		arguments := `{` + of + `"dry_run": true}`
		var r undo.Reply
		if a.call("undo", arguments, &r) || r.To != "P1" || r.Calls != 1 {
			t.Errorf("undo with %s: got %+v", arguments, r)
		}
		if got := a.last(); !reflect.DeepEqual(got, restore) {
			t.Errorf("undo with %s: got the request %+v, want %+v", arguments, got, restore)
		}
	}
	record("tool_call", "codex", "d", "P1") // at the same time
	got := a.report("undo", `{"of": "c"}`)
	want := control.ReportedError{Code: control.CodeConflict,
		Message: "undo " + dir + ": 1 path was changed by somebody else since: x (codex)",
		Hint:    "with others=keep these paths stay as they are, with others=include they are restored, too"}
	if got != want {
		t.Errorf("undo of what somebody else has changed, too: got %+v, want %+v", got, want)
	}
	if a.last(); a.call("undo", `{"of": "c", "others": "include", "dry_run": true}`, nil) ||
		!reflect.DeepEqual(a.last(), restore) {
		t.Error("undo with the changes of others failed, or sent another request")
	}
	if got := a.report("undo", `{"others": "all"}`); got.Code != control.CodeUsage {
		t.Errorf("undo with an unknown choice: got %+v", got)
	}
	if got := a.report("undo", `{"redo": true}`); got.Code != control.CodeNotFound {
		t.Errorf("redo without an undo: got %+v", got)
	}
}
