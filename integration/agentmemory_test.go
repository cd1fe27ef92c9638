package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestAgentMemoryTravels checks that a conversation of an agent is on the session remote only if the user has asked for
// it, is placed where the agent looks for it when the session is resumed on another machine and in a fork, and is
// erased everywhere.
func TestAgentMemoryTravels(t *testing.T) {
	for _, base := range []string{"seed", "thin"} {
		t.Run(base, func(t *testing.T) { agentMemoryTravels(t, base) })
	}
}

// agentMemoryTravels makes the checks with a session remote that has the history of the mounted remote, or only refers
// to it.
func agentMemoryTravels(t *testing.T, base string) {
	const id = "d6a63774-a2a1-475b-921d-819030ada2ae"
	w := newWorld(t)
	w.sized(2, 2)
	url := w.serve(gittest.ServerOptions{}).URL("sized.git")
	remote := w.sessionRemote("path", nil)
	first := *w
	first.env = append(first.env, "CLAUDE_CONFIG_DIR="+t.TempDir())
	hook := func(w *world, event string) {
		t.Helper()
		cmd := w.command(t.Context(), "session", "hook", "claude")
		cmd.Stdin = strings.NewReader(event)
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "artifactfs:") {
			t.Fatalf("event %s: %v: %s", event, err, out)
		}
	}
	m := first.bare(url, append(remote.flags("work"), "--wait", "git", "--session-base", base)...)
	file := filepath.Join(t.TempDir(), id+".jsonl")
	turn := func(w *world, dir, file string, n int) {
		t.Helper()
		line := fmt.Sprintf(`{"type":"user","cwd":%q,"timestamp":"2026-11-22T03:04:05Z","message":{"role":"user",`+
			`"content":"pineapple %d, password=hunter2xyz9"}}`+"\n", dir, n)
		f := must[*os.File](t)(os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))
		check(t, json.NewEncoder(f).Encode(json.RawMessage(line)))
		check(t, f.Close())
		check(t, os.WriteFile(filepath.Join(dir, "made"), fmt.Append(nil, n), 0o600))
		event := fmt.Sprintf(`{"session_id":%q,"transcript_path":%q,"cwd":%q,"hook_event_name":"%%s","prompt":"do %d"}`,
			id, file, dir, n)
		hook(w, fmt.Sprintf(event, "UserPromptSubmit"))
		hook(w, fmt.Sprintf(event, "Stop"))
	}
	// stored returns the files of the memory on the session remote, and of records that people can read there.
	stored := func(want bool) {
		t.Helper()
		if base == "thin" {
			if out := w.sh(remote.Path, "git ls-tree -r --name-only refs/heads/afs/work/readable"); strings.Contains(out,
				"memory") {
				t.Errorf("readable branch: %s", out)
			}
			return
		}
		out := w.sh(remote.Path, "git ls-tree -r --name-only "+session.TranscriptRef("work"))
		if strings.Contains(out, ".memory/") != want {
			t.Errorf("memory on the session remote: want %v, got %s", want, out)
		}
	}
	turn(&first, m.Dir, file, 1)
	first.ok("sync", m.Dir)
	stored(false) // nobody has asked for it
	first.unmount(m)
	before := m.Dir
	m = first.bare(url, append(remote.flags("work"), "--wait", "git", "--agent-memory")...)
	// A conversation belongs to the directory in which it has begun.
	begun := must[[]byte](t)(os.ReadFile(file))
	check(t, os.WriteFile(file, bytes.ReplaceAll(begun, []byte(before), []byte(m.Dir)), 0o600))
	if len(m.Memory) != 0 {
		t.Errorf("memory of a session that has none: %+v", m.Memory)
	}
	turn(&first, m.Dir, file, 2)
	if out := first.ok("agent", "status", "--dir", m.Dir); !strings.Contains(out,
		"kept in the session: claude: 1 conversation") {
		t.Errorf("agent status: %s", out)
	}
	first.ok("sync", m.Dir)
	stored(true)
	first.unmount(m)

	// The user stops it, and it stays off.
	for _, flags := range [][]string{{"--agent-memory=false"}, nil} {
		m = first.bare(url, append(append(remote.flags("work"), "--wait", "git"), flags...)...)
		if out := first.ok("agent", "status", "--dir", m.Dir); strings.Contains(out, "kept in the session") {
			t.Errorf("with %s: agent status: %s", flags, out)
		}
		first.unmount(m)
	}

	second := first.elsewhere()
	home := t.TempDir()
	second.env = append(second.env, "CLAUDE_CONFIG_DIR="+home)
	again := mounted{w: second}
	second.json(&again.MountReply, "session", "resume", "work", second.place("again"), "--session-remote", remote.arg,
		"--agent-memory")
	if len(again.Memory) != 1 || again.Memory[0].Outcome != "placed" || again.Memory[0].Dir != again.Dir ||
		strings.Join(again.Memory[0].Command, " ") != "claude --resume "+id {
		t.Fatalf("memory: %+v", again.Memory)
	}
	file = again.Memory[0].File
	text := string(must[[]byte](t)(os.ReadFile(file)))
	if !strings.HasPrefix(file, home+"/projects/-") || strings.Count(text, "pineapple") != 2 ||
		strings.Contains(text, "hunter2") || !strings.Contains(text, `"cwd":"`+again.Dir+`"`) {
		t.Errorf("%s: %s", file, text)
	}
	turn(second, again.Dir, file, 3)
	// Without the flag, a fork of a session of others keeps the memory, and places nothing.
	quiet := mounted{w: second}
	second.json(&quiet.MountReply, "session", "fork", "-C", "work", second.place("quiet"))
	if out := second.ok("agent", "status", "--dir", quiet.Dir); len(quiet.Memory) > 0 ||
		!strings.Contains(out, "kept in the session") {
		t.Errorf("fork without the flag: %+v, %s", quiet.Memory, out)
	}
	r := second.afs("session", "fork", "-C", "work", second.place("fork"), "--agent-memory")
	if r.code != 0 || !strings.Contains(r.stderr, `claude --resume `+id+` continues the conversation "pineapple 1`) {
		t.Errorf("fork: %s", r)
	}
	forked := filepath.Join(home, "projects")
	if list := must[[]os.DirEntry](t)(os.ReadDir(forked)); len(list) != 2 {
		t.Errorf("directories of conversations: %v", list)
	}

	// An erased record takes the conversation with it, also in the fork, and on the session remote.
	var prompt control.TranscriptRecord
	for line := range strings.Lines(second.ok("session", "transcript", "--json", again.Dir)) {
		if prompt.ID == "" && strings.Contains(line, `"prompt"`) {
			check(t, json.Unmarshal([]byte(line), &prompt))
		}
	}
	out := second.ok("session", "erase", again.Dir, "--record", prompt.ID)
	if !strings.Contains(out, "erased 1 record and 3 lines of the agents' memory of session work") ||
		!strings.Contains(out, "erased 1 record and 3 lines of the agents' memory of its fork") {
		t.Errorf("erase: %s", out)
	}
	second.ok("sync", again.Dir)
	stored(false)
	git := again.sessionGit()
	// What was fetched from a thin session remote is in packs that a sweep keeps while one of their objects is in use.
	if out := w.sh(git, "git cat-file --batch-all-objects --batch 2>/dev/null | grep -ac pineapple || true"); out != "0" &&
		base != "thin" {
		t.Errorf("session.git has %s lines with the erased memory", out)
	}
	other := second.afs("session", "fork", "-C", "work", second.place("fork"), "--agent-memory")
	if other.code != 0 || !strings.Contains(other.stderr, "artifactfs: the session has no memory of agents") {
		t.Errorf("fork after the erasure: %s", other)
	}
}
