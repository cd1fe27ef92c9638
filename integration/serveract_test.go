package integration

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// What a user does by the REST API, the commands of a session see, and the other way round. A grant by the REST API
// opens the gate for a push of stock git.
func TestServerActs(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	info := must[client.Repo](t)(api.Repo(t.Context(), "team", "app"))
	account := must[string](t)(api.Account(t.Context()))
	as := map[string]client.Repository{"admin": api.Extensions().Repository("team", "app")}
	tokens, at := map[string]string{}, map[string]string{}
	for actor, scope := range map[string]string{"alice": client.Write, "writer": client.Write, "reader": client.Read} {
		made := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Scope: scope, Actor: actor}))
		own :=
			must[*client.Client](t)(client.New(client.Options{URL: c.proxy.url(), Token: made.Plaintext, Account: account}))
		as[actor], tokens[actor] = own.Extensions().Repository("team", "app"), made.Plaintext
		u := must[*url.URL](t)(url.Parse(info.Remote))
		u.User = url.UserPassword("x", made.Plaintext)
		at[actor] = u.String()
	}
	refused := func(what string, err error, status int, text string) {
		t.Helper()
		var no *client.Error
		if !errors.As(err, &no) || no.Status != status || !strings.Contains(no.Message, text) {
			t.Errorf("%s: got %v, want status %d with %q", what, err, status, text)
		}
	}
	policy := json.RawMessage(`{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice"]}]}`)
	must[client.Policy](t)(as["admin"].SetPolicy(t.Context(), policy, new("")))
	if got := w.ok("session", "policy", "--remote", at["reader"]); !strings.Contains(got, `"reviewers":["alice"]`) {
		t.Errorf("policy that the REST API has set: got %s", got)
	}
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "printf 'one\\ntwo\\n' >f && git add f && git commit -qm f")
	point := m.checkpoint("--sync").ID

	thread := must[client.Thread](t)(as["alice"].Annotate(t.Context(), "work",
		client.Annotate{Path: "f", Line: 2, Text: "why?"}))
	w.ok("session", "annotate", "-C", "work", "--reply", thread.ID, "-m", "because")
	var seen control.SessionAnnotationsReply
	w.json(&seen, "session", "annotations", "-C", "work")
	if len(seen.Threads) != 1 || len(seen.Threads[0].Annotations) != 2 ||
		seen.Threads[0].Annotations[0].Actor != "alice" ||
		seen.Threads[0].On.Checkpoint != point || seen.Threads[0].On.Quote != "two" {
		t.Errorf("annotations that the command shows: got %+v", seen.Threads)
	}
	threads := must[[]client.Thread](t)(as["reader"].Annotations(t.Context(), "work", ""))
	if len(threads) != 1 || len(threads[0].Annotations) != 2 || threads[0].Annotations[1].Text != "because" ||
		threads[0].Now.State != "same" {
		t.Errorf("annotations of the REST API: got %+v", threads)
	}
	_, err := as["reader"].Annotate(t.Context(), "work", client.Annotate{Text: "x"})
	refused("annotation with a token for reading", err, http.StatusForbidden, "")

	push := func() error {
		_, err := gitAs(context.Background(), m.Dir, tokens["writer"], "push", "--quiet", info.Remote, "HEAD:refs/heads/main")
		return err
	}
	request := w.requested("--for", "merge", "--into", "main")
	all := must[[]client.Approval](t)(as["reader"].Approvals(t.Context(), "work"))
	if len(all) != 1 || all[0].ID != request.Approval.ID || all[0].Status != "open" ||
		all[0].Tree != request.Approval.Tree {
		t.Errorf("request of the command in the REST API: got %+v", all)
	}
	if err := push(); err == nil || !strings.Contains(err.Error(), "needs 1 more approval of alice") {
		t.Errorf("push before the grant: got %v", err)
	}
	_, err = as["writer"].Merge(t.Context(), "work", client.MergeSession{})
	refused("merge before the grant", err, http.StatusUnprocessableEntity, "needs 1 more approval of alice")
	if a, err := as["writer"].Answer(t.Context(), "work", request.Approval.ID, "grant", ""); err != nil || a.Counted {
		t.Errorf("grant by a user who may not grant: got %+v, %v", a, err)
	}
	if a, err := as["alice"].Answer(t.Context(), "work", request.Approval.ID, "grant", "good"); err != nil ||
		a.Status != "granted" || !a.Counted {
		t.Fatalf("grant: got %+v, %v", a, err)
	}
	var list control.SessionApprovalsReply
	w.json(&list, "session", "review", "list", "work")
	if len(list.Approvals) != 1 || list.Approvals[0].Status != "granted" ||
		list.Approvals[0].Grants[len(list.Approvals[0].Grants)-1].Actor != "alice" {
		t.Errorf("approvals that the command shows: got %+v", list.Approvals)
	}
	if err := push(); err != nil {
		t.Errorf("push after the grant by the REST API: %v", err)
	}

	// A request of the REST API is for the same tree as one of the command, so the command can grant it.
	w.sh(m.Dir, "echo three >>f && git commit -qam three")
	m.checkpoint("--sync")
	made := must[client.Approval](t)(as["writer"].RequestApproval(t.Context(), "work",
		client.RequestApproval{Text: "again"}))
	o := w.elsewhere()
	o.ok("session", "review", "grant", at["alice"]+"#session=work@"+made.ID)
	_, err = as["writer"].Merge(t.Context(), "work", client.MergeSession{Expect: strings.Repeat("1", 40)})
	refused("merge into a branch that is elsewhere", err, http.StatusConflict, "as expected")
	merged := must[client.Merged](t)(as["writer"].Merge(t.Context(), "work", client.MergeSession{}))
	if got := w.git(w.root, "ls-remote", at["reader"], "refs/heads/main"); merged.Commits != 1 ||
		!strings.HasPrefix(got, merged.After) ||
		merged.After != w.git(m.Dir, "rev-parse", "HEAD") {
		t.Errorf("merge: got %+v, branch %s", merged, got)
	}

	must[string](t)(as["alice"].Pin(t.Context(), "work", "good", ""))
	if got := o.ok("session", "show", at["reader"]+"#session=work@good"); !strings.Contains(got, "good") {
		t.Errorf("pin of the REST API: got %s", got)
	}
	entry := must[client.CacheEntry](t)(as["alice"].PutCacheEntry(t.Context(),
		client.PutCacheEntry{Key: "test/1", Value: []byte("passed"), Expect: "none"}))
	if got := o.ok("session", "cache", "get", "test/1", "--session-remote",
		at["reader"]); strings.TrimSpace(got) != "passed" {
		t.Errorf("cache entry of the REST API: got %q", got)
	}
	file := w.place("value")
	if err := os.WriteFile(file, []byte("failed"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.ok("session", "cache", "cas", "test/1", "--expect", entry.Hash, file, "--session-remote", at["alice"])
	value := must[io.ReadCloser](t)(as["reader"].CacheValue(t.Context(), "test/1"))
	defer value.Close()
	if text := must[[]byte](t)(io.ReadAll(value)); string(text) != "failed" {
		t.Errorf("cache entry of the command: got %q", text)
	}

	_, err = as["alice"].ChangeSession(t.Context(), "work", client.SessionChange{State: "closed"})
	refused("close of a session that is mounted", err, http.StatusConflict, "holds session work since")
	w.unmount(m)
	s := must[client.Session](t)(as["alice"].ChangeSession(t.Context(), "work",
		client.SessionChange{State: "closed", Reason: "done", Title: new("T")}))
	if s.State != "closed" || s.Title != "T" {
		t.Errorf("closed session: got %+v", s)
	}
	for where, on := range map[string]*world{"the machine that had it": w, "another machine": o} {
		if got := on.afs("mount", "team/app", w.place("closed"), "--create", "--session", "work"); got.code == 0 ||
			!strings.Contains(got.stderr, "closed") {
			t.Errorf("mount of a session that the REST API has closed on %s: got %s", where, got)
		}
	}
	if err := as["alice"].DeleteSession(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	var deleted control.SessionTrashReply
	o.json(&deleted, "session", "list", "--deleted", "--session-remote", at["reader"])
	if len(deleted.Deleted) != 1 || deleted.Deleted[0].Name != "work" {
		t.Errorf("deleted sessions: got %+v", deleted)
	}
	o.ok("session", "undelete", "work", "--session-remote", at["alice"])
	if s := must[client.Session](t)(as["reader"].Session(t.Context(), "work")); s.State != "closed" {
		t.Errorf("restored session: got %+v", s)
	}
}
