package agenthook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		if got := seen[TurnEnd].Text; got != "The login is fixed." {
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
