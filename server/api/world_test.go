package api_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/githttp"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/openapi/openapitest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/server/review"
)

const account = "0123456789abcdef0123456789abcdef"

// world is a server with a real database, real replicas and a real listener.
type world struct {
	dir   string // directory of the object store and the replicas
	db    *records.DB
	set   *replica.Set
	meter *meterLog
	url   string
	admin string // admin token
	vars  map[string]string
	// checker compares each request and answer with the OpenAPI document.
	checker *openapitest.Checker
}

// meterLog stores the operations that an API counts.
type meterLog struct {
	mu      sync.Mutex
	entries []records.AuditEntry
	counts  map[string]int
}

func (m *meterLog) Count(r records.Repo, operation string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[operation]++
}

func (m *meterLog) Audit(e records.AuditEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries = append(m.entries, e)
}

// newWorld starts a server with an SQLite database.
func newWorld(t testing.TB, change func(*api.Options)) *world {
	t.Helper()
	return newWorldOn(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"), change)
}

// newWorldOn starts a server that uses the database at a URL.
func newWorldOn(t testing.TB, url string, change func(*api.Options)) *world {
	t.Helper()
	dir := t.TempDir()
	db, err := records.Open(t.Context(), url)
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
	w := &world{dir: dir, db: db, set: set, meter: &meterLog{counts: map[string]int{}}, vars: map[string]string{}}
	id, err := api.Account(t.Context(), db, account)
	if err != nil {
		t.Fatal(err)
	}
	guard, counts := access.NewGuard(db), meter.New(db.Usage, db.Audit, zap.NewNop())
	t.Cleanup(func() { counts.Close() })
	git, err := githttp.New(githttp.Options{Records: db, Replicas: set, Guard: guard, Meter: counts, Account: id,
		Dir: filepath.Join(dir, "git"),
		Log: zap.NewNop()}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	acts := review.New(review.Options{Records: db, Replicas: set, Pusher: git, Log: zap.NewNop()})
	t.Cleanup(func() { acts.Close() })
	o := api.Options{Account: id, Records: db, Replicas: set, Guard: guard, Meter: w.meter, Review: acts,
		Log: zap.NewNop()}
	if change != nil {
		change(&o)
	}
	rest := api.New(o)
	t.Cleanup(func() { rest.Close() })
	w.checker = openapitest.New(t, rest)
	server := httptest.NewServer(w.checker)
	t.Cleanup(server.Close)
	w.url = server.URL
	w.admin = w.token(t, records.Token{Role: records.AdminToken, Label: "tests"})
	return w
}

// token creates a token and returns its text.
func (w *world) token(t testing.TB, token records.Token) string {
	t.Helper()
	_, text := w.tokenOf(t, token)
	return text
}

// tokenOf creates a token, and returns its record and its text.
func (w *world) tokenOf(t testing.TB, token records.Token) (records.Token, string) {
	t.Helper()
	token, text := access.Mint(token, time.Now())
	if err := w.db.Tokens.Create(t.Context(), token, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	return token, text
}

// fill adds all objects and refs of a git repository to a repository of the server.
func (w *world) fill(t testing.TB, namespace, name, gitDir string) {
	t.Helper()
	r, err := w.db.Repos.Get(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var hash string
	// One pack contains all objects.
	if packs, _ := filepath.Glob(filepath.Join(gitDir, "objects/pack/*.pack")); len(packs) == 1 {
		dir = filepath.Dir(packs[0])
		hash = strings.TrimPrefix(strings.TrimSuffix(filepath.Base(packs[0]), ".pack"), "pack-")
	} else {
		hash = gittest.Must(t, gitDir, "pack-objects", "-q", "--all", "--delta-base-offset", filepath.Join(dir, "pack"))
	}
	pack, err := w.set.Store(t.Context(), dir, hash)
	if err != nil {
		t.Fatal(err)
	}
	token, _ := access.Mint(records.Token{Role: records.AdminToken}, time.Now())
	if err := w.db.Tokens.Create(t.Context(), token, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
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
}

// response is an answer of the server.
type response struct {
	status int
	header http.Header
	body   string
}

// do sends a request with a token and returns the answer. "" stands for no token.
func (w *world) do(t testing.TB, token, method, path, body string) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
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

// id sends a request with the admin token, which must succeed, and returns the id in the answer.
func (w *world) id(t testing.TB, method, path, body string) string {
	t.Helper()
	got := w.do(t, w.admin, method, path, body)
	var a struct {
		Result struct{ ID string }
	}
	if err := json.Unmarshal([]byte(got.body), &a); err != nil || got.status >= 300 || a.Result.ID == "" {
		t.Fatalf("%s %s: got %d %s", method, path, got.status, got.body)
	}
	return a.Result.ID
}

// expand replaces {name} in a text by the value of the variable.
func (w *world) expand(text string) string {
	for name, value := range w.vars {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

var placeholders = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"art_v1_[0-9a-f]{40}\?expires=\d+"`), `"<token>"`},
	{regexp.MustCompile(`"afs_(admin|owner)_[0-9a-f]{40}"`), `"<$1 token>"`},
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`), `"<time>"`},
	{regexp.MustCompile(`"[0-9a-z]{26}"`), `"<id>"`},
	{regexp.MustCompile(`\b01[0-9A-HJKMNP-TV-Z]{24}\b`), "<ulid>"},
	{regexp.MustCompile(`"(cursor)":"[\w-]+"`), `"$1":"<cursor>"`},
}

// plain replaces values in an answer that differ between runs by placeholders.
func (w *world) plain(text string) string {
	text = strings.ReplaceAll(text, w.url, "<host>")
	for _, p := range placeholders {
		text = p.what.ReplaceAllString(text, p.with)
	}
	for name, value := range w.vars {
		if len(value) >= 40 {
			text = strings.ReplaceAll(text, value, "{"+name+"}")
		}
	}
	return text
}

// compact returns JSON without spaces, and any other text unchanged.
func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}
