package integration

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// A session whose session remote is the mounted repository was resumed or forked on another host, where nobody has read
// its files: its commits can be promoted, also by a merge that needs the contents, and a dry run finds the same.
func TestPromoteElsewhereWithoutContents(t *testing.T) {
	t.Parallel()
	w, _, _ := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir,
		"seq 9 >shared && git add . && git commit -qm base && git push -q origin HEAD:main && mkdir deep && seq 900 >deep/file && "+
			"sed -i s/2/two/ shared && git add . && git commit -qm work")
	tree := w.git(m.Dir, "rev-parse", "HEAD^{tree}")
	w.unmount(m)

	o := w.elsewhere()
	again := mounted{w: o}
	o.json(&again.MountReply, "session", "resume", "work", o.place("again"), "--session-remote", appURL(w), "--prefetch",
		"none", "--wait", "git")
	fork := mounted{w: o}
	o.json(&fork.MountReply, "session", "fork", "work", o.place("fork"), "--history", "none", "--prefetch", "none",
		"--wait", "git")
	for name, of := range map[string]mounted{"resumed": again, "forked": fork} {
		var planned, done control.SessionPromoteReply
		o.json(&planned, "session", "promote", "-C", of.Dir, "--dry-run", "--to", ":"+name)
		o.json(&done, "session", "promote", "-C", of.Dir, "--to", ":"+name)
		if planned.New != done.New || done.Tree != tree {
			t.Errorf("promote the %s session: got commit %s with tree %s, want the commit %s of the dry run, with tree %s",
				name, done.New,
				done.Tree, planned.New, tree)
		}
	}
	// Somebody else changes another line of the file that the session has changed.
	clone := o.sh(o.root, "mkdir other && cd other && git init -q && pwd")
	o.sh(clone,
		"git fetch -q "+authorized(w)+
			" main && git checkout -q FETCH_HEAD && sed -i s/8/eight/ shared && git commit -qam other && "+
			"git push -q "+authorized(w)+" HEAD:main")
	var planned, done control.SessionPromoteReply
	o.json(&planned, "session", "promote", "-C", again.Dir, "--dry-run", "--merge", "--to", ":main")
	o.json(&done, "session", "promote", "-C", again.Dir, "--merge", "--to", ":main")
	if planned.Tree != done.Tree {
		t.Errorf("promote by a merge: got tree %s, want that of the dry run, %s", done.Tree, planned.Tree)
	}
	if got := o.sh(clone, "git fetch -q "+authorized(w)+
		" main && git show FETCH_HEAD:shared | paste -sd,"); got != "1,two,3,4,5,6,7,eight,9" {
		t.Errorf("merged file: got %s", got)
	}
}

// The daemon and the user push the same commit at once, several times: git push succeeds, and the branch is up to date
// with its upstream, also when only the daemon has pushed.
func TestPushWhatTheDaemonPushes(t *testing.T) {
	t.Parallel()
	w, _, _ := hosted(t)
	m := w.bare("team/fresh", "--create", "--wait", "git")
	for range 8 {
		w.sh(m.Dir, "date +%N >>a && git add a && git commit -qm more && git push -q origin HEAD:main")
	}
	w.sh(m.Dir, "date +%N >>a && git commit -qam last")
	m.sync()
	if got := w.sh(m.Dir, "git status -sb"); got != "## main...origin/main" {
		t.Errorf("status after the daemon has pushed: got %q, want main to be up to date with origin/main", got)
	}
	if got := w.sh(m.Dir, "git push origin HEAD:main 2>&1"); got != "Everything up-to-date" {
		t.Errorf("push of what the daemon has pushed: got %q", got)
	}
}

// A reviewer on another machine has only a token, in the environment or in a file. The commands that review request
// prints work, and doctor has no doubts about a mount that makes its own tokens.
func TestReviewWithOneToken(t *testing.T) {
	t.Parallel()
	w, _, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "git checkout -qb fix && echo fixed >fixed && git add fixed && git commit -qm fix")
	var asked control.SessionApproveReply
	w.json(&asked, "session", "review", "request", "-C", m.Dir, "--for", "merge", "--into", "main")
	if r := w.afs("doctor"); strings.Contains(r.stdout, "requires credentials") {
		t.Errorf("doctor in a mount with its own tokens: got %s", r)
	}
	made, err := api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "app", Scope: client.Write, Actor: "alice", TTL: 600})
	if err != nil {
		t.Fatal(err)
	}
	file := w.place("token")
	if err := os.WriteFile(file, []byte(made.Plaintext+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reviewer := w.elsewhere()
	reviewer.env = append(slices.DeleteFunc(slices.Clone(w.env),
		func(v string) bool { return strings.HasPrefix(v, "ARTIFACTFS_SERVER") }),
		"ARTIFACTFS_TOKEN="+made.Plaintext)
	for _, args := range [][]string{{"show", asked.Show}, {"review", "grant", asked.Link}, {"review", "deny", asked.Link},
		{"annotate", asked.Show, "-m", "good"}} {
		reviewer.ok(append([]string{"session"}, args...)...)
	}
	reviewer.env = reviewer.env[:len(reviewer.env)-1]
	if r := reviewer.afs("session", "review", "grant", asked.Link); r.code != control.ExitRemote {
		t.Errorf("grant without a token: got %s", r)
	}
	reviewer.ok("session", "review", "grant", asked.Link, "--token-file", file)

	// In the mount, whose token is of its user, the given token speaks for alice.
	w.json(&asked, "session", "review", "deny", "-C", m.Dir, asked.Approval.ID, "--token-file", file, "-m", "not yet")
	w.json(&asked, "session", "review", "grant", "-C", m.Dir, asked.Approval.ID, "--token-file", file)
	if g := asked.Approval.Grants; len(g) != 1 || g[0].Actor != "alice" {
		t.Errorf("grants with the token of alice in the mount: got %+v", g)
	}
}

// variable returns the value of a variable of the world's commands.
func (w *world) variable(name string) (value string) {
	for _, v := range w.env {
		if s, ok := strings.CutPrefix(v, name+"="); ok {
			value = s
		}
	}
	return value
}

// appURL returns the URL of the repository of hosted.
func appURL(w *world) string { return w.variable("ARTIFACTFS_SERVER") + "/git/team/app.git" }

// authorized returns appURL with the token of the server.
func authorized(w *world) string {
	return strings.Replace(appURL(w), "http://", "http://x:"+w.variable("ARTIFACTFS_SERVER_TOKEN")+"@", 1)
}
