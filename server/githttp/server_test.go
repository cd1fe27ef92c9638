package githttp

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// world is a server with a database, an object store and replicas.
type world struct {
	t     testing.TB
	dir   string
	db    *records.DB
	store *failingStore
	set   *replica.Set
	guard *access.Guard
	git   *Server
	http  *httptest.Server
}

func newWorld(t testing.TB, limits Limits) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	var err error
	if w.db, err = records.Open(t.Context(), "sqlite:"+filepath.Join(w.dir, "records.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.db.Close() })
	dir, err := objects.OpenDir(filepath.Join(w.dir, "objects"))
	if err != nil {
		t.Fatal(err)
	}
	w.store = &failingStore{Store: dir}
	if w.set, err = replica.Open(replica.Options{Dir: filepath.Join(w.dir, "replicas"), Records: w.db,
		Objects: w.store}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.set.Close() })
	w.guard = access.NewGuard(w.db)
	log := zap.NewNop()
	if testing.Verbose() {
		log = zaptest.NewLogger(t)
	}
	w.git, err = New(Options{
		Records: w.db, Replicas: w.set, Guard: w.guard, Account: "account", Dir: filepath.Join(w.dir, "git"),
		Limits: limits, Log: log,
	}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.git.Close)
	w.http = httptest.NewServer(w.git)
	t.Cleanup(w.http.Close)
	return w
}

// repo creates a repository and returns its record, and its URL with a token that may write.
func (w *world) repo(name, format string) (records.Repo, string) {
	w.t.Helper()
	repo := records.Repo{ID: records.NewID(), Namespace: "ns", Name: name, DefaultBranch: "main", ObjectFormat: format,
		Status: records.Ready}
	if err := w.db.Repos.Create(w.t.Context(), records.Creation{Repo: repo}); err != nil {
		w.t.Fatal(err)
	}
	_, text := w.token(records.Token{RepoID: repo.ID})
	return repo, w.url(name, text)
}

// token creates a repository token, and returns its record and its text.
func (w *world) token(t records.Token) (records.Token, string) {
	w.t.Helper()
	t.Role, t.Namespace, t.Expires = records.RepoToken, "ns", time.Now().Add(time.Hour)
	t, text := access.Mint(t, time.Now())
	if err := w.db.Tokens.Create(w.t.Context(), t, nil, records.Cause{}); err != nil {
		w.t.Fatal(err)
	}
	return t, text
}

// url returns the URL of a repository that contains a token.
func (w *world) url(name, text string) string {
	secret, _, _ := strings.Cut(text, "?")
	u, err := url.Parse(w.http.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword("x", secret), "/git/ns/"+name+".git"
	return u.String()
}

// clientGit runs git as a client of the server.
func clientGit(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = dir, gittest.Env()
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	text := strings.TrimSpace(both.String())
	if err != nil {
		return text, fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// do runs git as a client of the server, and fails the test if git fails.
func (w *world) do(dir string, args ...string) string {
	w.t.Helper()
	out, err := clientGit(w.t.Context(), dir, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// refused runs git as a client of the server. The test fails unless git fails with a message that contains want.
func (w *world) refused(want, dir string, args ...string) {
	w.t.Helper()
	out, err := clientGit(w.t.Context(), dir, args...)
	if err == nil || !strings.Contains(out, want) {
		w.t.Errorf("git %s: got %v %q, want a failure with %q", strings.Join(args, " "), err, out, want)
	}
}

// work creates a git repository with one commit on main.
func (w *world) work(format string) string {
	w.t.Helper()
	dir := w.t.TempDir()
	w.do(dir, "init", "-q", "-b", "main", "--object-format="+format)
	w.commit(dir, "file", "one")
	return dir
}

// commit writes a file and commits it.
func (w *world) commit(dir, name, text string) string {
	w.t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	w.do(dir, "add", "-A")
	if len(text) > 100 {
		text = "large"
	}
	w.do(dir, "commit", "-q", "-m", text)
	return w.do(dir, "rev-parse", "HEAD")
}

// refs returns the refs of a repository according to the database.
func (w *world) refs(repo records.Repo) map[string]string {
	w.t.Helper()
	list, err := w.db.Repos.Refs(w.t.Context(), repo.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	refs := map[string]string{}
	for _, r := range list {
		refs[r.Name] = r.ID
	}
	return refs
}

// get sends a request with a value of the header Authorization, and returns the status, the header and the body of the
// answer.
func (w *world) get(method, path, authorization string, body []byte, header ...string) (int, http.Header, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, text.String()
}
