package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session/agenthook"
)

// The hooks store the memory of an agent at the end of a turn, only if the user has asked for it, and never more than
// once. A daemon that refuses it does not stop the records.
func TestHooksKeepMemory(t *testing.T) {
	w := newAgentWorld(t)
	m, s := mountStatus(w.dir), &sessionsOf{}
	m.ReadOnly, m.Session.Name = false, "work"
	w.daemon.set(func() { w.daemon.mounts, w.daemon.fakeSessions = []control.MountStatus{m}, s })
	first := `{"cwd":"` + w.dir + `"}` + "\n"
	file := filepath.Join(w.afs.dir, "d6a63774-a2a1-475b-921d-819030ada2ae.jsonl")
	if err := os.WriteFile(file, []byte(first+"{\"n\":2}\n{\"n\""), 0o600); err != nil {
		t.Fatal(err)
	}
	event := func(name, file string) (records, memory []string) {
		t.Helper()
		s.set(func() { s.asked = nil })
		cmd := w.command("session", "hook", "claude")
		cmd.Stdin = strings.NewReader(`{"hook_event_name":"` + name + `","session_id":"c-1","transcript_path":"` + file +
			`","cwd":"` + w.dir + `"}`)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("hook %s: got %v: %s", name, err, out)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, asked := range s.asked {
			if r, ok := asked.(control.SessionRecordRequest); ok && r.Memory {
				memory = append(memory, r.Lines...)
			} else if ok {
				records = append(records, r.Lines...)
			}
		}
		return records, memory
	}
	if records, memory := event("Stop", file); len(records) != 1 || len(memory) != 0 {
		t.Errorf("end of a turn without being asked: %q, %q", records, memory)
	}
	if out := w.ok("agent", "status", "--dir", "m"); strings.Contains(out, "memory") {
		t.Errorf("agent status without memory: %s", out)
	}
	if err := agenthook.KeepMemory(w.git, agenthook.MemoryKeep); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"UserPromptSubmit", "PreToolUse", "SessionStart"} {
		if _, memory := event(name, file); len(memory) != 0 {
			t.Errorf("%s has stored %q", name, memory)
		}
	}
	for _, other := range []string{"", "/etc/passwd", filepath.Join(w.afs.dir, "x.jsonl"), "relative.jsonl"} {
		if records, memory := event("Stop", other); len(records) != 1 || len(memory) != 0 {
			t.Errorf("file %q: %q, %q", other, records, memory)
		}
	}
	records, memory := event("Stop", file)
	if len(records) != 1 || len(memory) != 2 || !strings.Contains(memory[1], `"line":{"n":2}`) {
		t.Fatalf("end of a turn: %q, %q", records, memory)
	}
	if _, memory := event("SessionEnd", file); len(memory) != 0 {
		t.Errorf("nothing has changed, and %q is stored", memory)
	}
	if out := w.ok("agent", "status", "--dir", "m"); !strings.HasSuffix(out,
		fmt.Sprintf("memory    kept in the session: claude: 1 conversation, %d B\n", len(first)+8)) {
		t.Errorf("agent status: %s", out)
	}
	var status struct {
		Memory struct {
			Kept   bool
			Agents map[string]struct{ Bytes int64 }
		}
	}
	if err := json.Unmarshal([]byte(w.ok("agent", "status", "--dir", "m", "--json")), &status); err != nil ||
		!status.Memory.Kept || status.Memory.Agents["claude"].Bytes != int64(len(first)+8) {
		t.Errorf("agent status --json: %+v, %v", status, err)
	}
}

// Memory needs a session, and only the configuration of the user turns it on.
func TestMemoryFlagIsRefused(t *testing.T) {
	w := newAgentWorld(t)
	for _, args := range [][]string{{"--read-only"}, {"--session-remote", "none"}} {
		args = append([]string{"mount", "https://h/r.git", "x", "--agent-memory"}, args...)
		if r := w.run(args...); r.code != control.ExitUsage || !strings.Contains(r.stderr, "--agent-memory needs a session") {
			t.Errorf("%s: exit code %d: %s", args, r.code, r.stderr)
		}
	}
}
