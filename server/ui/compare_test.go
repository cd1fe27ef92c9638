package ui_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// fork begins another session in the git directory of a session, as a fork of one of its checkpoints.
func (m *sessionMaker) fork(name, checkpoint string) *sessionMaker {
	m.t.Helper()
	m.done()
	f := &sessionMaker{t: m.t, dir: m.dir, name: name, began: m.began.Add(time.Hour), state: m.state,
		record: map[string]string{}}
	from := ""
	if checkpoint != "" {
		from = fmt.Sprintf(`,"from":"%s %s"`, m.name, checkpoint)
		f.start = gittest.Must(m.t, m.dir, "log", "-1", "--format=%T", "--grep=Afs-Checkpoint: "+checkpoint,
			session.SegmentRef(m.name, "l", 1))
	}
	meta :=
		fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,"format":"sha1","began":%q,
		"state":"active"%s,"lanes":[]}`, name, gittest.Must(m.t, m.dir, "rev-parse", "main"), f.began.Format(time.RFC3339), from)
	fmt.Fprintf(&f.in, "commit %s\n", session.MetaRef(name))
	f.who(f.began)
	f.text("session")
	f.file("session.json", meta)
	f.file("transitions.jsonl", fmt.Sprintf(`{"state":"active","time":%q,"actor":"bob@desk","reason":"begun"}`+"\n",
		f.began.Format(time.RFC3339)))
	f.run()
	return f
}

// cache stores a cache entry in a git directory.
func cache(t testing.TB, dir, key, value string) {
	t.Helper()
	m := &sessionMaker{t: t, dir: dir}
	sum := sha256.Sum256([]byte(value))
	fmt.Fprintf(&m.in, "commit refs/heads/value\nmark :1\n")
	m.who(time.Unix(0, 0))
	m.text("value")
	m.file(cacheentry.ValueFile, value)
	fmt.Fprintf(&m.in, "commit %s\n", cacheentry.Ref(key))
	m.who(time.Unix(0, 0))
	m.text("entry")
	fmt.Fprintf(&m.in, "from :1\nD %s\n", cacheentry.ValueFile)
	m.file(cacheentry.InfoFile,
		fmt.Sprintf(`{"version":1,"key":%q,"size":%d,"sha256":%q,"time":"2026-11-20T08:00:00Z","actor":"ci <x>"}`,
			key, len(value),
			hex.EncodeToString(sum[:])))
	m.run()
	gittest.Must(t, dir, "update-ref", "-d", "refs/heads/value")
}

// three returns a repository with the session base and three forks of its first checkpoint. The forks one and two
// change the same lines; three adds a file and makes one of the changes of one.
func three(t testing.TB) (w *world, app records.Repo, ids map[string]string) {
	t.Helper()
	w = newWorld(t, nil)
	m := newSession(t, "base", map[string]string{"main.go": "package main\n\nfunc main() {}\n",
		"other.txt": "1\n2\n3\n4\n5\n6\n"})
	ids = map[string]string{"base": m.checkpoint(10, "idle", "", map[string]string{"start.txt": "start\n"})}
	attempts := map[string]map[string]string{
		"one": {"main.go": "package main\n\nfunc main() { one() }\n", "other.txt": "0\n2\n3\n4\n5\n6\n",
			"same.txt": "same\n"},
		"two":   {"main.go": "package main\n\nfunc main() { two() }\n", "other.txt": "1\n2\n3\n4\n5\n7\n"},
		"three": {"new <b>.txt": "new\n", "same.txt": "same\n"},
	}
	for _, name := range []string{"one", "two", "three"} {
		f := m.fork(name, ids["base"])
		ids[name] = f.checkpoint(20, "command", "attempt "+name, attempts[name])
		f.done()
	}
	tree := gittest.Must(t, m.dir, "rev-parse", session.SegmentRef("one", "l", 1)+"^{tree}")
	cache(t, m.dir, "test/"+tree, "ok 12 tests <passed>\nmore\n")
	gittest.Must(t, m.dir, "branch", "feature", "main")
	return w, w.repo(t, "team", "app", m.done()), ids
}

// tags matches HTML tags with the white space around them.
var tags = regexp.MustCompile(`\s*<[^>]*>\s*`)

// plain returns the text of an HTML page.
func plain(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(page, " "))), " ")
}

func TestCompare(t *testing.T) {
	w, app, ids := three(t)
	read := w.reader(t, app)
	list := w.get(t, read, "/ui/team/app", http.StatusOK)
	wants(t, list, `<form id="compare" action="/ui/team/app/compare">`, `name="p" value="one@" form="compare"`)

	page := w.get(t, read, "/ui/team/app/compare?p=one@&p=two@&p=three@", http.StatusOK)
	wants(t, page, "base@"+ids["base"]+", from which all were forked", "4 paths changed, 3 by two or more, 1 in conflict",
		"attempt one", "by bob@desk",
		"<code>ok 12 tests &lt;passed&gt;</code>", "26 B by ci &lt;x&gt;", "new &lt;b&gt;.txt",
		"artifactfs session compare --session-remote "+w.url+"/git/team/app.git one@"+ids["one"]+" two@"+ids["two"]+
			" three@"+ids["three"])
	text := plain(page)
	wants(t, text, "A 1 conflict same", "B 1 conflict no path in common",
		"main.go conflict A–B modified by A +1 −1 modified by B +1 −1",
		"other.txt clean modified by A +1 −1 modified by B +1 −1", "same.txt same added by A +1 −0 added by C +1 −0",
		"new <b>.txt added by C +1 −0")
	for _, order := range []string{"main.go.*other.txt.*same.txt.*new <b>.txt"} {
		if !regexp.MustCompile(order).MatchString(text) {
			t.Errorf("paths are not in the order of their verdicts: %s", text)
		}
	}
	wants(t, w.get(t, read, link(t, page, "modified<span class=\"hush\"> by A"), http.StatusOK), "main.go", "one",
		"File before")
	wants(t, w.get(t, read, link(t, page, "1 conflict"), http.StatusOK), "main.go", "other.txt")

	exact := link(t, page, "exactly these versions")
	if again := w.get(t, read, exact, http.StatusOK); strings.Contains(again, "exactly these versions") ||
		!strings.Contains(again, "in conflict") {
		t.Errorf("page of exact versions: %.3000s", again)
	}
	page = w.get(t, read, link(t, page, "In conflict"), http.StatusOK)
	if got := plain(page); !strings.Contains(got, "main.go") || strings.Contains(got, "other.txt") ||
		!strings.Contains(got, "1 path ") {
		t.Errorf("view of conflicts: %s", got)
	}
}

// TestCompareWithoutFork checks that sessions that are not forks of the same checkpoint are compared with their base
// commits, and branches with their common ancestor.
func TestCompareWithoutFork(t *testing.T) {
	w, app, ids := three(t)
	read := w.reader(t, app)
	page := w.get(t, read, "/ui/team/app/compare?p=base@&p=feature", http.StatusOK)
	wants(t, plain(page), "Changes since commit", "1 path changed, 0 by two or more, 0 in conflict",
		"start.txt added by A +1 −0")
	// The parent of the forks may be one of the proposals.
	page = w.get(t, read, "/ui/team/app/compare?p=base@&p=one@"+ids["one"], http.StatusOK)
	wants(t, page, "from which all were forked", "3 paths changed, 0 by two or more")
}

func TestCompareRefuses(t *testing.T) {
	w, app, _ := three(t)
	read := w.reader(t, app)
	for path, status := range map[string]int{
		"":                                       http.StatusBadRequest,
		"?p=one@":                                http.StatusBadRequest,
		"?p=one@&p=one@&p=":                      http.StatusBadRequest,
		"?p=one@&p=nothing":                      http.StatusNotFound,
		"?p=one@&p=nothing@":                     http.StatusNotFound,
		"?p=one@&p=" + url.QueryEscape("main~1"): http.StatusNotFound,
		"?p=1&p=2&p=3&p=4&p=5&p=6&p=7":           http.StatusBadRequest,
		"?p=one@&p=two@&from=-1":                 http.StatusNotFound,
		"?p=one@&p=" + url.QueryEscape("one@<script>alert(1)"): http.StatusNotFound,
	} {
		w.get(t, read, "/ui/team/app/compare"+path, status)
	}
}
