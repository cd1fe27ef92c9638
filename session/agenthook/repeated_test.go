package agenthook

import (
	"encoding/json"
	"os"
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
