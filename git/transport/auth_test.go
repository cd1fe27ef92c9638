package transport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// authHandler is a handler that accepts only requests with the expected Authorization header.
type authHandler struct {
	mu        sync.Mutex
	open      map[string]bool
	challenge string
	refused   int
}

func (d *authHandler) guard(w http.ResponseWriter, r *http.Request, h http.Handler) {
	d.mu.Lock()
	ok := d.open[r.Header.Get("Authorization")]
	if !ok {
		d.refused++
	}
	d.mu.Unlock()
	if !ok {
		w.Header().Set("WWW-Authenticate", d.challenge)
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, "no")
		return
	}
	h.ServeHTTP(w, r)
}

func (d *authHandler) only(headers ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open, d.refused = map[string]bool{}, 0
	for _, h := range headers {
		d.open[h] = true
	}
}

func TestStaticLogins(t *testing.T) {
	s, _ := webRepo(t)
	d := &authHandler{challenge: `Basic realm="git"`}
	s.set(d.guard)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(user string) string { return strings.Replace(s.URL, "http://", "http://"+user+"@", 1) + "/r" }
	for _, c := range []struct {
		name, url string
		o         Options
		accept    string
	}{
		{"token", s.URL + "/r", Options{Login: NewLogin("T0ken", "")}, basic("x-access-token", "T0ken")},
		{"token file", s.URL + "/r", Options{Login: NewLogin("", file)}, basic("x-access-token", "from-file")},
		{"token and user", with("me"), Options{Login: NewLogin("T0ken", "")}, basic("me", "T0ken")},
		{"userinfo", with("me:p%40ss"), Options{}, basic("me", "p@ss")},
		{"userinfo, then token", with("me:old"), Options{Login: NewLogin("T0ken", "")}, basic("me", "T0ken")},
	} {
		d.only(c.accept)
		r := openRemote(t, c.url, c.o)
		for range 2 {
			if _, err := r.Refs(t.Context(), nil); err != nil {
				t.Errorf("refs with the credentials %s: %v", c.name, err)
			}
		}
		if n := d.refused; n > 2 {
			t.Errorf("case %s: server refused %d requests", c.name, n)
		}
		d.only(basic("some", "other"))
		before := len(s.requests())
		_, err := openRemote(t, c.url, withRetries(c.o)).Refs(t.Context(), nil)
		if !errors.Is(err, ErrAuth) {
			t.Errorf("case %s with wrong credentials: got %v", c.name, err)
		}
		for _, secret := range []string{"T0ken", "from-file", "p@ss", "p%40ss", "old"} {
			if strings.Contains(fmt.Sprint(err, r.URL(), r.Stats()), secret) {
				t.Errorf("case %s: the error contains the secret: %q", c.name, err)
			}
		}
		if n := len(s.requests()) - before; n > 3 {
			t.Errorf("case %s with wrong credentials: got %d requests", c.name, n)
		}
	}
	d.challenge = `Bearer realm="git"`
	d.only("Bearer T0ken")
	if _, err := openRemote(t, s.URL+"/r", Options{Login: NewLogin("T0ken", "")}).Refs(t.Context(), nil); err != nil {
		t.Errorf("server that accepts Bearer only: got %v", err)
	}
}

func withRetries(o Options) Options { o.Retries = 3; return o }

// TestTokenFileRenewed checks that a token is read again if its file is replaced while the remote is in use.
func TestTokenFileRenewed(t *testing.T) {
	s, _ := webRepo(t)
	d := &authHandler{challenge: "Basic"}
	s.set(d.guard)
	file := filepath.Join(t.TempDir(), "token")
	r := openRemote(t, s.URL+"/r", Options{Login: NewLogin("", file)})
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		d.only(basic("x-access-token", token))
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Errorf("refs with the token %s: %v", token, err)
		}
	}
}

// TestTokenProgram checks that a token that a program has printed is used until the server refuses it with status 403,
// or until it is about to expire. A token that the server refuses for another reason is replaced once per request.
func TestTokenProgram(t *testing.T) {
	s, _ := webRepo(t)
	d := &authHandler{challenge: "Basic"}
	d.only()
	s.set(func(w http.ResponseWriter, r *http.Request, h http.Handler) {
		d.mu.Lock()
		_, secret, _ := r.BasicAuth()
		known := secret == "" || d.open[r.Header.Get("Authorization")]
		d.mu.Unlock()
		if !known {
			http.Error(w, "Invalid or expired token", http.StatusForbidden)
			return
		}
		d.guard(w, r, h)
	})
	dir := t.TempDir()
	program, runs := filepath.Join(dir, "program"), filepath.Join(dir, "runs")
	write := func(expires time.Time) {
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\necho run >>%s\necho \"$NAME$(wc -l <%s)?expires=%d\"\n", runs, runs, expires.Unix())
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	token := func(n int, expires time.Time) string {
		return basic("x-access-token", fmt.Sprintf("token%d?expires=%d", n, expires.Unix()))
	}
	hour, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	write(hour)
	r := openRemote(t, s.URL+"/r", Options{Login: NewLogin("", program), Env: append(os.Environ(), "NAME=token")})
	for _, c := range []struct {
		name    string
		open    string // the only valid token
		expires time.Time
		runs    int // expected number of runs of the program
		err     error
	}{
		{"first request", token(1, hour), hour, 1, nil},
		{"valid token", token(1, hour), hour, 1, nil},
		{"revoked token, next token expires at once", token(2, past), past, 2, nil},
		{"expired token", token(3, hour), hour, 3, nil},
		{"no token is good enough", "none", hour, 4, ErrForbidden},
	} {
		write(c.expires)
		d.only(c.open)
		if _, err := r.Refs(t.Context(), nil); !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.err)
		}
		if text, err := os.ReadFile(runs); err != nil || strings.Count(string(text), "\n") != c.runs {
			t.Errorf("%s: program ran %d times (%v), want %d", c.name, strings.Count(string(text), "\n"), err, c.runs)
		}
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho secret\necho no server >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := openRemote(t, s.URL+"/r", Options{Login: NewLogin("", program)}).Refs(t.Context(), nil)
	if !errors.Is(err, ErrAuth) || !strings.Contains(err.Error(), "no server") || strings.Contains(err.Error(), "secret") {
		t.Errorf("program that fails: got %v", err)
	}
}

// TestTokenInFirstRequest checks that with https the token is sent with the first request, so that no request is
// refused.
func TestTokenInFirstRequest(t *testing.T) {
	root := t.TempDir()
	makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	s := serveWeb(t, root, true)
	d := &authHandler{}
	d.only(basic("x-access-token", "tok"))
	s.set(d.guard)
	t.Setenv("GIT_SSL_NO_VERIFY", "1")
	if _, err := openRemote(t, s.URL+"/r", Options{Login: NewLogin("tok", "")}).Refs(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if d.refused != 0 {
		t.Errorf("server refused %d requests", d.refused)
	}
}

// helper installs a git credential helper that returns the password in a file, and logs its input.
func helper(t *testing.T, password string) (set func(string), log func() string) {
	t.Helper()
	dir := t.TempDir()
	set = func(p string) {
		if err := os.WriteFile(dir+"/password", []byte(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set(password)
	script :=
		fmt.Sprintf("#!/bin/sh\nsed -n 's/^password=/'$1' /p;s/^host=/'$1' host /p' >>%[1]s/log\nif [ $1 = get ]; then echo get >>%[1]s/log; echo username=me; echo password=$(cat %[1]s/password); fi\n", dir)
	if err := os.WriteFile(dir+"/helper", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "credential.helper")
	t.Setenv("GIT_CONFIG_VALUE_0", dir+"/helper")
	return set, func() string {
		b, _ := os.ReadFile(dir + "/log")
		return string(b)
	}
}

func TestCredentialHelper(t *testing.T) {
	s, fx := webRepo(t)
	d := &authHandler{challenge: `Basic realm="git"`}
	s.set(d.guard)
	set, log := helper(t, "first")
	d.only(basic("me", "first"))
	r := openRemote(t, s.URL+"/r", Options{})
	for range 2 {
		if _, err := r.Refs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if d.refused != 1 {
		t.Errorf("server refused %d requests, want 1", d.refused)
	}
	// The password expires: one of several concurrent exchanges erases the old password and asks the helper again, and
	// all use the new one.
	set("second")
	d.only(basic("me", "second"))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.blobs["noise"]}})
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, res.Pack)
			res.Pack.Close()
		})
	}
	wg.Wait()
	r.Close() // Close waits until the helper has stored the password
	got := log()
	for what, want := range map[string]int{"get\n": 2, "store first": 1, "erase first": 1, "store second": 1} {
		if n := strings.Count(got, what); n != want {
			t.Errorf("the helper received %q %d times, want %d:\n%s", what, n, want, got)
		}
	}
	// The helper returns only wrong passwords.
	d.only(basic("me", "third"))
	if _, err := openRemote(t, s.URL+"/r", Options{}).Refs(t.Context(), nil); !errors.Is(err, ErrAuth) ||
		strings.Contains(err.Error(), "second") {
		t.Errorf("Refs with a wrong password: got %v", err)
	}
	if strings.Contains(log(), "store third") || !strings.Contains(log(), "erase second") {
		t.Errorf("input of the helper:\n%s", log())
	}
}

// TestNotPrompted checks that without a terminal and a helper, the error is returned at once and no credentials are
// requested.
func TestNotPrompted(t *testing.T) {
	s, _ := webRepo(t)
	d := &authHandler{challenge: `Basic realm="git"`}
	s.set(d.guard)
	if _, err := openRemote(t, s.URL+"/r", Options{Retries: 5}).Refs(t.Context(), nil); !errors.Is(err, ErrAuth) {
		t.Error(err)
	}
	if n := len(s.requests()); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

func TestOffers(t *testing.T) {
	for _, c := range []struct {
		challenges []string
		scheme     string
		want       bool
	}{
		{nil, "basic", false},
		{[]string{`Basic realm="a, b"`}, "basic", true},
		{[]string{`Negotiate`, `BASIC`}, "basic", true},
		{[]string{`Bearer realm="x", Basic realm="y"`}, "basic", true},
		{[]string{`Bearer realm="basic"`}, "basic", false},
	} {
		if got := offers(c.challenges, c.scheme); got != c.want {
			t.Errorf("offers(%q, %q) = %v", c.challenges, c.scheme, got)
		}
	}
}

func TestParseCredential(t *testing.T) {
	for in, want := range map[string]string{
		"":                                      "",
		"username=a\n":                          "",
		"username=a\npassword=b=c\n":            basic("a", "b=c"),
		"authtype=Bearer\ncredential=x\nquit=0": "Bearer x",
	} {
		got := ""
		if l := parseCredential([]byte(in)); l != nil {
			got = l.header
		}
		if got != want {
			t.Errorf("parseCredential(%q) = %q, want %q", in, got, want)
		}
	}
}
