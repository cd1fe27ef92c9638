package integration

import (
	"bytes"
	"context"
	"crypto/sha1"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
)

const gatePolicy = `{"version":1,
 "branches":[{"match":"main","quorum":1,"reviewers":["alice","bob"]},{"match":"release/*","quorum":2}],
 "sessions":[{"match":"work","quorum":1}]}`

// gated is a repository of a server whose main is protected, with a clone that makes commits, and the tokens of its
// users.
type gated struct {
	testing.TB
	c      *cluster
	api    *client.Client
	name   string // of the repository
	remote string
	dir    string // clone
	tokens map[string]string
	ids    map[string]string // ids of the tokens
	base   string            // commit of main
	next   string            // child of base, on the branch next of the clone
	log    approval.Log      // records of the session work, with its file
	file   []byte
}

// newGated creates a repository. The policy is pushed with the token of the server's administrator.
func newGated(t *testing.T, w *world, c *cluster, name string, format object.Format) *gated {
	t.Helper()
	g := &gated{TB: t, c: c, api: c.api(), name: name, dir: w.place("clone"), tokens: map[string]string{"admin": c.token},
		ids: map[string]string{}}
	made := must[client.Created](t)(g.api.CreateRepo(t.Context(), "team",
		client.CreateRepo{Name: name, ObjectFormat: format.String()}))
	g.remote = made.Remote
	for _, token := range []client.CreateToken{
		{Actor: "agent", Session: "work"}, {Actor: "writer"}, {Actor: "alice"}, {Actor: "bob"}, {Actor: "carol"},
	} {
		token.Repo, token.Scope = name, client.Write
		got := must[client.NewToken](t)(g.api.CreateToken(t.Context(), "team", token))
		g.tokens[token.Actor], g.ids[token.Actor] = got.Plaintext, got.ID
	}
	unnamed := must[client.NewToken](t)(g.api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: name, Scope: client.Write}))
	g.tokens["unnamed"], g.ids["unnamed"] = unnamed.Plaintext, unnamed.ID
	g.git("init", "--quiet", "-b", "main", "--object-format="+format.String(), g.dir)
	g.git("remote", "add", "origin", g.remote)
	g.base = g.commit("main", "file", "one\n")
	g.git("branch", "next")
	g.next = g.commit("next", "file", "two\n")
	g.accept("writer", "main")
	g.accept("admin", g.store("", approval.PolicyFile, []byte(gatePolicy))+":"+approval.PolicyRef)
	g.restart("work")
	return g
}

// git runs git in the clone.
func (g *gated) git(args ...string) string {
	g.Helper()
	dir := g.dir
	if args[0] == "init" {
		dir = filepath.Dir(dir)
	}
	return must[string](g)(gitAs(context.Background(), dir, "", args...))
}

// commit changes a file on a branch of the clone.
func (g *gated) commit(branch, name, text string) string {
	g.Helper()
	if branch != "main" || g.base != "" {
		g.git("checkout", "--quiet", branch)
	}
	check2(g, os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o644))
	g.git("add", "--all")
	g.git("commit", "--quiet", "-m", "change")
	return g.git("rev-parse", "HEAD")
}

// store returns a commit whose tree has one file.
func (g *gated) store(parent, name string, text []byte) string {
	g.Helper()
	blob := g.input(text, "hash-object", "-w", "--stdin")
	args := []string{"commit-tree", "-m", "records", g.input([]byte("100644 blob "+blob+"\t"+name+"\n"), "mktree")}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	return g.git(args...)
}

func (g *gated) input(text []byte, args ...string) string {
	g.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = g.dir, gittest.Env(), bytes.NewReader(text)
	out, err := cmd.Output()
	return strings.TrimSpace(string(must[[]byte](g)(out, err)))
}

// made returns a commit with the tree of next, by an author and a committer.
func (g *gated) made(author, committer string, parents ...string) string {
	g.Helper()
	args := []string{"commit-tree", "-m", "made", g.next + "^{tree}"}
	for _, p := range parents {
		args = append(args, "-p", p)
	}
	cmd := exec.Command("git", args...)
	cmd.Dir = g.dir
	cmd.Env = append(gittest.Env(), "GIT_AUTHOR_NAME="+author, "GIT_AUTHOR_EMAIL="+author+"@host",
		"GIT_COMMITTER_NAME="+committer, "GIT_COMMITTER_EMAIL="+committer+"@host")
	out, err := cmd.Output()
	return strings.TrimSpace(string(must[[]byte](g)(out, err)))
}

// push pushes with a token, and returns what git prints.
func (g *gated) push(user string, args ...string) (string, error) {
	args = append([]string{"push", "origin"}, args...)
	cmd := exec.Command("git", args...)
	cmd.Dir = g.dir
	cmd.Env = append(gittest.Env(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=http.extraHeader",
		"GIT_CONFIG_VALUE_1=Authorization: Bearer "+g.tokens[user])
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (g *gated) accept(user string, args ...string) {
	g.Helper()
	if out, err := g.push(user, args...); err != nil {
		g.Fatalf("push of %v by %s: %v\n%s", args, user, err, out)
	}
}

// restart begins an empty log of a session.
func (g *gated) restart(name string) { g.log, g.file = approval.Log{Session: name}, nil }

// record adds a record to the log, and returns the record and a commit with the log whose parent is the ref's present
// commit.
func (g *gated) record(r approval.Record) (approval.Record, string) {
	g.Helper()
	var err error
	if g.file, r, err = g.log.Append(g.file, r, time.Now()); err != nil {
		g.Fatal(err)
	}
	return r, g.store(g.tip(approval.Ref(g.log.Session)), approval.LogFile, g.file)
}

// tip returns the value of a ref of the server.
func (g *gated) tip(ref string) string {
	g.Helper()
	id, _, _ :=
		strings.Cut(must[string](g)(gitAs(context.Background(), g.dir, g.tokens["admin"], "ls-remote", "origin", ref)), "\t")
	return id
}

// by returns a record of a user with the user's token.
func (g *gated) by(user string, op approval.Op, request string) approval.Record {
	return approval.Record{Op: op, Actor: user, Token: g.ids[user], Request: request}
}

// request pushes a request for a change of a branch from the commit base to a commit, and returns its id.
func (g *gated) request(branch, base, commit string) string {
	g.Helper()
	r := g.by("agent", approval.Request, "")
	if g.log.Session != "work" {
		r = g.by("writer", approval.Request, "")
	}
	r.Expires = time.Now().Add(time.Hour)
	r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", commit+"^{tree}"),
		Target: "refs/heads/" + branch, Base: base,
		Commit: g.git("rev-parse", commit)}
	r, c := g.record(r)
	g.accept(r.Actor, c+":"+approval.Ref(g.log.Session))
	return r.ID
}

// grant pushes a grant.
func (g *gated) grant(user, request string) {
	g.Helper()
	_, c := g.record(g.by(user, approval.Grant, request))
	g.accept(user, c+":"+approval.Ref(g.log.Session))
}

// checkpoint pushes a newer checkpoint of the session work.
func (g *gated) checkpoint() {
	g.Helper()
	p := session.Checkpoint{ID: session.NewCheckpointIDAfter(time.Now(), ""), Session: "work", Lane: "main", Segment: 1,
		Reason: "manual", Time: time.Now(),
		Tree: object.MustID(g.git("rev-parse", g.next+"^{tree}")), State: object.MustID(g.next), Head: object.MustID(g.next)}
	id := g.input(p.Encode(object.ID{}), "hash-object", "-w", "-t", "commit", "--stdin")
	g.accept("agent", "+"+id+":"+session.SegmentRef("work", "main", 1))
}

// records returns a commit with another file of approvals.
func (g *gated) records(file []byte) string {
	return g.store(g.tip(approval.Ref("work")), approval.LogFile, file)
}

// unnamed returns a commit with an answer to a new request, by the token that names no user.
func (g *gated) unnamed(op approval.Op) string {
	g.Helper()
	r := g.by("unnamed", op, g.request("main", g.base, g.next))
	r.Actor = "token:" + g.ids["unnamed"]
	_, c := g.record(r)
	return c
}

var (
	reasonPattern = regexp.MustCompile(`(?m)^ ! \[(?:remote )?rejected\].*? -> \S+ \((.*)\)$|^ ! \[remote rejected\] \S+ \((.*)\)$`)
	idPattern     = regexp.MustCompile(`[0-9A-Z]{26}|[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-z]{26}|\b[0-9a-f]{12}\b|20\d\d-\d\d-\d\dT[0-9:]+Z`)
)

// refusal returns git's text of the first update that was refused for a reason of its own.
func refusal(out string) string {
	for _, m := range reasonPattern.FindAllStringSubmatch(out, -1) {
		if text := m[1] + m[2]; text != "atomic push failure" {
			return idPattern.ReplaceAllString(text, "...")
		}
	}
	return "no refusal: " + out
}

// Each attempt to get around the policy is refused, with a reason that the user of stock git reads. The documentation
// has the same table.
func TestAttemptsAgainstPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newLoneServer(w)
	table := string(must[[]byte](t)(os.ReadFile("../doc/security-server.md")))
	for i, a := range attempts {
		t.Run(strings.ReplaceAll(a.what, " ", "-"), func(t *testing.T) {
			shown := a.refused(newGated(t, w, c, fmt.Sprint("gate", i), object.SHA1))
			row := fmt.Sprintf("| %s | `git push origin %s` (%s) | %s |", a.what, strings.Join(shown, " "), a.user, a.want)
			if !strings.Contains(table, row) {
				t.Errorf("doc/security-server.md lacks this row:\n%s", row)
			}
		})
	}
	if rows := strings.Count(table, "| `git push origin "); rows != len(attempts) {
		t.Errorf("doc/security-server.md has %d attempts, want the %d of this test", rows, len(attempts))
	}
}

// The attempts are also refused in repositories with SHA-256.
func TestAttemptsAgainstPolicySHA256(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newLoneServer(w)
	for i, a := range attempts {
		if i%6 == 0 { // a sixth of them, because each needs a repository
			t.Run(strings.ReplaceAll(a.what, " ", "-"), func(t *testing.T) {
				a.refused(newGated(t, w, c, fmt.Sprint("gate", i), object.SHA256))
			})
		}
	}
}

// refused makes the attempt, which must be refused without a change of any branch or of the policy. It returns the
// arguments of git push with COMMIT instead of ids.
func (a attempt) refused(g *gated) (shown []string) {
	g.Helper()
	var values []any
	if a.before != nil {
		values = a.before(g)
	}
	args := []string{}
	for _, arg := range a.args {
		if strings.Contains(arg, "%s") {
			shown = append(shown, fmt.Sprintf(arg, "COMMIT"))
			arg = fmt.Sprintf(arg, values...)
		} else {
			shown = append(shown, arg)
		}
		args = append(args, arg)
	}
	refs := func() string {
		names := []string{"refs/heads/*", approval.PolicyRef}
		if a.others {
			names = []string{"refs/heads/main"}
		}
		return must[string](g)(gitAs(context.Background(), g.dir, g.tokens["admin"],
			append([]string{"ls-remote", "origin"}, names...)...))
	}
	before := refs()
	out, err := g.push(a.user, args...)
	if got := refusal(out); err == nil || got != a.want {
		g.Errorf("got %v and %q, want %q", err, got, a.want)
	}
	if after := refs(); after != before {
		g.Errorf("branches and policy have changed from\n%s\nto\n%s", before, after)
	}
	return shown
}

// Pushes that stock git does not make change no ref: several commands for one branch, wrong old values, and other
// spellings of its name.
func TestRawPushesAgainstPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGated(t, w, newLoneServer(w), "raw", object.SHA1)
	g.accept("writer", "next:copy") // the server has all objects
	zeros := strings.Repeat("0", 40)
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	header := "PACK\x00\x00\x00\x02\x00\x00\x00\x00" // of a pack without objects
	sum := sha1.Sum([]byte(header))
	empty := header + string(sum[:])
	main, remove := "refs/heads/main", g.base+" "+zeros+" refs/heads/main"
	all := [][]string{
		{remove, zeros + " " + g.next + " " + main},
		{zeros + " " + g.next + " " + main, remove},
		{zeros + " " + g.next + " " + main},
		{g.next + " " + g.next + " " + main},
		{g.base + " " + g.base + " " + main, g.base + " " + g.next + " " + main},
		{remove, remove},
		{zeros + " " + zeros + " " + main},
	}
	for _, name := range []string{"refs/heads//main", "refs/heads/./main", "refs/heads/../heads/main", "refs/heads/main/",
		"refs/heads/main.lock",
		"refs/heads/main^{}", "refs/heads/main~0", "refs/heads/@{u}", "refs/heads/main ", "refs/heads/ma\\in", "HEAD", "main",
		"heads/main", "refs/main",
		"refs/worktree/../heads/main", "/refs/heads/main"} {
		all = append(all, []string{zeros + " " + g.next + " " + name}, []string{g.base + " " + g.next + " " + name})
	}
	refs := func() string {
		return must[string](t)(gitAs(context.Background(), g.dir, g.tokens["admin"], "ls-remote", "--symref", "origin"))
	}
	before := refs()
	for _, commands := range all {
		for _, capabilities := range []string{"report-status", "report-status atomic"} {
			var body strings.Builder
			for i, c := range commands {
				if i == 0 {
					c += "\x00" + capabilities
				}
				body.WriteString(line(c))
			}
			body.WriteString("0000" + empty)
			request := must[*http.Request](t)(http.NewRequest(http.MethodPost, g.remote+"/git-receive-pack",
				strings.NewReader(body.String())))
			request.Header.Set("Authorization", "Bearer "+g.tokens["writer"])
			request.Header.Set("Content-Type", "application/x-git-receive-pack-request")
			answer := must[*http.Response](t)(http.DefaultClient.Do(request))
			text := string(must[[]byte](t)(io.ReadAll(answer.Body)))
			answer.Body.Close()
			if strings.Contains(text, "ok refs/") && !strings.Contains(text, "ng refs/") {
				t.Errorf("push of %q: got %s and %q, want a refusal", commands, answer.Status, text)
			}
			if after := refs(); after != before {
				t.Fatalf("push of %q with %s has changed the refs from\n%s\nto\n%s", commands, capabilities, before, after)
			}
		}
	}
}

// Symbolic refs of a clone arrive as branches of their own, so that no push through them moves main.
func TestSymbolicRefsDoNotReachMain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGated(t, w, newLoneServer(w), "symbolic", object.SHA1)
	g.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
	g.accept("writer", "alias")
	g.git("symbolic-ref", "refs/heads/alias", "refs/heads/next")
	g.accept("writer", "--all")
	want := fmt.Sprintf("ref: refs/heads/main\tHEAD\n%[1]s\tHEAD\n%[2]s\trefs/heads/alias\n%[1]s\trefs/heads/main",
		g.base, g.next)
	if got := must[string](t)(gitAs(context.Background(), g.dir, g.tokens["admin"], "ls-remote", "--symref", "origin",
		"HEAD", "main", "alias")); got != want {
		t.Errorf("refs of the server: got\n%s\nwant\n%s", got, want)
	}
}

// Two nodes decide about pushes of one repository at the same time: of two approved commits only one becomes main, and
// none after the approval was taken back.
func TestPolicyOnTwoNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newCluster(w, 2)
	g := newGated(t, w, c, "two", object.SHA1)
	at := func(i int) string { return strings.Replace(g.remote, c.proxy.url(), "http://"+c.nodes[i].addr, 1) }
	for round := range 4 {
		g.git("checkout", "--quiet", "--detach", g.base)
		var commits []string
		for i := range 2 {
			g.git("checkout", "--quiet", "-B", fmt.Sprint("try", i), g.base)
			commits = append(commits, g.commit(fmt.Sprint("try", i), "file", fmt.Sprintf("%d %d\n", round, i)))
		}
		g.grant("alice", g.request("main", g.base, commits[0]))
		second := g.request("main", g.base, commits[1])
		_, grant := g.record(g.by("bob", approval.Grant, second))
		g.accept("bob", grant+":"+approval.Ref("work"))
		denied, denial := g.record(g.by("bob", approval.Deny, second))
		results := make([]error, 3)
		var pushes sync.WaitGroup
		for i, p := range []struct {
			user, to, what string
		}{{"writer", at(0), commits[0] + ":main"}, {"writer", at(1), commits[1] + ":main"},
			{"bob", at(0), denial + ":" + approval.Ref("work")}} {
			pushes.Go(func() {
				_, results[i] = gitAs(context.Background(), g.dir, g.tokens[p.user], "push", "--quiet", p.to, p.what)
			})
		}
		pushes.Wait()
		main := g.tip("refs/heads/main")
		switch {
		case results[2] != nil:
			t.Fatalf("round %d: denial: %v", round, results[2])
		case results[0] == nil && results[1] == nil:
			t.Fatalf("round %d: both commits were pushed", round)
		case results[0] == nil && main != commits[0], results[1] == nil && main != commits[1],
			results[0] != nil && results[1] != nil && main != g.base:
			t.Fatalf("round %d: main is %s after results %v", round, main, results)
		}
		if results[1] == nil { // then the transaction of the denial was later
			order := c.rows(t, "SELECT detail FROM audit WHERE detail LIKE '%"+commits[1][:12]+"%' OR detail LIKE '%"+
				denial[:12]+"%' ORDER BY seq")
			if len(order) < 2 || !strings.Contains(order[0], commits[1][:12]) ||
				!strings.Contains(order[len(order)-1], denial[:12]) {
				t.Errorf("round %d: push and denial %s of its request: got the order %q", round, denied.ID, order)
			}
		}
		g.base = main
	}
}

// The default branch, to which HEAD points, cannot be changed after another branch was pushed in place of main.
func TestDefaultBranchStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGated(t, w, newLoneServer(w), "r", object.SHA1)
	g.accept("writer", "next:copy")
	g.accept("writer", "next:HEAD") // git creates refs/heads/HEAD
	request := must[*http.Request](t)(http.NewRequest(http.MethodPatch, g.c.proxy.url()+"/v1/api/namespaces/team/repos/r",
		strings.NewReader(`{"default_branch":"copy"}`)))
	request.Header.Set("Authorization", "Bearer "+g.c.token)
	request.Header.Set("Content-Type", "application/json")
	answer := must[*http.Response](t)(http.DefaultClient.Do(request))
	answer.Body.Close()
	if answer.StatusCode < 400 {
		t.Errorf("change of the default branch: got %s, want a refusal", answer.Status)
	}
	if got := must[string](t)(gitAs(context.Background(), g.dir, g.tokens["writer"], "ls-remote", "--symref", "origin",
		"HEAD")); !strings.HasPrefix(got, "ref: refs/heads/main\t") {
		t.Errorf("HEAD: got %q, want refs/heads/main", got)
	}
}
