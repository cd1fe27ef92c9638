package agenthook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The newest event of each kind is kept for each agent, until the agent's hooks are uninstalled.
func TestFired(t *testing.T) {
	dir := t.TempDir()
	last := func() map[Agent][]Fired {
		t.Helper()
		fired, err := LastFired(dir)
		if err != nil {
			t.Fatalf("last events: %v", err)
		}
		return fired
	}
	if got := last(); got != nil {
		t.Errorf("last events without hooks: got %v, want nil", got)
	}
	for range 2 {
		if err := MakeDir(dir); err != nil {
			t.Fatalf("make the directory: %v", err)
		}
	}
	if got := last(); got == nil || len(got) > 0 {
		t.Errorf("last events of hooks that have never fired: got %v, want an empty map", got)
	}
	note := func(a Agent, k Kind, conversation string, age time.Duration) {
		t.Helper()
		if err := NoteFired(dir, Event{Agent: a, Kind: k, Session: conversation}); err != nil {
			t.Fatalf("note an event: %v", err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(firedFile(dir, a, k), at, at); err != nil {
			t.Fatal(err)
		}
	}
	note(Claude, SessionStart, "c-1", time.Hour)
	note(Claude, Other, "c-1", 2*time.Hour)
	note(Claude, Prompt, "c-1", 0)
	note(Claude, Prompt, "c-2", time.Minute)
	note(Codex, TurnEnd, strings.Repeat("é", maxConversation), -time.Hour) // the clock was set back
	// Files of another version, or of a process that was killed, are no events.
	for _, name := range []string{"claude/later_kind", "claude/prompt.ABC.tmp", "other-agent/prompt"} {
		path := filepath.Join(dir, hooksDir, firedDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("c-3"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fired := last()
	var got []string
	for _, f := range fired[Claude] {
		got = append(got, fmt.Sprintf("%s of %s, %v", f.Kind, f.Conversation, time.Since(f.Time).Round(time.Minute)))
	}
	want := "prompt of c-2, 1m0s; agent_start of c-1, 1h0m0s;  of c-1, 2h0m0s"
	if got := strings.Join(got, "; "); got != want {
		t.Errorf("last events of claude: got %q, want %q", got, want)
	}
	if f := fired[Codex]; len(fired) != 2 || len(f) != 1 || f[0].Conversation != strings.Repeat("é", maxConversation/2) {
		t.Errorf("last events of all agents: got %v, want one of codex with a shortened conversation", fired)
	}
	if err := ForgetFired(dir, Claude); err != nil {
		t.Fatal(err)
	}
	if fired := last(); fired[Claude] != nil || len(fired[Codex]) != 1 {
		t.Errorf("last events after those of claude were removed: got %v", fired)
	}
	// A container may be able to put a pipe there, whose open waits for a writer.
	if err := os.MkdirAll(filepath.Join(dir, hooksDir, firedDir, "claude"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(firedFile(dir, Claude, Prompt), 0o600); err != nil {
		t.Fatal(err)
	}
	if fired, err := LastFired(dir); err == nil {
		t.Errorf("last events with a pipe: got %v, want an error", fired)
	}
}

// Hooks that run at once leave one of their events, and nothing else.
func TestFiredAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				e := Event{Agent: Gemini, Kind: Prompt, Session: strings.Repeat(fmt.Sprint(i), 100)}
				if err := NoteFired(dir, e); err != nil {
					t.Errorf("note an event: %v", err)
				}
				fired, err := LastFired(dir)
				if got := fired[Gemini]; err != nil || len(got) != 1 || len(got[0].Conversation) != 100 {
					t.Errorf("last events: got %v, error %v, want one complete event", got, err)
				}
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(filepath.Dir(firedFile(dir, Gemini, Prompt)))
	if err != nil || len(entries) != 1 {
		t.Errorf("files of the events: got %v, error %v, want one", entries, err)
	}
}
