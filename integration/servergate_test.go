package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/client"
	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
)

const gatePolicy = `{"version":1,
 "branches":[{"match":"main","quorum":1,"reviewers":["alice","bob"]},{"match":"release/*","quorum":2}],
 "sessions":[{"match":"work","quorum":1}]}`

// gated is a repository of a server whose main is protected, with a clone that makes commits, and the tokens of its users.
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
func newGated(t *testing.T, w *world, c *cluster, name string) *gated {
	t.Helper()
	g := &gated{TB: t, c: c, api: c.api(), name: name, dir: w.place("clone"), tokens: map[string]string{"admin": c.token}, ids: map[string]string{}}
	made := must[client.Created](t)(g.api.CreateRepo(t.Context(), "team", client.CreateRepo{Name: name}))
	g.remote = made.Remote
	for _, token := range []client.CreateToken{
		{Actor: "agent", Session: "work"}, {Actor: "writer"}, {Actor: "alice"}, {Actor: "bob"}, {Actor: "carol"},
	} {
		token.Repo, token.Scope = name, client.Write
		got := must[client.NewToken](t)(g.api.CreateToken(t.Context(), "team", token))
		g.tokens[token.Actor], g.ids[token.Actor] = got.Plaintext, got.ID
	}
	unnamed := must[client.NewToken](t)(g.api.CreateToken(t.Context(), "team", client.CreateToken{Repo: name, Scope: client.Write}))
	g.tokens["unnamed"], g.ids["unnamed"] = unnamed.Plaintext, unnamed.ID
	g.git("init", "--quiet", "-b", "main", g.dir)
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

// push pushes with a token, and returns what git prints.
func (g *gated) push(user string, args ...string) (string, error) {
	args = append([]string{"push", "origin"}, args...)
	cmd := exec.Command("git", args...)
	cmd.Dir = g.dir
	cmd.Env = append(gittest.Env(), "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_1=http.extraHeader", "GIT_CONFIG_VALUE_1=Authorization: Bearer "+g.tokens[user])
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

// record adds a record to the log, and returns the record and a commit with the log whose parent is the ref's present commit.
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
	id, _, _ := strings.Cut(must[string](g)(gitAs(context.Background(), g.dir, g.tokens["admin"], "ls-remote", "origin", ref)), "\t")
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
	r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", commit+"^{tree}"), Target: "refs/heads/" + branch, Base: base}
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
	p := session.Checkpoint{ID: session.NewCheckpointIDAfter(time.Now(), ""), Session: "work", Lane: "main", Segment: 1, Reason: "manual", Time: time.Now(),
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

// attempt is an attempt to change what the policy protects.
type attempt struct {
	what string // for people
	user string
	args []string // of git push
	// before prepares the attempt, and returns what %s in args stands for.
	before func(g *gated) []any
	want   string // text of the refusal, with ULIDs, ids and hashes replaced by ...
}

// one returns a function for attempt.before that has one result.
func one(f func(g *gated) string) func(*gated) []any {
	return func(g *gated) []any { return []any{f(g)} }
}

var attempts = []attempt{
	{what: "direct push", user: "writer", args: []string{"next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "direct push by an administrator", user: "admin", args: []string{"next:main"},
		want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "force push", user: "writer", args: []string{"--force", "other:main"}, before: func(g *gated) []any {
		g.git("checkout", "--quiet", "--orphan", "other")
		g.git("commit", "--quiet", "-m", "other")
		return nil
	}, want: "main is protected: it can only be fast-forwarded"},
	{what: "force push of an approved tree", user: "writer", args: []string{"--force", "%s:main"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		return g.git("commit-tree", "-m", "other", g.next+"^{tree}")
	}), want: "main is protected: it can only be fast-forwarded"},
	{what: "deletion", user: "writer", args: []string{"--delete", "main"},
		want: "main is protected: it cannot be removed while the policy protects it"},
	{what: "creation of a branch that a glob matches", user: "writer", args: []string{"next:release/1"},
		want: "release/1 is protected and needs an approval of this tree and base by 2 users"},
	{what: "stale approval: one more commit", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.grant("alice", g.request("main", g.base, g.next))
		g.commit("next", "file", "three\n")
		return nil
	}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "stale approval: main has moved", user: "writer", args: []string{"%s:main"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		g.git("checkout", "--quiet", "-b", "fix", g.base)
		fix := g.commit("fix", "file", "fixed\n")
		g.grant("alice", g.request("main", g.base, fix))
		g.accept("writer", "fix:main")
		return g.git("commit-tree", "-m", "the approved tree", "-p", fix, g.next+"^{tree}")
	}), want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "stale approval: the session has a newer checkpoint", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		r := g.by("agent", approval.Request, "")
		r.Expires = time.Now().Add(time.Hour)
		r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"), Target: "refs/heads/main", Base: g.base,
			Checkpoint: string(session.NewCheckpointIDAfter(time.Now().Add(-time.Minute), ""))}
		r, c := g.record(r)
		g.accept("agent", c+":"+approval.Ref("work"))
		g.grant("alice", r.ID)
		g.checkpoint()
		return nil
	}, want: "main is protected: request ... is void, because the session has a newer checkpoint"},
	{what: "approval of another session", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.git("checkout", "--quiet", "-b", "fix", g.base)
		fix := g.commit("fix", "file", "fixed\n")
		g.restart("fixes")
		g.grant("alice", g.request("main", g.base, fix))
		return nil
	}, want: "main is protected and needs an approval of this tree and base by 1 user of alice, bob"},
	{what: "request without a grant", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.request("main", g.base, g.next)
		return nil
	}, want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "grant of a user who is not a reviewer", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		g.grant("carol", g.request("main", g.base, g.next))
		return nil
	}, want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "denied, and granted by another reviewer", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		id := g.request("main", g.base, g.next)
		_, c := g.record(g.by("bob", approval.Deny, id))
		g.accept("bob", c+":"+approval.Ref("work"))
		g.grant("alice", id)
		return nil
	}, want: "main is protected: request ... was denied by bob"},
	{what: "two users are needed, and one has granted", user: "writer", args: []string{"next:release/1"}, before: func(g *gated) []any {
		g.grant("alice", g.request("release/1", "", g.next))
		return nil
	}, want: "release/1 is protected: request ... needs 1 more approval"},
	{what: "grant with the session's own token", user: "agent", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		_, c := g.record(g.by("agent", approval.Grant, g.request("main", g.base, g.next)))
		return c
	}), want: "grant ... is refused: a token of a session can request and withdraw, but not grant"},
	{what: "grant with a token that names no user", user: "unnamed", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		return g.unnamed(approval.Grant)
	}), want: "grant ... is refused: a token without an actor can request and withdraw, but not grant"},
	{what: "denial with a token that names no user", user: "unnamed", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		return g.unnamed(approval.Deny)
	}), want: "deny ... is refused: a token without an actor can request and withdraw, but not deny"},
	{what: "grant under the name of another user", user: "writer", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		r := g.by("writer", approval.Grant, g.request("main", g.base, g.next))
		r.Actor = "alice"
		_, c := g.record(r)
		return c
	}), want: "grant ... is by alice, but the token is of writer"},
	{what: "grant with the id of another token", user: "alice", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		r := g.by("alice", approval.Grant, g.request("main", g.base, g.next))
		r.Token = g.ids["bob"]
		_, c := g.record(r)
		return c
	}), want: `grant ... names the token "...", but is pushed with ...`},
	{what: "grant of the reviewer in the same push as main", user: "alice",
		args: []string{"--atomic", "%s:refs/afs/approvals/work", "next:main"}, before: one(func(g *gated) string {
			_, c := g.record(g.by("alice", approval.Grant, g.request("main", g.base, g.next)))
			return c
		}), want: "main is protected: request ... needs 1 more approval of alice, bob"},
	{what: "records replayed: copied from another session", user: "writer", args: []string{"%s:refs/afs/approvals/new"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		return g.store("", approval.LogFile, g.file)
	}), want: `invalid approval records: line 1: record is for session "work"`},
	{what: "records replayed: an old line appended again", user: "agent", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		line, _, _ := bytes.Cut(g.file, []byte("\n"))
		return g.records(append(append(bytes.Clone(g.file), line...), '\n'))
	}), want: "invalid approval records: line 3: hash of the previous line does not match"},
	{what: "records cut, with a new commit", user: "agent", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		g.grant("alice", g.request("main", g.base, g.next))
		line, _, _ := bytes.Cut(g.file, []byte("\n"))
		return g.records(append(line, '\n'))
	}), want: "records of approvals cannot be changed or removed, only added"},
	{what: "records cut, by a force push of an older commit", user: "agent", args: []string{"--force", "%s^:refs/afs/approvals/work"},
		before: one(func(g *gated) string {
			id := g.request("main", g.base, g.next)
			_, c := g.record(g.by("alice", approval.Deny, id))
			g.accept("alice", c+":"+approval.Ref("work"))
			return c
		}), want: "approvals can only be fast-forwarded"},
	{what: "records rewritten", user: "agent", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		g.grant("carol", g.request("main", g.base, g.next))
		return g.records(bytes.ReplaceAll(g.file, []byte("carol"), []byte("alice")))
	}), want: "records of approvals cannot be changed or removed, only added"},
	{what: "records removed", user: "agent", args: []string{"--delete", "refs/afs/approvals/work"}, before: func(g *gated) []any {
		g.accept("agent", g.base+":"+session.MetaRef("work"))
		g.request("main", g.base, g.next)
		return nil
	}, want: "the approvals of a session can be removed only together with the session"},
	{what: "clock: a record from the future", user: "alice", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		r := g.by("alice", approval.Grant, g.request("main", g.base, g.next))
		r.Time = time.Now().Add(time.Hour)
		_, c := g.record(r)
		return c
	}), want: "grant ... has the time ..., which is not within 5m0s of the server's"},
	{what: "clock: a record from the past", user: "agent", args: []string{"%s:refs/afs/approvals/work"}, before: one(func(g *gated) string {
		r := g.by("agent", approval.Request, "")
		r.Time, r.Expires = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"), Target: "refs/heads/main", Base: g.base}
		_, c := g.record(r)
		return c
	}), want: "request ... has the time ..., which is not within 5m0s of the server's"},
	{what: "clock: an approval that has expired", user: "writer", args: []string{"next:main"}, before: func(g *gated) []any {
		r := g.by("agent", approval.Request, "")
		r.Time, r.Expires = time.Now().Add(-time.Minute), time.Now().Add(-time.Second)
		r.Subject = &approval.Subject{Action: approval.Merge, Tree: g.git("rev-parse", "next^{tree}"), Target: "refs/heads/main", Base: g.base}
		r, c := g.record(r)
		g.accept("agent", c+":"+approval.Ref("work"))
		g.grant("alice", r.ID)
		return nil
	}, want: "main is protected: request ... has expired"},
	{what: "removal of the policy", user: "writer", args: []string{"--delete", "refs/afs/policy"},
		want: "only an owner or admin token can change the policy"},
	{what: "another policy", user: "writer", args: []string{"--force", "%s:refs/afs/policy"}, before: one(func(g *gated) string {
		return g.store("", approval.PolicyFile, []byte(`{"version":1}`))
	}), want: "only an owner or admin token can change the policy"},
	{what: "a ref that keeps others from having a policy", user: "writer", args: []string{"next:refs/afs/policy/work"},
		want: "there can be no refs below refs/afs/policy"},
	{what: "a policy that is not valid", user: "admin", args: []string{"--force", "%s:refs/afs/policy"}, before: one(func(g *gated) string {
		return g.store("", approval.PolicyFile, []byte(`{"version":1,"branches":[{"match":"main"}]}`))
	}), want: "invalid policy: rule 1 of branches: quorum is 0, want at least 1"},
	{what: "a policy without its file", user: "admin", args: []string{"--force", "next:refs/afs/policy"},
		want: "ref does not contain the file policy.json"},
	{what: "deletion of a protected session", user: "agent", args: []string{"--delete", "refs/afs/meta/work"}, before: func(g *gated) []any {
		g.accept("agent", g.base+":"+session.MetaRef("work"))
		g.checkpoint()
		return nil
	}, want: "session work is protected and needs an approval of its deletion with its newest checkpoint by 1 user"},
}

var (
	reasonPattern = regexp.MustCompile(`(?m)^ ! \[(?:remote )?rejected\].*? -> \S+ \((.*)\)$|^ ! \[remote rejected\] \S+ \((.*)\)$`)
	idPattern     = regexp.MustCompile(`[0-9A-Z]{26}|[0-9a-f]{40}|[0-9a-z]{26}|20\d\d-\d\d-\d\dT[0-9:]+Z`)
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

// Each attempt to get around the policy is refused, with a reason that the user of stock git reads. The documentation has the same table.
func TestAttemptsAgainstPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := newLoneServer(w)
	table := string(must[[]byte](t)(os.ReadFile("../doc/security.md")))
	for i, a := range attempts {
		t.Run(strings.ReplaceAll(a.what, " ", "-"), func(t *testing.T) {
			g := newGated(t, w, c, fmt.Sprint("gate", i))
			var values []any
			if a.before != nil {
				values = a.before(g)
			}
			args, shown := []string{}, []string{}
			for _, arg := range a.args {
				if strings.Contains(arg, "%s") {
					shown = append(shown, fmt.Sprintf(arg, "COMMIT"))
					arg = fmt.Sprintf(arg, values...)
				} else {
					shown = append(shown, arg)
				}
				args = append(args, arg)
			}
			main, policy := g.tip("refs/heads/main"), g.tip(approval.PolicyRef)
			out, err := g.push(a.user, args...)
			if got := refusal(out); err == nil || got != a.want {
				t.Errorf("got %v and %q, want %q", err, got, a.want)
			}
			if g.tip("refs/heads/main") != main || g.tip(approval.PolicyRef) != policy {
				t.Error("main or the policy has changed")
			}
			row := fmt.Sprintf("| %s | `git push origin %s` (%s) | %s |", a.what, strings.Join(shown, " "), a.user, a.want)
			if !strings.Contains(table, row) {
				t.Errorf("doc/security.md lacks this row:\n%s", row)
			}
		})
	}
}

// The default branch, to which HEAD points, cannot be changed after another branch was pushed in place of main.
func TestDefaultBranchStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGated(t, w, newLoneServer(w), "r")
	g.accept("writer", "next:copy")
	g.accept("writer", "next:HEAD") // git creates refs/heads/HEAD
	request := must[*http.Request](t)(http.NewRequest(http.MethodPatch, g.c.proxy.url()+"/v1/api/namespaces/team/repos/r", strings.NewReader(`{"default_branch":"copy"}`)))
	request.Header.Set("Authorization", "Bearer "+g.c.token)
	request.Header.Set("Content-Type", "application/json")
	answer := must[*http.Response](t)(http.DefaultClient.Do(request))
	answer.Body.Close()
	if answer.StatusCode < 400 {
		t.Errorf("change of the default branch: got %s, want a refusal", answer.Status)
	}
	if got := must[string](t)(gitAs(context.Background(), g.dir, g.tokens["writer"], "ls-remote", "--symref", "origin", "HEAD")); !strings.HasPrefix(got, "ref: refs/heads/main\t") {
		t.Errorf("HEAD: got %q, want refs/heads/main", got)
	}
}
