package agenthook

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/session/transcript"
)

// geminiHost is a host with a mount at root, and with the home directory of a user of gemini.
type geminiHost struct {
	t                        *testing.T
	home, gitDir, root, chat string
}

const (
	geminiSession = "f387b798-da8d-4f82-a4c5-5ba52f0ad728"
	geminiFile    = "session-2026-11-30T06-01-f387b798.jsonl"
)

// geminiAt returns a host on which gemini has given the name project to the mount at root.
func geminiAt(t *testing.T, root, project string) *geminiHost {
	h := &geminiHost{t: t, home: t.TempDir(), gitDir: t.TempDir(), root: root}
	h.chat = filepath.Join(h.home, ".gemini/tmp", project, "chats", geminiFile)
	if err := KeepMemory(h.gitDir, MemoryPlace); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *geminiHost) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *geminiHost) send(store *[]json.RawMessage, dir string) {
	h.t.Helper()
	e := Event{Agent: Gemini, Kind: TurnEnd, Session: geminiSession, Dir: dir, File: h.chat}
	err := SendMemory(h.gitDir, h.root, under(h.root), e, func() bool { return false }, func(lines []string) error {
		for _, l := range lines {
			clean, _, err := transcript.RedactJSON([]byte(l))
			if err != nil {
				return err
			}
			*store = append(*store, clean)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *geminiHost) place(store []json.RawMessage) Placed {
	h.t.Helper()
	h.t.Setenv("GEMINI_CLI_HOME", h.home)
	all := Remember(store)
	if len(all) != 1 {
		h.t.Fatalf("conversations: got %d, want 1", len(all))
	}
	p, err := all[0].Place(h.root, h.gitDir, under(h.root))
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// geminiText returns a conversation as gemini 0.61 writes it in the directory dir.
func geminiText(dir string) string {
	return fmt.Sprintf(`{"sessionId":%q,"projectHash":%q,"startTime":"2026-11-30T06:01:49.691Z","kind":"main"}
{"$set":{"messages":[{"id":"d0","type":"user","content":[{"text":"<session_context>\n"}]}],"directories":[%q]}}
{"id":"2e","timestamp":"2026-11-30T06:01:49.767Z","type":"user","content":[{"text":"fix the <login> & more\nnow"}]}
{"id":"a7","timestamp":"2026-11-30T06:01:50.190Z","type":"gemini","content":"\"directories\":[] done","thoughts":[]}
`, geminiSession, geminiHash(dir), dir)
}

// TestGeminiMemory checks that a conversation of gemini travels with its sub-agents, gets the working directory of the
// other mount, and goes on there.
func TestGeminiMemory(t *testing.T) {
	var store []json.RawMessage
	a, b := geminiAt(t, "/srv/app", "app"), geminiAt(t, "/home/x/My.App_", "my-app-1")
	a.write(a.chat, geminiText("/srv/app")+`{"id":"x","content":"password=hunter2xyz9"}`+"\n")
	a.write(filepath.Join(filepath.Dir(a.chat), geminiSession, "sub1.jsonl"), geminiText("/srv/app"))
	a.write(filepath.Join(filepath.Dir(a.chat), "session-2026-11-30T06-01-00000000.jsonl"), geminiText("/srv/app"))
	a.send(&store, "/srv/app")
	// Another project has the name on this host.
	b.write(filepath.Join(b.home, ".gemini/projects.json"), `{"projects":{"/other/my-app":"my-app"}}`)
	p := b.place(store)
	if p.Outcome != MemoryPlaced || p.Title != "fix the <login> & more" || p.File != b.chat || p.Partial ||
		!slices.Equal(p.Command(), []string{"gemini", "--resume", geminiSession}) {
		t.Errorf("placed: %+v, want %s", p, b.chat)
	}
	want := geminiText(b.root) + `{"id":"x","content":"password=[redacted password]"}` + "\n"
	if got, err := os.ReadFile(b.chat); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	sub := filepath.Join(filepath.Dir(b.chat), geminiSession, "sub1.jsonl")
	if got, err := os.ReadFile(sub); err != nil || string(got) != geminiText(b.root) {
		t.Errorf("sub-agent: got %s, %v", got, err)
	}
	if files, _ := filepath.Glob(filepath.Dir(b.chat) + "/*"); len(files) != 2 {
		t.Errorf("files: %q", files)
	}
	if p := b.place(store); p.Outcome != MemoryCurrent {
		t.Errorf("placed again: %s", p.Outcome)
	}
	n := len(store)
	b.write(b.chat, want+`{"$set":{"lastUpdated":"x"}}`+"\n")
	b.send(&store, b.root)
	if len(store) != n+1 {
		t.Errorf("b has stored %d records, want 1", len(store)-n)
	}
	if p := a.place(store); p.Outcome != MemoryUpdated || p.File != a.chat {
		t.Errorf("a: %+v", p)
	}
	a.write(a.chat, geminiText("/srv/app")+`{"id":"y"}`+"\n")
	if p := a.place(store); p.Outcome != MemoryNewer {
		t.Errorf("a has another continuation: %s", p.Outcome)
	}
}

// TestGeminiMemoryOfTheMountOnly checks that nothing is stored of a conversation that has begun elsewhere.
func TestGeminiMemoryOfTheMountOnly(t *testing.T) {
	for _, c := range []struct {
		begun, dir string
		want       int
	}{{"/a", "/a", 4}, {"/a/web", "/a/web", 4}, {"/b", "/a", 0}, {"/b", "/b", 0}, {"/a/web", "/a", 0}, {"/a", "", 0}} {
		var store []json.RawMessage
		a := geminiAt(t, "/a", "a")
		a.write(a.chat, geminiText(c.begun))
		if a.send(&store, c.dir); len(store) != c.want {
			t.Errorf("%v: stored %d records", c, len(store))
		}
	}
}

// TestGeminiMemoryWithoutBeginning checks that gemini can load a conversation whose first lines were erased.
func TestGeminiMemoryWithoutBeginning(t *testing.T) {
	var store []json.RawMessage
	a, b := geminiAt(t, "/a", "a"), geminiAt(t, "/b", "b")
	a.write(a.chat, geminiText("/a"))
	a.send(&store, "/a")
	store = store[2:]
	p := b.place(store)
	_, rest, _ := strings.Cut(geminiText("/b"), "\n")
	_, rest, _ = strings.Cut(rest, "\n")
	want := fmt.Sprintf(`{"sessionId":%q,"projectHash":%q}`+"\n", geminiSession, geminiHash("/b")) + rest
	if got, err := os.ReadFile(b.chat); err != nil || string(got) != want || !p.Partial {
		t.Errorf("got %s, %v, %+v", got, err, p)
	}
	if p := b.place(store); p.Outcome != MemoryCurrent {
		t.Errorf("placed again: %s", p.Outcome)
	}
	b.write(b.chat, want+`{"id":"z"}`+"\n")
	b.send(&store, "/b")
	if c := geminiAt(t, "/b", "b"); len(store) != 3 || c.place(store).Outcome != MemoryPlaced {
		t.Errorf("records: %d", len(store))
	} else if got, _ := os.ReadFile(c.chat); string(got) != want+`{"id":"z"}`+"\n" {
		t.Errorf("got %s", got)
	}
}

// TestHostileGeminiMemory checks that the members of a conversation name no directory but that of the mount, and that it
// cannot choose its file.
func TestHostileGeminiMemory(t *testing.T) {
	var store []json.RawMessage
	for i, l := range []string{`{"\u0070rojectHash":"00"}`, `{"$set":{"d\u0069rector\u0069es":["/etc","/"],"\u006FK":1}}`} {
		text, _ := json.Marshal(l)
		store = append(store, json.RawMessage(fmt.Sprintf(`{"type":"memory","agent":"gemini","agent_session":%q,"file":%q,`+
			`"writer":"w","offset":%d,"size":1,"sum":%q,"parts":1,"text":%s}`, geminiSession, geminiFile, i,
			sumOf([]byte(l)), text)))
	}
	for _, name := range []string{"../" + geminiFile, "x/" + geminiFile, "f387b798.jsonl", "session-../x-f387b798.jsonl",
		geminiSession + "/../x.jsonl", geminiSession + "/.x.jsonl", geminiFile + "\n", "session-1-f387b798.json"} {
		store = append(store, json.RawMessage(fmt.Sprintf(`{"type":"memory","agent":"gemini","agent_session":"../..",`+
			`"file":%q,"writer":"w","offset":0,"size":1,"line":{"evil":1}}`, name)))
	}
	b := geminiAt(t, "/b", "b")
	if p := b.place(store); p.Conversation != geminiSession {
		t.Errorf("placed: %+v", p)
	}
	hash := geminiHash("/b")
	want := `{"sessionId":"` + geminiSession + `","projectHash":"` + hash + `"}` + "\n" + `{"projectHash":"` + hash + `"}` +
		"\n" + `{"$set":{"directories":["/b"],"oK":1}}` + "\n"
	if got, err := os.ReadFile(b.chat); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if files, _ := filepath.Glob(b.home + "/.gemini/tmp/*/*/*"); len(files) != 1 {
		t.Errorf("files: %q", files)
	}
}

// TestGeminiChats checks that the directory is the one in which gemini looks for conversations.
func TestGeminiChats(t *testing.T) {
	for _, c := range []struct {
		projects string
		marks    map[string]string
		want     string
	}{
		{want: "app"},
		{projects: `no JSON`, want: "app"},
		{projects: `{"projects":{"/srv/app":"mine"}}`, want: "mine"},
		{projects: `{"projects":{"/srv/app":"../mine"}}`, want: "app"},
		{projects: `{"projects":{"/srv/app":"app"}}`, marks: map[string]string{"tmp/app": "/b/app"}, want: "app-1"},
		{projects: `{"projects":{"/b/app":"app","/c/app":"app-1"}}`, want: "app-2"},
		{marks: map[string]string{"history/app": "/b/app", "tmp/x": "/srv/app\n"}, want: "x"},
		{marks: map[string]string{"tmp/app": ""}, want: "app-1"},
	} {
		home := t.TempDir()
		h := geminiHost{t: t}
		if c.projects != "" {
			h.write(filepath.Join(home, "projects.json"), c.projects)
		}
		for name, owner := range c.marks {
			h.write(filepath.Join(home, name, geminiMark), owner)
		}
		for range 2 {
			got, err := geminiChats(home, "/srv/app")
			if err != nil || got != filepath.Join(home, "tmp", c.want, "chats") {
				t.Errorf("%+v: got %s, %v", c, got, err)
			}
		}
		if owner, _ := geminiOwner(filepath.Join(home, "tmp"), c.want); owner != "/srv/app" {
			t.Errorf("%+v: mark %q", c, owner)
		}
	}
	for dir, want := range map[string]string{"/x/-My.App__one-": "my-app-one", "/": "project", "/é": "project"} {
		if got := geminiName(dir, 0); got != want {
			t.Errorf("name of %s: got %s, want %s", dir, got, want)
		}
	}
}
