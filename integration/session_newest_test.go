package integration

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Commands that show a session show its newest state, also right after a change. They do not create a session that has
// no changes on its session remote.
func TestSessionNewest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("newest"))
	c := w.sessionRemote("http", r)
	origin := w.serve(gittest.ServerOptions{})
	mount := func(name string) mounted {
		return w.bare(origin.URL("r.git"), "--session", name, "--session-remote", c.arg, "--wait", "git",
			"--checkpoint", "off")
	}
	one, two := mount("one"), mount("two")
	refs := func() string { return w.git(c.Path, "for-each-ref", "refs/afs/meta/", "refs/afs/lanes/") }
	run := func(args ...string) result { return w.afs(append(args, "-C", one.Dir)...) }

	before := refs()
	if got := run("session", "diff", "--name-only"); got.code != 0 || got.stdout != "" {
		t.Errorf("diff of an unchanged session: got %s, want nothing", got)
	}
	var compared control.SessionCompareReply
	w.json(&compared, "session", "compare", "one", "two@")
	if a := compared.Sides[0]; len(a.Changes)+len(compared.Sides[1].Changes)+len(compared.Shared) != 0 ||
		a.Checkpoint.ID != "" ||
		a.Checkpoint.Head != one.Commit {
		t.Errorf("compare of two unchanged sessions: got %+v, want sides without changes at commit %s", compared, one.Commit)
	}
	for _, verb := range []string{"show", "link"} {
		if got := run("session", verb); got.code != control.ExitNotMounted ||
			!strings.Contains(got.stderr, "session has no checkpoint yet") ||
			!strings.Contains(got.stderr, "artifactfs checkpoint") {
			t.Errorf("%s of an unchanged session: got %s, want that the session has no checkpoint yet", verb, got)
		}
	}
	if got := run("session", "review", "list", "--all"); got.code != 0 || got.stdout != "" {
		t.Errorf("approvals of an unchanged session: got %s, want nothing", got)
	}
	if got := refs(); got != before {
		t.Errorf("refs of the session remote after reading unchanged sessions: got\n%swant\n%s", got, before)
	}

	w.sh(one.Dir, "echo new >new-1")
	var shown control.SessionShowReply
	w.json(&shown, "session", "show", "-C", one.Dir)
	if len(shown.Changes) != 1 || shown.Changes[0].Path != "new-1" {
		t.Errorf("show after a change: got changes %v, want new-1", shown.Changes)
	}
	w.sh(one.Dir, "echo newer >new-2")
	var link struct{ Checkpoint string }
	w.json(&link, "session", "link", "-C", one.Dir)
	if link.Checkpoint <= shown.ID {
		t.Errorf("link after another change: got checkpoint %s, want one after %s", link.Checkpoint, shown.ID)
	}
	w.sh(one.Dir, "echo newest >new-3")
	w.json(&compared, "session", "compare", "two", "one")
	if a, b := compared.Sides[0], compared.Sides[1]; len(a.Changes) != 0 || b.Added != 3 || b.LinesAdded != 3 ||
		len(b.Changes) != 3 {
		t.Errorf("compare with an unchanged session: got %+v, want three added files on the other side", compared)
	}
	// A checkpoint that the user has named stays what it is.
	w.sh(one.Dir, "echo last >new-4")
	w.json(&compared, "session", "compare", "one@"+shown.ID, "two")
	if a := compared.Sides[0]; a.Checkpoint.ID != shown.ID || a.Added != 1 {
		t.Errorf("compare of checkpoint %s: got %+v, want it with one added file", shown.ID, a)
	}
	var list control.SessionLogReply
	w.json(&list, "session", "log", one.Dir)
	if n := len(list.Checkpoints); n != 3 {
		t.Errorf("checkpoints after show, link and compare: got %d, want 3", n)
	}
	if got := w.ok("session", "diff", "--name-status", "-C", one.Dir); got != "A\tnew-1\nA\tnew-2\nA\tnew-3\nA\tnew-4\n" {
		t.Errorf("diff: got %q", got)
	}
	for names, want := range map[[2]string]string{{"two@", "one@" + shown.ID}: "A\tnew-1\n",
		{"one@" + shown.ID, "two@"}: "D\tnew-1\n"} {
		if got := w.ok("session", "diff", "--name-status", names[0], names[1]); got != want {
			t.Errorf("diff of %s and %s, one of which is unchanged: got %q, want %q", names[0], names[1], got, want)
		}
	}
	w.unmount(two)
}

// approvals lists the requests of a session of this host on its session remote and on the mounted remote, and finds a
// request on both.
func TestSessionApprovalsOfMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("approvals"))
	c := w.sessionRemote("http", r)
	w.git(r.Path, "config", "http.receivepack", "true")
	origin := w.serve(gittest.ServerOptions{})
	m := w.as("agent").bare(origin.URL("r.git"), "--session", "work", "--session-remote", c.arg, "--wait", "git",
		"--checkpoint", "off")
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm new")
	promote := w.as("agent").requested("--for", "promote")
	merge := w.as("agent").requested("--for", "merge")
	var list control.SessionApprovalsReply
	w.json(&list, "session", "review", "list", "-C", m.Dir)
	if len(list.Approvals) != 2 || list.Approvals[0].ID != merge.Approval.ID ||
		list.Approvals[1].ID != promote.Approval.ID ||
		list.Approvals[0].Repository != list.Repository || list.Approvals[1].Repository != origin.URL("r.git") {
		t.Errorf("approvals in the mount: got %+v, want %s and %s", list, merge.Approval.ID, promote.Approval.ID)
	}
	if got := w.ok("session", "review", "list", "-C", m.Dir); !strings.Contains(got, "main of "+origin.URL("r.git")) {
		t.Errorf("table of approvals: got\n%swant the mounted remote", got)
	}
	for _, request := range []string{promote.Approval.ID, merge.Approval.ID} {
		if got := w.as("bob").ok("session", "review", "grant", request, "-C", "work"); !strings.Contains(got,
			"status: granted") {
			t.Errorf("grant of request %s without --to: got %s", request, got)
		}
	}
	// A change after the request voids it, also before the next checkpoint.
	w.sh(m.Dir, "echo more >>new")
	w.json(&list, "session", "review", "list", "--all", "-C", m.Dir)
	for _, a := range list.Approvals {
		if a.Status != "void" {
			t.Errorf("request %s after a change: got status %s, want void", a.ID, a.Status)
		}
	}
	origin.Close()
	if got := w.afs("session", "review", "list", "--all", "-C", m.Dir); got.code != 0 ||
		!strings.Contains(got.stdout, merge.Approval.ID) ||
		!strings.Contains(got.stderr, "requests on the mounted remote are missing") {
		t.Errorf("approvals without the mounted remote: got %s", got)
	}
}
