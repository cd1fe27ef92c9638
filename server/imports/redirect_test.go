package imports

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// asked records the requests to servers, with the user that each request names.
type asked struct {
	mu    sync.Mutex
	lines []string
}

// serve starts a server that records its requests and then calls h.
func (a *asked) serve(t *testing.T, name string, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		a.mu.Lock()
		a.lines = append(a.lines, strings.TrimSpace(name+strings.TrimSuffix(r.URL.Path, infoRefs)+" "+user))
		a.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := a.lines
	a.lines = nil
	return lines
}

// TestCredentialsStayWithTheirLine checks that credentials are sent only to the scheme, host, port and path of their
// line in the file, whatever a server answers.
func TestCredentialsStayWithTheirLine(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	n := newNode(t, dir, "n", Options{})
	var got asked
	elsewhere := got.serve(t, "elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, u.url+infoRefs+"?"+r.URL.RawQuery, http.StatusFound)
	})
	moves := map[string]string{"/team/port": elsewhere + "/team/port", "/team/out": "/other/private",
		"/team/in": "/team/new", "/team/back": "/other/in",
		"/other/in": "/team/new", "/team/dots": "/team/%2e%2e/other/private"}
	home := got.serve(t, "home", func(w http.ResponseWriter, r *http.Request) {
		to, moved := moves[strings.TrimSuffix(r.URL.Path, infoRefs)]
		if !moved {
			to = u.url
		}
		http.Redirect(w, r, to+infoRefs+"?"+r.URL.RawQuery, http.StatusFound)
	})
	line := strings.Replace(home, "http://", "http://me:token@", 1) + "/team\n"
	secretFile(t, dir, "team", line)
	secretFile(t, dir, "both", line+strings.Replace(elsewhere, "http://", "http://you:token@", 1)+"\n")
	for _, c := range []struct {
		secret, path string
		err          error
		want         []string
	}{
		{"team", "/team/app", nil, []string{"home/team/app me"}},
		{"team", "/team/in", nil, []string{"home/team/in me", "home/team/new me"}},
		{"team", "/team/out", nil, []string{"home/team/out me", "home/other/private"}},
		{"team", "/team/back", nil, []string{"home/team/back me", "home/other/in", "home/team/new me"}},
		{"team", "/team/port", nil, []string{"home/team/port me", "elsewhere/team/port"}},
		{"both", "/team/port", nil, []string{"home/team/port me", "elsewhere/team/port you"}},
		{"team", "/team/dots", ErrNotGit, []string{"home/team/dots me"}},
		{"team", "/other/private", ErrAuth, nil},
		{"team", "/team/../other/private", ErrScheme, nil},
		{"team", "/team/%2e%2e/other/private", ErrScheme, nil},
		{"team", "/team/.%2E/other/private", ErrScheme, nil},
		{"team", "/team%2f..%2fother/private", ErrScheme, nil},
		{"team", "/team/./app", ErrScheme, nil},
		{"team", "/team/..", ErrScheme, nil},
	} {
		f, cred, err := n.find(t.Context(), Request{URL: home + c.path, Namespace: "ns", Secret: c.secret})
		if !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s with the secret %s: got %v, want %v", c.path, c.secret, err, c.err)
		}
		if lines := got.take(); !slices.Equal(lines, c.want) {
			t.Errorf("%s with the secret %s: requests %q, want %q", c.path, c.secret, lines, c.want)
		}
		if err == nil && (cred != credentials{}) {
			t.Errorf("%s with the secret %s: git would send credentials to %s", c.path, c.secret, f.url)
		}
	}
}
