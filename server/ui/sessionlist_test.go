package ui_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// list returns a git directory with n sessions. Each has a checkpoint that adds a file, a title, an owner, a writer,
// and a record in its transcript.
func list(t testing.TB, n int) *sessionMaker {
	t.Helper()
	m := newSession(t, "first", map[string]string{"a": "a\n"})
	base := gittest.Must(t, m.dir, "rev-parse", "main")
	m.checkpoint(1, "idle", "", map[string]string{"b": "b"})
	for i := range n {
		// A new checkpoint id sorts after all previous ones of the process, even if an earlier test has made one with a
		// later time.
		name, at := fmt.Sprintf("s-%05d", i), time.Now().Add(time.Hour+time.Duration(i+1)*time.Minute)
		fmt.Fprintf(&m.in, "commit %s\n", session.MetaRef(name))
		m.who(at)
		m.text("session")
		m.file("session.json",
			fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,
			"format":"sha1","began":%q,"state":"active","title":"Attempt <%d>","task":"Make <it> work","expires":"2027-01-02T03:04:05Z","from":"first 01M7VZGNRGCF0XD4F7W9AV0B97","owner":"ann","tags":["login","t%d"],"hold":{"reason":"r","by":"b","since":%[3]q},
			"lanes":[{"name":"l","writer":{"host":"old"},"since":%[3]q,"left":%[3]q,"segment":1},{"name":"m","writer":{"host":"box"},"since":%[3]q}]}`,
				name, base, at.Format(time.RFC3339), i, i%7))
		m.file("transitions.jsonl", fmt.Sprintf(`{"state":"active","time":%q,"actor":"bob@desk","reason":"begun"}`+"\n",
			at.Format(time.RFC3339)))
		s := &sessionMaker{t: t, dir: m.dir, name: name, began: at, state: m.state, base: base, record: map[string]string{}}
		id := s.checkpoint(1, "idle", fmt.Sprint("checkpoint ", i), map[string]string{"b": fmt.Sprint(i)})
		m.in.Write(s.in.Bytes())
		if i%2 == 0 {
			s.records(id, 3, `{"type":"prompt","text":"first"}`, fmt.Sprintf(`{"type":"prompt","text":"Try number %d"}`, i))
			fmt.Fprintf(&m.in, "commit %s\n", session.TranscriptRef(name))
			m.who(at)
			m.text("records")
			for path, text := range s.record {
				m.file(path, text)
			}
		}
	}
	return m
}

func TestSessionList(t *testing.T) {
	m := list(t, 60)
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", m.done()))
	page := w.get(t, read, "/ui/team/app", http.StatusOK)
	text := plain(page)
	wants(t, text, "61 sessions", "s-00059 Attempt <59> login t3 fork of first active on hold ann",
		"checkpoint idle checkpoint 59 in use at box, began", "prompt Try number 58",
		"1 file 1 main", "1 to 50")
	if strings.Contains(text, "s-00009") || strings.Contains(text, "Newer sessions") ||
		strings.Contains(text, "in use at old") {
		t.Errorf("first page: %s", text)
	}
	own := w.get(t, read, "/ui/team/app/s/s-00059", http.StatusOK)
	wants(t, plain(own), "Attempt <59> login t3 Task Make <it> work Owned by ann. In use at box, began",
		"Fork of first ( compare ). Expires 2027-01-02 03:04:05 UTC . On hold by b: r")
	wants(t, w.get(t, read, link(t, own, "compare"), http.StatusOK), "Compare 2 proposals")
	next := w.get(t, read, link(t, page, "Older sessions"), http.StatusOK)
	wants(t, plain(next), "51 to 61", "s-00009", "first active")
	if strings.Contains(next, "Older sessions") || link(t, next, "Newer sessions") != "/ui/team/app?from=0" {
		t.Errorf("second page has wrong links: %s", plain(next))
	}
}

// TestFiguresOfList measures the list of 10,000 sessions if UI_FIGURES=1 is set, otherwise of 500.
func TestFiguresOfList(t *testing.T) {
	n := 500
	if os.Getenv("UI_FIGURES") != "" {
		n = 10_000
	}
	m := list(t, n)
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", m.done()))
	w.measure(t, read, []figure{{"first sessions", "/ui/team/app"},
		{"last sessions", fmt.Sprint("/ui/team/app?from=", n-20)}, {"one of them", "/ui/team/app/s/s-00003"},
		{"comparison", "/ui/team/app/compare?p=s-00001@&p=s-00002@"}})
}

// TestSessionListWithBrokenSessions checks that the row of a session states which of its data cannot be read, and that
// the other sessions are shown.
func TestSessionListWithBrokenSessions(t *testing.T) {
	m := list(t, 3)
	dir := m.done()
	git := func(args ...string) string { return gittest.Must(t, dir, args...) }
	blob := git("rev-parse", "refs/heads/main:a")
	input := func(text string, args ...string) string {
		file := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return git(append(args, file)...)
	}
	tree := git("rev-parse", "refs/heads/main^{tree}")
	gitlink := input("160000 2026-11-28\x00"+strings.Repeat("\x11", 20), "hash-object", "-t", "tree", "-w", "--literally")
	huge := input("tree "+tree+"\nauthor t <t@t> 1795000000 +0000\ncommitter t <t@t> 1795000000 +0000\n\nx\n"+
		strings.Repeat("a", 40<<20)+
		"\n\nAfs-Checkpoint: 01M8GYZJWX52H8ZYQE68WBP28Z\nAfs-Session: huge\n", "hash-object", "-t", "commit", "-w")
	for name, id := range map[string]string{"blob": blob, "gitlink": git("commit-tree", "-m", "x", gitlink)} {
		git("update-ref", session.TranscriptRef(name), id)
		git("update-ref", session.MetaRef(name), "refs/heads/main")
	}
	git("update-ref", session.MetaRef("huge"), "refs/heads/main")
	git("update-ref", session.SegmentRef("huge", "main", 1), huge)
	git("update-ref", session.SegmentRef("blob", "main", 1), blob)
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", dir))
	text := plain(w.get(t, read, "/ui/team/app", http.StatusOK))
	wants(t, text, "7 sessions", "checkpoint idle checkpoint 2", "blob unreadable", "gitlink unreadable",
		"its records cannot be read", "huge unreadable")
}
