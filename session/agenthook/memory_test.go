package agenthook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/session/transcript"
)

const conversationID = "d6a63774-a2a1-475b-921d-819030ada2ae"

// memoryHost is a host with a mount, and with the home directory of an agent's user.
type memoryHost struct {
	t                     *testing.T
	home, gitDir, root    string
	store                 *[]json.RawMessage // memory of the session, which all hosts share
	fail                  func() bool        // whether a request fails
	late                  func() bool        // whether the time of an event has ended
	conversation, project string
}

// under returns a function that reports whether a directory is root, or below it.
func under(root string) func(dir string) bool {
	return func(dir string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }
}

// hostAt returns a host on which the session is mounted at root.
func hostAt(t *testing.T, root string, store *[]json.RawMessage) *memoryHost {
	h := &memoryHost{t: t, home: t.TempDir(), gitDir: t.TempDir(), root: root, store: store}
	h.project = filepath.Join(h.home, "projects", slug(root))
	h.conversation = filepath.Join(h.project, conversationID+".jsonl")
	if err := KeepMemory(h.gitDir, MemoryPlace); err != nil {
		t.Fatal(err)
	}
	return h
}

// write adds text to a file of the agent.
func (h *memoryHost) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.project, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// send runs the hook at the end of a turn. It stores the records as the daemon does.
func (h *memoryHost) send() error {
	e := Event{Agent: Claude, Kind: TurnEnd, Session: conversationID, File: h.conversation}
	late := func() bool { return h.late != nil && h.late() }
	return SendMemory(h.gitDir, h.root, under(h.root), e, late, func(lines []string) error {
		if h.fail != nil && h.fail() {
			return errors.New("no answer")
		}
		for _, l := range lines {
			clean, _, err := transcript.RedactJSON([]byte(l))
			if err != nil {
				return err
			}
			reply, err := json.Marshal(json.RawMessage(clean)) // escapes characters, as the reply of the daemon does
			if err != nil {
				return err
			}
			*h.store = append(*h.store, reply)
		}
		if h.fail != nil && h.fail() {
			return errors.New("killed after the request")
		}
		return nil
	})
}

// place places the memory of the session, which must have one conversation.
func (h *memoryHost) place() Placed {
	h.t.Helper()
	h.t.Setenv("CLAUDE_CONFIG_DIR", h.home)
	all := Remember(*h.store)
	if len(all) != 1 {
		h.t.Fatalf("conversations: got %d, want 1", len(all))
	}
	p, err := all[0].Place(h.root, h.gitDir, under(h.root))
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// files returns the contents of all files in the home directory of the agent, by path.
func (h *memoryHost) files() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(h.home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(h.home, path)
		all[name] = string(text)
		if info, e := os.Stat(path); e == nil && info.Mode().Perm() != 0o600 {
			h.t.Errorf("mode of %s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// TestMemoryTravels checks that a conversation is placed on another host without secrets and with other working
// directories, is extended there and on the first host, and that a file which is longer is kept.
func TestMemoryTravels(t *testing.T) {
	var store []json.RawMessage
	a, b := hostAt(t, "/srv/app", &store), hostAt(t, "/home/x/other", &store)
	line := func(n int, dir string) string {
		return fmt.Sprintf(`{"type":"user","timestamp":"2026-11-22T03:04:%02dZ","cwd":%q,"message":{"role":"user",`+
			`"content":"fix <it> & \"cwd\":\"/srv/app\" %d"},"password":"hunter2"}`+"\n", n, dir, n)
	}
	a.write(conversationID+".jsonl", line(1, "/srv/app/web")+line(2, "/srv/app")+line(3, "/srv/apple")+`{"incompl`)
	a.write(conversationID+"/subagents/agent-1.jsonl", line(4, "/srv/app"))
	a.write(conversationID+"/subagents/agent-1.meta.json", `{"x":1}`)
	a.write(conversationID+"/tool-results/toolu_1.txt", "the password=hunter2xyz9 is out\n")
	a.write("memory/MEMORY.md", "# Notes\n")                                   // belongs to other sessions, too
	a.write("00000000-0000-0000-0000-000000000000.jsonl", line(5, "/srv/app")) // another conversation
	if err := a.send(); err != nil {
		t.Fatal(err)
	}
	p := b.place()
	if p.Outcome != MemoryPlaced || p.Dir != "/home/x/other" || p.Partial ||
		p.Title != `fix <it> & "cwd":"/srv/app" 1` {
		t.Errorf("placed: %+v", p)
	}
	at := "projects/-home-x-other/"
	got := b.files()
	want := func(n int, dir string) string {
		return strings.Replace(line(n, dir), "hunter2", "[redacted password]", 1)
	}
	main := want(1, "/home/x/other") + want(2, "/home/x/other") + want(3, "/home/x/other")
	for name, text := range map[string]string{
		conversationID + ".jsonl":                       main,
		conversationID + "/subagents/agent-1.jsonl":     want(4, "/home/x/other"),
		conversationID + "/subagents/agent-1.meta.json": `{"x":1}`,
		conversationID + "/tool-results/toolu_1.txt":    "the password=[redacted password] is out\n",
	} {
		if got[at+name] != text {
			t.Errorf("%s: got %q, want %q", name, got[at+name], text)
		}
		delete(got, at+name)
	}
	if len(got) > 0 {
		t.Errorf("further files: %q", got)
	}
	if p := b.place(); p.Outcome != MemoryCurrent {
		t.Errorf("placed again: %s", p.Outcome)
	}

	// The conversation goes on at b: only the new line is stored, and a gets it.
	n := len(store)
	b.project = filepath.Join(b.home, filepath.Clean(at))
	b.conversation = filepath.Join(b.project, conversationID+".jsonl")
	b.write(conversationID+".jsonl", line(6, "/home/x/other"))
	if err := b.send(); err != nil {
		t.Fatal(err)
	}
	if len(store) != n+1 {
		t.Errorf("b has stored %d records, want 1", len(store)-n)
	}
	a.write(conversationID+".jsonl", `ete":"line"}`+"\n")
	if p := a.place(); p.Outcome != MemoryNewer {
		t.Errorf("a has a line of its own: %s", p.Outcome)
	}
	// What a adds belongs to another history than that of b, so it is not added to the memory.
	n = len(store)
	a.write(conversationID+".jsonl", line(8, "/srv/app"))
	if err := a.send(); err != nil || len(store) != n {
		t.Errorf("a has stored %d lines of another history, %v", len(store)-n, err)
	}
	c := hostAt(t, "/srv/app", &store)
	c.write(conversationID+".jsonl", line(1, "/srv/app/web")+line(2, "/srv/app")+line(3, "/srv/apple"))
	if p := c.place(); p.Outcome != MemoryUpdated || p.Partial {
		t.Errorf("c has the beginning: %+v", p)
	}
	text := c.files()["projects/-srv-app/"+conversationID+".jsonl"]
	if wanted := line(1, "/srv/app/web") + line(2, "/srv/app") + line(3, "/srv/apple") +
		want(6, "/srv/app"); text != wanted {
		t.Errorf("extended: got %q, want %q", text, wanted)
	}
	// A longer file is kept, and only the lines that are missing in the session are stored.
	c.conversation, n = filepath.Join(c.project, conversationID+".jsonl"), len(store)
	c.write(conversationID+".jsonl", line(7, "/srv/app"))
	if p := c.place(); p.Outcome != MemoryNewer {
		t.Errorf("c is longer: %s", p.Outcome)
	}
	if err := c.send(); err != nil || len(store) != n+1 {
		t.Errorf("c has stored %d records, %v, want 1", len(store)-n, err)
	}
	if d := hostAt(t, "/d", &store); d.place().Partial {
		t.Error("lines seem to be missing")
	}
}

// TestMemoryAfterKills checks that the memory is complete and without repeated lines, whatever requests fail, and
// whenever a hook is killed.
func TestMemoryAfterKills(t *testing.T) {
	for seed := range int64(6) {
		r := rand.New(rand.NewSource(seed))
		var store []json.RawMessage
		a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
		a.fail = func() bool { return r.Intn(4) == 0 }
		want := ""
		for i := range 40 {
			size := r.Intn(200)
			if r.Intn(8) == 0 {
				size = r.Intn(3 * maxPiece)
			}
			line := fmt.Sprintf(`{"n":%d,"text":%q}`+"\n", i, strings.Repeat("é<", size/3))
			want += line
			half := r.Intn(len(line))
			a.write(conversationID+".jsonl", line[:half])
			_ = a.send()
			a.write(conversationID+".jsonl", line[half:])
			_ = a.send()
		}
		a.fail = nil
		if err := a.send(); err != nil {
			t.Fatal(err)
		}
		p := b.place()
		if got := b.files()["projects/-a/"+conversationID+".jsonl"]; got != want || p.Partial {
			t.Errorf("seed %d: got %d bytes, want %d, partial %v", seed, len(got), len(want), p.Partial)
		}
	}
}

// TestMemoryOfAnotherFile checks that a file which the agent has written again replaces the earlier one.
func TestMemoryOfAnotherFile(t *testing.T) {
	var store []json.RawMessage
	a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
	for _, text := range []string{`{"n":1}` + "\n" + `{"n":2}` + "\n", `{"n":3}` + "\n" + `{"n":2}` + "\n"} {
		if err := os.RemoveAll(a.project); err != nil {
			t.Fatal(err)
		}
		a.write(conversationID+".jsonl", text)
		if err := a.send(); err != nil {
			t.Fatal(err)
		}
	}
	b.place()
	if got := b.files()["projects/-a/"+conversationID+".jsonl"]; got != `{"n":3}`+"\n"+`{"n":2}`+"\n" {
		t.Errorf("got %q", got)
	}
}

// TestMemoryHasLimits checks that lines which are too long are left out and reported, and that nothing is stored unless
// the user has asked for it.
func TestMemoryHasLimits(t *testing.T) {
	var store []json.RawMessage
	a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
	a.write(conversationID+".jsonl", `{"n":1}`+"\n"+`{"x":"`+strings.Repeat("y", maxMemoryLine)+`"}`+"\nno JSON\n"+
		`{"n":2}`+"\n")
	if err := a.send(); err != nil {
		t.Fatal(err)
	}
	kept, sizes := MemoryKept(a.gitDir)
	if n := sizes[Claude]; !kept || n.Conversations != 1 || n.Dropped < maxMemoryLine || n.Bytes != 16 {
		t.Errorf("size: %+v", n)
	}
	if p := b.place(); !p.Partial {
		t.Error("the line that was left out is not reported")
	}
	if got := b.files()["projects/-a/"+conversationID+".jsonl"]; got != `{"n":1}`+"\n"+`{"n":2}`+"\n" {
		t.Errorf("got %q", got)
	}
	s := stored{Bytes: maxMemoryConversation - 1, others: MaxMemory - maxMemoryConversation}
	if s.full(1) || !s.full(2) {
		t.Error("limit of a session is not that of its conversations")
	}
	n := len(store)
	a.write(conversationID+".jsonl", `{"n":3}`+"\n")
	if err := KeepMemory(a.gitDir, MemoryOff); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []MemoryMode{MemoryOff, MemoryUnset} {
		if got := MemoryModeOf(a.gitDir); got != mode {
			t.Errorf("mode %q, want %q", got, mode)
		}
		if err := a.send(); err != nil || len(store) != n {
			t.Errorf("stored %d records without being asked, %v", len(store)-n, err)
		}
		if err := os.RemoveAll(filepath.Join(a.gitDir, memoryDir)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHostileMemory checks that memory of a session remote can write only the files of agents, at their fixed places.
func TestHostileMemory(t *testing.T) {
	record := func(agent, file, more string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"type":"memory","agent":%q,"agent_session":"x","file":%q,`+
			`"writer":"w","offset":0,"size":1%s}`, agent, file, more))
	}
	good := record("claude", conversationID+".jsonl", `,"line":{"cwd":"/a/prod","x":{"cwd":"/etc"},"n":1}`)
	store := []json.RawMessage{[]byte(`null`), []byte(`{"type":"memory"`), good}
	for _, agent := range []string{"claude", "codex", "gemini", ""} {
		for _, name := range []string{"", ".", "..", "/etc/passwd", "../settings.json", "settings.json",
			conversationID + ".jsonl\n", "x\n" + conversationID + ".jsonl", conversationID + "/../../settings.json",
			conversationID + "/subagents/..", conversationID + "/subagents/.x", conversationID + "/hooks/x",
			conversationID + "/subagents/a/b", "memory/../../CLAUDE.md", "memory/x.md",
			"2026/11/30/../../../config.toml", "2026/11/30/rollout-2026-11-30T01-27-41-../x.jsonl"} {
			store = append(store, record(agent, name, `,"line":{"evil":1}`),
				record(agent, name, `,"sum":"x","part":0,"parts":1,"text":"evil"`))
		}
	}
	for _, more := range []string{`,"line":"a\nb"`, `,"line":null`, ``,
		`,"parts":1000000000,"part":999999999,"text":"evil"`,
		`,"parts":2,"part":-1,"text":"evil"`, `,"parts":1,"text":"not JSON evil"`, `,"parts":-5,"text":"evil"`} {
		store = append(store, record("claude", conversationID+"/subagents/agent-9.jsonl", more))
	}
	b := hostAt(t, "/b", &store)
	outside := t.TempDir()
	// A link of this user out of the directory is not followed.
	if err := os.MkdirAll(b.project, 0o700); err != nil {
		t.Fatal(err)
	}
	b.place()
	for name, text := range b.files() {
		if !strings.HasPrefix(name, "projects/-b/"+conversationID) || strings.Contains(text, "evil") {
			t.Errorf("written: %s: %q", name, text)
		}
	}
	if got := b.files()["projects/-b/"+conversationID+".jsonl"]; got != `{"cwd":"/b","x":{"cwd":"/b"},"n":1}`+"\n" {
		t.Errorf("conversation: %q", got)
	}
	store = []json.RawMessage{good, record("claude", conversationID+"/tool-results/x.md",
		`,"sum":"`+sumOf([]byte("evil"))+`","parts":1,"text":"evil"`)}
	if err := os.MkdirAll(filepath.Join(b.project, conversationID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(b.project, conversationID, "tool-results")); err != nil {
		t.Fatal(err)
	}
	if _, err := Remember(store)[0].Place(b.root, b.gitDir, under(b.root)); err == nil {
		t.Error("a link out of the directory was followed")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("written outside: %v", left)
	}
}

// TestCodexMemory checks the place and the working directory of a conversation of codex.
func TestCodexMemory(t *testing.T) {
	from, to, gitDir := t.TempDir(), t.TempDir(), t.TempDir()
	name := "2026/11/30/rollout-2026-11-30T01-27-41-" + conversationID + ".jsonl"
	path := filepath.Join(from, "sessions", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"type":"session_meta","payload":{"cwd":"/a/web"}}` + "\n" +
		`{"type":"response_item","payload":{"type":"message","role":"user","content":[{"text":"<env>"}]}}` + "\n" +
		`{"type":"response_item","payload":{"type":"message","role":"user","content":[{"text":"fix it\nnow"}]}}` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := KeepMemory(gitDir, MemoryPlace); err != nil {
		t.Fatal(err)
	}
	var store []json.RawMessage
	err := SendMemory(gitDir, "/a", under("/a"), Event{Agent: Codex, File: path}, func() bool { return false },
		func(lines []string) error {
			for _, l := range lines {
				store = append(store, json.RawMessage(l))
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CODEX_HOME", to)
	p, err := Remember(store)[0].Place("/b", gitDir, under("/b"))
	if err != nil || p.Outcome != MemoryPlaced || p.Title != "fix it" ||
		!slices.Equal(p.Command(), []string{"codex", "resume", conversationID, "-C", "/b"}) {
		t.Errorf("placed: %+v, %v", p, err)
	}
	got, err := os.ReadFile(filepath.Join(to, "sessions", name))
	if want := strings.Replace(text, "/a/web", "/b", 1); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	// Codex finds a conversation in any directory, so a fork on the same host has it already.
	if p, err := Remember(store)[0].Place("/c", gitDir, under("/c")); err != nil || p.Outcome != MemoryCurrent {
		t.Errorf("placed again: %+v, %v", p, err)
	}
}
