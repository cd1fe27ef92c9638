package api_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
)

// addSession adds a session to a git repository that seed has created. The session has one checkpoint with the commit
// {work}, which changes README.md of main. If held is set, a machine holds the session.
func addSession(t testing.TB, gitDir, name string, held bool, vars map[string]string) {
	t.Helper()
	input := func(stdin string, args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env, cmd.Stdin = gitDir, gittest.Env(), strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %s: %v", args[0], err)
		}
		return strings.TrimSpace(string(out))
	}
	file := func(name, text string) string {
		return fmt.Sprintf("100644 blob %s\t%s\n", input(text, "hash-object", "-w", "--stdin"), name)
	}
	commit := func(tree string, parents ...string) string {
		args := []string{"commit-tree", "-m", "work", tree}
		for _, p := range parents {
			args = append(args, "-p", p)
		}
		return input("", args...)
	}
	var rest []string
	for line := range strings.Lines(input("", "ls-tree", "main") + "\n") {
		if !strings.HasSuffix(line, "\tREADME.md\n") {
			rest = append(rest, line)
		}
	}
	head := commit(input(strings.Join(rest, "")+file("README.md", "# probe\nmore\n"), "mktree"), vars["second"])
	left := `,"left":"2026-11-20T09:00:00Z"`
	if held {
		left = ""
	}
	meta :=
		fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,"format":"sha1",
		"began":"2026-11-20T08:00:00Z","state":"paused","title":"Work","lanes":[{"name":"main","writer":{"host":"desk"},
		"since":"2026-11-20T08:00:00Z","segment":1%s}]}`, name, vars["second"], left)
	input("", "update-ref", session.MetaRef(name), commit(input(file("session.json", meta)+file("transitions.jsonl",
		`{"state":"open","time":"2026-11-20T08:00:00Z","actor":"ann@desk","reason":"begun"}`+"\n"), "mktree")))
	id := func(text string) object.ID {
		parsed, err := object.ParseID(text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	p := session.Checkpoint{ID: session.NewCheckpointID(time.Now()), Session: name, Lane: "main", Segment: 1,
		Time: time.Now(), Reason: session.Idle,
		Tree: id(input("", "rev-parse", head+"^{tree}")), State: id(head), Head: id(head), Branch: "refs/heads/main"}
	point := input(string(p.Encode(object.ID{})), "hash-object", "-w", "-t", "commit", "--stdin")
	input("", "update-ref", session.SegmentRef(name, "main", 1), point)
	vars["point"], vars["work"], vars["workTree"], vars["workReadme"] = point, head, p.Tree.String(),
		input("", "rev-parse", head+":README.md")
}

const (
	inBase   = extension + "/namespaces/team/repos/base"
	session1 = inBase + "/sessions/work"
	shown    = `{"name":"%s","state":"%s","title":"Work","task":"","owner":"","tags":[],"expires_at":null,"remote":"https://example.org/app","branch":"main","base":"{second}",` +
		`"began_at":"<time>","forked_from":null,"checkpoint":"<ulid>","thin":false,"writers":[%s],"damage":null}`
	place    = `{"checkpoint":%s,"commit":null,"path":%s,"blob":%s,"line":%d,"end":%d,"quote":"%s"}`
	comment  = `{"id":"<ulid>","at":"<time>","actor":"%s","op":"%s","text":"%s"}`
	request1 = `{"id":"<ulid>","session":"work","action":"merge","status":"%s","missing":"%s","checkpoint":"<ulid>","branch":"main",` +
		`"base":"{second}","tree":"{workTree}","moved":false,"actor":"ann","text":"","reviewers":[],"requested_at":"<time>","expires_at":"<time>",` +
		`"grants":[%s],"denials":[],"counted":%t}`
	entry = `{"key":"%s","size":%d,"sha256":"%s","stored_at":"<time>","expires_at":null,"actor":"ann","session":null}`
	one   = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed" // SHA-256 of "one"
	two   = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3" // SHA-256 of "two"
)

// conflicting returns the JSON answer with an error and a description of the conflict.
func conflicting(code int, message, conflict string) string {
	return strings.Replace(fault(code, message),
		fmt.Sprintf(`,"documentation_url":"https://developers.cloudflare.com/artifacts/api/errors#%d"`, code),
		`,"conflict":`+conflict, 1)
}

// refusal returns the JSON answer with an error that only artifactfs serve returns.
func refusal(code int, message string) string {
	plain := strings.Replace(conflicting(code, message, "{}"), `,"conflict":{}`, "", 1)
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(plain)
}

// newReviewed starts a server whose repository base has the sessions work and used. A machine holds the session used.
// {ann}, {bob}, {reader} and {bound} are tokens of the repository, and {other} is a token of another repository.
func newReviewed(t *testing.T) *world {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	addSession(t, gitDir, "used", true, w.vars)
	addSession(t, gitDir, "work", false, w.vars)
	w.run(t,
		[]exchange{createBase, {name: "create another", ask: "POST /namespaces/team/repos",
			body: `{"name":"other"}`, status: 201,
			want: ok(created("other", "main", ""))}})
	w.fill(t, "team", "base", gitDir)
	rules, err := access.SessionRules("work")
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]records.Token{"ann": {Actor: "ann"}, "bob": {Actor: "bob"},
		"reader": {Scope: records.ReadScope},
		"bound":  {Session: "work", Rules: rules, Actor: "agent"}, "other": {}} {
		repo := "base"
		if name == "other" {
			repo = "other"
		}
		r, err := w.db.Repos.Get(t.Context(), "team", repo)
		if err != nil {
			t.Fatal(err)
		}
		token.Role, token.Namespace, token.RepoID, token.Expires = records.RepoToken, "team", r.ID, time.Now().Add(time.Hour)
		w.vars[name] = w.token(t, token)
	}
	w.vars["team"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team", Actor: "boss"})
	return w
}

func TestSessions(t *testing.T) {
	w := newReviewed(t)
	work := fmt.Sprintf(shown, "work", "paused", "")
	const authentication = "Authentication error"
	w.run(t, []exchange{
		{name: "list", ask: "GET " + inBase + "/sessions", status: 200, want: list("["+fmt.Sprintf(shown, "used", "paused",
			`{"host":"desk","since":"<time>"}`)+","+work+"]", last(50, 2))},
		{name: "first page", token: "reader", ask: "GET " + inBase + "/sessions?limit=1", status: 200,
			set:  "next=result_info.cursor",
			want: list("["+fmt.Sprintf(shown, "used", "paused", `{"host":"desk","since":"<time>"}`)+"]", more(1, 1))},
		{name: "second page", token: "ann", ask: "GET " + inBase + "/sessions?limit=1&cursor={next}", status: 200,
			want: list("["+work+"]", last(1, 1))},
		{name: "invalid cursor", ask: "GET " + inBase + "/sessions?cursor=!", status: 400,
			want: fault(10100, "Invalid cursor", "/cursor")},
		{name: "get", token: "bound", ask: "GET " + session1, status: 200, want: ok(work)},
		{name: "token of another repository", token: "other", ask: "GET " + session1, status: 401,
			want: fault(10000, authentication)},
		{name: "without a token", token: "none", ask: "GET " + session1, status: 401, want: fault(10000, authentication)},
		{name: "missing repository", ask: "GET " + extension + "/namespaces/team/repos/none/sessions", status: 404,
			want: fault(10200, "Repository not found")},
		{name: "missing repository, token of a repository", token: "ann",
			ask: "GET " + extension + "/namespaces/team/repos/none/sessions", status: 401,
			want: fault(10000, authentication)},
		{name: "missing session", ask: "GET " + inBase + "/sessions/none", status: 404,
			want: fault(10200, `the repository has no session "none"`)},
		{name: "checkpoints", ask: "GET " + session1 + "/checkpoints", status: 200,
			want: list(`[{"id":"<ulid>","commit":"{point}","tree":"{workTree}",`+
				`"head":"{work}","branch":"main","made_at":"<time>","reason":"idle","message":"","changed":0,"bytes":0,"pins":[]}]`,
				last(100, 1))},
		{name: "pin", token: "ann", ask: "PUT " + session1 + "/pins/good", status: 200,
			want: ok(`{"name":"good","checkpoint":"<ulid>"}`)},
		{name: "pin with an invalid name", token: "ann", ask: "PUT " + session1 + "/pins/10m", status: 400,
			want: fault(10100, `invalid pin name "10m": name stands for a time, HEAD or a turn`)},
		{name: "pin by a reader", token: "reader", ask: "PUT " + session1 + "/pins/good", status: 403,
			want: fault(10000, authentication)},
		{name: "unpin", token: "ann", ask: "DELETE " + session1 + "/pins/good", status: 204},
		{name: "unpin again", token: "ann", ask: "DELETE " + session1 + "/pins/good", status: 404,
			want: fault(10200, `session work has no pin "good"`)},
		{name: "close", token: "ann", ask: "PATCH " + session1, body: `{"state":"closed","reason":"done","tags":["x"]}`,
			status: 200,
			want:   ok(fmt.Sprintf(shown, "work", "closed", ""))},
		{name: "pause", token: "ann", ask: "PATCH " + session1, body: `{"state":"paused"}`, status: 409,
			want: refusal(10901, "session work is closed and cannot become paused")},
		{name: "reopen and hold", token: "ann", ask: "PATCH " + session1, body: `{"state":"open","hold":"audit","ttl":0}`,
			status: 200,
			want: ok(strings.Replace(fmt.Sprintf(shown, "work", "open", ""), `"remote"`,
				`"hold":{"reason":"audit","actor":"ann","since":"<time>"},"remote"`, 1))},
		{name: "delete on hold", token: "ann", ask: "DELETE " + session1, status: 409,
			want: refusal(10901, "session work is on hold since "+time.Now().UTC().Format(time.DateOnly)+" by ann: audit")},
		{name: "release", token: "ann", ask: "PATCH " + session1, body: `{"hold":""}`, status: 422,
			want: refusal(10902, "session work is on hold since "+
				time.Now().UTC().Format(time.DateOnly)+" by ann: audit; only an owner or admin token can release the hold")},
		{name: "release by the owner", token: "team", ask: "PATCH " + session1, body: `{"hold":""}`, status: 200,
			want: ok(fmt.Sprintf(shown, "work", "open", ""))},
		{name: "change of the owner by a session", token: "bound", ask: "PATCH " + session1,
			body: `{"owner":"me"}`, status: 403,
			want: refusal(10900, "a token of a session cannot change owner, lifetime and hold of the session")},
		{name: "nothing to change", token: "ann", ask: "PATCH " + session1, body: `{}`, status: 400,
			want: fault(10100, "Nothing to change")},
		{name: "unknown state", token: "ann", ask: "PATCH " + session1, body: `{"state":"gone"}`, status: 400,
			want: fault(10100, `Invalid option: expected one of "open"|"paused"|"closed"|"archived"`, "/state")},
		{name: "close of another session", token: "bound", ask: "PATCH " + inBase + "/sessions/used",
			body: `{"title":"x"}`, status: 403,
			want: refusal(10900, "refs/afs/meta/used: token does not allow pushes to this ref")},
		{name: "close while a machine uses it", token: "ann", ask: "PATCH " + inBase + "/sessions/used",
			body: `{"state":"closed"}`, status: 409,
			want: refusal(10901, "host desk holds session used since 2026-11-20 08:00:00 UTC and may still use it")},
		{name: "delete", token: "ann", ask: "DELETE " + session1, status: 200,
			want: ok(`{"session":"work","refs":2,"kept_refs":[]}`)},
		{name: "delete again", token: "ann", ask: "DELETE " + session1, status: 404,
			want: fault(10200, `the repository has no session "work"`)},
	})
}

func TestAnnotationsAndApprovals(t *testing.T) {
	w := newReviewed(t)
	thread := func(state, on, now string, comments ...string) string {
		return fmt.Sprintf(`{"id":"<ulid>","state":"%s","on":%s%s,"annotations":[%s]}`, state, on, now,
			strings.Join(comments, ","))
	}
	made := func(thread string) string { return ok(`{"id":"<ulid>","redacted":0,"thread":` + thread + `}`) }
	on := fmt.Sprintf(place, `"<ulid>"`, `"README.md"`, `"{workReadme}"`, 2, 2, "more")
	first, second := fmt.Sprintf(comment, "ann", "open", "why?"), fmt.Sprintf(comment, "bob", "resolve", "")
	const now = `,"now":{"state":"same","path":"README.md","blob":"{workReadme}","line":2,"end":2}`
	vote := `{"id":"<ulid>","actor":"bob","token_id":"<id>","at":"<time>","text":"good"}`
	const merged = `{"session":"work","checkpoint":"<ulid>","method":"ff","branch":"%s","before":%s,"after":"{work}","commits":%d}`
	w.run(t, []exchange{
		{name: "no annotations", ask: "GET " + session1 + "/annotations", status: 200, want: list("[]", page(1, 1, 0, 0, 0))},
		{name: "annotate", token: "ann", ask: "POST " + session1 + "/annotations",
			body: `{"path":"README.md","line":2,"text":"why?"}`, status: 201,
			want: made(thread("open", on, "", first)), set: "thread=result.id"},
		{name: "resolve", token: "bob", ask: "POST " + session1 + "/annotations",
			body: `{"op":"resolve","thread":"{thread}"}`, status: 201,
			want: made(thread("resolved", on, "", first, second))},
		{name: "annotations", token: "reader", ask: "GET " + session1 + "/annotations", status: 200,
			want: list("["+thread("resolved", on, now, first, second)+"]", page(1, 1, 1, 1, 1))},
		{name: "open annotations", ask: "GET " + session1 + "/annotations?state=open", status: 200,
			want: list("[]", page(1, 1, 0, 0, 0))},
		{name: "annotations of a missing checkpoint", ask: "GET " + session1 + "/annotations?checkpoint=01M0", status: 404,
			want: fault(10200, `session work has no checkpoint "01M0"`)},
		{name: "annotate by a reader", token: "reader", ask: "POST " + session1 + "/annotations",
			body: `{"text":"x"}`, status: 403,
			want: fault(10000, "Authentication error")},
		{name: "annotate without a text", ask: "POST " + session1 + "/annotations", body: `{}`, status: 400,
			want: fault(10100, noString, "/text")},
		{name: "annotate a missing line", ask: "POST " + session1 + "/annotations",
			body: `{"path":"README.md","line":9,"text":"x"}`, status: 400,
			want: fault(10100, "invalid annotation: line 9 of a file of 2 lines")},
		{name: "reply to a missing thread", ask: "POST " + session1 + "/annotations",
			body: `{"op":"reply","thread":"9","text":"x"}`, status: 404,
			want: fault(10200, "the session has no such thread")},
		{name: "annotate another session", token: "bound", ask: "POST " + inBase + "/sessions/used/annotations",
			body: `{"text":"x"}`, status: 403,
			want: refusal(10900, "refs/afs/ann/used: token does not allow pushes to this ref")},

		{name: "no policy", ask: "GET " + inBase + "/policy", status: 200,
			want: ok(`{"policy":null,"commit":null,"problem":null}`)},
		{name: "policy by a token of the repository", token: "ann", ask: "PUT " + inBase + "/policy",
			body: `{"policy":{"version":1}}`, status: 403,
			want: refusal(10900, "only an owner or admin token can change the policy")},
		{name: "invalid policy", token: "team", ask: "PUT " + inBase + "/policy",
			body: `{"policy":{"version":2}}`, status: 400,
			want: fault(10100, "invalid policy: version 2 is not known")},
		{name: "no object", token: "team", ask: "PUT " + inBase + "/policy", body: `{"policy":1}`, status: 400,
			want: fault(10100, "Invalid input: expected object, received number", "/policy")},
	})
	const policy = `{"version":1,"branches":[{"match":"main","quorum":1}]}`
	got := w.do(t, w.vars["team"], http.MethodPut, w.expand(inBase + "/policy")[1:], `{"policy":`+policy+`,"expect":""}`)
	if got.status != http.StatusOK {
		t.Fatalf("set policy: got %d %s", got.status, got.body)
	}
	w.vars["policy"] = valueOf(t, got.body, "result.commit")
	w.run(t, []exchange{
		{name: "policy", token: "reader", ask: "GET " + inBase + "/policy", status: 200,
			want: ok(`{"policy":` + policy + `,"commit":"{policy}","problem":null}`)},
		{name: "set policy that was changed", token: "team", ask: "PUT " + inBase + "/policy",
			body: `{"policy":{"version":1},"expect":""}`, status: 409,
			want: conflicting(10901, "the policy was changed by others", `{"now":"{policy}"}`)},

		{name: "merge without approval", token: "ann", ask: "POST " + session1 + "/merge", status: 422,
			want: refusal(10902, "main is protected and needs an approval of this tree and base by 1 user")},
		{name: "request", token: "ann", ask: "POST " + session1 + "/approvals", body: `{"action":"merge"}`, status: 201,
			want: ok(fmt.Sprintf(request1, "open", "1 more approval", "", false)), set: "request=result.id"},
		{name: "request by a reader", token: "reader", ask: "POST " + session1 + "/approvals", body: `{}`, status: 403,
			want: fault(10000, "Authentication error")},
		{name: "request for a missing checkpoint", token: "ann", ask: "POST " + session1 + "/approvals",
			body: `{"checkpoint":"01M0"}`, status: 404,
			want: fault(10200, `session work has no checkpoint "01M0"`)},
		{name: "grant by the session", token: "bound", ask: "POST " + session1 + "/approvals/{request}/grant", status: 403,
			want: refusal(10900, "grant <ulid> is refused: a token of a session can request and withdraw, but not grant")},
		{name: "grant of a missing request", token: "bob", ask: "POST " + session1 + "/approvals/9/grant", status: 404,
			want: fault(10200, `no request of session work has an id that begins with "9", or several have`)},
		{name: "grant", token: "bob", ask: "POST " + session1 + "/approvals/{request}/grant",
			body: `{"text":"good"}`, status: 200,
			want: ok(fmt.Sprintf(request1, "granted", "", vote, true))},
		{name: "approvals", token: "reader", ask: "GET " + session1 + "/approvals", status: 200,
			want: list("["+fmt.Sprintf(request1, "granted", "", vote, false)+"]", page(1, 1, 1, 1, 1))},
		{name: "merge of a branch that was at another commit", token: "ann", ask: "POST " + session1 + "/merge",
			body: `{"expect":"{first}"}`, status: 409,
			want: conflicting(10901, fmt.Sprintf("branch main is at %.12s, not at %.12s as expected", w.vars["second"],
				w.vars["first"]), `{"now":"{second}"}`)},
		{name: "merge", token: "ann", ask: "POST " + session1 + "/merge", body: `{"expect":"{second}"}`, status: 200,
			want: ok(fmt.Sprintf(merged, "main", `"{second}"`, 1))},
		{name: "merge into another branch", token: "ann", ask: "POST " + session1 + "/merge",
			body: `{"branch":"new"}`, status: 200,
			want: ok(fmt.Sprintf(merged, "new", "null", 3))},
		{name: "merge again", token: "ann", ask: "POST " + session1 + "/merge", status: 409,
			want: refusal(10901,
				"branch main already has all commits of session work; commit changes first, or name another branch")},
		{name: "merge by an unknown method", token: "ann", ask: "POST " + session1 + "/merge",
			body: `{"method":"rebase"}`, status: 400,
			want: fault(10100, `Invalid option: expected one of "ff"|"squash"|"merge"`, "/method")},
		{name: "grant of a request for a branch that has moved", token: "bob",
			ask: "POST " + session1 + "/approvals/{request}/grant", status: 409,
			want: refusal(10901,
				fmt.Sprintf("request <ulid> cannot be granted: branch main has moved from %.10s to %.10s since the request; "+
					"the session's user can request the approval again", w.vars["second"], w.vars["work"]))},
		{name: "withdraw", token: "ann", ask: "POST " + session1 + "/approvals/{request}/withdraw", status: 200,
			want: ok(strings.Replace(fmt.Sprintf(request1, "withdrawn", "", vote, false), `"moved":false`, `"moved":true`, 1))},
	})
}

func TestCacheEntries(t *testing.T) {
	w := newReviewed(t)
	const cache = inBase + "/cache"
	w.run(t, []exchange{
		{name: "put", token: "ann", ask: "PUT " + cache + "/value?key=test/1&expect=none", body: "one", status: 200,
			want: ok(fmt.Sprintf(entry, "test/1", 3, one))},
		{name: "put if missing", token: "ann", ask: "PUT " + cache + "/value?key=test/1&expect=none",
			body: "two", status: 409,
			want: conflicting(10901, "entry does not have the expected hash: it has the hash "+one, `{"now":"`+one+`"}`)},
		{name: "compare and swap", token: "ann", ask: "PUT " + cache + "/value?key=test/1&expect=" + one,
			body: "two", status: 200,
			want: ok(fmt.Sprintf(entry, "test/1", 3, two))},
		{name: "get", token: "reader", ask: "GET " + cache + "/entry?key=test/1", status: 200,
			want: ok(fmt.Sprintf(entry, "test/1", 3, two))},
		{name: "value", token: "reader", ask: "GET " + cache + "/value?key=test/1", status: 200, want: "two", header: octets},
		{name: "empty value", token: "ann", ask: "PUT " + cache + "/value?key=empty", status: 200,
			want: ok(fmt.Sprintf(entry, "empty", 0,
				"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"))},
		{name: "list", token: "reader", ask: "GET " + cache + "?limit=1", status: 200, set: "next=result_info.cursor",
			want: list("["+fmt.Sprintf(entry, "empty", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")+
				"]", more(1, 1))},
		{name: "second page", token: "reader", ask: "GET " + cache + "?limit=1&cursor={next}", status: 200,
			want: list("["+fmt.Sprintf(entry, "test/1", 3, two)+"]", last(1, 1))},
		{name: "list with a prefix", ask: "GET " + cache + "?prefix=x", status: 200, want: list("[]", last(1000, 0))},
		{name: "put by a reader", token: "reader", ask: "PUT " + cache + "/value?key=x", body: "x", status: 403,
			want: fault(10000, "Authentication error")},
		{name: "put without a key", token: "ann", ask: "PUT " + cache + "/value", body: "x", status: 400,
			want: fault(10100, noString, "/key")},
		{name: "put with an invalid key", token: "ann", ask: "PUT " + cache + "/value?key=%0a", body: "x", status: 400,
			want: fault(10100, "invalid key: want text in UTF-8 without control characters", "/key")},
		{name: "put with an invalid hash", token: "ann", ask: "PUT " + cache + "/value?key=x&expect=y",
			body: "x", status: 400,
			want: fault(10100, "invalid expected hash: want 64 hexadecimal digits or none", "/expect")},
		{name: "delete of another value", token: "ann", ask: "DELETE " + cache + "/entry?key=test/1&expect=" + one,
			status: 409,
			want:   conflicting(10901, "entry does not have the expected hash: it has the hash "+two, `{"now":"`+two+`"}`)},
		{name: "delete", token: "ann", ask: "DELETE " + cache + "/entry?key=test/1&expect=" + two, status: 204},
		{name: "delete again", token: "ann", ask: "DELETE " + cache + "/entry?key=test/1", status: 404,
			want: fault(10200, "Entry not found")},
		{name: "missing value", ask: "GET " + cache + "/value?key=test/1", status: 404,
			want: fault(10200, "Entry not found")},
	})
	// A value that is too large is refused, and nothing of it is stored.
	got := w.do(t, w.vars["ann"], http.MethodPut, w.expand(cache + "/value?key=large")[1:], strings.Repeat("x", 64<<20+1))
	if got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("value of more than 64 MiB: got %d %s", got.status, got.body)
	}
}
