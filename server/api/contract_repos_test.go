package api_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/imports"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestContract sends the requests of the tables below to one server, in their order, and compares the answers.
func TestContract(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) { testContract(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db")) })
	t.Run("PostgreSQL", func(t *testing.T) {
		s, err := pgtest.Start(pgtest.Options{})
		if err != nil {
			t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", err)
		}
		t.Cleanup(func() { s.Close() })
		testDatabaseAway(t, testContract(t, s.URL("postgres")), s)
	})
}

func testContract(t *testing.T, database string) *world {
	w := newWorldOn(t, database, func(o *api.Options) { o.Importer = &fakeImporter{db: o.Records} })
	gitDir := seed(t, w.vars)
	w.vars["team"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team"})
	w.vars["reader"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team", Scope: records.ReadScope})
	w.vars["stranger"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "stranger"})
	w.vars["adminReader"] = w.token(t, records.Token{Role: records.AdminToken, Scope: records.ReadScope})
	w.vars["long"], w.vars["longest"] = strings.Repeat("n", 300), strings.Repeat("n", 513)
	w.run(t, namespaces)
	w.run(t, creation)
	w.run(t, lists)
	w.fill(t, "team", "base", gitDir)
	w.run(t, contents)
	w.run(t, tokens)
	w.run(t, forks)
	w.run(t, importing)
	w.run(t, deletion)
	w.run(t, authorization)
	w.run(t, paths)
	if missing := w.checker.Missing("artifacts_"); len(missing) > 0 {
		t.Errorf("operations of the OpenAPI document that this test does not have: %v", missing)
	}
	return w
}

// namespaces tests requests about namespaces, whose names have 2 to 63 characters.
var namespaces = []exchange{
	{name: "create", ask: "POST /namespaces", body: `{"namespace":"team"}`, status: 201,
		want: ok(namespace("team", "unrestricted", 0))},
	{name: "create in a jurisdiction", ask: "POST /namespaces", body: `{"namespace":"europe","jurisdiction":"eu"}`,
		status: 201,
		want:   ok(namespace("europe", "eu", 0))},
	{name: "create again", ask: "POST /namespaces", body: `{"namespace":"team"}`, status: 409,
		want: fault(10201, "Namespace already exists")},
	{name: "names differ in more than case", ask: "POST /namespaces", body: `{"namespace":"TEAM"}`, status: 409,
		want: fault(10201, "Namespace already exists")},
	{name: "bad name", ask: "POST /namespaces", body: `{"namespace":"-x"}`, status: 400,
		want: fault(10100, "Invalid namespace name", "/namespace")},
	{name: "short name", ask: "POST /namespaces", body: `{"namespace":"x"}`, status: 400,
		want: fault(10100, "Invalid namespace name", "/namespace")},
	{name: "long name", ask: "POST /namespaces", body: `{"namespace":"` + strings.Repeat("x", 64) + `"}`, status: 400,
		want: fault(10100, "Invalid namespace name", "/namespace")},
	{name: "name with a slash", ask: "POST /namespaces", body: `{"namespace":"a/../b"}`, status: 400,
		want: fault(10100, "Invalid namespace name", "/namespace")},
	{name: "no name", ask: "POST /namespaces", body: `{}`, status: 400,
		want: fault(10100, "Invalid namespace name", "/namespace")},
	{name: "name is a number", ask: "POST /namespaces", body: `{"namespace":7}`, status: 400,
		want: fault(10100, "Invalid input: expected string, received number", "/namespace")},
	{name: "bad jurisdiction", ask: "POST /namespaces", body: `{"namespace":"mars","jurisdiction":"mars"}`, status: 400,
		want: fault(10100, `Invalid option: expected one of "eu"|"us"`, "/jurisdiction")},
	{name: "get", ask: "GET /namespaces/team", status: 200, want: ok(namespace("team", "unrestricted", 0))},
	{name: "get a missing one", ask: "GET /namespaces/missing", status: 404, want: fault(10200, "Namespace not found")},
	{name: "list", ask: "GET /namespaces", status: 200,
		want: list("["+namespace("europe", "eu", 0)+","+namespace("team", "unrestricted", 0)+"]", page(1, 50, 1, 2, 2))},
	{name: "list page 1", ask: "GET /namespaces?limit=1", status: 200,
		want: list("["+namespace("europe", "eu", 0)+"]", more(1, 1)),
		set:  "cursor=result_info.cursor"},
	{name: "list page 2", ask: "GET /namespaces?limit=1&cursor={cursor}", status: 200,
		want: list("["+namespace("team", "unrestricted", 0)+"]", last(1, 1))},
	{name: "list with a bad cursor", ask: "GET /namespaces?cursor=x!", status: 400,
		want: fault(10100, "Invalid cursor", "/cursor")},
	{name: "list too many", ask: "GET /namespaces?limit=201", status: 400,
		want: fault(10100, "Too big: expected number to be <=200", "/limit")},
	{name: "delete", ask: "DELETE /namespaces/europe", status: 204, want: ""},
	{name: "delete again", ask: "DELETE /namespaces/europe", status: 404, want: fault(10200, "Namespace not found")},
}

// creation tests the creation of repositories, whose names have at most 512 characters.
var creation = []exchange{
	{name: "create", ask: "POST /namespaces/team/repos",
		body:   `{"name":"base","description":"probe","default_branch":"main"}`,
		status: 201,
		want: ok(`{"id":"<id>","name":"base","description":"probe","default_branch":"main",` +
			`"remote":"<host>/git/team/base.git","token":"<token>"}`)},
	{name: "create read-only", ask: "POST /namespaces/team/repos", body: `{"name":"frozen","read_only":true}`, status: 201,
		want: ok(created("frozen", "main", ""))},
	{name: "create with another branch", ask: "POST /namespaces/team/repos",
		body:   `{"name":"trunky","default_branch":"trunk"}`,
		status: 201, want: ok(created("trunky", "trunk", ""))},
	{name: "create again", ask: "POST /namespaces/team/repos", body: `{"name":"base"}`, status: 409,
		want: fault(10201, "repo already exists: base")},
	{name: "names differ in more than case", ask: "POST /namespaces/team/repos", body: `{"name":"BASE"}`, status: 409,
		want: fault(10201, "repo already exists: BASE")},
	{name: "bad name", ask: "POST /namespaces/team/repos", body: `{"name":"-bad"}`, status: 400,
		want: fault(10101, badName, "/name")},
	{name: "no name", ask: "POST /namespaces/team/repos", body: `{}`, status: 400, want: fault(10101, badName, "/name")},
	{name: "name with a path", ask: "POST /namespaces/team/repos", body: `{"name":"../up"}`, status: 400,
		want: fault(10101, badName, "/name")},
	{name: "name is null", ask: "POST /namespaces/team/repos", body: `{"name":null}`, status: 400,
		want: fault(10101, badName, "/name")},
	{name: "name is a number", ask: "POST /namespaces/team/repos", body: `{"name":1}`, status: 400,
		want: fault(10100, "Invalid input: expected string, received number", "/name")},
	{name: "long name", ask: "POST /namespaces/long/repos", body: `{"name":"{long}"}`, status: 201,
		want: ok(created("{long}", "main", "long"))},
	{name: "too long a name", ask: "POST /namespaces/long/repos", body: `{"name":"{longest}"}`, status: 400,
		want: fault(10101, "Invalid repo name: must have at most 512 characters", "/name")},
	{name: "a missing namespace was created", ask: "GET /namespaces/long", status: 200,
		want: ok(namespace("long", "unrestricted", 1))},
	{name: "a namespace with repositories stays", ask: "DELETE /namespaces/long", status: 409,
		want: fault(10100, "Namespace is not empty")},
	{name: "bad branch", ask: "POST /namespaces/team/repos", body: `{"name":"x","default_branch":"a..b"}`, status: 400,
		want: fault(10100, "Invalid branch name", "/default_branch")},
	{name: "wrong type", ask: "POST /namespaces/team/repos", body: `{"name":"x","read_only":"yes"}`, status: 400,
		want: fault(10100, "Invalid input: expected boolean, received string", "/read_only")},
	{name: "unknown fields are ignored", ask: "POST /namespaces/long/repos",
		body:   `{"name":"extra","Name":"y","future":{}}`,
		status: 201, want: ok(created("extra", "main", "long"))},
	{name: "no object", ask: "POST /namespaces/team/repos", body: `[1]`, status: 400,
		want: fault(10100, "Invalid input: expected object, received array")},
	{name: "no JSON", ask: "POST /namespaces/team/repos", body: `{"name":`, status: 400,
		want: fault(10100, "Malformed JSON in request body")},
	{name: "too large a body", ask: "POST /namespaces/team/repos", body: `{"name":"` + strings.Repeat("x", 1<<20) + `"}`,
		status: 413,
		want:   fault(10100, "Request body has more than 1048576 bytes")},

	{name: "SHA-256", ask: "POST /namespaces/long/repos", body: `{"name":"sha256","object_format":"sha256"}`, status: 201,
		want: ok(created("sha256", "main", "long"))},
	{name: "object format is shown", ask: "GET /namespaces/long/repos/sha256", status: 200,
		want: ok(strings.ReplaceAll(repo("sha256", `,"object_format":"sha256"`), "/team/", "/long/"))},
	{name: "unknown object format", ask: "POST /namespaces/team/repos", body: `{"name":"x","object_format":"md5"}`,
		status: 400,
		want:   fault(10100, `Invalid option: expected one of "sha1"|"sha256"`, "/object_format")},
	{name: "thin", ask: "POST /namespaces/long/repos",
		body: `{"name":"thin","base":{"url":"https://example.com/a.git","commit":"{first}"}}`, status: 201,
		want: ok(created("thin", "main", "long"))},
	{name: "base is shown", ask: "GET /namespaces/long/repos/thin", status: 200,
		want: ok(strings.ReplaceAll(repo("thin", `,"base":{"url":"https://example.com/a.git","commit":"{first}"}`),
			"/team/", "/long/"))},
	{name: "base with a password", ask: "POST /namespaces/team/repos",
		body: `{"name":"x","base":{"url":"https://u:p@example.com/a","commit":"{first}"}}`, status: 400,
		want: fault(10100, "Must not contain credentials", "/base/url")},
	{name: "base without commit", ask: "POST /namespaces/team/repos",
		body:   `{"name":"x","base":{"url":"https://example.com/a"}}`,
		status: 400, want: fault(10100, noString, "/base/commit")},

	{name: "get", ask: "GET /namespaces/team/repos/frozen", status: 200,
		want: ok(strings.Replace(repo("frozen", ""), `"read_only":false`, `"read_only":true`, 1))},
	{name: "get in another case", ask: "GET /namespaces/TEAM/repos/Trunky", status: 200,
		want: ok(strings.Replace(repo("trunky", ""), `"main"`, `"trunk"`, 1))},
	{name: "get a missing one", ask: "GET /namespaces/team/repos/missing", status: 404,
		want: fault(10200, "Repository not found")},
	{name: "get in a missing namespace", ask: "GET /namespaces/missing/repos/base", status: 404,
		want: fault(10200, "Repository not found")},
}

var (
	baseRepo   = strings.Replace(repo("base", ""), `"description":null`, `"description":"probe"`, 1)
	frozenRepo = strings.Replace(repo("frozen", ""), `"read_only":false`, `"read_only":true`, 1)
	trunkyRepo = strings.Replace(repo("trunky", ""), `"main"`, `"trunk"`, 1)
)

// lists tests lists. A list that fits on one page, or that is requested by page number, has page numbers; any other
// list has cursors.
var lists = []exchange{
	{name: "newest first", ask: "GET /namespaces/team/repos", status: 200,
		want: list("["+trunkyRepo+","+frozenRepo+","+baseRepo+"]", page(1, 50, 1, 3, 3))},
	{name: "page 1", ask: "GET /namespaces/team/repos?limit=2", status: 200,
		want: list("["+trunkyRepo+","+frozenRepo+"]", more(2, 2)),
		set:  "cursor=result_info.cursor"},
	{name: "page 2", ask: "GET /namespaces/team/repos?limit=2&cursor={cursor}", status: 200,
		want: list("["+baseRepo+"]", last(2, 1))},
	{name: "page 1 by number", ask: "GET /namespaces/team/repos?limit=2&page=1", status: 200,
		want: list("["+trunkyRepo+","+frozenRepo+"]", page(1, 2, 2, 2, 3))},
	{name: "page 2 by number", ask: "GET /namespaces/team/repos?limit=2&page=2", status: 200,
		want: list("["+baseRepo+"]", page(2, 2, 2, 1, 3))},
	{name: "page 3 by number", ask: "GET /namespaces/team/repos?limit=2&page=3", status: 200,
		want: list("[]", page(3, 2, 2, 0, 3))},
	{name: "by name", ask: "GET /namespaces/team/repos?sort=name&direction=asc", status: 200,
		want: list("["+baseRepo+","+frozenRepo+","+trunkyRepo+"]", page(1, 50, 1, 3, 3))},
	{name: "by update", ask: "GET /namespaces/team/repos?sort=updated_at&direction=asc&limit=1&page=1", status: 200,
		want: list("["+baseRepo+"]", page(1, 1, 3, 1, 3))},
	{name: "by last push", ask: "GET /namespaces/team/repos?sort=last_push_at&search=base", status: 200,
		want: list("["+baseRepo+"]", page(1, 50, 1, 1, 1))},
	{name: "search", ask: "GET /namespaces/team/repos?search=RO", status: 200,
		want: list("["+frozenRepo+"]", page(1, 50, 1, 1, 1))},
	{name: "search for characters of patterns", ask: "GET /namespaces/team/repos?search=%25", status: 200,
		want: list("[]", page(1, 50, 0, 0, 0))},
	{name: "missing namespace", ask: "GET /namespaces/missing/repos", status: 200, want: list("[]", page(1, 50, 0, 0, 0))},
	{name: "too many", ask: "GET /namespaces/team/repos?limit=500", status: 400,
		want: fault(10100, "Too big: expected number to be <=200", "/limit")},
	{name: "none", ask: "GET /namespaces/team/repos?limit=0", status: 400,
		want: fault(10100, "Too small: expected number to be >0", "/limit")},
	{name: "no number", ask: "GET /namespaces/team/repos?limit=many", status: 400,
		want: fault(10100, "Invalid input: expected number, received NaN", "/limit")},
	{name: "page 0", ask: "GET /namespaces/team/repos?page=0", status: 400,
		want: fault(10100, "Too small: expected number to be >0", "/page")},
	{name: "bad order", ask: "GET /namespaces/team/repos?sort=size", status: 400,
		want: fault(10100, `Invalid option: expected one of "created_at"|"updated_at"|"last_push_at"|"name"`, "/sort")},
	{name: "bad direction", ask: "GET /namespaces/team/repos?direction=up", status: 400,
		want: fault(10100, `Invalid option: expected one of "desc"|"asc"`, "/direction")},
	{name: "bad cursor", ask: "GET /namespaces/team/repos?cursor=zzz", status: 400,
		want: fault(10100, "Invalid cursor", "/cursor")},
	{name: "cursor of another list", ask: "GET /namespaces/team/repos?sort=name&cursor={cursor}", status: 400,
		want: fault(10100, "Invalid cursor", "/cursor")},
}

// forks tests forks. A fork has all refs, unless the request selects some; "objects" is the number of objects in its
// packs.
var forks = []exchange{
	{name: "fork", ask: "POST /namespaces/team/repos/base/fork", body: `{"name":"copy"}`, status: 201,
		want: ok(forked("copy", "team"))},
	{name: "fork the default branch", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"copy-only","default_branch_only":true}`, status: 201, want: ok(forked("copy-only", "team"))},
	{name: "fork again", ask: "POST /namespaces/team/repos/base/fork", body: `{"name":"copy"}`, status: 409,
		want: fault(10201, "repo already exists: copy")},
	{name: "bad name", ask: "POST /namespaces/team/repos/base/fork", body: `{"name":"-x"}`, status: 400,
		want: fault(10101, badName, "/name")},
	{name: "missing parent", ask: "POST /namespaces/team/repos/missing/fork", body: `{"name":"z"}`, status: 404,
		want: fault(10200, "Repository not found")},
	{name: "get", ask: "GET /namespaces/team/repos/copy", status: 200,
		want: ok(strings.Replace(repo("copy", ""), `"source":null`, `"source":"artifacts:team/base"`, 1))},
	{name: "refs of the fork", ask: "GET //artifactfs/v1/accounts/" + account + "/namespaces/team/repos/copy/refs",
		status: 200,
		want: list(`[{"name":"refs/heads/feature/x","hash":"{second}"},{"name":"refs/heads/main","hash":"{second}"},
			{"name":"refs/heads/side","hash":"{first}"},
			{"name":"refs/notes/commits","hash":"{second}"},{"name":"refs/tags/v1","hash":"{tag}"}]`, page(1, 1000, 1, 5, 5))},
	{name: "log of the fork", ask: "GET /namespaces/team/repos/copy/log?limit=1", status: 200,
		want: ok("[" + secondC + "]")},
	{name: "refs of the fork of a branch", ask: "GET //artifactfs/v1/accounts/" + account +
		"/namespaces/team/repos/copy-only/refs",
		status: 200, want: list(`[{"name":"refs/heads/main","hash":"{second}"}]`, page(1, 1000, 1, 1, 1))},

	{name: "fork at a commit", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"early","commit":"{first}","refs":["refs/tags/*"]}`, status: 201, want: ok(forked("early", "team"))},
	{name: "refs of the fork at a commit", ask: "GET //artifactfs/v1/accounts/" + account +
		"/namespaces/team/repos/early/refs",
		status: 200,
		want: list(`[{"name":"refs/heads/main","hash":"{first}"},{"name":"refs/tags/v1","hash":"{tag}"}]`,
			page(1, 1000, 1, 2, 2))},
	{name: "fork at a missing commit", ask: "POST /namespaces/team/repos/base/fork",
		body:   `{"name":"x","commit":"{nothing}"}`,
		status: 404, want: fault(10200, "Commit not found")},
	{name: "fork at a tree", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"x","commit":"{tree}"}`, status: 404,
		want: fault(10200, "Commit not found")},
	{name: "fork at a bad commit", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"x","commit":"main"}`, status: 400,
		want: fault(10100, "Invalid hash", "/commit")},
	{name: "fork at a missing checkpoint", ask: "POST /namespaces/team/repos/base/fork",
		body:   `{"name":"x","checkpoint":"fix-login"}`,
		status: 404, want: fault(10200, "Checkpoint not found")},
	{name: "fork at a bad checkpoint", ask: "POST /namespaces/team/repos/base/fork",
		body:   `{"name":"x","checkpoint":"a/b"}`,
		status: 400, want: fault(10100, "Must be the name of a session, SESSION@ID, or the id of a checkpoint",
			"/checkpoint")},
	{name: "fork at two points", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"x","commit":"{first}","checkpoint":"s"}`, status: 400,
		want: fault(10100, "Only one of commit and checkpoint can be given", "/checkpoint")},
	{name: "fork with a bad glob", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"x","refs":["["]}`, status: 400,
		want: fault(10100, "Invalid glob", "/refs")},
	{name: "fork with refs of a wrong type", ask: "POST /namespaces/team/repos/base/fork",
		body:   `{"name":"x","refs":["a",1]}`,
		status: 400, want: fault(10100, "Invalid input: expected string, received number", "/refs/1")},
	{name: "fork into a namespace", ask: "POST /namespaces/team/repos/base/fork",
		body:   `{"name":"copy","namespace":"stranger"}`,
		status: 201, want: ok(forked("copy", "stranger"))},
	{name: "fork into a foreign namespace", token: "team", ask: "POST /namespaces/team/repos/base/fork",
		body: `{"name":"mine","namespace":"stranger"}`, status: 403, want: fault(10000, "Authentication error")},
}

// fakeImporter is an importer whose result depends on the name of the remote.
type fakeImporter struct{ db *records.DB }

func (f *fakeImporter) Check(_ context.Context, r imports.Request) (imports.Remote, error) {
	switch {
	case strings.Contains(r.URL, "private"):
		return imports.Remote{}, fmt.Errorf("check: %w", imports.ErrAuth)
	case strings.Contains(r.URL, "page"):
		return imports.Remote{}, fmt.Errorf("check: %w", imports.ErrNotGit)
	case strings.Contains(r.URL, "down"):
		return imports.Remote{}, fmt.Errorf("check: %w", imports.ErrUnavailable)
	}
	return imports.Remote{DefaultBranch: "master", ObjectFormat: "sha1"}, nil
}

func (f *fakeImporter) Start(ctx context.Context, r records.Repo, q imports.Request, cause records.Cause) error {
	if r.Name == "slow" || q.URL == "" && r.Status == records.Importing {
		return imports.ErrBusy
	}
	if strings.Contains(q.URL, "endless") {
		return nil
	}
	if q.URL == "" {
		return f.db.Imports.Begin(ctx, records.Import{RepoID: r.ID}, cause)
	}
	return f.db.Repos.SetStatus(ctx, r.ID, records.Ready)
}

func (f *fakeImporter) Status(_ context.Context, r records.Repo) (imports.Status, error) {
	if !strings.HasPrefix(r.Source, "git:") {
		return imports.Status{}, records.ErrNotFound
	}
	return imports.Status{State: imports.Running, Phase: "receiving objects", Done: 3, Total: 4, Bytes: 5,
		Started: r.Created}, nil
}

const extension = "//artifactfs/v1/accounts/" + account

var importing = []exchange{
	{name: "import", ask: "POST /namespaces/team/repos/hello/import",
		body: `{"url":"https://github.com/octocat/Hello-World","depth":1}`, status: 201,
		want: ok(created("hello", "master", ""))},
	{name: "get", ask: "GET /namespaces/team/repos/hello", status: 200,
		want: ok(strings.NewReplacer(`"main"`, `"master"`, `"source":null`,
			`"source":"git:https://github.com/octocat/Hello-World.git"`).Replace(repo("hello", "")))},
	{name: "import again", ask: "POST /namespaces/team/repos/hello/import",
		body:   `{"url":"https://github.com/octocat/Hello-World"}`,
		status: 409, want: fault(10201, "repo already exists: hello")},
	{name: "import one branch read-only", ask: "POST /namespaces/team/repos/ro/import",
		body: `{"url":"https://github.com/a/b.git/","branch":"dev","read_only":true}`, status: 201,
		want: ok(created("ro", "dev", ""))},
	{name: "http", ask: "POST /namespaces/team/repos/h2/import", body: `{"url":"http://github.com/octocat/Hello-World"}`,
		status: 400,
		want:   fault(10100, "Must be an HTTPS URL", "/url")},
	{name: "no repository", ask: "POST /namespaces/team/repos/h3/import",
		body: `{"url":"https://example.com/"}`, status: 400,
		want: fault(10104, notRemote, "/url")},
	{name: "page", ask: "POST /namespaces/team/repos/h3/import", body: `{"url":"https://example.com/page"}`, status: 400,
		want: fault(10104, notRemote, "/url")},
	{name: "another scheme", ask: "POST /namespaces/team/repos/h3/import", body: `{"url":"file:///etc/x"}`, status: 400,
		want: fault(10104, notRemote, "/url")},
	{name: "password in the URL", ask: "POST /namespaces/team/repos/h3/import",
		body:   `{"url":"https://u:p@example.com/x"}`,
		status: 400, want: fault(10104, notRemote, "/url")},
	{name: "private", ask: "POST /namespaces/team/repos/h4/import", body: `{"url":"https://github.com/octocat/private"}`,
		status: 422,
		want: fault(10106, `Repository "https://github.com/octocat/private.git" requires authentication (HTTP 401). `+
			"Only public repositories can be imported.", "/url")},
	{name: "remote is down", ask: "POST /namespaces/team/repos/h4/import", body: `{"url":"https://down.example/a"}`,
		status: 502,
		want:   fault(10401, "Remote is unavailable", "/url")},
	{name: "no URL", ask: "POST /namespaces/team/repos/h4/import", body: `{}`, status: 400,
		want: fault(10100, noString, "/url")},
	{name: "bad depth", ask: "POST /namespaces/team/repos/h4/import", body: `{"url":"https://github.com/a/b","depth":0}`,
		status: 400,
		want:   fault(10100, "Too small: expected number to be >0", "/depth")},
	{name: "half a commit deep", ask: "POST /namespaces/team/repos/h4/import",
		body:   `{"url":"https://github.com/a/b","depth":1.5}`,
		status: 400, want: fault(10100, "Invalid input: expected int, received number", "/depth")},
	{name: "bad name", ask: "POST /namespaces/team/repos/-x/import", body: `{"url":"https://github.com/a/b"}`, status: 400,
		want: fault(10101, badName, "/name")},
	{name: "import that does not start", ask: "POST /namespaces/team/repos/slow/import",
		body:   `{"url":"https://github.com/a/b"}`,
		status: 409, want: fault(10302, "Repository import is in progress")},
	{name: "it left no repository", ask: "GET /namespaces/team/repos/slow", status: 404,
		want: fault(10200, "Repository not found")},

	{name: "import in the background", ask: "POST /namespaces/team/repos/endless/import",
		body: `{"url":"https://github.com/a/endless"}`, status: 201, want: ok(created("endless", "master", ""))},
	{name: "import during an import", ask: "POST /namespaces/team/repos/endless/import",
		body:   `{"url":"https://github.com/a/b"}`,
		status: 409, want: fault(10302, "Repository import is in progress")},
	{name: "fork during an import", ask: "POST /namespaces/team/repos/endless/fork", body: `{"name":"z"}`, status: 409,
		want: fault(10302, "Repository import is in progress")},
	{name: "read during an import", ask: "GET /namespaces/team/repos/endless/log", status: 409,
		want: fault(10302, "Repository import is in progress")},
	{name: "progress", ask: "GET " + extension + "/namespaces/team/repos/endless/import", status: 200,
		want: ok(`{"state":"running","phase":"receiving objects","done":3,"total":4,"bytes":5,"error":null,` +
			`"started_at":"<time>","finished_at":null}`)},
	{name: "refresh during an import", ask: "POST " + extension + "/namespaces/team/repos/endless/import/refresh",
		status: 409,
		want:   fault(10302, "Repository import is in progress")},
	{name: "refresh", ask: "POST " + extension + "/namespaces/team/repos/hello/import/refresh", status: 202,
		want: ok(`{"id":"<id>"}`)},
	{name: "progress of no import", ask: "GET " + extension + "/namespaces/team/repos/base/import", status: 404,
		want: fault(10200, "Import not found")},
}

const notRemote = "url must be an HTTPS git remote URL (e.g. https://github.com/owner/repo)"

// deletion tests the deletion of repositories. It is idempotent, and does not change the forks of a deleted repository.
var deletion = []exchange{
	{name: "delete", ask: "DELETE /namespaces/team/repos/base", status: 202, want: ok(`{"id":"<id>"}`)},
	{name: "delete again", ask: "DELETE /namespaces/team/repos/base", status: 202, want: ok(`{"id":"<id>"}`)},
	{name: "delete a missing one", ask: "DELETE /namespaces/team/repos/never-was", status: 404,
		want: fault(10200, "Repository not found")},
	{name: "get", ask: "GET /namespaces/team/repos/base", status: 404, want: fault(10200, "Repository not found")},
	{name: "read", ask: "GET /namespaces/team/repos/base/log", status: 404, want: fault(10200, "Repository not found")},
	{name: "the fork stays", ask: "GET /namespaces/team/repos/copy/log?ref=side", status: 200,
		want: ok("[" + firstC + "]")},
	{name: "the name is free", ask: "POST /namespaces/team/repos", body: `{"name":"base"}`, status: 201,
		want: ok(created("base", "main", ""))},
	{name: "the new one is empty", ask: "GET /namespaces/team/repos/base/log", status: 200, want: ok("[]")},
}
