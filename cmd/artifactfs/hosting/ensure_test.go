package hosting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// place is an HTTP server with fixed answers, which records the requests.
type place struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string][]string // "STATUS BODY" by "METHOD PATH", one after the other
	asked   []string            // requests as "METHOD PATH", with the path below that of the account
	tokens  map[string]bool     // values of the header Authorization
}

func newPlace(t *testing.T, answers map[string][]string) *place {
	t.Helper()
	p := &place{answers: answers, tokens: map[string]bool{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tokens[r.Header.Get("Authorization")] = true
		_, below, ok := strings.Cut(r.URL.Path, "/artifacts")
		if !ok {
			io.WriteString(w, `{"result":[{"id":"0123456789abcdef0123456789abcdef"}]}`)
			return
		}
		key := r.Method + " " + below
		p.asked = append(p.asked, key)
		if len(p.answers[key]) == 0 {
			t.Errorf("unexpected request %s", key)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		status, body, _ := strings.Cut(p.answers[key][0], " ")
		p.answers[key] = p.answers[key][1:]
		code, err := strconv.Atoi(status)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(code)
		io.WriteString(w, body)
	}))
	t.Cleanup(p.Close)
	return p
}

// A token that the user has given is sent to the place that is named first, and to no other. With two tokens, the
// second is for the others.
func TestGivenTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file?expires=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const first, second = "https://far.example", "https://other.example"
	for _, c := range []struct {
		name string
		app  cli.App
		want [3]string // tokens for first, second, and first again
	}{
		{"none", cli.App{}, [3]string{}},
		{"one", cli.App{Token: "a"}, [3]string{"a", "", "a"}},
		{"one for the session remote", cli.App{SessionToken: "s"}, [3]string{"s", "", "s"}},
		{"two", cli.App{Token: "a", SessionToken: "s"}, [3]string{"s", "a", "s"}},
		{"with a time", cli.App{Token: "a?expires=5"}, [3]string{"a", "", "a"}},
		{"a file", cli.App{TokenFile: file, Token: "a", SessionToken: "s"}, [3]string{"from-file", "", "from-file"}},
	} {
		for i, at := range []string{first, second, first} {
			if got, err := givenToken(&c.app, at); err != nil || got != c.want[i] {
				t.Errorf("%s: token for %s: got %q, %v, want %q", c.name, at, got, err, c.want[i])
			}
		}
	}
	var e *control.Error
	_, err := givenToken(&cli.App{TokenFile: file + "x"}, first)
	if !errors.As(err, &e) || e.Code != control.ExitUsage || e.Hint == "" {
		t.Errorf("file with a token that does not exist: got %#v, want exit code %d with a hint", err, control.ExitUsage)
	}
}

// WithToken adds no token to a URL with credentials, nor to one that is not for HTTP.
func TestWithToken(t *testing.T) {
	for remote, want := range map[string]string{
		"https://far.example/s.git":     "https://x:a@far.example/s.git",
		"https://joe@far.example/s.git": "https://joe@far.example/s.git",
		"ssh://far.example/s.git":       "ssh://far.example/s.git",
		"/srv/s.git":                    "/srv/s.git",
	} {
		a := &cli.App{State: t.TempDir(), Token: "a"}
		if got, err := WithToken(t.Context(), a, remote); err != nil || got != want {
			t.Errorf("%s with a token: got %s, %v, want %s", remote, got, err, want)
		}
	}
}

// The token for the REST API is for the server in the environment. A repository of another server is not known, so that
// no request is sent.
func TestKnown(t *testing.T) {
	p := newPlace(t, nil)
	a := &cli.App{State: t.TempDir(), Server: cli.ServerAccess{URL: p.URL, Token: "api"}}
	for remote, want := range map[string]bool{
		p.URL + "/git/team/app.git":                                      true,
		p.URL + "/team/app.git":                                          false, // not the URL for git
		"https://far.example/git/team/app.git":                           false,
		strings.Replace(p.URL, "http", "https", 1) + "/git/team/app.git": false,
		"/srv/git/team/app.git":                                          false,
	} {
		l, ok, err := Known(a, remote, Use{Session: "work"})
		if err != nil || ok != want {
			t.Errorf("%s: known: got %v, %v, want %v", remote, ok, err, want)
		}
		if !ok {
			continue
		}
		text, err := os.ReadFile(l.TokenFile)
		if err != nil || !strings.Contains(string(text), "--for-session work") || strings.Contains(string(text), "api") {
			t.Errorf("program that makes tokens: got %q, %v, want one for the session, without a token", text, err)
		}
		if st, err := os.Stat(l.TokenFile); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("program that makes tokens: got mode %v, %v, want 0700", st.Mode(), err)
		}
		if !slices.Equal(l.Environment, control.Environment{cli.ServerTokenVariable + "=api"}) {
			t.Errorf("environment of the program: got %d variables, want the token", len(l.Environment))
		}
	}
	for server, want := range map[string]bool{p.URL: true, "https://far.example": false} {
		remote := server + "/git/team/app.git"
		at, err := WithControlToken(t.Context(), a, remote)
		if err != nil || strings.Contains(at, "x:api@") != want {
			t.Errorf("%s with the token for the REST API: got %s, %v, want it to be added: %v", remote, at, err, want)
		}
	}
	// A token in the environment without a server is for the server of this host.
	a = &cli.App{State: t.TempDir(), Server: cli.ServerAccess{Token: "api"}}
	if _, ok, err := Known(a, "https://far.example/git/team/app.git", Use{}); err != nil || ok {
		t.Errorf("repository of another server and a token for no server: known: got %v, %v, want false", ok, err)
	}
	if len(p.asked) != 0 {
		t.Errorf("requests: got %q, want none", p.asked)
	}
}

// A token is sent only to the server that it belongs to.
func TestResolve(t *testing.T) {
	const here, there = "http://127.0.0.1:1", "https://there.example"
	for _, c := range []struct {
		name      string
		env       cli.ServerAccess
		url       string
		at, token string
	}{
		{"no server", cli.ServerAccess{Token: "t"}, "", defaultURL, "t"},
		{"the server in the environment", cli.ServerAccess{URL: here + "/", Token: "t"}, "", here, "t"},
		{"the same server by the flag", cli.ServerAccess{URL: "http://h:1", Token: "t"}, "http://H:1/", "http://H:1", "t"},
		{"another server by the flag", cli.ServerAccess{URL: here, Token: "t"}, there, there, ""},
		{"another port", cli.ServerAccess{URL: here, Token: "t"}, "http://127.0.0.1:12", "http://127.0.0.1:12", ""},
	} {
		access, at, token, err := Connection{URL: c.url}.resolve(&cli.App{State: t.TempDir(), Server: c.env})
		if err != nil || at != c.at || string(token) != c.token || string(access.Token) != c.token {
			t.Errorf("%s: got %s with the token %q, %v, want %s with %q", c.name, at, string(token), err, c.at, c.token)
		}
	}
}

// Ensure finds a repository, or creates it and revokes the token that was made with it. If another process creates it
// at the same time, it uses that one.
func TestEnsure(t *testing.T) {
	for where, want := range map[string][2]string{
		"team/app": {"", "team/app"}, "http://h:1/team/app": {"http://h:1", "team/app"},
		"http://h/git/team/app.git":         {"http://h", "team/app"},
		"https://h/below/git/team/app.git/": {"https://h/below", "team/app"},
	} {
		at, n, err := parseWhere(where)
		if err != nil || at != want[0] || n.String() != want[1] {
			t.Errorf("parse %s: got %q, %s, %v, want %q", where, at, n, err, want)
		}
	}
	for _, bad := range []string{"", "team", "a/b/c", "http://h/app", "ssh://h/team/app", "http://joe:pw@h/team/app",
		"http://h/team/app?x=1"} {
		_, err := Ensure(context.Background(), &cli.App{State: t.TempDir()}, Connection{}, bad, Use{})
		var e *control.Error
		if !errors.As(err, &e) || e.Code != control.ExitUsage || !strings.Contains(e.Hint, "team/app") {
			t.Errorf("create %q: got %#v, want exit code %d with an example", bad, err, control.ExitUsage)
		}
	}
	const show, create = "GET /namespaces/team/repos/app", "POST /namespaces/team/repos"
	const list, revoke = "GET /namespaces/team/repos/app/tokens", "DELETE /namespaces/team/tokens/t1"
	const none, made = `404 {"errors":[{"message":"none"}]}`, `200 {"result":{"remote":"http://h/new.git","token":"x"}}`
	const pushed = `200 {"result":{"remote":"http://h/old.git","last_push_at":"2026-01-02T03:04:05Z"}}`
	exists := fmt.Sprintf(`409 {"errors":[{"code":%d,"message":"exists"}]}`, client.CodeAlreadyExists)
	for _, c := range []struct {
		name    string
		answers map[string][]string
		want    Login
		asked   []string
	}{
		{"a repository that exists", map[string][]string{show: {pushed}}, Login{Remote: "http://h/old.git"}, []string{show}},
		{"a repository without a push", map[string][]string{show: {`200 {"result":{"remote":"http://h/old.git"}}`}},
			Login{Remote: "http://h/old.git", Empty: true}, []string{show}},
		{"an import", map[string][]string{show: {`200 {"result":{"remote":"http://h/old.git","source":"http://x"}}`}},
			Login{Remote: "http://h/old.git"}, []string{show}},
		{"a new repository", map[string][]string{show: {none}, create: {made},
			list: {`200 {"result":[{"id":"t1"}],"result_info":{"page":1,"total_pages":1}}`}, revoke: {`200 {}`}},
			Login{Remote: "http://h/new.git", Made: true, Empty: true}, []string{show, create, list, revoke}},
		{"a repository that another process creates", map[string][]string{show: {none, pushed}, create: {exists}},
			Login{Remote: "http://h/old.git"}, []string{show, create, show}},
	} {
		p := newPlace(t, c.answers)
		a := &cli.App{State: t.TempDir(), Server: cli.ServerAccess{URL: p.URL, Token: "api"}}
		l, err := Ensure(t.Context(), a, Connection{}, "team/app", Use{ReadOnly: true})
		if err != nil || l.Remote != c.want.Remote || l.Made != c.want.Made || l.Empty != c.want.Empty {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, l, err, c.want)
		}
		if !slices.Equal(p.asked, c.asked) || len(p.tokens) != 1 || !p.tokens["Bearer api"] {
			t.Errorf("%s: asked %q, want %q with the token", c.name, p.asked, c.asked)
		}
		if text, err := os.ReadFile(l.TokenFile); err != nil || !strings.Contains(string(text), "--scope read") {
			t.Errorf("%s: program for tokens of a read-only mount: got %q, %v", c.name, text, err)
		}
	}
	p := newPlace(t, map[string][]string{show: {`403 {"errors":[{"message":"denied"}]}`}})
	a := &cli.App{State: t.TempDir(), Server: cli.ServerAccess{URL: p.URL, Token: "api"}}
	var e *control.Error
	_, err := Ensure(t.Context(), a, Connection{}, "team/app", Use{})
	if !errors.As(err, &e) || e.Code != control.ExitRemote || e.Kind != control.CodeAuth ||
		!strings.Contains(e.Hint, "ARTIFACTFS_SERVER_TOKEN") {
		t.Errorf("server that denies access: got %#v, want exit code %d with the variable", err, control.ExitRemote)
	}
	p.Close()
	_, err = Ensure(t.Context(), a, Connection{}, "team/app", Use{})
	if !errors.As(err, &e) || e.Code != control.ExitRemote || e.Kind != control.CodeUnreachable ||
		!strings.Contains(e.Hint, "artifactfs serve") {
		t.Errorf("no server: got %#v, want exit code %d with the command that starts one", err, control.ExitRemote)
	}
}
