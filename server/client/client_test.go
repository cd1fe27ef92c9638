package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
)

const account = "0123456789abcdef0123456789abcdef"

// fakeServer is a server that returns the answers that a test has set, and records the requests.
type fakeServer struct {
	t *testing.T
	// answers contains the list of answers "STATUS JSON" of each method and path. Each answer is returned once, except
	// the last one of a list, which is returned repeatedly.
	answers map[string][]string
	heard   []string
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	f.heard = append(f.heard, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	if got := r.Header.Get("Authorization"); got != "Bearer secret" {
		f.t.Errorf("Authorization: got %q", got)
	}
	key := r.Method + " " + strings.TrimPrefix(r.URL.EscapedPath(), "/client/v4/accounts/"+account+"/artifacts")
	left := f.answers[key]
	if len(left) == 0 {
		http.Error(w, "404 Not Found", http.StatusNotFound)
		return
	}
	if len(left) > 1 {
		f.answers[key] = left[1:]
	}
	status, text, _ := strings.Cut(left[0], " ")
	var code int
	fmt.Sscan(status, &code)
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "0")
	}
	w.WriteHeader(code)
	io.WriteString(w, text)
}

func serve(t *testing.T, answers map[string][]string) (*Client, *fakeServer) {
	t.Helper()
	f := &fakeServer{t: t, answers: answers}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	c, err := New(Options{URL: s.URL + "/", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	f.answers["GET /client/v4/accounts"] = []string{`200 {"result":[{"id":"` + account + `"}],"success":true}`}
	return c, f
}

func TestErrorsHaveTheirParts(t *testing.T) {
	c, _ := serve(t, map[string][]string{
		"POST /namespaces/team/repos": {`400 {"result":null,"success":false,"errors":[{"code":10101,"message":"Invalid repo name","source":{"pointer":"/name"}}]}`},
		"POST /namespaces":            {`409 {"success":false,"errors":[{"code":10201,"message":"Namespace already exists"}]}`},
	})
	_, err := c.CreateRepo(t.Context(), "team", CreateRepo{Name: "-"})
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("create repository: got %v, want an *Error", err)
	}
	want := Error{Verb: "create", Object: "repository team/-", Status: 400, Code: CodeInvalidRepoName,
		Message: "Invalid repo name", Pointer: "/name"}
	if *e != want {
		t.Errorf("error: got %+v, want %+v", *e, want)
	}
	if got := err.Error(); got != "create repository team/-: Invalid repo name (/name)" {
		t.Errorf("text of the error: %q", got)
	}
	_, err = c.CreateNamespace(t.Context(), "team", "")
	if !errors.Is(err, ErrExists) || errors.Is(err, ErrNotFound) {
		t.Errorf("create namespace: got %v, want ErrExists", err)
	}
	if _, err := c.Repo(t.Context(), "team", "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("show repository: got %v, want ErrNotFound", err)
	}
	away, err := New(Options{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := away.Account(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("ask a server that does not run: got %v, want ErrUnreachable", err)
	}
}

func TestUnavailableServerIsAskedAgain(t *testing.T) {
	busy := `503 {"success":false,"errors":[{"code":10401,"message":"database is unavailable"}]}`
	c, f := serve(t, map[string][]string{
		"GET /namespaces/team": {busy, busy,
			`200 {"result":{"namespace":"team","repo_count":3,"created_at":"2026-01-02T03:04:05Z"},"success":true}`},
		"GET /namespaces/other": {busy},
	})
	n, err := c.Namespace(t.Context(), "team")
	if want := (Namespace{Name: "team", Repos: 3, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}); err != nil ||
		n != want {
		t.Errorf("namespace: got %+v, %v, want %+v", n, err, want)
	}
	if len(f.heard) != 1+3 {
		t.Errorf("requests: got %q, want the account and three", f.heard)
	}
	if _, err := c.Namespace(t.Context(), "other"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("namespace: got %v, want ErrUnavailable", err)
	}
	if len(f.heard) != 1+3+1+retries {
		t.Errorf("requests: got %d, want %d", len(f.heard), 1+3+1+retries)
	}
}

func TestListsHaveAllPages(t *testing.T) {
	c, f := serve(t, map[string][]string{
		"GET /namespaces/team/repos": {
			`200 {"result":[{"name":"a"},{"name":"b"}],"success":true,"result_info":{"cursor":"x","per_page":2,"count":2}}`,
			`200 {"result":[{"name":"c","status":"ready"}],"success":true,"result_info":{"page":1,"total_pages":1,"count":1}}`},
		"GET /namespaces/team/repos/a/tokens": {
			`200 {"result":[{"id":"1"}],"success":true,"result_info":{"page":1,"total_pages":2}}`,
			`200 {"result":[{"id":"2","refs":[["refs/heads/*",["no-delete"]],["refs/tags/**"]]}],"success":true,"result_info":{"page":2,"total_pages":2}}`},
	})
	var names []string
	for r, err := range c.Repos(t.Context(), "team", ListRepos{Sort: "name", Ascending: true, Limit: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, r.Name)
	}
	if got := strings.Join(names, " "); got != "a b c" {
		t.Errorf("repositories: got %q, want a b c", got)
	}
	if got := f.heard[2]; !strings.HasSuffix(got, "/repos?cursor=x&direction=asc&limit=2&sort=name") {
		t.Errorf("second request: %q", got)
	}
	var last Token
	for token, err := range c.Tokens(t.Context(), "team", "a", "all") {
		if err != nil {
			t.Fatal(err)
		}
		last = token
	}
	if want := []RefRule{{"refs/heads/*", []string{"no-delete"}}, {Glob: "refs/tags/**"}}; last.ID != "2" ||
		!reflect.DeepEqual(last.Refs, want) {
		t.Errorf("last token: got %+v, want id 2 with %v", last, want)
	}
	if text, err := json.Marshal(RefRule{Glob: "refs/x"}); err != nil || string(text) != `["refs/x",[]]` {
		t.Errorf("rule as JSON: got %s, %v", text, err)
	}
}

func TestNewRefusesURLs(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:8790", "ftp://host/", "http://user:secret@host", "http://%zz"} {
		if _, err := New(Options{URL: url}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): got %v, want an error without the secret", url, err)
		}
	}
}

// TestRedirectionsAreNotFollowed checks that redirections are not followed. The API has none, and net/http would send
// the token to another port of the host.
func TestRedirectionsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("another server got %s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	for _, own := range []*http.Client{nil, s.Client()} {
		c, err := New(Options{URL: s.URL, Token: "secret", Account: account, HTTP: own})
		if err != nil {
			t.Fatal(err)
		}
		var e *Error
		if _, err := c.CreateNamespace(t.Context(), "team", ""); !errors.As(err, &e) ||
			e.Status != http.StatusTemporaryRedirect {
			t.Errorf("create namespace: got %v, want status 307", err)
		}
		if _, err := c.Raw(t.Context(), "team", "app", "main", "file"); !errors.As(err, &e) ||
			e.Status != http.StatusTemporaryRedirect {
			t.Errorf("read file: got %v, want status 307", err)
		}
	}
}

func TestBytesAreNotDecoded(t *testing.T) {
	c, f := serve(t, map[string][]string{
		"GET /namespaces/team/repos/a/raw/main/docs/one%20two.md": {"200 {not JSON"},
	})
	r, err := c.Raw(t.Context(), "team", "a", "main", "docs/one two.md")
	if err != nil {
		t.Fatalf("%v: heard %q", err, f.heard)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "{not JSON" {
		t.Errorf("file: got %q, %v", text, err)
	}
}

func TestEventsAreParsed(t *testing.T) {
	const one = `{"type":"cf.artifacts.repo.pushed","payload":{}}`
	stream := ": hello\n\nid: 7\nevent: cf.artifacts.repo.pushed\ndata: " + one +
		"\n\nid:8\ndata:{\"type\":\"x\",\ndata:\"n\":1}\n\nid: 9\ndata: {"
	var got []Event
	err := readEvents(strings.NewReader(stream), func(e Event) bool { got = append(got, e); return true })
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("end of the stream: got %v, want %v", err, io.ErrUnexpectedEOF)
	}
	want := []Event{{"7", "cf.artifacts.repo.pushed", json.RawMessage(one)},
		{"8", "x", json.RawMessage("{\"type\":\"x\",\n\"n\":1}")}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("events: got %s, want %s", got, want)
	}
}

func FuzzReadEvents(f *testing.F) {
	f.Add("id: 1\ndata: {\"type\":\"x\"}\n\n")
	f.Add(":\n\n\ndata:\ndata\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		err := readEvents(strings.NewReader(stream), func(e Event) bool { return json.Valid(e.Body) })
		if err == nil {
			t.Errorf("stream %q ended without an error, or had an event that is not JSON", stream)
		}
	})
}

func TestRepositoryRoutes(t *testing.T) {
	const base = "/artifactfs/v1/accounts/" + account + "/namespaces/ns/repos/r"
	c, f := serve(t, map[string][]string{
		"GET /client/v4/accounts": {`200 {"result":[{"id":"` + account + `"}],"success":true}`},
		"GET " + base +
			"/sessions": {`200 {"result":[{"name":"a","base":null}],"success":true,"result_info":{"cursor":"x","count":1}}`,
			`200 {"result":[{"name":"b"}],"success":true,"result_info":{"cursor":"","count":1}}`},
		"PUT " + base + "/cache/value": {`409 {"errors":[{"code":10901,"message":"m","conflict":{"now":"h"}}]}`},
		"GET " + base + "/cache/value": {"200 value"},
		"GET " + base +
			"/compare": {`200 {"result":{"base":null,"sides":[{"name":"a@","session":"a"},{"name":"main","session":null}],` +
			`"shared":[{"path":"x","verdict":"conflict","pairs":[{"a":0,"b":1,"verdict":"conflict"}]}]},"success":true}`},
	})
	r := c.Extensions().Repository("ns", "r")
	var names []string
	for s, err := range r.Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "a b" {
		t.Errorf("sessions: got %q, want both pages", got)
	}
	_, err := r.PutCacheEntry(t.Context(), PutCacheEntry{Key: "k/1", Value: []byte("v"), TTL: time.Minute, Expect: "none"})
	var no *Error
	if !errors.As(err, &no) || no.Code != CodeConflict || no.Conflict == nil || no.Conflict.Now != "h" {
		t.Errorf("entry that exists: got %v", err)
	}
	if got, want := f.heard[len(f.heard)-1], "PUT "+base+"/cache/value?expect=none&key=k%2F1&ttl=60 v"; got != want {
		t.Errorf("request: got %q, want %q", got, want)
	}
	compared, err := r.Compare(t.Context(), "a@", "main")
	if err != nil || len(compared.Sides) != 2 || compared.Shared[0].Pairs[0].Verdict != "conflict" {
		t.Errorf("comparison: got %+v, %v", compared, err)
	}
	if got, want := f.heard[len(f.heard)-1], "GET "+base+"/compare?p=a%40&p=main"; got != want {
		t.Errorf("request: got %q, want %q", got, want)
	}
	body, err := r.CacheValue(t.Context(), "k/1")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); err != nil || string(text) != "value" {
		t.Errorf("value: got %q, %v", text, err)
	}
}
