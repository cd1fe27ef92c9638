package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// as returns the same world for another user.
func (w *world) as(actor string) *world {
	other := *w
	other.env = append(slices.Clone(w.env), "ARTIFACTFS_ACTOR="+actor)
	return &other
}

// requested asks for an approval of the session work.
func (w *world) requested(args ...string) (reply control.SessionApproveReply) {
	w.Helper()
	w.json(&reply, append([]string{"session", "review", "request", "-C", "work"}, args...)...)
	return reply
}

// An approval is bound to the commit and the branch that were reviewed; reviewers on another machine need only the
// link.
func TestSessionApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n")}, "b": {Data: []byte("b\n")},
		"d/c": {Data: []byte("old\n")}}
	old := w.commit(r, files)
	files["d/c"] = gittest.File{Data: []byte("c\n")}
	w.commit(r, files)
	c := w.sessionRemote("http", r)
	agent := w.as("agent")
	m := agent.bare(w.serve(gittest.ServerOptions{}).URL("r.git"),
		"--session", "work", "--session-remote", c.arg, "--wait", "git", "--checkpoint", "off")
	bob, carol := w.elsewhere().as("bob"), w.elsewhere().as("carol")

	w.sh(m.Dir, "sed -i s/1/one/ a && git commit -qam one && echo new >new")
	if got := agent.afs("session", "review", "request", "-C", "work", "--for", "merge"); got.code == 0 ||
		!strings.Contains(got.stderr, "changes are not committed: new") {
		t.Errorf("request with a file that is not committed: got %s", got)
	}
	w.sh(m.Dir, "git add new && git commit -qm new")
	first := agent.requested("--for", "merge", "--reviewers", "bob,carol", "-m", "please")
	a := first.Approval
	if a.Status != "open" || a.Branch != "main" || a.Actor != "agent" || a.Missing != "1 more approval" || a.Moved ||
		first.Token != "" ||
		!slices.Equal(a.Reviewers, []string{"bob", "carol"}) {
		t.Errorf("request: got %+v", first)
	}
	if want := w.git(m.Dir, "rev-parse", "HEAD^{tree}"); a.Tree != want || first.Merge {
		t.Errorf("tree of the request: got %s, want %s of the commit", a.Tree, want)
	}
	if want := w.git(c.Path, "rev-parse", "main"); a.Base != want {
		t.Errorf("base of the request: got %s, want %s", a.Base, want)
	}
	if want := (control.ChangeCount{Added: 1, Modified: 1, LinesAdded: 2, LinesRemoved: 1}); first.Changes != want {
		t.Errorf("changes of the request: got %+v, want %+v", first.Changes, want)
	}
	if got := agent.ok("session", "review", "grant", a.ID, "-C", "work"); !strings.Contains(got,
		"status: open, needs 1 more approval") {
		t.Errorf("grant by the user who requested: got %s", got)
	}
	bob.ok("session", "review", "deny", first.Link, "-m", "no")
	var list control.SessionApprovalsReply
	approvals := func(w *world, args ...string) string {
		t.Helper()
		return w.ok(append([]string{"session", "review", "list"}, args...)...)
	}
	if got := approvals(carol, c.arg+"#session=work"); !strings.Contains(got, "denied by bob") {
		t.Errorf("approvals after a denial: got %s", got)
	}
	if got := carol.afs("session", "review", "grant", first.Link); got.code == 0 ||
		!strings.Contains(got.stderr, "request was denied by bob") {
		t.Errorf("grant of a denied request: got %s", got)
	}

	second := agent.requested("--for", "merge")
	var granted control.SessionApproveReply
	bob.json(&granted, "session", "review", "grant", second.Link, "-m", "read it")
	if g := granted.Approval; g.Status != "granted" || g.Missing != "" || len(g.Grants) != 1 ||
		g.Grants[0].Actor != "bob" || granted.Changes != first.Changes {
		t.Errorf("grant: got %+v", granted)
	}
	carol.json(&list, "session", "review", "list", "--session-remote", c.arg, "work")
	if len(list.Approvals) != 1 || list.Approvals[0].ID != second.Approval.ID || list.Approvals[0].Status != "granted" {
		t.Errorf("approvals on another machine: got %+v", list)
	}
	if n := strings.Count(w.git(c.Path, "cat-file", "blob", "refs/afs/approvals/work:approvals.jsonl"), "\n"); n != 4 {
		t.Errorf("the session remote has %d records and the last one, want 5 in total", n)
	}

	// One more edit with a checkpoint voids the approval.
	w.sh(m.Dir, "echo more >>new && git commit -qam more")
	m.checkpoint("--sync")
	for _, who := range []*world{agent, carol} {
		who.json(&list, "session", "review", "list", "--session-remote", c.arg, "work", "--all")
		if len(list.Approvals) != 2 || list.Approvals[0].Status != "void" || list.Approvals[1].Status != "denied" {
			t.Errorf("approvals after one more edit: got %+v", list.Approvals)
		}
	}
	if got := carol.afs("session", "review", "grant", second.Link); got.code == 0 ||
		!strings.Contains(got.stderr, "request is void") {
		t.Errorf("grant of a void request: got %s", got)
	}
	if got := agent.afs("session", "review", "request", second.Approval.Checkpoint, "-C", "work", "--for",
		"merge"); got.code == 0 ||
		!strings.Contains(got.stderr, "newer checkpoint") {
		t.Errorf("request for an older checkpoint: got %s", got)
	}
	third := agent.requested("--for", "merge")
	if got := agent.ok("session", "review", "withdraw", third.Approval.ID[:20], "-C", "work"); !strings.Contains(got,
		"status: withdrawn") {
		t.Errorf("withdraw: got %s", got)
	}

	// After another commit on the branch, the request is for the files after a merge.
	fourth := agent.requested("--for", "merge")
	w.sh(c.Path,
		`b=$(printf 'upstream\n' | git hash-object -w --stdin) && export GIT_INDEX_FILE=$PWD/i && git read-tree main &&
		git update-index --cacheinfo 100644,$b,b && git update-ref refs/heads/main $(git commit-tree -p main -m upstream $(git write-tree))`)
	if got := bob.afs("session", "review", "grant", fourth.Link); got.code == 0 ||
		!strings.Contains(got.stderr, "branch main has moved") {
		t.Errorf("grant after the branch has moved: got %s", got)
	}
	if got := approvals(bob, c.arg+"#session=work"); !strings.Contains(got, "new request, because main has moved") {
		t.Errorf("approvals after the branch has moved: got %s", got)
	}
	merge := agent.requested("--for", "merge")
	head := w.git(m.Dir, "rev-parse", "HEAD")
	want := w.git(c.Path, "merge-tree", "--write-tree", "main", head)
	if merge.Approval.Tree != want || !merge.Merge ||
		merge.Changes != (control.ChangeCount{Added: 1, Modified: 1, LinesAdded: 3, LinesRemoved: 1}) {
		t.Errorf("request for a merge: got %+v, want the tree %s", merge, want)
	}
	if got := bob.ok("session", "review", "grant", merge.Link); !strings.Contains(got, "after a merge\nstatus: granted") {
		t.Errorf("grant of a merge: got %s", got)
	}
	// A branch that does not have the base commit of the session.
	w.sh(c.Path, `b=$(printf 'fix\n' | git hash-object -w --stdin) && export GIT_INDEX_FILE=$PWD/i && git read-tree `+
		old.String()+` &&
		git update-index --add --cacheinfo 100644,$b,fix && git update-ref refs/heads/stable $(git commit-tree -p `+old.String()+` -m fix $(git write-tree))`)
	stable := agent.requested("--for", "merge", "--into", "stable")
	if want := w.git(c.Path, "merge-tree", "--write-tree", "stable", head); stable.Approval.Tree != want || !stable.Merge {
		t.Errorf("request for a merge into an older branch: got %+v, want the tree %s", stable, want)
	}
	w.sh(c.Path,
		`b=$(printf 'clash\n2\n' | git hash-object -w --stdin) && export GIT_INDEX_FILE=$PWD/i && git read-tree main &&
		git update-index --cacheinfo 100644,$b,a && git update-ref refs/heads/main $(git commit-tree -p main -m clash $(git write-tree))`)
	if got := agent.afs("session", "review", "request", "-C", "work", "--for", "merge"); got.code == 0 ||
		!strings.Contains(got.stderr, "the merge with branch main has conflicts: a") {
		t.Errorf("request for a merge with conflicts: got %s", got)
	}

	// Promotion is approved in the other repository, and deletion without commits, also by stock git's other clients of
	// the same host.
	promote := agent.requested("--for", "promote", "--to", r.Path+":main")
	if promote.Approval.Repository != r.Path || promote.Approval.Tree != w.git(m.Dir, "rev-parse", "HEAD^{tree}") {
		t.Errorf("request for a promotion: got %+v", promote)
	}
	if got := bob.ok("session", "review", "grant", promote.Link, "--to", promote.To); !strings.Contains(got,
		"status: granted") {
		t.Errorf("grant of a promotion: got %s", got)
	}
	w.sh(m.Dir, "echo loose >loose")
	gone := agent.requested("--for", "delete")
	if got := bob.ok("session", "review", "grant", gone.Link); !strings.Contains(got, "status: granted") {
		t.Errorf("grant of a deletion: got %s", got)
	}
	w.git(c.Path, "fsck", "--strict", "--no-dangling")
}

// The approvals of a session with the embedded session remote, mounted or not, and the policy of its repository.
func TestSessionApprovalEmbedded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA256)
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("a\n")}})
	agent := w.as("agent")
	m := agent.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--wait", "git",
		"--checkpoint", "off")
	w.sh(m.Dir, "git branch stable && echo b >b && git add b && git commit -qm b")
	name := w.place("policy.json")
	w.sh(w.root,
		`echo '{"version":1,"branches":[{"match":"*","quorum":1,"self":true,"paths":["/b"]},{"match":"*","quorum":2,"paths":["/c/**"]}]}' >`+name)
	agent.ok("session", "policy", "-C", "work", "--set", name)
	if got := agent.ok("session", "policy", "-C", "work"); !strings.Contains(got, `"quorum":2`) {
		t.Errorf("policy: got %s", got)
	}
	w.sh(w.root, `echo '{"version":1,"branches":[{"match":"main","quorum":0}]}' >`+name)
	if got := agent.afs("session", "policy", "--set", name, "--dry-run"); got.code == 0 ||
		!strings.Contains(got.stderr, "rule 1 of branches: quorum is 0") {
		t.Errorf("invalid policy: got %s", got)
	}
	request := agent.requested("--for", "merge", "--into", "stable")
	if got := agent.ok("session", "review", "grant", request.Approval.ID, "-C", "work"); !strings.Contains(got,
		"status: granted") {
		t.Errorf("grant by the same user: got %s", got)
	}
	w.sh(m.Dir, "mkdir c && echo c >c/c && git add c && git commit -qm c")
	if got := agent.requested("--for", "merge", "--into", "stable").Approval; got.Missing != "2 more approvals" &&
		!strings.Contains(got.Missing, "and 2 more approvals") {
		t.Errorf("request that changes a path with another rule: got %+v", got)
	}
	w.unmount(m)
	if got := agent.ok("session", "review", "list", "work", "--all"); !strings.Contains(got, "open") ||
		!strings.Contains(got, "void") {
		t.Errorf("approvals of a session that is not mounted: got %s", got)
	}
	gone := agent.requested("--for", "delete")
	if gone.Approval.Status != "open" || gone.Changes.Added != 2 {
		t.Errorf("request of a session that is not mounted: got %+v", gone)
	}
}

// The commits of a session whose session remote has no history are approved for the mounted repository.
func TestSessionApprovalThin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n")}, "d/b": {Data: []byte("b\n")}})
	c := w.sessionRemote("http", nil)
	agent, bob := w.as("agent"), w.elsewhere().as("bob")
	m := agent.bare(w.serve(gittest.ServerOptions{}).URL("r.git"),
		append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	w.sh(m.Dir, "sed -i s/1/one/ a && git commit -qam one")
	if got := agent.afs("session", "review", "request", "-C", "work", "--for", "merge", "--into", "main"); got.code != 0 {
		t.Errorf("request for a branch that the session remote does not have: got %s", got)
	}
	request := agent.requested("--for", "promote", "--to", r.Path+":main")
	if request.Approval.Tree != w.git(m.Dir, "rev-parse", "HEAD^{tree}") || request.Merge ||
		request.Changes != (control.ChangeCount{Modified: 1, LinesAdded: 1, LinesRemoved: 1}) {
		t.Errorf("request for a promotion: got %+v", request)
	}
	if got := bob.ok("session", "review", "grant", request.Link, "--to", r.Path); !strings.Contains(got,
		"status: granted") {
		t.Errorf("grant: got %s", got)
	}
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n")},
		"d/b": {Data: []byte("upstream\n")}})
	merge := agent.requested("--for", "promote", "--to", r.Path+":main")
	if !merge.Merge || merge.Changes != request.Changes {
		t.Errorf("request for a promotion by a merge: got %+v", merge)
	}
	if got := bob.ok("session", "review", "grant", merge.Link, "--to", r.Path); !strings.Contains(got,
		"after a merge\nstatus: granted") {
		t.Errorf("grant of a merge: got %s", got)
	}
	var list control.SessionApprovalsReply
	bob.json(&list, "session", "review", "list", c.arg+"#session=work", "--to", r.Path)
	if len(list.Approvals) != 2 || list.Approvals[1].ID != request.Approval.ID || !list.Approvals[1].Moved ||
		list.Approvals[0].Moved {
		t.Errorf("approvals in the mounted repository: got %+v", list.Approvals)
	}
	gone := agent.requested("--for", "delete")
	if got := bob.ok("session", "review", "grant", gone.Link); !strings.Contains(got, "status: granted") {
		t.Errorf("grant of a deletion: got %s", got)
	}
}

// After a squash of the session, a request is for the tree that a promotion of the later commits results in, also if
// these change the same lines again.
func TestSessionApprovalAfterSquash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n")}})
	c := w.sessionRemote("http", r)
	agent := w.as("agent")
	m := agent.bare(w.serve(gittest.ServerOptions{}).URL("r.git"),
		"--session", "work", "--session-remote", c.arg, "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "echo one >a && git commit -qam one && echo two >a && git commit -qam two")
	m.checkpoint("--sync")
	agent.ok("session", "promote", "-C", "work", "--to", c.arg+":main", "--squash")
	w.sh(m.Dir, "echo three >a && git commit -qam three")
	m.checkpoint("--sync")
	a := agent.requested("--for", "merge")
	if want := w.git(m.Dir, "rev-parse", "HEAD^{tree}"); a.Approval.Tree != want || !a.Merge {
		t.Errorf("request after a squash: got %+v, want the tree %s of the commit", a, want)
	}
}
