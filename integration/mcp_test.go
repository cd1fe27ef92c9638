package integration

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// agent is a client of `artifactfs mcp`, as a coding agent is one.
type agent struct {
	*world
	session *sdk.ClientSession
}

func (w *world) agent(args ...string) agent {
	w.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	cmd := w.command(context.Background(), append([]string{"mcp"}, args...)...)
	cmd.Stderr = os.Stderr
	s, err := client.Connect(context.Background(), &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := s.Close(); err != nil {
			w.Errorf("end of artifactfs mcp: %v", err)
		}
	})
	return agent{w, s}
}

// call calls a tool and reads its structured content into out.
func (a agent) call(tool string, args map[string]any, out any) (failed bool) {
	a.Helper()
	r, err := a.session.CallTool(context.Background(), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.Fatalf("call %s: %v", tool, err)
	}
	text, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil || len(r.Content) == 0 {
		a.Fatalf("structured content of %s is %s (%v), with %d contents", tool, text, err, len(r.Content))
	}
	return r.IsError
}

func (a agent) ok(tool string, args map[string]any, out any) {
	a.Helper()
	var raw json.RawMessage
	if a.call(tool, args, &raw) {
		a.Fatalf("call %s with %v: %s", tool, args, raw)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		a.Fatal(err)
	}
}

// offers reports an error if the agent gets other tools than those with these names, in order.
func (a agent) offers(want ...string) {
	a.Helper()
	var names []string
	for tool, err := range a.session.Tools(a.Context(), nil) {
		if err != nil {
			a.Fatal(err)
		}
		names = append(names, tool.Name)
		if tool.Description == "" || tool.InputSchema == nil || tool.OutputSchema != nil {
			a.Errorf("tool %s: want a description, a schema of its arguments, and none of its result: %+v", tool.Name, tool)
		}
	}
	if slices.Sort(names); !slices.Equal(names, want) {
		a.Errorf("tools: got %q, want %q", names, want)
	}
}

func TestMCP(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("mcp"))
	m := w.mount(w.serve(gittest.ServerOptions{}).URL("r.git"))
	few := w.agent(m.Dir)
	few.offers("checkpoint", "describe", "diff", "fork", "log", "restore", "status")
	a := w.agent(m.Dir, "--tools", "all")
	a.offers("annotate", "annotations", "approvals", "cache_get", "cache_put", "checkpoint", "compare", "describe", "diff",
		"fork", "lock", "locks", "log", "note", "prefetch", "request_approval", "restore", "status", "transcript", "undo", "unlock")
	w.agent(m.Dir, "--tools", "log,promote").offers("log", "promote")
	r := w.afs("mcp", m.Dir, "--tools", "nope")
	if r.code != control.ExitUsage || !strings.Contains(r.stderr, `unknown tool "nope"`) {
		t.Errorf("mcp with an unknown tool: got %s, want exit code %d", r, control.ExitUsage)
	}

	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(m.path("new"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var first, second control.CheckpointReply
	write("one\n")
	a.ok("checkpoint", map[string]any{"message": "first", "pin": "good"}, &first)
	write("two\n")
	a.ok("checkpoint", map[string]any{"message": "second"}, &second)
	var log struct {
		control.SessionLogReply
		More bool
	}
	a.ok("log", map[string]any{"limit": 1}, &log)
	if len(log.Checkpoints) != 1 || log.Checkpoints[0].ID != second.ID || !log.More {
		t.Errorf("log of one checkpoint: got %+v, want %s and more", log, second.ID)
	}
	var diff control.SessionDiffReply
	a.ok("diff", map[string]any{"from": "good", "patch": true}, &diff)
	if len(diff.Changes) != 1 || diff.Changes[0].Path != "new" || !strings.Contains(diff.Patch, "+two") {
		t.Errorf("diff of good and the working tree: got %+v", diff)
	}
	var restore control.RestoreReply
	a.ok("restore", map[string]any{"checkpoint": "good", "paths": []string{"new"}}, &restore)
	if text, err := os.ReadFile(m.path("new")); string(text) != "one\n" || restore.Before == nil {
		t.Errorf("restore good: got file %q (%v) and %+v, want the file of the checkpoint and the checkpoint before the restore", text, err, restore)
	}
	var fork control.MountReply
	a.ok("fork", map[string]any{"dir": w.place("fork"), "checkpoint": second.ID, "session": "try"}, &fork)
	if text, err := os.ReadFile(fork.Dir + "/new"); string(text) != "two\n" || fork.Session != "try" {
		t.Errorf("fork of %s: got file %q (%v) and %+v", second.ID, text, err, fork)
	}
	var thread control.SessionAnnotateReply
	var threads control.SessionAnnotationsReply
	a.ok("annotate", map[string]any{"path": "new", "line": 1, "text": "why?"}, &thread)
	a.ok("annotate", map[string]any{"thread": thread.ID, "text": "because"}, &thread)
	a.ok("annotations", map[string]any{}, &threads)
	if len(threads.Threads) != 1 || len(threads.Threads[0].Annotations) != 2 || threads.Threads[0].Now.State != "same" {
		t.Errorf("annotations of a line: got %+v", threads)
	}
	a.ok("annotate", map[string]any{"thread": threads.Threads[0].ID, "state": "resolve"}, &thread)
	if a.ok("annotations", map[string]any{}, &threads); len(threads.Threads) != 0 {
		t.Errorf("annotations after the thread was resolved: got %+v", threads)
	}
	var note control.SessionNoteReply
	a.ok("note", map[string]any{"note": map[string]any{"task": "try mcp"}}, &note)
	if got := w.git(m.Dir, "notes", "--ref=agent", "show", "HEAD"); !strings.Contains(got, "try mcp") {
		t.Errorf("note on HEAD: got %q", got)
	}
	var record control.SessionRecordReply
	a.ok("transcript", map[string]any{"records": []map[string]any{{"role": "user", "text": "hello"}, {"role": "agent"}}},
		&record)
	if record.Lines != 2 || !strings.HasPrefix(record.Ref, "refs/afs/transcript/") {
		t.Errorf("transcript: got %+v, want two records", record)
	}
	var read struct {
		Turns   int
		More    bool
		Records []struct{ Record map[string]any }
	}
	a.ok("transcript", map[string]any{"limit": 1}, &read)
	if len(read.Records) != 1 || read.Records[0].Record["role"] != "agent" || !read.More || read.Turns != 1 {
		t.Errorf("transcript without records: got %+v, want the newest of two records, and a mark that there are more", read)
	}
	var compared control.SessionCompareReply
	if err := os.WriteFile(fork.Dir+"/new", []byte("three\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.ok("checkpoint", fork.Dir)
	a.ok("compare", map[string]any{"with": []string{"try"}}, &compared)
	if len(compared.Sides) != 2 || len(compared.Shared) != 1 || compared.Shared[0].Verdict != control.VerdictConflict {
		t.Errorf("compare with the fork: got %+v, want a conflict in the file new", compared)
	}
	var asked control.SessionApproveReply
	var approvals control.SessionApprovalsReply
	a.ok("request_approval", map[string]any{"for": "delete", "message": "done"}, &asked)
	a.ok("approvals", nil, &approvals)
	if len(approvals.Approvals) != 1 || approvals.Approvals[0].ID != asked.Approval.ID ||
		asked.Approval.Status != "open" || asked.Approval.Text != "done" {
		t.Errorf("request for an approval: got %+v, and approvals %+v", asked, approvals)
	}
	var put control.CacheChangeReply
	a.ok("cache_put", map[string]any{"key": "test/1", "value": "passed", "expect": "none", "ttl_seconds": 3600}, &put)
	var cached struct{ Value string }
	a.ok("cache_get", map[string]any{"key": "test/1"}, &cached)
	if !put.Done || put.Entry.Expires.IsZero() || cached.Value != "passed" {
		t.Errorf("cache entry: got %+v, then %+v", put, cached)
	}
	a.ok("cache_put", map[string]any{"key": "test/1", "value": "failed", "expect": "none"}, &put)
	if put.Done || put.Entry.Size != int64(len("passed")) {
		t.Errorf("cache entry that exists: got %+v", put)
	}
	var status control.MountStatus
	a.ok("status", map[string]any{"full": true}, &status)
	if status.Dir != m.Dir || status.Overlay.Changed != 1 || status.Session.Name != m.Session {
		t.Errorf("status: got %s with %d changed paths in session %s, want %s with 1 in %s", status.Dir,
			status.Overlay.Changed, status.Session.Name, m.Dir, m.Session)
	}
	var short struct {
		Session, Branch, Commit, Latest string
		Changed                         int64
	}
	few.ok("status", nil, &short)
	if short.Session != m.Session || short.Branch != "main" || short.Commit != status.Commit || short.Changed != 1 ||
		short.Latest != status.Session.LastCheckpoint {
		t.Errorf("short status: got %+v, want the same as %+v", short, status)
	}
	var prefetch control.PrefetchReply
	a.ok("prefetch", map[string]any{"wait": true}, &prefetch)
	if prefetch.Matched == 0 || prefetch.Fetched != prefetch.Matched {
		t.Errorf("prefetch of everything: got %+v", prefetch)
	}

	var report control.ErrorReport
	for _, c := range []struct {
		tool string
		args map[string]any
		code control.ErrorCode
	}{
		{"restore", map[string]any{"checkpoint": "none-such"}, control.CodeNotFound},
		{"cache_get", map[string]any{"key": "none-such"}, control.CodeNotFound},
		{"lock", map[string]any{"paths": []string{"new"}}, control.CodeUnsupported}, // only the embedded session remote
		{"restore", map[string]any{}, control.CodeUsage},
		{"log", map[string]any{"limit": "many"}, control.CodeUsage},
		{"fork", map[string]any{"dir": m.Dir}, control.CodeConflict},
	} {
		if failed := a.call(c.tool, c.args, &report); !failed || report.Error.Code != c.code || report.Error.Message == "" {
			t.Errorf("%s with %v: got failed %v and %+v, want code %q", c.tool, c.args, failed, report, c.code)
		}
	}
	if failed := few.call("lock", map[string]any{"paths": []string{"new"}}, &report); !failed ||
		report.Error.Hint != "start artifactfs mcp with --tools +lock" {
		t.Errorf("tool that is not offered: got failed %v and %+v, want a hint with the flag", failed, report)
	}
	w.unmount(m)
	if failed := a.call("checkpoint", nil, &report); !failed || report.Error.Code != control.CodeNotMounted ||
		report.Error.Hint == "" {
		t.Errorf("checkpoint after unmount: got failed %v and %+v, want code %q and a hint", failed, report,
			control.CodeNotMounted)
	}
}
