package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// compare has the same result on a machine that has none of the sessions, with links, and where the sessions are
// mounted.
func TestSessionCompare(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := sample("compare")
	for _, name := range []string{"both", "clash", "same", "gone"} {
		files[name] = gittest.File{Data: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n")}
	}
	for _, name := range []string{"quiet1", "quiet2"} {
		files[name] = gittest.File{Data: []byte("nobody changes " + name + "\n")}
	}
	w.commit(r, files)
	origin := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", r)
	flags := func(name string) []string {
		return []string{"--session", name, "--session-remote", c.arg, "--wait", "git", "--checkpoint", "off"}
	}
	one := w.bare(origin.URL("r.git"), flags("try-1")...)
	two := w.bare(origin.URL("r.git"), flags("try-2")...)
	w.sh(one.Dir,
		`sed -i s/1/one/ both && sed -i s/5/ours/ clash && sed -i s/9/nine/ same && sed -i s/1/x/ gone && echo a >only-1`)
	w.sh(two.Dir,
		`sed -i s/9/nine/ both && sed -i s/5/theirs/ clash && sed -i s/9/nine/ same && rm gone && echo b >only-2`)
	one.checkpoint("--sync", "--pin", "good")
	two.checkpoint("--sync")

	want := map[string]control.Verdict{"both": control.VerdictClean, "clash": control.VerdictConflict,
		"same": control.VerdictSame, "gone": control.VerdictConflict}
	check := func(what string, reply control.SessionCompareReply) {
		t.Helper()
		got := map[string]control.Verdict{}
		for _, p := range reply.Shared {
			got[p.Path] = p.Verdict
			if len(p.Pairs) != 1 || p.Pairs[0] != (control.SharedPair{A: 0, B: 1, Verdict: p.Verdict}) {
				t.Errorf("%s: pairs of %s: got %+v, want one with verdict %s", what, p.Path, p.Pairs, p.Verdict)
			}
		}
		for path, verdict := range want {
			if got[path] != verdict {
				t.Errorf("%s: verdict on %s: got %q, want %q", what, path, got[path], verdict)
			}
		}
		if len(got) != len(want) || len(reply.Sides) != 2 {
			t.Fatalf("%s: got %d sides and shared paths %v, want 2 and %v", what, len(reply.Sides), got, want)
		}
		a, b := reply.Sides[0], reply.Sides[1]
		if a.Added != 1 || a.Modified != 4 || a.Removed != 0 || a.LinesAdded != 5 || a.LinesRemoved != 4 ||
			len(a.Users) == 0 {
			t.Errorf("%s: first side: got files +%d ~%d -%d, lines +%d -%d, who %q", what, a.Added, a.Modified, a.Removed,
				a.LinesAdded, a.LinesRemoved, a.Users)
		}
		if b.Added != 1 || b.Modified != 3 || b.Removed != 1 || b.LinesRemoved != 12 {
			t.Errorf("%s: second side: got files +%d ~%d -%d, lines +%d -%d", what, b.Added, b.Modified, b.Removed, b.LinesAdded,
				b.LinesRemoved)
		}
	}
	var reply control.SessionCompareReply
	o := w.elsewhere()
	origin.forget()
	c.server.Log().Reset()
	o.json(&reply, "session", "compare", "--session-remote", c.arg, "try-1", "try-2")
	check("from afar", reply)
	quiet := w.git(r.Path, "rev-parse", "main:quiet1", "main:quiet2")
	for _, log := range []*gittest.Log{origin.Log(), c.server.Log()} {
		sent, n := log.Blobs()
		for id := range strings.Lines(quiet) {
			if sent[object.MustID(strings.TrimSpace(id))] > 0 {
				t.Errorf("compare on another machine fetched contents of a file that no session changed")
			}
		}
		if n > 30 {
			t.Errorf("compare on another machine fetched %d contents, want those of changed files alone", n)
		}
	}
	o.json(&reply, "session", "compare", c.arg+"#session=try-1@good", c.arg+"#session=try-2")
	check("links", reply)
	w.json(&reply, "session", "compare", "try-1@good", "try-2@")
	check("mounted here", reply)
	w.unmount(two)
	w.json(&reply, "session", "compare", "try-1", "try-2")
	check("one of them not mounted", reply)

	// A session that this host does not have is looked up on the session remote of the mount that contains the working
	// directory.
	third := o.bare(origin.URL("r.git"), flags("try-3")...)
	o.sh(third.Dir, "echo 3 >only-3")
	third.checkpoint("--sync")
	cmd := o.command(t.Context(), "session", "compare", "@", "try-1", "try-2")
	cmd.Dir = third.Dir
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "try-3@") || !strings.Contains(string(out), "conflict B-C") ||
		!strings.Contains(string(out), "7 paths changed, 4 by two or more, 2 in conflict") {
		t.Errorf("compare of three, two of which are on the session remote alone: got %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if n := len([]rune(line)) - 1; n > 100 {
			t.Errorf("a line of the table has %d columns, want at most 100: %s", n, line)
		}
	}
	if left := w.homes(); !slices.Contains(left, "try-2") {
		t.Errorf("homes after compare: got %v, want try-2 among them", left)
	}
	if r := w.afs("session", "compare", "try-1"); r.code != control.ExitUsage {
		t.Errorf("compare of one session: got %s, want exit code %d", r, control.ExitUsage)
	}
	if r := w.afs("session", "compare", "try-1", "nobody", "--json"); r.code != control.ExitNotMounted ||
		!strings.Contains(r.stdout, `"not-found"`) {
		t.Errorf("compare with an unknown session: got %s, want exit code %d", r, control.ExitNotMounted)
	}
}

// The base of a fork and its parent is the checkpoint that was forked, and that of sessions of different commits is
// their merge base.
func TestSessionCompareBases(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	old := w.commit(r, map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n")}, "b": {Data: []byte("b\n")}})
	w.commit(r, map[string]gittest.File{"a": {Data: []byte("1\n2\n3\n")}, "b": {Data: []byte("upstream\n")}})
	origin := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", r)
	flags := func(name string) []string {
		return []string{"--session", name, "--session-remote", c.arg, "--wait", "git", "--checkpoint", "off"}
	}
	parent := w.bare(origin.URL("r.git"), flags("parent")...)
	w.sh(parent.Dir, "sed -i s/2/two/ a")
	checkpoint := parent.checkpoint("--sync")
	fork := w.place("fork")
	w.ok("session", "fork", "--session-remote", c.arg, "parent@", fork, "--session", "fork", "--wait", "git")
	w.sh(fork, "sed -i s/two/2-two/ a")
	mounted{control.MountReply{Dir: fork}, w}.checkpoint("--sync")
	w.sh(parent.Dir, "echo new >new")
	parent.checkpoint("--sync")
	older := w.bare(origin.URL("r.git"), append(flags("older"), "--ref", old.String())...)
	w.sh(older.Dir, "sed -i s/2/zwei/ a")
	older.checkpoint("--sync")

	o := w.elsewhere()
	var reply control.SessionCompareReply
	for _, far := range [][]string{nil, {"--session-remote", c.arg}} {
		x := w
		if far != nil {
			x = o
		}
		x.json(&reply, append([]string{"session", "compare", "parent", "fork"}, far...)...)
		if len(reply.Shared) != 0 || reply.Sides[0].BaseCheckpoint != "parent@"+checkpoint.ID ||
			reply.Sides[1].Modified != 1 || reply.Sides[0].Added != 1 {
			t.Errorf("compare %v of a session and its fork: got %+v, want checkpoint %s as the base, and no path that both changed", far, reply, checkpoint.ID)
		}
		x.json(&reply, append([]string{"session", "compare", "parent", "older"}, far...)...)
		if len(reply.Shared) != 1 || reply.Shared[0].Path != "a" || reply.Shared[0].Verdict != control.VerdictConflict ||
			reply.Sides[1].Base != old.String() || len(reply.Sides[1].Changes) != 1 {
			t.Errorf("compare %v of sessions of two commits: got %+v, want a conflict in a, and no path that only the commits between changed", far, reply)
		}
	}
	w.ok("unmount", fork)
}
