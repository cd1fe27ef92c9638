package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// repo import --wait says whether an import has succeeded, and repo refresh repeats it.
func TestImportCommands(t *testing.T) {
	a := newAfs(t)
	dir := t.TempDir()
	up, err := gittest.New(filepath.Join(dir, "up"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(text string) string {
		t.Helper()
		id, err := up.Commit("trunk", map[string]gittest.File{"f": {Data: []byte(text)}}, text)
		if err != nil {
			t.Fatal(err)
		}
		return id.String()
	}
	commit("one")
	far, err := gittest.Serve(gittest.ServerOptions{Root: dir, Cheap: true})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	a.serving("--import-http")
	if got := a.ok("repo", "import", far.URL("up"), "team/copy", "--branch", "trunk", "--wait"); !strings.HasPrefix(got,
		"imported team/copy\n") {
		t.Errorf("repo import printed\n%s", got)
	}
	last := commit("two")
	if got := a.ok("repo", "refresh", "team/copy", "--wait"); got != "refreshed team/copy\n" {
		t.Errorf("repo refresh printed %q", got)
	}
	if got := a.ok("repo", "show", "team/copy", "--json"); !strings.Contains(got, `"default_branch":"trunk"`) {
		t.Errorf("repo show printed\n%s", got)
	}
	token := strings.TrimSpace(a.run("token", "create", "team/copy", "--scope", "read").stdout)
	secret, _, _ := strings.Cut(token, "?")
	remote := strings.Fields(a.ok("repo", "list", "team"))
	url := strings.Replace(remote[len(remote)-1], "://", "://x:"+secret+"@", 1)
	if got, err := gittest.Git(t.Context(), dir, "ls-remote", url, "refs/heads/trunk"); err != nil ||
		!strings.HasPrefix(got, last) {
		t.Errorf("trunk after refresh is %s, %v, want %s", got, err, last)
	}
	// A failure is one of the command.
	// after the check
	fault := far.Inject(gittest.Fault{Kind: gittest.Status, Status: http.StatusForbidden,
		On: gittest.Capabilities, Skip: 1})
	if r := a.run("repo", "import", far.URL("up"), "team/broken", "--wait"); r.code != 3 ||
		!strings.Contains(r.stderr, "artifactfs: import team/broken: remote requires authentication\n") {
		t.Errorf("import that fails: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	fault.Remove()
	if r := a.run("repo", "import", far.URL("none"), "team/none", "--wait"); r.code == 0 ||
		!strings.Contains(r.stderr, "git remote URL") {
		t.Errorf("import of no repository: exit %d\n%s", r.code, r.stderr)
	}
	if r := a.run("repo", "import", "http://example.com/r", "team/none"); r.code == 0 {
		t.Errorf("import by http: exit %d\n%s", r.code, r.stderr)
	}
}
