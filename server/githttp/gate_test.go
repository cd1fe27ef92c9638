package githttp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
)

// newMeter makes the server write the audit entries of reads. All entries are written when the caller has closed the
// meter.
func newMeter(t *testing.T, w *world) *meter.Meter {
	m := meter.New(w.db.Usage, w.db.Audit, zap.NewNop())
	t.Cleanup(func() { m.Close() })
	w.git.o.Meter = m
	return m
}

// reviewed is a repository whose branch main is protected.
type reviewed struct {
	*world
	meter      *meter.Meter
	repo       records.Repo
	dir        string // clone with the branches main and next, which is one commit ahead
	url        string // URL of the repository with the token of the user writer
	alice, own records.Token
	aliceURL   string
	ownerURL   string
	log        approval.Log
	file       []byte
}

func newReviewed(t *testing.T, format string) *reviewed {
	t.Helper()
	w := &reviewed{world: newWorld(t, Limits{}), log: approval.Log{Session: "work"}}
	w.meter = newMeter(t, w.world)
	w.repo, _ = w.world.repo("r", format)
	var text string
	w.own, text = w.token(records.Token{RepoID: w.repo.ID, Actor: "writer"})
	w.url = w.world.url("r", text)
	w.alice, text = w.token(records.Token{RepoID: w.repo.ID, Actor: "alice"})
	w.aliceURL = w.world.url("r", text)
	owner, text := access.Mint(records.Token{Role: records.OwnerToken, Namespace: "ns"}, time.Now())
	if err := w.db.Tokens.Create(t.Context(), owner, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	w.ownerURL = w.world.url("r", text)
	w.dir = w.work(format)
	w.do(w.dir, "push", "-q", w.url, "main")
	w.do(w.dir, "checkout", "-q", "-b", "next")
	w.commit(w.dir, "file", "two")
	w.push(w.ownerURL, approval.PolicyRef, approval.PolicyFile, `{"version":1,"branches":[{"match":"main","quorum":1}]}`)
	return w
}

// put stores a commit with one file in the clone. Its parent is the present commit of the ref on the server.
func (w *reviewed) put(ref, name, text string) string {
	w.t.Helper()
	input := func(stdin string, args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env, cmd.Stdin = w.dir, gittest.Env(), strings.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			w.t.Fatal(err)
		}
		return string(bytes.TrimSpace(out))
	}
	blob := input(text, "hash-object", "-w", "--stdin")
	args := []string{"commit-tree", "-m", "x", input("100644 blob "+blob+"\t"+name+"\n", "mktree")}
	if id := w.refs(w.repo)[ref]; id != "" {
		args = append(args, "-p", id)
	}
	return w.do(w.dir, args...)
}

// push pushes a commit with one file to a ref.
func (w *reviewed) push(url, ref, name, text string) {
	w.t.Helper()
	w.do(w.dir, "push", "-q", url, w.put(ref, name, text)+":"+ref)
}

// add pushes a record to the approvals.
func (w *reviewed) add(url string, token records.Token, r approval.Record) string {
	w.t.Helper()
	r.Actor, r.Token = token.Actor, token.ID
	var err error
	if w.file, r, err = w.log.Append(w.file, r, time.Now()); err != nil {
		w.t.Fatal(err)
	}
	w.push(url, approval.Ref("work"), approval.LogFile, string(w.file))
	return r.ID
}

// request pushes a request for approval of the branch next, and returns its id.
func (w *reviewed) request() string {
	w.t.Helper()
	return w.add(w.url, w.own, approval.Record{Op: approval.Request, Expires: time.Now().Add(time.Hour),
		Subject: &approval.Subject{
			Action: approval.Merge, Tree: w.do(w.dir, "rev-parse", "next^{tree}"), Target: "refs/heads/main",
			Base:   w.do(w.dir, "rev-parse", "main"),
			Commit: w.do(w.dir, "rev-parse", "next")}})
}

// audited returns the audit entries that contain the text.
func (w *reviewed) audited(text string) (found []string) {
	w.t.Helper()
	entries, err := w.db.Audit.After(w.t.Context(), 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.Contains(e.Detail, text) {
			found = append(found, e.Detail)
		}
	}
	return found
}

func TestApprovedPush(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			w := newReviewed(t, format)
			w.refused("main is protected and needs an approval of this tree and base by 1 user", w.dir, "push",
				w.url, "next:main")
			w.refused("main is protected and needs an approval of this tree and base by 1 user", w.dir, "push",
				w.ownerURL, "next:main")
			id := w.request()
			w.refused("request "+id+" needs 1 more approval", w.dir, "push", w.url, "next:main")
			w.add(w.aliceURL, w.alice, approval.Record{Op: approval.Grant, Request: id})
			fork := records.Repo{ID: records.NewID(), Namespace: "ns", Name: "fork", DefaultBranch: "main", ObjectFormat: format,
				Status: records.Ready}
			if err := w.db.Repos.Create(t.Context(), records.Creation{Repo: fork, Parent: w.repo.ID, All: true}); err != nil {
				t.Fatal(err)
			}
			// The other branch of the push is refused for another reason; the audit entry of the push has this reason, too.
			w.refused("refs/afs/policy", w.dir, "push", w.url, "next:main", "next:refs/afs/policy/x")
			if got, want := w.refs(w.repo)["refs/heads/main"], w.do(w.dir, "rev-parse", "next"); got != want {
				t.Errorf("main after the approved push: got %s, want %s", got, want)
			}
			entries := w.audited("approved by")
			if want := "refs/heads/main: approved by request " + id +
				" of session work\nrefs/afs/policy/x: no ref can be below refs/afs/policy"; len(entries) != 1 ||
				!strings.HasSuffix(entries[0], want) || !strings.HasPrefix(entries[0], "refs/heads/main ") {
				t.Errorf("audit entry of the approved push: got %q, want the end %q", entries, want)
			}
			// A fork has the policy and the approvals of its parent.
			_, text := w.token(records.Token{RepoID: fork.ID, Actor: "writer"})
			w.commit(w.dir, "file", "three")
			w.refused("main is protected", w.dir, "push", w.world.url("fork", text), "next:main")
			w.do(w.dir, "push", "-q", w.world.url("fork", text), "next^:main")
		})
	}
}

// TestAuditOfRefusedPush checks that a refused push has an audit entry with the reasons.
func TestAuditOfRefusedPush(t *testing.T) {
	w := newReviewed(t, "sha1")
	w.refused("cannot be removed", w.dir, "push", w.url, ":main", "+next:refs/afs/policy")
	w.meter.Close()
	want := "refused: refs/afs/policy: only an owner or admin token can change the policy\n" +
		"refs/heads/main: main is protected: it cannot be removed while the policy protects it"
	if got := w.audited("refused"); len(got) != 1 || got[0] != want {
		t.Errorf("audit entries: got %q, want %q", got, want)
	}
}

// meanwhile makes the function change run after the decision about the next push, and before its transaction.
func (w *reviewed) meanwhile(change func()) {
	w.t.Helper()
	var done atomic.Bool
	var err error
	w.git.receiver, err = receive.New(receive.Options{
		Dir: filepath.Join(w.dir, ".git", "hooks"), Records: w.db, Replicas: w.set, Log: w.git.o.Log,
		Events: func(context.Context, string, records.Repo, records.Token, []records.RefUpdate,
			[]events.Merge) receive.MakeEvents {
			if done.CompareAndSwap(false, true) {
				change()
			}
			return func([]records.RefUpdate) []records.Event { return nil }
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestDecisionsHoldUntilThePushIsVisible checks that a push is refused if a policy is pushed, or an approval is
// withdrawn, while the push is being decided.
func TestDecisionsHoldUntilThePushIsVisible(t *testing.T) {
	const changed = "the policy, the approvals or the session were changed during the push, try again"
	t.Run("withdrawal", func(t *testing.T) {
		w := newReviewed(t, "sha1")
		id := w.request()
		w.add(w.aliceURL, w.alice, approval.Record{Op: approval.Grant, Request: id})
		w.meanwhile(func() { w.add(w.aliceURL, w.alice, approval.Record{Op: approval.Withdraw, Request: id}) })
		w.refused(changed, w.dir, "push", w.url, "next:main")
		w.refused("needs 1 more approval", w.dir, "push", w.url, "next:main")
	})
	t.Run("policy", func(t *testing.T) {
		w := newReviewed(t, "sha1")
		w.do(w.dir, "push", "-q", w.ownerURL, ":"+approval.PolicyRef)
		w.meanwhile(func() {
			w.push(w.ownerURL, approval.PolicyRef, approval.PolicyFile, `{"version":1,"branches":[{"match":"*","quorum":1}]}`)
		})
		w.refused(changed, w.dir, "push", w.url, "next:main")
		w.refused("main is protected", w.dir, "push", w.url, "next:main")
		w.do(w.dir, "push", "-q", w.url, "next:refs/notes/x")
	})
	t.Run("same commit", func(t *testing.T) { // the branch already has the commit of the push
		w := newReviewed(t, "sha1")
		w.add(w.aliceURL, w.alice, approval.Record{Op: approval.Grant, Request: w.request()})
		w.meanwhile(func() { w.do(w.dir, "push", "-q", w.url, "next:main") })
		w.do(w.dir, "push", "-q", w.url, "next:main")
	})
}

// TestTokenInfo checks that a client can read the name and the id of the user of its token, with the credentials of
// git.
func TestTokenInfo(t *testing.T) {
	w := newWorld(t, Limits{})
	m := newMeter(t, w)
	repo, _ := w.repo("r", "sha1")
	named, text := w.token(records.Token{RepoID: repo.ID, Actor: "agent", Session: "work"})
	plain, readText := w.token(records.Token{RepoID: repo.ID, Scope: records.ReadScope})
	for _, c := range []struct{ text, want string }{
		{text, `{"id":"` + named.ID + `","actor":"agent","session":"work","scope":"write"}`},
		{readText, `{"id":"` + plain.ID + `","actor":"token:` + plain.ID + `","session":"","scope":"read"}`},
	} {
		status, header, body := w.get("GET", "/git/ns/r.git/artifactfs/token", "Bearer "+c.text, nil)
		if status != http.StatusOK || strings.TrimSpace(body) != c.want || !json.Valid([]byte(body)) ||
			header.Get("Cache-Control") != "no-store" || header.Get("Content-Type") != "application/json" {
			t.Errorf("token: got %d %q %v, want %s", status, body, header, c.want)
		}
	}
	for authorization, want := range map[string]int{"": 401, "Bearer art_v1_" + strings.Repeat("0", 40): 403} {
		if status, _, body := w.get("GET", "/git/ns/r.git/artifactfs/token", authorization, nil); status != want {
			t.Errorf("token with %q: got %d %s, want %d", authorization, status, body, want)
		}
	}
	if status, _, _ := w.get("POST", "/git/ns/r.git/artifactfs/token", "Bearer "+text,
		nil); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d, want %d", status, http.StatusMethodNotAllowed)
	}
	m.Close()
	entries, err := w.db.Audit.After(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		if e.Cause.Method == "GET" && e.Result == http.StatusOK && e.Cause.TokenID == named.ID {
			found++
		}
	}
	if found != 1 {
		t.Errorf("audit entries of the token: got %d, want 1", found)
	}
}
