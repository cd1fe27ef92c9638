package forge

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// exchange is a request that a fake forge expects, and the answer to it. The requests follow the documentation of the
// three APIs.
type exchange struct {
	method, uri string
	body        map[string]string // expected body; nil: none
	status      int
	answer      string
}

// serve returns a fake forge that expects exactly the given requests in this order, each with the given headers.
func serve(t *testing.T, headers map[string]string, exchanges []exchange) *httptest.Server {
	t.Helper()
	next := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if next == len(exchanges) {
			t.Errorf("unexpected request %s %s", r.Method, r.RequestURI)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		e := exchanges[next]
		next++
		if r.Method != e.method || r.RequestURI != e.uri {
			t.Errorf("request %d: got %s %s, want %s %s", next, r.Method, r.RequestURI, e.method, e.uri)
		}
		for name, want := range headers {
			if got := r.Header.Get(name); got != want {
				t.Errorf("request %d: header %s: got %q, want %q", next, name, got, want)
			}
		}
		if r.Header.Get("User-Agent") != "artifactfs" {
			t.Errorf("request %d: user agent: got %q", next, r.Header.Get("User-Agent"))
		}
		var body map[string]string
		if err := json.NewDecoder(r.Body).Decode(&body); (err == nil) != (e.body != nil) ||
			fmt.Sprint(body) != fmt.Sprint(e.body) {
			t.Errorf("request %d: body: got %v, %v, want %v", next, body, err, e.body)
		}
		if e.body != nil && r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("request %d: content type: got %q", next, r.Header.Get("Content-Type"))
		}
		w.WriteHeader(e.status)
		fmt.Fprint(w, e.answer)
	}))
	t.Cleanup(func() {
		s.Close()
		if next != len(exchanges) {
			t.Errorf("the client has sent %d requests, want %d", next, len(exchanges))
		}
	})
	return s
}

// asked is the pull request that the tests open.
var asked = PullRequest{Title: "Fix login", Body: "changes", Head: "afs/fix login", Base: "main"}

// sides returns the JSON of the two branches of a pull request, as gitea and GitHub return it.
func sides(head, base string, of int) string {
	return fmt.Sprintf(`"head":{"ref":%q,"repo":{"id":%d}},"base":{"ref":%q,"repo":{"id":7}}`, head, of, base)
}

func TestContracts(t *testing.T) {
	ours := `{"number":4,"html_url":"https://x/4",` + sides("afs/fix login", "main", 7) + `}`
	foreign := `{"number":3,"html_url":"https://x/3",` + sides("afs/fix login", "main", 8) + `}`
	create := map[string]string{"title": "Fix login", "body": "changes", "head": "afs/fix login", "base": "main"}
	find := "/api/v3/repos/team/app/pulls?base=main&head=team%3Aafs%2Ffix+login&state=open"
	list := "/api/v1/repos/team/app/pulls?limit=50&page=%d&state=open"
	merges := "/api/v4/projects/team%2Fsub%2Fapp/merge_requests"
	ask := merges + "?source_branch=afs%2Ffix+login&state=opened&target_branch=main"
	hubHeaders := map[string]string{"Authorization": "Bearer secret", "Accept": "application/vnd.github+json",
		"X-GitHub-Api-Version": "2022-11-28"}
	for _, test := range []struct {
		name      string
		kind      Kind
		path      string
		headers   map[string]string
		retitle   bool
		exchanges []exchange
		created   bool
	}{
		{"github creates", GitHub, "/team/app.git", hubHeaders, false, []exchange{
			{"GET", find, nil, 200, `[` + foreign + `]`},
			{"POST", "/api/v3/repos/team/app/pulls", create, 201, ours},
		}, true},
		{"github updates", GitHub, "/team/app", hubHeaders, true, []exchange{
			{"GET", find, nil, 200, `[` + ours + `]`},
			{"PATCH", "/api/v3/repos/team/app/pulls/4", map[string]string{"body": "changes", "title": "Fix login"}, 200, ours},
		}, false},
		{"gitea creates", Gitea, "/team/app.git", map[string]string{"Authorization": "token secret"}, false, []exchange{
			{"GET", fmt.Sprintf(list, 1), nil, 200, `[` + foreign + `]`},
			{"GET", fmt.Sprintf(list, 2), nil, 200, `[]`},
			{"POST", "/api/v1/repos/team/app/pulls", create, 201, ours},
		}, true},
		{"gitea updates", Gitea, "/team/app.git/", map[string]string{"Authorization": "token secret"}, false, []exchange{
			{"GET", fmt.Sprintf(list, 1), nil, 200, `[` + foreign + `]`},
			{"GET", fmt.Sprintf(list, 2), nil, 200, `[` + ours + `]`},
			{"PATCH", "/api/v1/repos/team/app/pulls/4", map[string]string{"body": "changes"}, 200, ours},
		}, false},
		{"gitlab creates", GitLab, "/team/sub/app.git", map[string]string{"Private-Token": "secret", "Authorization": ""},
			false, []exchange{
				{"GET", ask, nil, 200, `[{"iid":3,"web_url":"https://x/3","source_project_id":8,"target_project_id":7}]`},
				{"POST", merges, map[string]string{"title": "Fix login", "description": "changes", "source_branch": "afs/fix login",
					"target_branch": "main"},
					201, `{"iid":4,"web_url":"https://x/4"}`},
			}, true},
		{"gitlab updates", GitLab, "/team/sub/app.git", map[string]string{"Private-Token": "secret"}, true, []exchange{
			{"GET", ask, nil, 200, `[{"iid":4,"web_url":"https://x/4","source_project_id":7,"target_project_id":7}]`},
			{"PUT", merges + "/4", map[string]string{"title": "Fix login", "description": "changes"}, 200,
				`{"iid":4,"web_url":"https://x/4"}`},
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, test.headers, test.exchanges)
			f, err := New(Options{Repository: s.URL + test.path, Kind: test.kind, Token: "secret"})
			if err != nil {
				t.Fatal(err)
			}
			p := asked
			p.Retitle = test.retitle
			got, err := f.Open(t.Context(), p)
			if want := (Opened{"https://x/4", 4, test.created}); err != nil || got != want {
				t.Errorf("pull request: got %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

// TestFailures checks that an error contains the message of the forge and not the token, and that redirections are not
// followed.
func TestFailures(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirection was followed with the headers %v", r.Header)
	}))
	defer elsewhere.Close()
	for _, test := range []struct {
		status       int
		answer, want string
	}{
		{422, `{"message":"Validation Failed","errors":[{"message":"No commits between main and x"}]}`,
			"No commits between main and x"},
		{401, `{"message":"bad token secret\n"}`, "401: bad token ***"},
		{409, `{"message":["Another open merge request already exists"]}`, "Another open merge request"},
		{500, `<html>`, "status 500"},
		{302, ``, "status 302"},
		{200, `[{"number":`, "read answer"},
		{422, `{"message":"` + strings.Repeat("x", 5000) + `"}`, "xxx..."},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(test.status)
			fmt.Fprint(w, test.answer)
		}))
		f, err := New(Options{Repository: s.URL + "/team/app", Kind: GitHub, Token: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Open(t.Context(), asked)
		s.Close()
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") ||
			len(err.Error()) > 600 {
			t.Errorf("answer %d %s: got error %v, want %q", test.status, test.answer, err, test.want)
		}
		var of *Error
		if errors.As(err, &of) != (test.status != 200) {
			t.Errorf("answer %d: got the error %T", test.status, err)
		}
	}
}

func TestLocate(t *testing.T) {
	for _, test := range []struct{ repository, address, kind, base, path string }{
		{"https://github.com/team/app.git", "", "", "https://api.github.com", "/repos/team/app/pulls"},
		{"git@github.com:team/app.git", "", "", "https://api.github.com", "/repos/team/app/pulls"},
		{"ssh://git@gitlab.example.org:2222/a/b/app.git", "", "", "https://gitlab.example.org/api/v4",
			"/projects/a%2Fb%2Fapp/merge_requests"},
		{"https://user:pass@git.example.org:8443/team/app", "", "github", "https://git.example.org:8443/api/v3",
			"/repos/team/app/pulls"},
		{"https://git.example.org/gitea/team/app.git", "https://git.example.org/gitea/", "gitea",
			"https://git.example.org/gitea/api/v1", "/repos/team/app/pulls"},
		{"ssh://git@ssh.example.org/team/app.git", "https://git.example.org", "gitea", "https://git.example.org/api/v1",
			"/repos/team/app/pulls"},
		{"https://codeberg.org/team/app", "", "", "https://codeberg.org/api/v1", "/repos/team/app/pulls"},
	} {
		f, err := New(Options{Repository: test.repository, URL: test.address, Kind: Kind(test.kind)})
		if err != nil {
			t.Errorf("%s: %v", test.repository, err)
			continue
		}
		var base, path string
		switch a := f.api.(type) {
		case gitea:
			base, path = a.base, a.path()
		case github:
			base, path = a.base, a.path()
		case gitlab:
			base, path = a.base, a.path()
		}
		if base != test.base || path != test.path {
			t.Errorf("%s: got the API %s and the path %s, want %s and %s", test.repository, base, path, test.base, test.path)
		}
	}
	for repository, want := range map[string]error{"/srv/git/app.git": ErrRepository,
		"https://git.example.org/team/app.git": ErrUnknown,
		"https://github.com/app":               ErrRepository, "https://github.com/a/b/c": ErrRepository, "": ErrRepository} {
		if _, err := New(Options{Repository: repository}); !errors.Is(err, want) {
			t.Errorf("%q: got error %v, want %v", repository, err, want)
		}
	}
	for _, address := range []string{"ftp://x", "https://u:p@x", "x"} {
		if _, err := New(Options{Repository: "https://github.com/a/b", URL: address}); !errors.Is(err, ErrRepository) {
			t.Errorf("address %s: got error %v, want ErrRepository", address, err)
		}
	}
}
