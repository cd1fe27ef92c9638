package agenthook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An event that the hooks of claude and of copilot receive at once is one event.
func TestRepeated(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	again := func(a Agent, k Kind, session, text string, at time.Time) bool {
		t.Helper()
		e := Event{Agent: a, Kind: k, Session: session, Text: text, Input: json.RawMessage(`{"a":1}`)}
		yes, err := Repeated(dir, e, at)
		if err != nil {
			t.Fatalf("look for a repeated event: %v", err)
		}
		return yes
	}
	for _, c := range []struct {
		what    string
		agent   Agent
		kind    Kind
		session string
		text    string
		later   time.Duration
		want    bool
	}{
		{"the first event", Copilot, Prompt, "one", "p", 0, false},
		{"the same event", Claude, Prompt, "one", "p", 0, true},
		{"the same event of the same agent", Copilot, Prompt, "one", "p", 0, false},
		{"another conversation", Claude, Prompt, "two", "p", 0, false},
		{"another kind", Claude, TurnEnd, "one", "p", 0, false},
		{"another text", Copilot, TurnEnd, "one", "q", 0, false},
		{"an earlier event", Claude, Prompt, "one", "p", time.Second, true},
		{"the event before", Claude, TurnEnd, "one", "q", time.Second, true},
		{"another agent", Codex, TurnEnd, "one", "q", 0, false},
		{"much later", Claude, TurnEnd, "one", "q", time.Minute, false},
		{"no conversation", Copilot, TurnEnd, "", "q", 0, false},
		{"no conversation, again", Claude, TurnEnd, "", "q", 0, false},
	} {
		if got := again(c.agent, c.kind, c.session, c.text, now.Add(c.later)); got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
	if got := Conversations(dir, now); got != nil {
		t.Errorf("conversations: got %+v", got)
	}
	entries, err := os.ReadDir(receivedDir(dir, "one"))
	if err != nil || len(entries) != 1 {
		t.Errorf("events of a conversation: got %v, error %v, want those that were received lately", entries, err)
	}
	for _, session := range []string{"one", "two"} {
		if err := ForgetTurn(dir, session); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(receivedDir(dir, session)); err == nil {
			t.Errorf("the events of conversation %s were not removed", session)
		}
	}
}

// An event is not taken for a repeated one only because the state of an earlier event is strange.
func TestRepeatedKeepsRealEvents(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	again := func(a Agent, sub string) bool {
		t.Helper()
		yes, err := Repeated(dir, Event{Agent: a, Kind: ToolCall, Session: "one", Tool: "Bash", Sub: sub}, now)
		if err != nil {
			t.Fatalf("look for a repeated event: %v", err)
		}
		return yes
	}
	files := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(receivedDir(dir, "one"), "*"))
		if err != nil || len(all) == 0 {
			t.Fatalf("no events: %v, error %v", all, err)
		}
		return all
	}
	if again(Copilot, "") || again(Claude, "sub") {
		t.Error("the same call of a sub-agent is a repeated event")
	}
	for _, file := range files() {
		if err := os.Truncate(file, 0); err != nil {
			t.Fatal(err)
		}
	}
	if again(Claude, "") {
		t.Error("the event of a hook that was killed is a repeated event")
	}
	if err := ForgetTurn(dir, "one"); err != nil {
		t.Fatal(err)
	}
	if again(Copilot, "") {
		t.Error("the first event is a repeated event")
	}
	for _, file := range files() {
		if at := now.Add(time.Hour); os.Chtimes(file, at, at) != nil {
			t.Fatalf("set the time of %s", file)
		}
	}
	if again(Claude, "") {
		t.Error("an event from before the clock was set back is a repeated event")
	}
}

// Only files of events are removed, also if a container has made a symbolic link in the place of their directory.
func TestRepeatedRemovesOnlyEvents(t *testing.T) {
	base := t.TempDir()
	dir, other := filepath.Join(base, "git"), filepath.Join(base, "other")
	received := receivedDir(dir, "one")
	for _, d := range []string{received, other} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	files := []string{filepath.Join(received, "notes"), filepath.Join(other, strings.Repeat("a1", hashSize)),
		filepath.Join(received, strings.Repeat("a1", hashSize))}
	for _, f := range files {
		if os.WriteFile(f, nil, 0o600) != nil || os.Chtimes(f, old, old) != nil {
			t.Fatalf("make %s", f)
		}
	}
	e := Event{Agent: Claude, Kind: Prompt, Session: "one"}
	if again, err := Repeated(dir, e, time.Now()); again || err != nil {
		t.Errorf("first event: got repeated %v, error %v", again, err)
	}
	if err := os.Rename(received, received+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, received); err != nil {
		t.Fatal(err)
	}
	if again, err := Repeated(dir, e, time.Now()); again || err == nil {
		t.Errorf("event with a symbolic link: got repeated %v, error %v, want an error", again, err)
	}
	for i, f := range []string{filepath.Join(received+".old", "notes"), files[1],
		filepath.Join(received+".old", strings.Repeat("a1", hashSize))} {
		if _, err := os.Stat(f); (err == nil) != (i < 2) {
			t.Errorf("%s: got %v", f, err)
		}
	}
	if entries, err := os.ReadDir(other); err != nil || len(entries) != 1 {
		t.Errorf("behind the link: got %v, error %v, want one file", entries, err)
	}
}
