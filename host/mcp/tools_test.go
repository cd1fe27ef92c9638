package mcp

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
)

// Names of the tools that servers of earlier versions have offered, without promote, and of those that are the default.
var (
	oldNames = []string{"annotate", "annotations", "approvals", "cache_get", "cache_put", "checkpoint", "compare",
		"describe", "diff", "fork", "lock", "locks", "log", "note", "prefetch", "request_approval", "restore", "status",
		"transcript", "unlock"}
	defaultNames = []string{"checkpoint", "describe", "diff", "fork", "log", "restore", "status"}
)

// tools returns the tools that the agent sees, by their names.
func (a *agent) tools() map[string]*sdk.Tool {
	a.t.Helper()
	all := map[string]*sdk.Tool{}
	for one, err := range a.session.Tools(a.t.Context(), nil) {
		if err != nil {
			a.t.Fatal(err)
		}
		all[one.Name] = one
	}
	return all
}

// The default tools are small, because an agent reads them in each conversation.
func TestSchemasAreSmall(t *testing.T) {
	const most, mostOfAll, mostOfText = 1500, 10 << 10, 200
	sum := 0
	for name, one := range newAgentOf(t, "default").tools() {
		text, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-10s %5d bytes, %3d of them description", name, len(text), len(one.Description))
		if sum += len(text); len(text) > most || len(one.Description) > mostOfText || one.OutputSchema != nil {
			t.Errorf("tool %s: got %d bytes, %d of description, want at most %d and %d, and no schema of the result: %s",
				name, len(text), len(one.Description), most, mostOfText, text)
		}
		if one.Description == "" || one.InputSchema == nil {
			t.Errorf("tool %s lacks a description or a schema: %s", name, text)
		}
	}
	if t.Logf("together   %5d bytes", sum); sum > mostOfAll {
		t.Errorf("default tools: got %d bytes, want at most %d", sum, mostOfAll)
	}
}

// allNames returns the names of the tools of earlier versions, and further names.
func allNames(more ...string) []string {
	return slices.Sorted(slices.Values(slices.Concat(oldNames, more)))
}

func TestParseTools(t *testing.T) {
	with := func(more ...string) []string { return slices.Sorted(slices.Values(slices.Concat(defaultNames, more))) }
	for list, want := range map[string][]string{
		"default": defaultNames, "default,note": with("note"), "+note": with("note"), "+note,+lock": with("note", "lock"),
		"lock,+note": with("lock", "note"), "+log": defaultNames, "log": {"log"}, "log, note": {"log", "note"},
		"all": allNames("undo"), "all,promote": allNames("undo", "promote"), "+undo": with("undo"),
		"promote": {"promote"},
	} {
		if got := slices.Sorted(maps.Keys(newAgentOf(t, list).tools())); !slices.Equal(got, want) {
			t.Errorf("tools %q: got %q, want %q", list, got, want)
		}
	}
	for list, name := range map[string]string{"": "", "log,": "", "nope": "nope", "log,+nope": "nope", "Log": "Log"} {
		_, err := ParseTools(list)
		want := fmt.Sprintf("unknown tool %q: want one of checkpoint, ", name)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("tools %q: got the error %v, want %s...", list, err, want)
		}
	}
}

// A tool that changes the mounted repository is offered only if the user has written its name.
func TestPromoteIsOnlyByName(t *testing.T) {
	for list, want := range map[string]bool{"default": false, "all": false, "+note": false, "all,promote": true,
		"+promote": true} {
		a := newAgentOf(t, list)
		if offered := a.tools()["promote"] != nil; offered != want {
			t.Errorf("tools %q: got promote %v, want %v", list, offered, want)
		}
		if failed := a.call("promote", `{}`, nil); failed == want || (a.last() != nil) != want {
			t.Errorf("call of promote with the tools %q: got failed %v, want %v, and a request only if it is offered", list,
				failed, !want)
		}
	}
}

// A call of a tool that is not offered fails with the flag that adds it. The server with that flag offers it besides
// the present ones.
func TestOtherToolsNameTheFlag(t *testing.T) {
	for list, flag := range map[string]string{"default": "+lock", "log": "log,lock", "+note": "+note,lock",
		"log,note": "log,note,lock"} {
		a := newAgentOf(t, list)
		got := a.report("lock", `{"paths": ["a"]}`)
		if want := "start artifactfs mcp with --tools " + flag; got.Hint != want || got.Code != control.CodeUnsupported ||
			!strings.Contains(got.Message, "lock") || a.last() != nil {
			t.Errorf("call of lock with the tools %q: got %+v, want the hint %q and no request", list, got, want)
		}
		old := a.tools()
		next := newAgentOf(t, flag)
		if now := next.tools(); len(now) != len(old)+1 || now["lock"] == nil {
			t.Errorf("tools %q: got %q, want one more than with %q", flag, slices.Sorted(maps.Keys(now)), list)
		}
		if next.call("lock", `{"paths": ["a"]}`, nil) {
			t.Errorf("call of lock with the tools %q failed", flag)
		}
	}
}

// The short results of status and log have what an agent decides by, and status returns everything if it is asked to.
func TestShortResults(t *testing.T) {
	a, at := newAgent(t), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a.status = control.MountStatus{Dir: dir, Head: "topic", Ref: "main", Commit: "c0ffee", Notes: []string{"n"}, PID: 7,
		Overlay: control.OverlayStatus{Changed: 3}, Session: control.SessionStatus{Name: "work", Mode: "thin", Dirty: true,
			LastCheckpoint: "01", Pending: 2, Error: "refused", LastSync: &at}}
	for mode, pushed := range map[string]any{"thin": "2026-01-02T03:04:05Z", control.RemoteEmbedded: nil} {
		a.status.Session.Mode = mode
		want := map[string]any{"dir": dir, "session": "work", "branch": "topic", "commit": "c0ffee", "changed": 3.0,
			"dirty": true, "latest": "01", "pending": 2.0, "error": "refused", "notes": []any{"n"}}
		if pushed != nil {
			want["pushed"] = pushed
		}
		var got map[string]any
		if a.call("status", `{}`, &got); !equalJSON(got, want) {
			t.Errorf("status of a session in mode %s: got %v, want %v", mode, got, want)
		}
	}
	var full control.MountStatus
	if a.call("status", `{"full": true}`, &full); full.PID != 7 || full.Session.Name != "work" {
		t.Errorf("full status: got %+v, want the status of the mount", full)
	}
	a.log = 1
	var got map[string]any
	want := map[string]any{"session": "", "more": false, "checkpoints": []any{
		map[string]any{"id": "", "time": "0001-01-01T00:00:00Z", "reason": "", "changed": 0.0}}}
	if a.call("log", `{}`, &got); !equalJSON(got, want) {
		t.Errorf("log: got %v, want %v", got, want)
	}
}

// equalJSON reports whether two values have the same encoding.
func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
