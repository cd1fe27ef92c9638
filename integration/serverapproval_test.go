package integration

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// The server refuses a stock push of the session's commit to a protected branch until a reviewer on another machine has
// granted it, and refuses the next commit again.
func TestServerApproval(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	repo := must[client.Repo](t)(api.Repo(t.Context(), "team", "app"))
	as := func(token string) string { // URL of the repository with a token
		u := must[*url.URL](t)(url.Parse(repo.Remote))
		u.User = url.UserPassword("x", token)
		return u.String()
	}
	tokens := map[string]client.NewToken{}
	for _, actor := range []string{"alice", "bob", "writer"} {
		tokens[actor] = must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Scope: client.Write, Actor: actor}))
	}
	name := w.place("policy.json")
	w.sh(w.root,
		`echo '{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice"]}],"sessions":[{"match":"work","quorum":1}]}' >`+name)
	w.ok("session", "policy", "--set", name, "--remote", as(c.token))
	if got := w.afs("session", "policy", "--set", name, "--remote", as(tokens["writer"].Plaintext)); got.code == 0 {
		t.Errorf("policy that a writer sets: got %s", got)
	}

	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "echo one >one && git add one && git commit -qm one")
	push := func() error {
		_, err := gitAs(context.Background(), m.Dir, tokens["writer"].Plaintext, "push", "--quiet", repo.Remote,
			"HEAD:refs/heads/main")
		return err
	}
	refused := func(what, want string) {
		t.Helper()
		if err := push(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", what, err, want)
		}
	}
	refused("push without a request", "main is protected and needs an approval of this tree and base")
	request := w.requested("--for", "merge", "--into", "main")
	if a := request.Approval; request.Token == "" || a.Status != "open" || a.Missing != "1 more approval of alice" ||
		a.Actor != request.Actor {
		t.Errorf("request: got %+v", request)
	}
	noToken(t, "reply to a request", request.Link+request.Show+request.Approval.Repository)
	refused("push before the grant", "request "+request.Approval.ID+" needs 1 more approval of alice")

	_, fragment, _ := strings.Cut(request.Link, "#")
	reviewers := map[string]*world{"alice": w.elsewhere(), "bob": w.elsewhere()}
	grant := func(actor, fragment string) result {
		return reviewers[actor].afs("session", "review", "grant", as(tokens[actor].Plaintext)+"#"+fragment)
	}
	if got := reviewers["alice"].afs("session", "review", "deny", as(tokens["alice"].Plaintext)+"#"+fragment, "-m",
		"tests?"); got.code != 0 ||
		!strings.Contains(got.stdout, "status: denied") {
		t.Errorf("denial: got %s", got)
	}
	refused("push after the denial", "request "+request.Approval.ID+" was denied by alice")
	request = w.requested("--for", "merge", "--into", "main", "-m", "with tests")
	_, fragment, _ = strings.Cut(request.Link, "#")
	if got := grant("bob", fragment); got.code != 0 ||
		!strings.Contains(got.stdout, "status: open, needs 1 more approval of alice") ||
		!strings.Contains(got.stderr, "the policy does not count this grant of bob") {
		t.Errorf("grant of a user who may not grant: got %s", got)
	}
	if got := grant("alice", fragment); got.code != 0 || !strings.Contains(got.stdout, "status: granted") {
		t.Fatalf("grant: got %s", got)
	}
	if err := push(); err != nil {
		t.Errorf("push after the grant: %v", err)
	}

	w.sh(m.Dir, "echo two >two && git add two && git commit -qm two")
	refused("push of one more commit", "main is protected")
	next := w.requested("--for", "merge", "--into", "main")
	_, fragment, _ = strings.Cut(next.Link, "#")
	if got := grant("alice", fragment); got.code != 0 {
		t.Fatalf("grant: got %s", got)
	}
	w.sh(m.Dir, "echo three >three")
	m.checkpoint("--sync")
	refused("push of the granted commit after one more checkpoint", "request "+next.Approval.ID+" is void")
	var list control.SessionApprovalsReply
	w.json(&list, "session", "review", "list", "work", "--all")
	if len(list.Approvals) != 3 || list.Approvals[0].Status != "void" || !list.Approvals[1].Moved ||
		list.Approvals[2].Status != "denied" {
		t.Errorf("approvals: got %+v", list.Approvals)
	}

	// A session that pushes the protected branch itself waits for the approval.
	direct := w.bare("team/app", "--create", "--session", "direct", "--session-branches", "as-is", "--wait", "git",
		"--checkpoint", "off")
	w.sh(direct.Dir, "echo direct >direct && git add direct && git commit -qm direct")
	if got := w.afs("sync", direct.Dir, "--timeout", "60s"); got.code != control.ExitUnsynced ||
		!strings.Contains(got.stderr, "main is protected") {
		t.Errorf("sync of a session that pushes a protected branch: got %s", got)
	}
	w.json(&request, "session", "review", "request", "-C", "direct", "--for", "promote", "--to", ":main")
	_, fragment, _ = strings.Cut(request.Link, "#")
	at := as(tokens["alice"].Plaintext)
	if got := reviewers["alice"].afs("session", "review", "grant", at+"#"+fragment, "--to",
		at); request.To != repo.Remote || got.code != 0 {
		t.Fatalf("grant of request %+v: got %s", request, got)
	}
	direct.sync()
	if got, want := w.git(w.root, "ls-remote", as(c.token), "refs/heads/main"),
		w.git(direct.Dir, "rev-parse", "HEAD"); !strings.HasPrefix(got, want) {
		t.Errorf("main after the approval: got %s, want %s", got, want)
	}
	w.unmount(direct)

	// An approval is for the files, so that the commits may be squashed.
	squashed := w.bare("team/app", "--create", "--session", "squashed", "--wait", "git", "--checkpoint", "off")
	w.sh(squashed.Dir,
		"echo 1 >squashed && git add squashed && git commit -qm 1 && echo 2 >>squashed && git commit -qam 2")
	promote := []string{"session", "promote", "-C", "squashed", "--to", ":main", "--squash", "-m", "both"}
	if got := w.afs(promote...); got.code == 0 || !strings.Contains(got.stderr, "main is protected") {
		t.Errorf("promotion without an approval: got %s", got)
	}
	w.json(&request, "session", "review", "request", "-C", "squashed", "--for", "promote", "--to", ":main")
	_, fragment, _ = strings.Cut(request.Link, "#")
	if got := reviewers["alice"].afs("session", "review", "grant", at+"#"+fragment, "--to", at); got.code != 0 {
		t.Fatalf("grant: got %s", got)
	}
	w.ok(promote...)
	if got := w.git(w.root, "ls-remote", as(c.token), "refs/heads/main"); strings.HasPrefix(got,
		w.git(squashed.Dir, "rev-parse", "HEAD")) {
		t.Errorf("main after a squash: got the commit of the session")
	}
	w.unmount(squashed)

	// The session itself is protected, too. Tokens of the session may request, but not grant.
	gone := w.requested("--for", "delete")
	_, fragment, _ = strings.Cut(gone.Link, "#")
	agent := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write, Actor: "agent", Session: "work"}))
	if got := w.afs("session", "review", "grant", as(agent.Plaintext)+"#"+fragment); got.code == 0 ||
		!strings.Contains(got.stderr, "refs/afs/approvals/work") {
		t.Errorf("grant with a token of the session: got %s", got)
	}
	unnamed := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write}))
	for _, op := range []string{"grant", "deny"} {
		if got := w.afs("session", "review", op, as(unnamed.Plaintext)+"#"+fragment); got.code == 0 ||
			!strings.Contains(got.stderr, "a token without an actor can request and withdraw, but not "+op) ||
			!strings.Contains(got.stderr,
				"hint: use a token that names a user and is not for one session: artifactfs token create") {
			t.Errorf("%s with a token that names no user: got %s", op, got)
		}
	}
	w.unmount(m)
	remove := []string{"session", "delete", "work", "--yes", "--session-remote", as(c.token)}
	if got := w.afs(remove...); got.code == 0 || !strings.Contains(got.stderr, "session work is protected") {
		t.Errorf("deletion without an approval: got %s", got)
	}
	var trash control.SessionTrashReply
	if w.json(&trash, "session", "list", "--deleted", "--session-remote", as(c.token)); len(trash.Deleted) > 0 {
		t.Errorf("deleted sessions after the refusal: got %+v, want none", trash.Deleted)
	}
	if got := grant("alice", fragment); got.code != 0 || !strings.Contains(got.stdout, "status: granted") {
		t.Fatalf("grant of the deletion: got %s", got)
	}
	w.ok(remove...)
}

// session promote prints the refusal of the server, and promotes what was approved: the merged files, as one commit.
func TestPromoteNeedsApproval(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	repo := must[client.Repo](t)(api.Repo(t.Context(), "team", "app"))
	u := must[*url.URL](t)(url.Parse(repo.Remote))
	as := func(token string) string {
		u.User = url.UserPassword("x", token)
		return u.String()
	}
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "echo ours >ours && git add ours && git commit -qm ours")
	clone := w.clone(as(c.token))
	w.sh(clone, "echo theirs >theirs && git add theirs && git commit -qm theirs && git push -q origin HEAD:main")
	name := w.place("policy.json")
	w.sh(w.root, `echo '{"version":1,"branches":[{"match":"main","quorum":1}]}' >`+name)
	w.ok("session", "policy", "--set", name, "--remote", as(c.token))

	refused := func(want string) {
		t.Helper()
		if r := w.afs("session", "promote", "-C", m.Dir, "--squash"); r.code != control.ExitRemote ||
			!strings.Contains(r.stderr, want) {
			t.Errorf("promote: got %s, want %q", r, want)
		}
	}
	refused("main is protected and needs an approval of this tree and base")
	request := w.requested("--for", "merge", "--into", "main")
	refused("request " + request.Approval.ID + " needs 1 more approval")
	_, fragment, _ := strings.Cut(request.Link, "#")
	alice := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write, Actor: "alice"}))
	w.elsewhere().ok("session", "review", "grant", as(alice.Plaintext)+"#"+fragment)
	var reply control.SessionPromoteReply
	w.json(&reply, "session", "promote", "-C", m.Dir, "--squash")
	if reply.Method != control.PromoteSquash || reply.Tree != request.Approval.Tree || reply.Old != request.Approval.Base {
		t.Errorf("promote of what was approved: got %+v, want the tree %s on %s", reply, request.Approval.Tree,
			request.Approval.Base)
	}
	landed := w.clone(as(c.token))
	w.sh(landed, "cat ours theirs >/dev/null && test \"$(git rev-parse HEAD)\" = "+reply.New)
	w.git(landed, "fsck", "--strict", "--no-dangling")
	w.sh(m.Dir, "echo more >more && git add more && git commit -qm more")
	refused("main is protected")
	m.checkpoint("--sync")
	head := w.git(m.Dir, "rev-parse", "HEAD")
	w.unmount(m)

	// Commands without a mount log in by the token for the server.
	w.json(&reply, "session", "promote", "-C", "work", "--to", ":unmounted")
	if reply.New != head {
		t.Errorf("promote after unmount: got %+v, want %s", reply, head)
	}
	w.elsewhere().json(&reply, "session", "promote", repo.Remote+"#session=work", "--to", ":elsewhere")
	if reply.New != head {
		t.Errorf("promote on another machine: got %+v, want %s", reply, head)
	}
}
