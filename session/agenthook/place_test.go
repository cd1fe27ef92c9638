package agenthook

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestMemoryIsPlacedInTheMountOnly checks that a conversation of a session remote names no directory but that of the
// mount, however the directory is written.
func TestMemoryIsPlacedInTheMountOnly(t *testing.T) {
	lines := ""
	for _, l := range []string{`{"cwd" : "/prod"}`, `{"\u0063wd":"/prod"}`, `{"\u0063\u0077\u0064" :"/prod"}`,
		`{"payload":{"cwd":"/a/../prod"}}`, `{"cwd":"/a/prod","cwd":"/prod"}`} {
		sum := sumOf([]byte(l))
		text, _ := json.Marshal(l)
		lines += fmt.Sprintf(`{"type":"memory","agent":"claude","file":"%s.jsonl","writer":"w","offset":%d,"size":1,`+
			`"sum":%q,"parts":1,"text":%s}`+"\n", conversationID, strings.Count(lines, "\n"), sum, text)
	}
	var store []json.RawMessage
	for l := range strings.Lines(lines) {
		store = append(store, json.RawMessage(l))
	}
	b := hostAt(t, "/b", &store)
	b.place()
	got := b.files()["projects/-b/"+conversationID+".jsonl"]
	if strings.Contains(got, "prod") || strings.Count(got, `"cwd":"/b"`) != 6 {
		t.Errorf("got %s", got)
	}
}

// TestMemoryOfTheMountOnly checks that nothing is stored of a conversation that has begun elsewhere.
func TestMemoryOfTheMountOnly(t *testing.T) {
	for first, want := range map[string]int{`{"cwd":"/a/web"}`: 1, `{"cwd":"/a"}`: 1, `{"cwd":"/abc"}`: 0, `{"cwd":"/b"}`: 0,
		`{"x":1}` + "\n" + `{"cwd":"/b"}`: 0, `{"x":1}`: 1} {
		var store []json.RawMessage
		a := hostAt(t, "/a", &store)
		a.write(conversationID+".jsonl", first+"\n")
		if err := a.send(); err != nil || len(store) != want {
			t.Errorf("%s: stored %d lines, %v, want %d", first, len(store), err, want)
		}
		b := hostAt(t, "/b", &store)
		b.conversation = a.conversation // the project of another directory
		if err := b.send(); err != nil || first == `{"x":1}` && len(store) != want {
			t.Errorf("%s: stored %d lines in another mount, %v", first, len(store)-want, err)
		}
	}
}

// TestMemoryOfManyHooks checks that hooks which run at the same time store each line once.
func TestMemoryOfManyHooks(t *testing.T) {
	var store []json.RawMessage
	a := hostAt(t, "/a", &store)
	for n := range 200 {
		a.write(conversationID+".jsonl", fmt.Sprintf(`{"n":%d,"x":%q}`+"\n", n, strings.Repeat("x ", 1000)))
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := a.send(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(store) != 200 {
		t.Errorf("stored %d lines, want 200", len(store))
	}
}

// TestMemoryWithoutSomeLines checks that a host goes on storing a conversation if the session lacks lines of it, or has
// them without what looks like a secret, and that it gets what another host has added.
func TestMemoryWithoutSomeLines(t *testing.T) {
	long := `{"tokenId":"a8F3kd92XYq1","x":"` + strings.Repeat("y ", maxPiece) + `"}` + "\n"
	for name, c := range map[string]struct {
		text   string
		erased int // number of records that are erased
	}{
		"erased":             {`{"n":1}` + "\n" + `{"n":2}` + "\n", 1},
		"left out":           {`{"n":1}` + "\nno JSON\n" + `{"n":2}` + "\n", 0},
		"left out last":      {`{"n":1}` + "\nno JSON\n", 0},
		"redacted as a text": {`{"n":1}` + "\n" + long + `{"n":2}` + "\n", 0},
	} {
		for _, again := range []bool{false, true} { // whether the host has lost its state
			var store []json.RawMessage
			a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
			a.write(conversationID+".jsonl", c.text)
			if err := a.send(); err != nil {
				t.Fatal(err)
			}
			if store = store[c.erased:]; again {
				a.gitDir = hostAt(t, "/a", &store).gitDir
			}
			if p := a.place(); p.Diverged {
				t.Errorf("%s, again %v: %+v", name, again, p)
			}
			a.write(conversationID+".jsonl", `{"n":3}`+"\n")
			n := len(store)
			if err := a.send(); err != nil || len(store) == n {
				t.Errorf("%s, again %v: stored no more, %v", name, again, err)
			}
			b.place()
			b.write(conversationID+".jsonl", `{"n":4}`+"\n")
			if err := b.send(); err != nil {
				t.Fatal(err)
			}
			want := c.text + `{"n":3}` + "\n" + `{"n":4}` + "\n"
			if p := a.place(); p.Outcome != MemoryUpdated || p.Diverged {
				t.Errorf("%s, again %v: other lines: %+v", name, again, p)
			}
			if got := a.files()["projects/-a/"+conversationID+".jsonl"]; got != want {
				t.Errorf("%s, again %v: got %d bytes, want %d", name, again, len(got), len(want))
			}
		}
	}
}

// TestLongMemoryInSeveralEvents checks that an event which fails or ends before the last part of a long text does not
// make the next one send all parts again.
func TestLongMemoryInSeveralEvents(t *testing.T) {
	long := strings.Repeat("y ", 5*maxPiece/2-50)
	for name, text := range map[string]string{
		conversationID + ".jsonl":              `{"x":"` + long + `"}` + "\n",
		conversationID + "/tool-results/x.txt": long,
	} {
		var store []json.RawMessage
		a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
		if !appended(name) {
			a.write(conversationID+".jsonl", "{}\n")
			if err := a.send(); err != nil {
				t.Fatal(err)
			}
		}
		a.write(name, text)
		n := len(store)
		for event := range 4 {
			start := len(store)
			a.late, a.fail = func() bool { return len(store) >= start+2 }, nil
			if event%2 == 0 { // the second request of the event is stored, but its answer is lost
				a.late, a.fail = nil, a.late
			}
			if err := a.send(); (err != nil) != (event%2 == 0) || len(store) > start+2 {
				t.Errorf("%s: event %d has stored %d records, %v", name, event, len(store)-start, err)
			}
		}
		if len(store) != n+7 {
			t.Errorf("%s: stored %d records, want 5 parts, two of them twice", name, len(store)-n)
		}
		_, sizes := MemoryKept(a.gitDir)
		if got := int(sizes[Claude].Bytes); got < len(text)-1 || got > len(text)+3 {
			t.Errorf("%s: size %d, want %d", name, got, len(text))
		}
		b.place()
		if got := b.files()["projects/-a/"+name]; got != text {
			t.Errorf("%s: got %d bytes, want %d", name, len(got), len(text))
		}
	}
}

// TestWholeFileOfThisHost checks that a version of a whole file that was not stored yet is stored after the memory was
// placed, and that an older one does not replace that of another host.
func TestWholeFileOfThisHost(t *testing.T) {
	const name = conversationID + "/subagents/agent-1.meta.json"
	var store []json.RawMessage
	a, b := hostAt(t, "/a", &store), hostAt(t, "/a", &store)
	sent := func(h *memoryHost) int {
		t.Helper()
		h.place()
		n := len(store)
		if err := h.send(); err != nil {
			t.Fatal(err)
		}
		return len(store) - n
	}
	a.write(conversationID+".jsonl", "{}\n")
	a.write(name, `{"password":"hunter2xyz9"}`)
	if err := a.send(); err != nil {
		t.Fatal(err)
	}
	if n := sent(a); n != 0 {
		t.Errorf("stored %d records of a file that is stored", n)
	}
	a.write(name, "1")
	if n := sent(a); n != 1 {
		t.Errorf("stored %d records of the newer file, want 1", n)
	}
	b.place()
	b.write(name, "2")
	if n := sent(b); n != 1 {
		t.Errorf("another host stored %d records, want 1", n)
	}
	fresh := *a
	fresh.gitDir = hostAt(t, "/a", &store).gitDir
	for _, h := range []*memoryHost{a, &fresh} {
		if n := sent(h); n != 0 {
			t.Errorf("stored %d records of an older file", n)
		}
	}
}

// TestRedactFile checks that a file which is stored as a whole loses the secrets that the names of JSON members mark, and
// stays as it is without secrets.
func TestRedactFile(t *testing.T) {
	const secret, gone = `{"password":"hunter2xyz9","cookie":"sid=abcd","n":1}`,
		`{"password":"[redacted password]","cookie":"[redacted cookie]","n":1}`
	for text, want := range map[string]string{
		secret:                              gone,
		"{ \"cookie\": \"sid=abcd\" }\n":    `{"cookie":"[redacted cookie]"}`,
		"log\n" + secret + "\n{\"n\": 1}\n": "log\n" + gone + "\n{\"n\": 1}\n",
		secret + "\n" + secret:              gone + "\n" + gone + "\n",
		"{ \"n\": [1, 2] }\n":               "{ \"n\": [1, 2] }\n",
		"the password=hunter2xyz9 is out":   "the password=[redacted password] is out",
		"\xff":                              "\uFFFD",
	} {
		got := redactFile([]byte(text))
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		if again := redactFile(got); string(again) != want {
			t.Errorf("%s: got %s after the second time", text, again)
		}
	}
	var store []json.RawMessage
	a := hostAt(t, "/a", &store)
	a.write(conversationID+".jsonl", "{}\n")
	a.write(conversationID+"/tool-results/x.json", secret)
	if err := a.send(); err != nil || len(store) != 2 || strings.Contains(string(store[1]), "hunter2xyz9") ||
		strings.Contains(string(store[1]), "abcd") {
		t.Errorf("stored: %s, %v", store, err)
	}
}

// TestMemoryIsAppended checks that a file which an agent has open is not replaced, and that no line is lost which the
// agent adds while the memory is placed.
func TestMemoryIsAppended(t *testing.T) {
	dir := t.TempDir()
	in, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := newRememberedFile(Claude, "x.jsonl")
	f.lines = [][]byte{[]byte(`{"n":1}`), []byte(`{"n":2}`)}
	to := target{in: in, root: "/b", inside: under("/b"), state: &stored{}}
	path := filepath.Join(dir, f.name)
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"n":1}` + "\n")
	open, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	there, _ := os.ReadFile(path)
	if outcome, _, _, err := to.extend(f, there, true); outcome != MemoryUpdated || err != nil {
		t.Errorf("got %s, %v", outcome, err)
	}
	if _, err := open.WriteString(`{"n":3}` + "\n"); err != nil {
		t.Fatal(err)
	}
	want := `{"n":1}` + "\n" + `{"n":2}` + "\n" + `{"n":3}` + "\n"
	if text, _ := os.ReadFile(path); string(text) != want {
		t.Errorf("got %s", text)
	}
	// The agent has added a line after the file was read, or has made it.
	for _, exists := range []bool{true, false} {
		outcome, _, shared, err := to.extend(f, there[:len(there)*map[bool]int{true: 1}[exists]], exists)
		if text, _ := os.ReadFile(path); outcome != MemoryNewer || shared >= 0 || err != nil || string(text) != want {
			t.Errorf("exists %v: got %s, %d, %v: %s", exists, outcome, shared, err, text)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files left: %v", files)
	}
}

// TestMemoryOrderAndGaps checks that the conversation that was continued last is the last one, and that one record stands
// for many lines that were left out.
func TestMemoryOrderAndGaps(t *testing.T) {
	const other = "00000000-0000-0000-0000-000000000000"
	var store []json.RawMessage
	a := hostAt(t, "/a", &store)
	first := a.conversation
	for _, step := range []struct{ id, text string }{{conversationID, "{}\n"}, {other, "{}\n"},
		{conversationID, strings.Repeat("no JSON\n", 100)}, {conversationID, "no JSON\n{}\nno JSON\n"}} {
		a.conversation = strings.Replace(first, conversationID, step.id, 1)
		a.write(step.id+".jsonl", step.text)
		if err := a.send(); err != nil {
			t.Fatal(err)
		}
	}
	if len(store) != 5 {
		t.Errorf("%d records, want 5", len(store))
	}
	all := Remember(store)
	if len(all) != 2 || all[0].ID != other || all[0].Partial || all[1].ID != conversationID || !all[1].Partial ||
		len(all[1].main().lines) != 2 {
		t.Errorf("got %+v", all)
	}
}

// TestSlug compares with what claude makes of a directory.
func TestSlug(t *testing.T) {
	for dir, want := range map[string]string{
		"/home/é😀/a.b_c":                  "-home-----a-b-c",
		"/x/" + strings.Repeat("ab", 110): "-x-" + strings.Repeat("ab", 98) + "a-u8tsoc",
	} {
		if got := slug(dir); got != want {
			t.Errorf("slug of %s: got %s, want %s", dir, got, want)
		}
	}
}
