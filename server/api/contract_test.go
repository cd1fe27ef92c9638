package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// exchange is a request and the answer that clients of Cloudflare Artifacts expect, according to its documentation and
// to recorded answers of the live service. Paths are relative to /client/v4/accounts/{account}/artifacts, unless they
// begin with "//". {x} is the value of a variable, which an earlier answer has set; <x> is a value that differs between
// runs.
type exchange struct {
	name   string
	token  string // name of the variable with the token; "": the admin token; "none": no token
	ask    string // method and path
	body   string
	status int
	want   string // expected body of the answer
	header string // header "Name: value" that the answer must have
	set    string // variable that is set to a value of the result: "name=field"
}

// ok returns the JSON answer with a result.
func ok(result string) string {
	return `{"result":` + result + `,"success":true,"errors":[],"messages":[]}`
}

// list returns the JSON answer with one page of a list.
func list(result, info string) string {
	return `{"result":` + result + `,"success":true,"errors":[],"messages":[],"result_info":` + info + `}`
}

// page returns the JSON description of a page of a list with page numbers.
func page(page, perPage, pages, count, total int) string {
	return fmt.Sprintf(`{"page":%d,"per_page":%d,"total_pages":%d,"count":%d,"total_count":%d}`, page, perPage,
		pages, count, total)
}

// fault returns the JSON answer with an error.
func fault(code int, message string, pointer ...string) string {
	text, _ := json.Marshal(message)
	source := ""
	if len(pointer) > 0 {
		source = `,"source":{"pointer":"` + pointer[0] + `"}`
	}
	url := ""
	if code != 10000 {
		url = `,"documentation_url":"https://developers.cloudflare.com/artifacts/api/errors#` + strconv.Itoa(code) + `"`
	}
	return fmt.Sprintf(`{"result":null,"success":false,"errors":[{"code":%d,"message":%s%s%s}],"messages":[]}`, code,
		text, url, source)
}

const (
	notFound    = "404 Not Found"
	badName     = "Invalid repo name: must match /^[a-zA-Z0-9][a-zA-Z0-9._-]*$/"
	noString    = "Invalid input: expected string, received undefined"
	plainHeader = "Content-Type: text/plain; charset=UTF-8"
	octets      = "Content-Type: application/octet-stream"
	text        = "Content-Type: text/plain; charset=utf-8"
	jsonHeader  = "Content-Type: application/json"
)

func (w *world) run(t *testing.T, table []exchange) {
	for _, x := range table {
		t.Run(x.name, func(t *testing.T) {
			token := w.admin
			if x.token == "none" {
				token = ""
			} else if x.token != "" {
				token = w.vars[x.token]
			}
			method, path, _ := strings.Cut(w.expand(x.ask), " ")
			if strings.HasPrefix(path, "//") {
				path = path[1:]
			} else {
				path = "/client/v4/accounts/" + account + "/artifacts" + path
			}
			got := w.do(t, token, method, path, w.expand(x.body))
			if body := w.plain(got.body); got.status != x.status || body != compact(x.want) {
				t.Errorf("%s %s %s\n got: %d %s\nwant: %d %s", method, path, x.body, got.status, body, x.status, compact(x.want))
			}
			header, value, _ := strings.Cut(x.header, ": ")
			if header == "" && got.status != http.StatusNoContent && strings.HasPrefix(got.body, "{") {
				header, value, _ = strings.Cut(jsonHeader, ": ")
			}
			if header != "" && got.header.Get(header) != w.expand(value) {
				t.Errorf("%s: got %q, want %q", header, got.header.Get(header), value)
			}
			if name, field, ok := strings.Cut(x.set, "="); ok {
				w.vars[name] = valueOf(t, got.body, field)
			}
		})
	}
}

// valueOf returns the value in a JSON text at a path such as result.0.id.
func valueOf(t *testing.T, body, path string) string {
	t.Helper()
	var at any
	if err := json.Unmarshal([]byte(body), &at); err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				t.Fatalf("%s has no %s", body, path)
			}
			at = v[i]
		}
	}
	s, isText := at.(string)
	if !isText {
		t.Fatalf("%s has no text %s", body, path)
	}
	return s
}

// seed creates a git repository with two commits on main, the branches side and feature/x, the tag v1, and notes. It
// sets variables for the object ids.
func seed(t testing.TB, vars map[string]string) (gitDir string) {
	t.Helper()
	r, err := gittest.New(t.TempDir()+"/seed.git", gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(files map[string]gittest.File, message string) {
		if _, err := r.Commit("main", files, message); err != nil {
			t.Fatal(err)
		}
	}
	commit(map[string]gittest.File{"README.md": {Data: []byte("# probe\n")}, "bin.dat": {Data: []byte{0, 1, 2, 255}}},
		"first")
	commit(map[string]gittest.File{"src/a.txt": {Data: []byte("a\n")},
		"run.sh": {Data: []byte("#!/bin/sh\n"), Mode: "100755"},
		"link":   {Data: []byte("README.md"), Mode: "120000"}}, "second\n\nbody\n")
	for _, args := range [][]string{{"branch", "side", "main~1"}, {"branch", "feature/x", "main"},
		{"tag", "-a", "-m", "one", "v1", "main~1"},
		{"update-ref", "refs/notes/commits", "main"}} {
		gittest.Must(t, r.Path, args...)
	}
	for name, revision := range map[string]string{"first": "main~1", "second": "main", "tree": "main^{tree}",
		"firstTree": "main~1^{tree}",
		"readme":    "main:README.md", "bin": "main:bin.dat", "src": "main:src", "run": "main:run.sh", "link": "main:link",
		"tag": "v1", "a": "main:src/a.txt"} {
		vars[name] = gittest.Must(t, r.Path, "rev-parse", revision)
	}
	vars["nothing"], vars["zeros"] = strings.Repeat("1", 40), strings.Repeat("0", 40)
	return r.Path
}

const (
	person = `{"name":"gittest","email":"gittest@localhost"}`
	both   = `"author":` + person + `,"committer":` + person
	firstC = `{"hash":"{first}","treeHash":"{firstTree}","message":"first",` + both +
		`,"parents":[],"authoredAt":1700000000,"committedAt":1700000000}`
	secondC = `{"hash":"{second}","treeHash":"{tree}","message":"second\n\nbody",` + both +
		`,"parents":["{first}"],"authoredAt":1700000060,"committedAt":1700000060}`
)

// more returns the JSON description of a page of a list with cursors that is not the last one.
func more(perPage, count int) string {
	return fmt.Sprintf(`{"cursor":"<cursor>","per_page":%d,"count":%d}`, perPage, count)
}

// last returns the JSON description of the last page of a list with cursors.
func last(perPage, count int) string {
	return fmt.Sprintf(`{"cursor":"","per_page":%d,"count":%d}`, perPage, count)
}

func namespace(name, jurisdiction string, repos int) string {
	return fmt.Sprintf(`{"namespace":"%s","jurisdiction":"%s","repo_count":%d,"created_at":"<time>","updated_at":"<time>"}`,
		name, jurisdiction, repos)
}

// created returns the JSON answer to the creation of a repository in a namespace; "" stands for the namespace team.
func created(name, branch, namespace string) string {
	if namespace == "" {
		namespace = "team"
	}
	return fmt.Sprintf(`{"id":"<id>","name":"%s","description":null,"default_branch":"%s","remote":"<host>/git/%s/%s.git",`+
		`"token":"<token>"}`, name, branch, namespace, name)
}

func forked(name, namespace string) string {
	return strings.TrimSuffix(created(name, "main", namespace), "}") + `,"objects":11}`
}

// repo returns the JSON of a repository of the namespace team.
func repo(name, rest string) string {
	return fmt.Sprintf(`{"id":"<id>","name":"%s","description":null,"default_branch":"main","created_at":"<time>",`+
		`"updated_at":"<time>","last_push_at":null,"source":null,"read_only":false,"remote":"<host>/git/team/%s.git","status":"ready"%s}`,
		name, name, rest)
}

// token returns the JSON of a token in a list.
func token(scope, state, rest string) string {
	return fmt.Sprintf(`{"id":"<id>","scope":"%s","state":"%s","created_at":"<time>","expires_at":"<time>"%s}`,
		scope, state, rest)
}

// change returns the JSON of a changed path in a difference.
func change(path, status, oldMode, newMode, oldHash, newHash string, additions, deletions int) string {
	return fmt.Sprintf(`{"path":"%s","status":"%s","old_mode":"%s","new_mode":"%s","old_hash":"%s","new_hash":"%s",`+
		`"additions":%d,"deletions":%d,"binary":false}`, path, status, oldMode, newMode, oldHash, newHash,
		additions, deletions)
}
