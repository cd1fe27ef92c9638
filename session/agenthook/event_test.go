package agenthook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/session/transcript"
)

// TestParseEvents checks that the documented events of all agents are parsed to the same kinds of events.
func TestParseEvents(t *testing.T) {
	for _, a := range Agents() {
		text, err := os.ReadFile(filepath.Join("testdata", string(a)+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[Kind]Event{}
		for line := range strings.Lines(string(text)) {
			e, err := Parse(a, []byte(line))
			if err != nil {
				t.Fatalf("parse an event of %s: %v: %s", a, err, line)
			}
			if e.Kind == Other || e.Session == "" || e.Dir != "DIR" {
				t.Errorf("%s: got event %+v of line %s", a, e, line)
			}
			seen[e.Kind] = e
		}
		if got := seen[Prompt].Text; got != "Fix the login; the key is SECRET" {
			t.Errorf("%s: got prompt %q", a, got)
		}
		response := "The login is fixed."
		if a == Copilot || a == Cursor {
			response = "" // the event does not have it
		}
		if got := seen[TurnEnd].Text; got != response {
			t.Errorf("%s: got response %q", a, got)
		}
		if seen[ToolCall].Tool == "" || !seen[ToolCall].Changes() || !seen[ToolResult].Changes() ||
			seen[ToolResult].Output == nil {
			t.Errorf("%s: got tool call %+v and result %+v", a, seen[ToolCall], seen[ToolResult])
		}
	}
	read, err := Parse(Claude,
		[]byte(`{"hook_event_name":"PreToolUse","tool_name":"Read","tool_input":{"file_path":"a"}}`))
	if err != nil || read.Changes() {
		t.Errorf("a Read counts as a change: %+v, error %v", read, err)
	}
	if e, err := Parse(Claude, []byte(`{"hook_event_name":"Notification"}`)); err != nil || e.Kind != Other {
		t.Errorf("an ignored event: got %+v, error %v", e, err)
	}
	for _, bad := range []string{"", "[]", "{}", "{\"hook_event_name\":1}"} {
		if e, err := Parse(Codex, []byte(bad)); err == nil {
			t.Errorf("invalid event %q was parsed as %+v", bad, e)
		}
	}
}

// TestParseSubAgents checks that the events of a sub-agent are nested in the turn of the agent that has started it.
func TestParseSubAgents(t *testing.T) {
	for a, want := range map[Agent]string{
		Claude: "subagent_start tool_call tool_result subagent_end: " +
			"end of sub-agent Explore: The login is in d0/f0; the key is SECRET",
		Codex: "subagent_start subagent_prompt tool_call tool_result subagent_end: " +
			"end of sub-agent explorer: The login is in d0/f0; the key is SECRET",
		Cursor: "subagent_start subagent_end: end of sub-agent explore: The login is in d0/f0; the key is SECRET",
		Copilot: "subagent_prompt tool_call tool_result subagent_end: " +
			"end of sub-agent explore: The login is in d0/f0; the key is SECRET",
		OpenCode: "subagent_prompt tool_call subagent_end: end of sub-agent explore: The login is fixed.",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", string(a)+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var nested, records []string
		var last Event
		conversation := ""
		for line := range strings.Lines(string(text)) {
			e, err := Parse(a, []byte(line))
			if err != nil {
				t.Fatal(err)
			}
			record, err := e.Record()
			if err != nil {
				t.Fatal(err)
			}
			if records = append(records, record); conversation != "" && e.Session != conversation {
				t.Errorf("%s: got conversation %q, want %q", a, e.Session, conversation)
			}
			conversation = e.Session
			if strings.Contains(record, `"sub":"`) != (e.Sub != "") || e.BoundsSub() && e.Sub == "" {
				t.Errorf("%s: got record %s of event %+v", a, record, e)
			}
			if e.Sub != "" {
				nested, last = append(nested, string(e.Kind)), e
			}
		}
		if got := strings.Join(nested, " ") + ": " + last.Title(); got != want {
			t.Errorf("%s: events of the sub-agent: got %q, want %q", a, got, want)
		}
		prompts := 0
		for _, r := range records {
			if transcript.HasPrompt([]string{r}) {
				prompts++
			}
		}
		if prompts != 1 {
			t.Errorf("%s: got %d records that begin a turn, want 1", a, prompts)
		}
	}
	e, err := Parse(Claude, []byte(`{"hook_event_name":"UserPromptSubmit","session_id":"c","agent_type":"r","prompt":"p"}`))
	if err != nil || e.Kind != Prompt || e.Sub != "" || e.SubType != "" {
		t.Errorf("prompt to an agent that was started with a type: got %+v, error %v", e, err)
	}
	e, err = Parse(Gemini, []byte(`{"hook_event_name":"BeforeAgent","prompt":"<hook_context>a b</hook_context>\n\nfix it\n"}`))
	if err != nil || e.Kind != Prompt || e.Text != "fix it" {
		t.Errorf("prompt with an answer of a hook: got %+v, error %v", e, err)
	}
	// Claude sends a prompt itself when a sub-agent in the background has ended, and uses agents without a type itself.
	for text, want := range map[string]Kind{
		`{"hook_event_name":"UserPromptSubmit","session_id":"c","prompt":"<task-notification>\n<task-id>a1</task-id>"}`: Notification,
		`{"hook_event_name":"SubagentStop","session_id":"c","agent_id":"a1","agent_type":""}`:                           Other,
		`{"hook_event_name":"Stop","session_id":"a1","agent_id":"a1","agent_type":"task"}`:                              Other,
		`{"sessionId":"c","timestamp":1,"agent_id":"a1","agent_type":"task"}`:                                           Other,
		`{"hook_event_name":"SubagentStop","session_id":"c"}`:                                                           SubEnd,
	} {
		e, err := Parse(Claude, []byte(text))
		if err != nil || e.Kind != want {
			t.Errorf("event %s: got kind %q, error %v, want %q", text, e.Kind, err, want)
		}
		line, err := e.Record()
		if err != nil || transcript.HasPrompt([]string{line}) {
			t.Errorf("event %s: the record begins a turn: %s, error %v", text, line, err)
		}
	}
	e, err = Parse(Codex, []byte(`{"hook_event_name":"SubagentStart","agent_id":"`+strings.Repeat("é", 1000)+`"}`))
	if err != nil || len(e.Sub) != maxConversation || e.Title() != "before sub-agent" {
		t.Errorf("sub-agent with a long id: got %d bytes, title %q, error %v", len(e.Sub), e.Title(), err)
	}
	others, err := Join(t.TempDir(), Event{Agent: Codex, Kind: SessionStart, Session: "c", Sub: "s"}, time.Now())
	if others != nil || err != nil {
		t.Errorf("other agents at the start of a sub-agent: got %v, error %v", others, err)
	}
}

// TestRecordIsBounded checks that the size of a record has a limit, however much output a tool has.
func TestRecordIsBounded(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	output, err := json.Marshal(map[string]any{"stdout": long,
		"list": strings.Split(strings.Repeat("word ", 100_000), " ")})
	if err != nil {
		t.Fatal(err)
	}
	line, err := Event{Agent: Claude, Kind: ToolResult, Text: long, Input: output, Output: output}.Record()
	if err != nil || len(line) > 256<<10 || !json.Valid([]byte(line)) || !strings.Contains(line, "bytes left out") {
		t.Errorf("a record has %d bytes, error %v", len(line), err)
	}
}

// TestNoPartOfASecret checks that no part of a secret remains in texts that are shortened.
func TestNoPartOfASecret(t *testing.T) {
	secret := "ghp_" + strings.Repeat("aB3d", 9)
	for before := 40; before < 140; before++ { // the secret is at another place of the title each time
		text := strings.Repeat("x", before) + " " + secret + strings.Repeat(" y", 60+10_000*(before%2))
		input, err := json.Marshal(map[string]string{"command": text})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []Event{{Kind: TurnEnd, Text: text}, {Kind: ToolCall, Tool: "Bash", Input: input},
			{Kind: ToolResult, Input: input}, {Kind: SubEnd, Text: text}} {
			if got := e.Title(); strings.Contains(got, "aB3d") || strings.Contains(got, "ghp_") || len(got) > 120 {
				t.Errorf("%d bytes before the secret: got title %q of %s", before, got, e.Kind)
			}
		}
	}
	// The middle of a long string is left out, so a part of the first and of the last secret would remain.
	for before := maxString/2 - 60; before < maxString/2; before += 7 {
		text := strings.Repeat("x", before) + " " + secret + " " + strings.Repeat("y ", maxString) + secret + " " +
			strings.Repeat("z", before)
		parts := make([]any, 20) // none of them is long, but together they are
		for i := range parts {
			parts[i] = text[:before+40] + strings.Repeat(" z", maxString/5)
		}
		parts = append(parts, map[string]string{"password": "hunter22"})
		output, err := json.Marshal(map[string]any{"stdout": text, "long": strings.Repeat(text, 5)})
		if err != nil {
			t.Fatal(err)
		}
		list, err := json.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		line, err := Event{Kind: ToolResult, Text: text, Input: list, Output: output}.Record()
		if err != nil || strings.Contains(line, "aB3d") || strings.Contains(line, "hunter22") ||
			!strings.Contains(line, "bytes left out") || !strings.Contains(line, "[redacted github token]") {
			t.Errorf("%d bytes before the secret: got a record of %d bytes with a part of it, error %v", before, len(line), err)
		}
	}
}

// TestCommits checks that Commits returns the commits that git commands have created, and not commits to which HEAD was
// set.
func TestCommits(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "logs", "HEAD")
	add := func(lines ...string) {
		t.Helper()
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(strings.Join(lines, "")); err != nil {
			t.Fatal(err)
		}
	}
	line := func(old, new, message string) string {
		return strings.Repeat(old, 40) + " " + strings.Repeat(new, 40) + " A U <a@example> 1700000000 +0000\t" +
			message + "\n"
	}
	add(line("0", "a", "clone: from x"), line("a", "b", "commit: earlier"))
	turn, known, err := LoadTurn(dir, "one")
	if known || err != nil {
		t.Fatalf("a new conversation: got known %v, error %v", known, err)
	}
	add(line("b", "c", "commit: fix"), line("c", "d", "commit (amend): fix"),
		line("d", "a", "checkout: moving from main to a"),
		line("a", "e", "merge x: Fast-forward"), line("e", "f", "merge y: Merge made by the 'ort' strategy."),
		strings.TrimSuffix(line("f", "1", "commit: half"), "\n"))
	made, err := turn.Commits(dir)
	if got, want := initials(made), "cdf"; got != want || err != nil {
		t.Errorf("commits made: got %s, want %s, error %v", got, want, err)
	}
	if err := turn.Save(dir, "one"); err != nil {
		t.Fatal(err)
	}
	add("\n")
	if turn, known, err = LoadTurn(dir, "one"); !known || err != nil {
		t.Fatalf("a known conversation: got known %v, error %v", known, err)
	}
	if made, err = turn.Commits(dir); initials(made) != "1" || err != nil {
		t.Errorf("commits after the incomplete last line was completed: got %s, error %v", initials(made), err)
	}
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	if made, err = turn.Commits(dir); len(made) != 0 || err != nil {
		t.Errorf("commits after the reflog was truncated: got %v, error %v", made, err)
	}
	if err := ForgetAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, hooksDir)); !os.IsNotExist(err) {
		t.Errorf("stat after ForgetAll: got %v", err)
	}
}

func initials(ids []string) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteByte(id[0])
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	for _, a := range Agents() {
		text, err := os.ReadFile(filepath.Join("testdata", string(a)+".jsonl"))
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f.Add([]byte(line))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Parse(Claude, text)
		if err != nil {
			return
		}
		line, err := e.Record()
		if err != nil || !json.Valid([]byte(line)) || len(e.Title()) > 120 {
			t.Errorf("got record %q, title %q, error %v", line, e.Title(), err)
		}
	})
}

// TestParseTrees checks that the members which versions of claude send about working trees are parsed to the same Tree.
func TestParseTrees(t *testing.T) {
	for members, want := range map[string]Tree{
		`"hook_event_name":"WorktreeCreate","name":"fix"`:                              {Name: "fix", From: "DIR"},
		`"hook_event_name":"WorktreeCreate","worktree_name":"fix","base_commit":"abc"`: {Name: "fix", From: "DIR", Base: "abc"},
		`"hook_event_name":"WorktreeCreate","worktree_path":"/w/fix","base_path":"/w","base_ref":"main"`: {
			Path: "/w/fix", From: "/w", Base: "main"},
		`"hook_event_name":"WorktreeRemove","worktree_path":"/w/fix"`: {Path: "/w/fix", From: "DIR"},
	} {
		e, err := Parse(Claude, []byte(`{"session_id":"c-1","cwd":"DIR",`+members+`}`))
		if err != nil || e.Tree != want || (e.Kind == MakeTree) == (e.Kind == RemoveTree) || e.Timeout() != TreeTimeout {
			t.Errorf("event %s: got %+v, error %v, want %+v", members, e, err, want)
		}
	}
	e, err := Parse(Claude, []byte(`{"hook_event_name":"Stop","name":1}`))
	if err != nil || e.Tree != (Tree{}) || e.Timeout() != Timeout {
		t.Errorf("event of another kind: got %+v, error %v", e, err)
	}
	if e, err := Parse(Claude, []byte(`{"hook_event_name":"WorktreeCreate","name":1}`)); err == nil {
		t.Errorf("event with an invalid name was parsed as %+v", e)
	}
}

// Secrets are removed before the type of a sub-agent and the cause of a compaction are cut, so that no part is left.
func TestLongNamesHaveNoPartsOfSecrets(t *testing.T) {
	key := "sk-proj-" + strings.Repeat("a1B2c3D4e5F6g7H8i9J0", 2)
	for n := range 3 * maxConversation {
		for _, end := range []int{0, 2 * maxConversation, 3 * maxSecret} {
			long := strings.Repeat("x ", n/2) + strings.Repeat("y", n%2) + " " + key + strings.Repeat(" z", end/2)
			text, err := json.Marshal(map[string]string{"hook_event_name": "PreCompact", "session_id": "c-1", "agent_id": "s-1",
				"trigger": long, "agent_type": long})
			if err != nil {
				t.Fatal(err)
			}
			e, err := Parse(Claude, text)
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range []string{e.Trigger, e.SubType} {
				// A short text is redacted when it is recorded.
				if got != long && (len(got) > maxConversation || strings.Contains(got, "a1B2") || strings.Contains(got, "i9J0")) {
					t.Fatalf("event with a secret after %d bytes, and %d after it: got %q", n, end, got)
				}
			}
		}
	}
}
