package agenthook

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// sleeper starts a process that no process of the test is an ancestor of, as another agent would be, and returns it.
func sleeper(t *testing.T) process {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatalf("start a process: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return processOf(t, pid)
}

func processOf(t *testing.T, pid int) process {
	t.Helper()
	s, err := proc.Of(pid).Stat()
	if err != nil {
		t.Fatalf("read the state of a process: %v", err)
	}
	p := here()
	p.PID, p.Start = pid, s.Start
	return p
}

// saveTurn stores a conversation of claude whose newest event is as old as age.
func saveTurn(t *testing.T, dir, name string, p process, age time.Duration) {
	t.Helper()
	turn := Turn{Agent: Claude, Conversation: name, Process: p}
	if err := turn.Save(dir, name); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(turnFile(dir, name), at, at); err != nil {
		t.Fatal(err)
	}
}

func join(t *testing.T, dir string, e Event) string {
	t.Helper()
	others, err := Join(dir, e, time.Now())
	if err != nil {
		t.Fatalf("join the working tree by %+v: %v", e, err)
	}
	return names(others)
}

func names(all []Conversation) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

// The other agents are those that run and were seen lately.
func TestJoinFindsAgentsThatRun(t *testing.T) {
	runs := sleeper(t)
	reused, rebooted, hidden, unknown := runs, runs, runs, runs
	reused.Start++
	rebooted.Boot = "earlier"
	hidden.Namespace = "pid:[1]"
	unknown.PID, unknown.Start = 0, 0
	ended := sleeper(t)
	if err := unix.Kill(ended.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if s, err := proc.Of(ended.PID).Stat(); err != nil || s.Ended() {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the killed process still runs")
		}
	}
	child := exec.Command("sleep", "300")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	self := agentProcess(Codex)
	if self.PID != os.Getppid() {
		t.Fatalf("process of the agent: got %+v, want the parent %d", self, os.Getppid())
	}
	for _, c := range []struct {
		name string
		of   process
		age  time.Duration
		want string
	}{
		{"runs", runs, time.Minute, "one"},
		{"runs, and the clock was set back", runs, -time.Hour, "one"},
		{"runs, but is silent", runs, 3 * time.Hour, ""},
		{"has ended", ended, 0, ""},
		{"has ended, and its process ID is in use again", reused, 0, ""},
		{"ran before the host was started", rebooted, 0, ""},
		{"is in another container", hidden, 5 * time.Minute, "one"},
		{"is in another container, and is silent", hidden, 15 * time.Minute, ""},
		{"is unknown, and perhaps the same", unknown, time.Minute, ""},
		{"is the same", self, time.Minute, ""},
		{"was started by the new agent", processOf(t, child.Process.Pid), time.Minute, ""},
	} {
		dir := t.TempDir()
		saveTurn(t, dir, "one", c.of, c.age)
		got := join(t, dir, Event{Agent: Codex, Kind: SessionStart, Session: "two"})
		if got != c.want {
			t.Errorf("other agents if the first one %s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Other agents are returned once for a conversation, when it begins, and again when another process resumes it.
func TestJoinReturnsOthersOnce(t *testing.T) {
	dir := t.TempDir()
	other := sleeper(t)
	saveTurn(t, dir, "one", other, 0)
	expect := func(when string, e Event, want string) {
		t.Helper()
		if got := join(t, dir, e); got != want {
			t.Errorf("other agents %s: got %q, want %q", when, got, want)
		}
	}
	expect("at the start", Event{Agent: Gemini, Kind: SessionStart, Session: "two"}, "one")
	for _, k := range []Kind{Prompt, ToolCall, ToolResult, TurnEnd, SessionStart} {
		expect("at the event "+string(k), Event{Agent: Gemini, Kind: k, Session: "two"}, "")
	}
	expect("at the first prompt", Event{Agent: OpenCode, Kind: Prompt, Session: "three"}, "one")
	expect("at the second prompt", Event{Agent: OpenCode, Kind: Prompt, Session: "three"}, "")
	expect("at a tool call", Event{Agent: Codex, Kind: ToolCall, Session: "four"}, "")
	expect("without a conversation", Event{Agent: Codex, Kind: SessionStart}, "")

	// The first conversation is resumed by another process, after the first process was killed.
	killed := other
	killed.Start++
	saveTurn(t, dir, "one", killed, 0)
	expect("when the only other one has ended", Event{Agent: Claude, Kind: SessionStart, Session: "one"}, "")
	saveTurn(t, dir, "five", other, 0)
	turn, _, err := LoadTurn(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	turn.Process.Start++
	if err := turn.Save(dir, "one"); err != nil {
		t.Fatal(err)
	}
	expect("when a conversation is resumed", Event{Agent: Claude, Kind: SessionStart, Session: "one"}, "five")
	expect("at the end", Event{Agent: Claude, Kind: SessionEnd, Session: "six"}, "")
	if _, known, err := LoadTurn(dir, "six"); known || err != nil {
		t.Errorf("conversation that has only ended: known %v, error %v", known, err)
	}

	// Each process has one conversation, the newest one, and other files are no conversations.
	for name, text := range map[string]string{"old.json": `{"prompt":"p","reflog":1}`, "bad.json": "{",
		"agent.json": `{"agent":"nobody","conversation":"c"}`, "large.json": `{"agent":"` + strings.Repeat("x", maxTurn)} {
		if err := os.WriteFile(filepath.Join(dir, hooksDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, hooksDir, "pipe.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	saveTurn(t, dir, "seven", other, time.Second)
	if got := names(Conversations(dir, time.Now())); got != "one five" {
		t.Errorf("conversations: got %q, want one of each process", got)
	}
}

// The answer of a hook has the form that the agent expects.
func TestAnswer(t *testing.T) {
	text := `another agent "codex" works here`
	for _, a := range Agents() {
		e := Event{Agent: a, Name: "SessionStart"}
		want, none := fmt.Sprintf(`{"systemMessage":%[1]q,"hookSpecificOutput":{"hookEventName":"SessionStart",`+
			`"additionalContext":%[1]q}}`+"\n", text), ""
		switch a {
		case Gemini:
			none = "{}\n"
		case OpenCode:
			want = text + "\n"
		case Cursor:
			want = fmt.Sprintf(`{"additional_context":%q}`+"\n", text)
		case Copilot:
			want = fmt.Sprintf(`{"additionalContext":%q}`+"\n", text)
		}
		if got := e.Answer(text); got != want {
			t.Errorf("answer to %s: got %s, want %s", a, got, want)
		}
		if got := e.Answer(""); got != none {
			t.Errorf("answer to %s without a text: got %q, want %q", a, got, none)
		}
		if a != OpenCode && !json.Valid([]byte(e.Answer(text))) {
			t.Errorf("answer to %s is no JSON: %s", a, e.Answer(text))
		}
	}
}

// A hook ends before the agent's timeout, and waits for no other process when it reads its state.
func TestHookDoesNotWait(t *testing.T) {
	for a, c := range configurations {
		for _, e := range c.events {
			limit := cmp.Or(e.timeout, Timeout+grace)
			if got := (Event{Agent: a, Name: e.name}).Latest(); got <= 0 || got >= limit {
				t.Errorf("event %s of %s: the hook ends after %v, the agent's timeout is %v", e.name, a, got, limit)
			}
		}
	}
	dir := t.TempDir()
	pipes := []string{turnFile(dir, "one"), filepath.Join(dir, "logs", "HEAD")}
	for _, pipe := range pipes {
		if err := os.MkdirAll(filepath.Dir(pipe), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 2)
	go func() {
		_, _, err := LoadTurn(dir, "one")
		ended <- err
		_, err = new(Turn).Commits(dir)
		ended <- err
	}()
	for _, pipe := range pipes {
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("read the pipe %s: got no error", pipe)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("reading the pipe %s does not end", pipe)
		}
	}
}
