package ui_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/githttp"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/server/ui"
	"github.com/artifactfs/artifactfs/session"
)

// world is a server of web pages with a real database, real replicas and a real listener.
type world struct {
	db    *records.DB
	set   *replica.Set
	guard *access.Guard
	url   string
	audit *auditLog
}

// auditLog stores audit entries.
type auditLog struct {
	mu      sync.Mutex
	entries []records.AuditEntry
}

func (a *auditLog) Count(records.Repo, string, int64) {}

func (a *auditLog) Audit(e records.AuditEntry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entries = append(a.entries, e)
}

func (a *auditLog) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("%+v", a.entries)
}

func newWorld(t testing.TB, change func(*ui.Options)) *world {
	t.Helper()
	dir := t.TempDir()
	db, err := records.Open(t.Context(), "sqlite:"+filepath.Join(dir, "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store, err := objects.OpenDir(filepath.Join(dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := replica.Open(replica.Options{Dir: filepath.Join(dir, "replicas"), Records: db, Objects: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	core, logged := observer.New(zap.DebugLevel)
	w := &world{db: db, set: set, guard: access.NewGuard(db), audit: &auditLog{}}
	t.Cleanup(func() {
		for _, e := range logged.FilterLevelExact(zap.ErrorLevel).All() {
			t.Errorf("the log has an error: %s %v", e.Message, e.ContextMap())
		}
	})
	m := meter.New(db.Usage, db.Audit, zap.NewNop())
	t.Cleanup(func() { m.Close() })
	git, err := githttp.New(githttp.Options{Records: db, Replicas: set, Guard: w.guard, Meter: m, Account: "account",
		Dir: filepath.Join(dir, "git"), Log: zap.NewNop()}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	acts := review.New(review.Options{Records: db, Replicas: set, Pusher: git, Log: zap.NewNop()})
	t.Cleanup(func() { acts.Close() })
	o := ui.Options{Acts: acts, Repos: db.Repos, Namespaces: db.Namespaces, Replicas: set, Guard: w.guard, Meter: w.audit,
		Log: zap.New(core)}
	if change != nil {
		change(&o)
	}
	page, err := ui.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { page.Close() })
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// token creates a token.
func (w *world) token(t testing.TB, token records.Token) (records.Token, string) {
	t.Helper()
	token, text := access.Mint(token, time.Now())
	if err := w.db.Tokens.Create(t.Context(), token, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	return token, text
}

// reader returns a token that allows to read one repository.
func (w *world) reader(t testing.TB, r records.Repo) string {
	t.Helper()
	_, text := w.token(t, records.Token{Role: records.RepoToken, Scope: records.ReadScope, Namespace: r.Namespace,
		RepoID: r.ID, Label: "reader",
		Expires: time.Now().Add(time.Hour)})
	return text
}

// repo creates a repository with all objects and refs of a git directory.
func (w *world) repo(t testing.TB, namespace, name, gitDir string) records.Repo {
	t.Helper()
	r := records.Repo{ID: records.NewID(), Namespace: namespace, Name: name, DefaultBranch: "main", ObjectFormat: "sha1",
		Status:  records.Ready,
		Created: time.Now(), Updated: time.Now()}
	if err := w.db.Repos.Create(t.Context(), records.Creation{Repo: r}); err != nil {
		t.Fatal(err)
	}
	if gitDir == "" {
		return r
	}
	dir := t.TempDir()
	hash := gittest.Must(t, gitDir, "pack-objects", "-q", "--all", "--delta-base-offset", filepath.Join(dir, "pack"))
	pack, err := w.set.Store(t.Context(), dir, hash)
	if err != nil {
		t.Fatal(err)
	}
	token, _ := w.token(t, records.Token{Role: records.AdminToken})
	push := records.Push{RepoID: r.ID, TokenID: token.ID, Pack: &pack, Atomic: true}
	for line := range strings.SplitSeq(gittest.Must(t, gitDir, "for-each-ref", "--format=%(objectname) %(refname)"),
		"\n") {
		id, ref, _ := strings.Cut(line, " ")
		push.Updates = append(push.Updates, records.RefUpdate{Name: ref, Old: strings.Repeat("0", len(id)), New: id})
	}
	results, err := w.db.Repos.Push(t.Context(), push)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range results {
		if err != nil {
			t.Fatalf("push of %s: %v", push.Updates[i].Name, err)
		}
	}
	return r
}

// response is an answer of the server.
type response struct {
	status int
	header http.Header
	body   string
}

// request sends a request with a token in the cookie; "" stands for no token.
func (w *world) request(t testing.TB, token, method, path, body string, headers ...string) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.AddCookie(&http.Cookie{Name: "artifactfs", Value: token})
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(text)}
}

// get requests a page, which must have the status, and checks its structure.
func (w *world) get(t testing.TB, token, path string, status int) string {
	t.Helper()
	got := w.request(t, token, http.MethodGet, path, "")
	if got.status != status {
		t.Fatalf("GET %s: got status %d, want %d; %.400s", path, got.status, status, got.body)
	}
	structure(t, path, got.body)
	return got.body
}

// post sends a form as a browser does.
func (w *world) post(t testing.TB, token, path string, form url.Values, headers ...string) response {
	t.Helper()
	return w.request(t, token, http.MethodPost, path, form.Encode(),
		append([]string{"Sec-Fetch-Site", "same-origin"}, headers...)...)
}

// sessionMaker creates a git directory with a session by git fast-import.
type sessionMaker struct {
	t      testing.TB
	dir    string
	name   string
	began  time.Time
	state  string
	base   string // commit of the branch main, "" if it is not known yet
	start  string // tree of the files before the first checkpoint; "": the files of the state
	in     bytes.Buffer
	prev   string // id of the last checkpoint
	mark   int
	inSeg  int
	seg    int
	ids    []string // ids of the checkpoints
	record map[string]string
	head   string // commit of HEAD at the next checkpoints, "" for none
}

// newSession begins a session in a new git directory. The branch main has one commit with the files.
func newSession(t testing.TB, name string, files map[string]string) *sessionMaker {
	t.Helper()
	m := &sessionMaker{t: t, dir: t.TempDir()}
	gittest.Must(t, m.dir, "init", "-q", "--bare", "-b", "main", ".")
	m.in.WriteString("commit refs/heads/main\n")
	m.who(sessionsBegin.Add(-time.Hour))
	m.text("base")
	for path, content := range files {
		m.file(path, content)
	}
	m.run()
	return sessionIn(t, name, m.dir)
}

// sessionsBegin is the time at which the sessions of the tests begin.
var sessionsBegin = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// sessionIn begins a session in a git directory. Its base commit is that of the branch main.
func sessionIn(t testing.TB, name, dir string) *sessionMaker {
	t.Helper()
	m := &sessionMaker{t: t, dir: dir, name: name, began: sessionsBegin, record: map[string]string{}}
	base := gittest.Must(t, m.dir, "rev-parse", "main")
	m.state = gittest.Must(t, m.dir, "-c", "user.name=artifactfs", "-c", "user.email=a@localhost", "commit-tree", "-m",
		"state", "-p", base, base+"^{tree}")
	meta :=
		fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,"format":"sha1","began":%q,
		"state":"active","lanes":[{"name":"l","writer":{},"since":%q,"segment":1}]}`, name, base, m.began.Format(time.RFC3339), m.began.Format(time.RFC3339))
	fmt.Fprintf(&m.in, "commit %s\n", session.MetaRef(name))
	m.who(m.began)
	m.text("session")
	m.file("session.json", meta)
	m.file("transitions.jsonl", fmt.Sprintf(`{"state":"active","time":%q,"actor":"ann@laptop","reason":"begun"}`+"\n",
		m.began.Format(time.RFC3339)))
	m.run()
	return m
}

func (m *sessionMaker) who(at time.Time) {
	fmt.Fprintf(&m.in, "committer artifactfs <artifactfs@localhost> %d +0000\n", at.Unix())
}

func (m *sessionMaker) text(text string) { fmt.Fprintf(&m.in, "data %d\n%s\n", len(text), text) }

func (m *sessionMaker) file(path, content string) {
	fmt.Fprintf(&m.in, "M 100644 inline %s\n", quoted(path))
	m.text(content)
}

// quoted returns a path in the form that git fast-import requires.
func quoted(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}

// checkpoint adds a checkpoint that was made the given number of seconds after the session began, and returns its id.
func (m *sessionMaker) checkpoint(seconds int, reason, message string, files map[string]string) string {
	at := m.began.Add(time.Duration(seconds) * time.Second)
	id := string(session.NewCheckpointID(at))
	if m.base == "" {
		m.base = gittest.Must(m.t, m.dir, "rev-parse", "main")
	}
	if m.inSeg++; m.seg == 0 || m.inSeg > 256 {
		m.seg++
		m.inSeg = 1
	}
	from := fmt.Sprintf("from %s\n", m.state)
	if m.start != "" {
		from += fmt.Sprintf("M 040000 %s \"\"\n", m.start)
	}
	if m.inSeg > 1 {
		from = fmt.Sprintf("from :%d\nmerge %s\n", m.mark, m.state)
	}
	m.mark++
	fmt.Fprintf(&m.in, "commit %s\nmark :%d\n", session.SegmentRef(m.name, "l", m.seg), m.mark)
	m.who(at)
	if message == "" {
		message = "checkpoint: " + reason
	}
	m.text(fmt.Sprintf("%s\n\nAfs-Checkpoint: %s\nAfs-Session: %s\nAfs-Lane: l\nAfs-Segment: %d\nAfs-Reason: %s\nAfs-Base: %s\nAfs-Prev: %s\nAfs-State: %s\n"+
		"Afs-Changed: %d%s", message, id, m.name, m.seg, reason, m.base, m.prev, m.state, len(files), m.headLine()))
	m.in.WriteString(strings.ReplaceAll(from, "Afs-Prev: \n", ""))
	for path, content := range files {
		if content == "" {
			fmt.Fprintf(&m.in, "D %s\n", quoted(path))
			continue
		}
		m.file(path, content)
	}
	m.prev = id
	m.ids = append(m.ids, id)
	return id
}

// headLine returns the line of the trailer with the commit of HEAD.
func (m *sessionMaker) headLine() string {
	if m.head == "" {
		return ""
	}
	return "\nAfs-Head: " + m.head
}

// commit adds a commit to the branch main of the session. It is HEAD at the next checkpoints.
func (m *sessionMaker) commit(message string, files map[string]string) {
	m.t.Helper()
	parent := m.head
	if parent == "" {
		parent = gittest.Must(m.t, m.dir, "rev-parse", "main")
	}
	m.run()
	fmt.Fprintf(&m.in, "commit refs/heads/afs/%s/main\n", m.name)
	m.who(m.began)
	m.text(message)
	fmt.Fprintf(&m.in, "from %s\n", parent)
	for path, content := range files {
		m.file(path, content)
	}
	m.run()
	m.head = gittest.Must(m.t, m.dir, "rev-parse", "refs/heads/afs/"+m.name+"/main")
}

// leave records that no machine uses the session.
func (m *sessionMaker) leave() {
	began := m.began.Format(time.RFC3339)
	fmt.Fprintf(&m.in, "commit %s\n", session.MetaRef(m.name))
	m.who(m.began)
	m.text("session")
	m.file("session.json",
		fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,"format":"sha1",
		"began":%q,"state":"paused","lanes":[{"name":"l","writer":{},"since":%q,"left":%q,"segment":1}]}`, m.name,
			gittest.Must(m.t, m.dir, "rev-parse", "main"), began, began, began))
	m.file("transitions.jsonl", fmt.Sprintf(`{"state":"active","time":%q,"actor":"ann@laptop","reason":"begun"}`+"\n"+
		`{"state":"paused","time":%q,"actor":"ann@laptop","reason":"unmounted"}`+"\n", began, began))
	m.run()
}

// records adds records to the transcript that were made while the checkpoint id was the newest one.
func (m *sessionMaker) records(id string, seconds int, lines ...string) {
	var b strings.Builder
	for i, l := range lines {
		at := m.began.Add(time.Duration(seconds+i) * time.Second)
		fmt.Fprintf(&b, `{"id":%q,"time":%q,"point":%q,"session":%q,"lane":"l","actor":"agent","record":%s}`+"\n",
			session.NewCheckpointID(at),
			at.Format(time.RFC3339), id, m.name, l)
	}
	m.record["2026-11-20/"+id+".jsonl"] = b.String()
}

// done completes the import and returns the git directory.
func (m *sessionMaker) done() string {
	if len(m.record) > 0 {
		fmt.Fprintf(&m.in, "commit %s\n", session.TranscriptRef(m.name))
		m.who(m.began)
		m.text("records")
		for path, text := range m.record {
			m.file(path, text)
		}
	}
	m.run()
	return m.dir
}

func (m *sessionMaker) run() {
	m.t.Helper()
	cmd := exec.Command("git", "--git-dir="+m.dir, "fast-import", "--quiet", "--force")
	cmd.Stdin, cmd.Env = bytes.NewReader(m.in.Bytes()), append(os.Environ(), gittest.Env()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("git fast-import: %v\n%s", err, out)
	}
	m.in.Reset()
}
