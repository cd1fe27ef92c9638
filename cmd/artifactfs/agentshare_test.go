package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

// agentProcess is a process that runs hooks as an agent does.
type agentProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	events io.WriteCloser
	output *bufio.Reader
}

// agent starts a process that runs the hooks of an agent.
func (w agentWorld) agent(name string) agentProcess {
	w.t.Helper()
	hook := binary + " session hook " + name
	cmd := w.command()
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c",
		`while read -r event; do printf %s "$event" | ` + hook + ` 2>&1; echo end; done`}
	events, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("start an agent: %v", err)
	}
	p := agentProcess{w.t, cmd, events, bufio.NewReader(output)}
	w.t.Cleanup(p.stop)
	return p
}

// stop ends the process. The agent has no time to run a hook.
func (p agentProcess) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// event runs the hook with an event, and returns what the hook has printed.
func (p agentProcess) event(name, conversation, dir string) (printed string) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.events, `{"hook_event_name":"%s","session_id":"%s","cwd":"%s"}`+"\n",
		name, conversation, dir); err != nil {
		p.t.Fatalf("send event %s: %v", name, err)
	}
	for {
		line, err := p.output.ReadString('\n')
		if err != nil {
			p.t.Fatalf("read the output of the hook of %s: %v", name, err)
		}
		if line == "end\n" {
			return printed
		}
		printed += line
	}
}

// An agent that begins where another agent works gets a notice once, with a command for a tree of its own.
func TestAgentsShareATree(t *testing.T) {
	w := newAgentWorld(t)
	m := mountStatus(w.dir)
	m.ReadOnly, m.Session.Name = false, "work"
	w.daemon.set(func() { w.daemon.mounts, w.daemon.fakeSessions = []control.MountStatus{m}, &sessionsOf{} })
	w.ok("agent", "install", "claude", "--dir", "m")
	shared := func(when, want string) {
		t.Helper()
		lines := strings.Split(w.lines(), "\n")
		got := lines[len(lines)-1]
		if !strings.Contains(got, " agents work ") {
			got = ""
		}
		if got != want {
			t.Errorf("status %s: got %q, want %q", when, got, want)
		}
	}

	claude := w.agent("claude")
	for _, event := range []string{"SessionStart", "UserPromptSubmit", "PreToolUse"} {
		if got := claude.event(event, "c-1", w.dir); got != "" {
			t.Errorf("event %s of the only agent: got %s", event, got)
		}
	}
	shared("with one agent", "")
	for _, dir := range []string{w.dir + "-2", w.dir + "/src"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var answer struct {
		SystemMessage      string
		HookSpecificOutput struct{ HookEventName, AdditionalContext string }
	}
	codex := w.agent("codex")
	printed := codex.event("SessionStart", "x-1", w.dir+"/src")
	if err := json.Unmarshal([]byte(printed), &answer); err != nil {
		t.Fatalf("answer to codex: got %q, %v", printed, err)
	}
	want := "Another coding agent works in this directory tree, " + w.dir + " (claude, last seen just now). " +
		"Its changes and yours mix. This command makes a tree of its own, with the present files, in which you can work " +
		"instead: " + binary + " worktree add -C " + w.dir + " " + w.dir + "-3"
	if got := answer.HookSpecificOutput; got.AdditionalContext != want || got.HookEventName != "SessionStart" ||
		answer.SystemMessage != want {
		t.Errorf("answer to codex: got %+v, want %q", answer, want)
	}
	if got := codex.event("UserPromptSubmit", "x-1", w.dir); got != "" {
		t.Errorf("answer to the prompt of codex: got %q", got)
	}
	w.ok("agent", "install", "gemini", "--dir", "m")
	shared("with two agents", "2 agents work in this tree: codex, last seen just now; claude, last seen just now")
	var hooks struct {
		Hooks []struct {
			Agent string
			Live  []struct{ Conversation string }
		}
	}
	if err := json.Unmarshal([]byte(w.ok("agent", "status", "--dir", "m", "--json")), &hooks); err != nil {
		t.Fatal(err)
	}
	if h := hooks.Hooks; len(h[0].Live) != 1 || h[0].Live[0].Conversation != "c-1" || len(h[1].Live) != 1 ||
		h[1].Live[0].Conversation != "x-1" || h[2].Live != nil {
		t.Errorf("agent status --json: got %+v", h)
	}
	if got := w.ok("agent", "status", "--dir", "m"); !strings.HasSuffix(got,
		"\n2 agents work in this tree: codex, last seen just now; claude, last seen just now\n") {
		t.Errorf("agent status: got %s", got)
	}

	// The first agent resumes after it was killed, and the second has ended: neither gets a notice.
	codex.event("SessionEnd", "x-1", w.dir)
	claude.stop()
	shared("after both have ended", "")
	again := w.agent("claude")
	if got := again.event("SessionStart", "c-1", w.dir); got != "" {
		t.Errorf("answer to claude, which resumes its conversation: got %q", got)
	}
	if got := again.event("SessionStart", "c-2", w.dir); got != "" {
		t.Errorf("answer to claude, which clears its conversation: got %q", got)
	}
	opencode := w.agent("opencode")
	if got := opencode.event("chat.message", "o-1", w.dir); !strings.HasPrefix(got, "Another coding agent works ") ||
		strings.Count(got, "claude") != 1 || strings.Count(got, "\n") != 1 {
		t.Errorf("answer to opencode: got %q", got)
	}
	// Copilot runs also the hooks of claude, with the same events. Only one of the two records, and gives a notice.
	copilot := w.agent("copilot")
	if got := copilot.event("SessionStart", "p-1", w.dir); !strings.HasPrefix(got, `{"additionalContext":"Other coding agents`) {
		t.Errorf("answer to copilot: got %q", got)
	}
	if got := again.event("SessionStart", "p-1", w.dir); got != "" {
		t.Errorf("answer to the hook of claude that copilot runs: got %q", got)
	}
	copilot.event("SessionEnd", "p-1", w.dir)
	gemini := w.agent("gemini")
	if got := gemini.event("SessionStart", "g-1", w.dir); !strings.Contains(got,
		"Other coding agents work in this directory tree, "+w.dir+" (opencode, last seen just now; claude, ") {
		t.Errorf("answer to gemini: got %q", got)
	}
	if got := gemini.event("BeforeAgent", "g-1", w.dir); got != "{}\n" {
		t.Errorf("answer to the prompt of gemini: got %q", got)
	}
}

// A commit gets the note of the conversation whose tool has made it, although the other one's hook finds it too.
func TestCommitsOfAgentsInOneTree(t *testing.T) {
	w := newAgentWorld(t)
	m, s := mountStatus(w.dir), &sessionsOf{}
	m.ReadOnly, m.Session.Name = false, "work"
	w.daemon.set(func() { w.daemon.mounts, w.daemon.fakeSessions = []control.MountStatus{m}, s })
	made := 0
	commit := func() {
		t.Helper()
		made++
		cmd := exec.Command("git", "-C", w.dir, "-c", "user.name=a", "-c", "user.email=a@example", "commit", "-q",
			"--allow-empty", "-m", fmt.Sprint(made))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git commit: %v: %s", err, out)
		}
	}
	expect := func(when string, p agentProcess, event, conversation, want string) {
		t.Helper()
		s.set(func() { s.asked = nil })
		p.event(event, conversation, w.dir)
		var got []string
		s.set(func() {
			for _, asked := range s.asked {
				if r, ok := asked.(control.SessionNoteRequest); ok {
					var note struct {
						Session string `json:"agent_session"`
					}
					if err := json.Unmarshal(r.JSON, &note); err != nil {
						t.Error(err)
					}
					got = append(got, note.Session)
				}
			}
		})
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got notes of %q, want %q", when, got, want)
		}
	}
	claude, codex := w.agent("claude"), w.agent("codex")
	expect("prompt", claude, "UserPromptSubmit", "c-1", "")
	commit()
	expect("commit of the only agent, without a tool", claude, "PreToolUse", "c-1", "c-1")
	expect("prompt of the other agent", codex, "UserPromptSubmit", "x-1", "")
	expect("end of the first tool", claude, "PostToolUse", "c-1", "")
	expect("begin of a tool", codex, "PreToolUse", "x-1", "")
	commit()
	expect("end of the tool", codex, "PostToolUse", "x-1", "x-1")
	expect("begin of another tool", claude, "PreToolUse", "c-1", "")
	commit()
	expect("end of the other tool", claude, "PostToolUse", "c-1", "c-1")
	expect("end of the turn", codex, "Stop", "x-1", "")
}
