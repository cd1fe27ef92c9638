package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
)

// createBase is the request that creates the repository base.
var createBase = exchange{name: "create", ask: "POST /namespaces/team/repos", body: `{"name":"base"}`, status: 201,
	want: ok(created("base", "main", ""))}

// TestCompat checks that with Options.Compat the server behaves as the live service of Cloudflare, where this differs
// from its documentation.
func TestCompat(t *testing.T) {
	w := newWorld(t, func(o *api.Options) { o.Compat, o.Importer = true, &fakeImporter{db: o.Records} })
	gitDir := seed(t, w.vars)
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	plain := func(name string) string { return strings.Replace(repo(name, ""), `,"status":"ready"`, "", 1) }
	w.run(t, []exchange{
		{name: "status is shown in lists only", ask: "GET " + at, status: 200, want: ok(plain("base"))},
		{name: "last push is never shown", ask: "GET /namespaces/team/repos", status: 200,
			want: list("["+repo("base", "")+"]", page(1, 50, 1, 1, 1))},
		{name: "full names of refs are unknown", ask: "GET " + at + "/log?ref=refs/heads/main", status: 200, want: ok("[]")},
		{name: "half names of refs are unknown", ask: "GET " + at + "/log?ref=heads/main", status: 200, want: ok("[]")},
		{name: "short names are known", ask: "GET " + at + "/log?ref=feature/x&limit=1", status: 200,
			want: ok("[" + secondC + "]")},
		{name: "tree of a commit", ask: "GET " + at + "/tree/{second}", status: 500,
			want: fault(10400, "A stored git object is corrupt.")},
		{name: "tree of a blob", ask: "GET " + at + "/tree/{readme}", status: 404, want: fault(10200, "Tree not found")},
		{name: "default_branch_only is ignored", ask: "POST " + at + "/fork",
			body:   `{"name":"copy","default_branch_only":true}`,
			status: 201, want: ok(forked("copy", "team"))},
		{name: "the fork has all refs", ask: "GET /namespaces/team/repos/copy/log?ref=side", status: 200,
			want: ok("[" + firstC + "]")},
		{name: "import", ask: "POST /namespaces/team/repos/endless/import", body: `{"url":"https://github.com/a/endless"}`,
			status: 201, want: ok(created("endless", "main", ""))},
		{name: "get during an import", ask: "GET /namespaces/team/repos/endless", status: 409,
			want: fault(10302, "Repository import is in progress")},
	})
}

// TestPushMovesTimes checks that without Compat, a push changes the times of the repository in answers.
func TestPushMovesTimes(t *testing.T) {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	w.run(t, []exchange{{name: "get", ask: "GET " + at, status: 200,
		want: ok(strings.Replace(repo("base", ""), `"last_push_at":null`, `"last_push_at":"<time>"`, 1))}})
}

const (
	hook = `{"id":"<id>","namespace":"team","repo":null,"types":["cf.artifacts.repo.pushed"],"url":"https://example.com/hook",` +
		`"created_at":"<time>"}`
	control = `{"id":"<id>","scope":"%s","state":"active","created_at":"<time>","expires_at":%s%s,"role":"%s"%s}`
)

// TestExtensions tests the requests below /artifactfs/v1, which Cloudflare Artifacts does not have. Those about refs,
// differences, imports and rotation are in other tables.
func TestExtensions(t *testing.T) {
	streamed := make(chan string, 10)
	w := newWorld(t, func(o *api.Options) {
		o.Events = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			streamed <- r.PathValue("namespace") + " " + r.PathValue("repo")
			fmt.Fprint(rw, "data: {}\n\n")
		})
	})
	w.vars["team"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team"})
	w.run(t, []exchange{
		createBase,

		{name: "create webhook", ask: "POST " + extension + "/webhooks", status: 201,
			want: ok(strings.TrimSuffix(hook, "}") + `,"secret":"0123456789abcdef"}`),
			body: `{"url":"https://example.com/hook","namespace":"TEAM","types":["cf.artifacts.repo.pushed"],"secret":"0123456789abcdef"}`,
			set:  "hook=result.id"},
		{name: "list webhooks", ask: "GET " + extension + "/webhooks", status: 200,
			want: list("["+hook+"]", page(1, 1, 1, 1, 1))},
		{name: "owner lists webhooks", token: "team", ask: "GET " + extension + "/namespaces/team/webhooks", status: 200,
			want: list("["+hook+"]", page(1, 1, 1, 1, 1))},
		{name: "owner lists all webhooks", token: "team", ask: "GET " + extension + "/webhooks", status: 403,
			want: fault(10000, "Authentication error")},
		{name: "owner creates a webhook of another namespace", token: "team",
			ask:    "POST " + extension + "/namespaces/team/webhooks",
			status: 400, body: `{"url":"https://example.com/hook","namespace":"other"}`,
			want: fault(10100, "Must be the namespace of the path", "/namespace")},
		{name: "webhook without URL", ask: "POST " + extension + "/webhooks", body: `{}`, status: 400,
			want: fault(10100, noString, "/url")},
		{name: "webhook to a file", ask: "POST " + extension + "/webhooks", body: `{"url":"file:///x"}`, status: 400,
			want: fault(10100, "Must be an HTTP or HTTPS URL", "/url")},
		{name: "webhook with a password", ask: "POST " + extension + "/webhooks", body: `{"url":"https://u:p@example.com"}`,
			status: 400, want: fault(10100, "Must not contain credentials", "/url")},
		{name: "webhook with a short secret", ask: "POST " + extension + "/webhooks",
			body: `{"url":"https://example.com","secret":"x"}`, status: 400,
			want: fault(10100, "Too small: expected string to have >=16 characters", "/secret")},
		{name: "webhook of a missing namespace", ask: "POST " + extension + "/webhooks",
			body: `{"url":"https://example.com","namespace":"none"}`, status: 404, want: fault(10200, "Namespace not found")},
		{name: "webhook of a repository without namespace", ask: "POST " + extension + "/webhooks",
			body: `{"url":"https://example.com","repo":"base"}`, status: 400, want: fault(10100, noString, "/namespace")},
		{name: "no dead deliveries", ask: "GET " + extension + "/webhooks/{hook}/dead", status: 200,
			want: list("[]", page(1, 100, 0, 0, 0))},
		{name: "retry a missing delivery", ask: "POST " + extension + "/webhooks/{hook}/dead/7/retry", status: 404,
			want: fault(10200, "Delivery not found")},
		{name: "retry no number", ask: "POST " + extension + "/webhooks/{hook}/dead/x/retry", status: 400,
			want: fault(10100, "Invalid input: expected number, received NaN", "/seq")},
		{name: "delete webhook", token: "team", ask: "DELETE " + extension + "/namespaces/team/webhooks/{hook}", status: 200,
			want: ok(`{"id":"<id>"}`)},
		{name: "delete webhook again", ask: "DELETE " + extension + "/webhooks/{hook}", status: 404,
			want: fault(10200, "Webhook not found")},

		{name: "create owner", ask: "POST " + extension + "/tokens", body: `{"namespace":"team","label":"ci","ttl":3600}`,
			status: 201,
			want:   ok(`{"id":"<id>","plaintext":"<owner token>","scope":"write","expires_at":"<time>"}`),
			set:    "ci=result.plaintext"},
		{name: "the owner works", token: "ci", ask: "GET /namespaces/team/repos?search=none", status: 200,
			want: list("[]", page(1, 50, 0, 0, 0))},
		{name: "create admin", ask: "POST " + extension + "/tokens", body: `{"role":"admin","scope":"read"}`, status: 201,
			want: ok(`{"id":"<id>","plaintext":"<admin token>","scope":"read","expires_at":null}`), set: "id=result.id"},
		{name: "owner creates a token", token: "team", ask: "POST " + extension + "/tokens",
			body: `{"role":"admin"}`, status: 403,
			want: fault(10000, "Authentication error")},
		{name: "owner of nothing", ask: "POST " + extension + "/tokens", body: `{}`, status: 400,
			want: fault(10100, "Invalid namespace name", "/namespace")},
		{name: "admin of a namespace", ask: "POST " + extension + "/tokens", body: `{"role":"admin","namespace":"team"}`,
			status: 400,
			want:   fault(10100, "Only tokens with the role owner have a namespace", "/namespace")},
		{name: "list tokens", ask: "GET " + extension + "/tokens?per_page=2", status: 200,
			want: list("["+fmt.Sprintf(control, "read", "null", "", "admin", "")+","+
				fmt.Sprintf(control, "write", `"<time>"`, `,"label":"ci"`, "owner", `,"namespace":"team"`)+"]",
				page(1, 2, 2, 2, 4))},
		{name: "rotate", ask: "POST " + extension + "/tokens/{id}/rotate", status: 201,
			want: ok(`{"id":"<id>","plaintext":"<admin token>","scope":"read","expires_at":null}`)},
		{name: "revoke", ask: "DELETE " + extension + "/tokens/{id}", status: 200, want: ok(`{"id":"<id>"}`)},
		{name: "revoke an unknown one", ask: "DELETE " + extension + "/tokens/none", status: 404,
			want: fault(10200, "Token not found")},

		{name: "usage of a repository", ask: "GET " + extension + "/namespaces/team/repos/base/usage", status: 200,
			want: ok(`{"operations":[],"stored":{"own":0,"shared":0}}`)},
		{name: "usage of a namespace", ask: "GET " + extension + "/namespaces/team/usage?first=2026-01-01&last=2026-01-31",
			status: 200,
			want:   ok(`{"operations":[],"stored":{"own":0,"shared":0},"quota":{"used":{"bytes":0,"repositories":1,"refs":0}}}`)},
		{name: "usage of a bad day", ask: "GET " + extension + "/namespaces/team/usage?first=today", status: 400,
			want: fault(10100, "Invalid ISO date", "/first")},

		{name: "events", ask: "GET " + extension + "/events", status: 200, want: "data: {}\n\n"},
		{name: "events of another namespace", token: "team", ask: "GET " + extension + "/namespaces/teams/events",
			status: 403,
			want:   fault(10000, "Authentication error")},
		{name: "events of the owner's namespace", token: "team", ask: "GET " + extension + "/namespaces/team/events",
			status: 200,
			want:   "data: {}\n\n"},
		{name: "events of a repository", ask: "GET " + extension + "/namespaces/team/repos/BASE/events", status: 200,
			want: "data: {}\n\n"},
		{name: "events of a missing repository", ask: "GET " + extension + "/namespaces/team/repos/none/events", status: 404,
			want: fault(10200, "Repository not found")},
	})
	for _, want := range []string{" ", "team ", "team base"} {
		if got := <-streamed; got != want {
			t.Errorf("stream of %q, want %q", got, want)
		}
	}
}

// TestAudit checks that every request has one audit entry, and that a request that changes records writes the entry in
// the same transaction.
func TestAudit(t *testing.T) {
	w := newWorld(t, func(o *api.Options) { o.Importer = &fakeImporter{db: o.Records} })
	seed(t, w.vars)
	w.run(t, []exchange{
		createBase,
		{name: "create again", ask: "POST /namespaces/team/repos", body: `{"name":"base"}`, status: 409,
			want: fault(10201, "repo already exists: base")},
		{name: "read", ask: "GET /namespaces/team/repos/base/log?ref=secret", status: 200, want: ok("[]")},
		{name: "no token", token: "none", ask: "DELETE /namespaces/team/repos/base", status: 401,
			want: fault(10000, "Authentication error")},
		{name: "delete", ask: "DELETE /namespaces/team/repos/base", status: 202, want: ok(`{"id":"<id>"}`)},
		{name: "delete again", ask: "DELETE /namespaces/team/repos/base", status: 202, want: ok(`{"id":"<id>"}`)},
	})
	hooks, copied := extension[1:]+"/namespaces/team/webhooks", "/namespaces/team/repos/copy/import"
	hook := w.id(t, "POST", hooks, `{"url":"https://example.com/"}`)
	w.id(t, "DELETE", hooks+"/"+hook, "")
	w.id(t, "POST", "/v1/api"+copied, `{"url":"https://example.com/r"}`)
	w.id(t, "POST", extension[1:]+copied+"/refresh", "")
	stored, err := w.db.Audit.After(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range append(stored, w.meter.entries...) {
		_, target, _ := strings.Cut(e.Cause.Target, "/team")
		got = append(got, fmt.Sprintf("%s %s %d %s %s", e.Cause.Method, target, e.Result, e.Cause.Actor, e.Cause.Remote))
	}
	want := []string{"POST /repos 201 tests 127.0.0.1", "DELETE /repos/base 202 tests 127.0.0.1",
		"POST /webhooks 201 tests 127.0.0.1", "DELETE /webhooks/" + hook + " 200 tests 127.0.0.1",
		"POST /repos/copy/import 201 tests 127.0.0.1",
		"POST /repos/copy/import/refresh 202 tests 127.0.0.1", "POST /repos 409 tests 127.0.0.1",
		"GET /repos/base/log 200 tests 127.0.0.1", "DELETE /repos/base 401  127.0.0.1",
		"DELETE /repos/base 202 tests 127.0.0.1"}
	if !slices.Equal(got, want) {
		t.Errorf("entries:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	lines := strings.Split(strings.TrimSpace(w.do(t, w.admin, "GET", extension[1:]+"/audit", "").body), "\n")
	var first struct {
		Method string
		Result int
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || len(lines) != 6 || first.Method != "POST" ||
		first.Result != 201 {
		t.Errorf("exported: %q", lines)
	}
}

// away is an implementation of Replicas that returns an error, as if the object store did not answer.
type away struct{ err error }

func (a away) Acquire(context.Context, string) (*replica.Replica, error) { return nil, a.err }
func (away) Git() gitcmd.Confined                                        { return gitcmd.Confined{} }

func TestStorageIsAway(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		status int
		want   string
		header string
	}{
		"unavailable": {fmt.Errorf("get pack: %w", objects.ErrUnavailable), 503, fault(10401, "Storage is unavailable"),
			"Retry-After: 1"},
		"full":     {fmt.Errorf("get pack: %w", objects.ErrFull), 507, fault(10400, "The server has no space left"), ""},
		"database": {records.ErrUnavailable, 503, fault(10401, "Storage is unavailable"), "Retry-After: 1"},
		"broken":   {fmt.Errorf("open /srv/secret: broken"), 500, fault(10400, "Internal error"), ""},
		"deleted":  {records.ErrNotFound, 404, fault(10200, "Repository not found"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *api.Options) { o.Replicas = away{test.err} })
			w.run(t, []exchange{
				createBase,
				{name: "read", ask: "GET " + at + "/log", status: test.status, want: test.want, header: test.header},
				{name: "get", ask: "GET " + at, status: 200, want: ok(repo("base", ""))},
			})
		})
	}
}

// TestForkAtCheckpoint checks that a fork can start at a checkpoint of any session of its parent.
func TestForkAtCheckpoint(t *testing.T) {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	// The IDs are constants, because a new ID always sorts after the IDs that other tests have made.
	points := map[string]session.CheckpointID{"one": "01KJN8S000ABCDEFGHJKMNPQRS", "two": "01KJN8T000ABCDEFGHJKMNPQRS",
		"three": "01KJN8V000ABCDEFGHJKMNPQRS", "other": "01KJN8W000ABCDEFGHJKMNPQRS"}
	// addCheckpoint adds a checkpoint of the tree of main to a segment. parent is the newest checkpoint of the segment.
	addCheckpoint := func(name, ref, parent, message string) {
		id := points[name]
		w.vars[name+"ID"] = string(id)
		args := []string{"commit-tree", "-m", message, "-m", "Afs-Checkpoint: " + string(id) + "\nAfs-Session: s",
			w.vars["tree"]}
		if parent != "" {
			args = append(args, "-p", w.vars[parent])
		}
		w.vars[name] = gittest.Must(t, gitDir, append(args, "-p", w.vars["second"])...)
		gittest.Must(t, gitDir, "update-ref", ref, w.vars[name])
	}
	addCheckpoint("one", "refs/afs/j/fix/main/000001", "", "first")
	addCheckpoint("two", "refs/afs/j/fix/main/000001", "one", "second")
	// text that looks like a trailer
	addCheckpoint("three", "refs/afs/j/fix/main/000002", "", "Afs-Checkpoint: "+string(points["one"]))
	addCheckpoint("other", "refs/afs/j/other/main/000001", "", "of another session")
	gittest.Must(t, gitDir, "update-ref", "refs/afs/pin/fix/before", w.vars["one"])
	// The first ten digits are the time in milliseconds.
	w.vars["onePrefix"], w.vars["otherPrefix"] = string(points["one"][:10]), strings.ToLower(string(points["other"][:12]))
	w.vars["century"] = string(points["one"][:4])
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	for i, test := range []struct{ checkpoint, want string }{
		{"fix@{oneID}", "one"}, {"fix@{twoID}", "two"}, {"{oneID}", "one"}, {"{otherID}", "other"}, {"fix", "three"},
		{"fix@", "three"},
		{"other", "other"}, {"fix@before", "one"}, {"other@{oneID}", ""}, {"none", ""}, {"none@", ""}, {"fix@missing", ""},
		{"fix@{onePrefix}", "one"}, {"{otherPrefix}", "other"}, {"fix@{century}", "?"}, {"{century}", "?"},
		{"01HZZZZZZZZZZZZZZZZZZZZZZZ", ""},
	} {
		name := fmt.Sprintf("fork%d", i)
		body := w.expand(fmt.Sprintf(`{"name":"%s","checkpoint":"%s","refs":["refs/tags/*"]}`, name, test.checkpoint))
		got := w.do(t, w.admin, "POST", "/client/v4/accounts/"+account+"/artifacts/namespaces/team/repos/base/fork", body)
		if test.want == "?" {
			if got.status != 400 || !strings.Contains(got.body, "Several checkpoints") {
				t.Errorf("fork at %s: got %d %s, want 400", test.checkpoint, got.status, got.body)
			}
			continue
		}
		if test.want == "" {
			if got.status != 404 || !strings.Contains(got.body, "Checkpoint not found") {
				t.Errorf("fork at %s: got %d %s, want 404", test.checkpoint, got.status, got.body)
			}
			continue
		}
		refs := w.plain(w.do(t, w.admin, "GET", extension[1:]+"/namespaces/team/repos/"+name+"/refs", "").body)
		want := list(`[{"name":"refs/heads/main","hash":"{`+test.want+`}"},{"name":"refs/tags/v1","hash":"{tag}"}]`,
			page(1, 1000, 1, 2, 2))
		if got.status != 201 || refs != want {
			t.Errorf("fork at %s: got %d %s, want %s", test.checkpoint, got.status, refs, want)
		}
	}
}

// TestSHA256 checks that the contents of repositories with SHA-256 can be read.
func TestSHA256(t *testing.T) {
	w := newWorld(t, nil)
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "--bare", "--object-format=sha256", "--initial-branch=main", ".")
	tree := gittest.Must(t, dir, "mktree") // an empty tree
	w.vars["commit"] = gittest.Must(t, dir, "commit-tree", "-m", "empty", tree)
	gittest.Must(t, dir, "update-ref", "refs/heads/main", w.vars["commit"])
	w.run(t,
		[]exchange{{name: "create", ask: "POST /namespaces/team/repos", body: `{"name":"base","object_format":"sha256"}`,
			status: 201,
			want:   ok(created("base", "main", ""))}})
	w.fill(t, "team", "base", dir)
	short := "/commit/" + strings.Repeat("1", 40)
	for path, status := range map[string]int{"/commit/{commit}": 200, "/tree/" + tree: 200, short: 400,
		"/log?ref={commit}": 200} {
		if got := w.do(t, w.admin, "GET", "/v1/api"+at+w.expand(path), ""); got.status != status {
			t.Errorf("GET %s: got %d %s, want %d", path, got.status, got.body, status)
		}
	}
}
