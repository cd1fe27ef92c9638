package integration

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// bytesOf returns the bytes of the bodies of all requests and answers of a server.
func bytesOf(s *gittest.Server) (in, out int64) {
	for _, r := range s.Log().Requests() {
		in, out = in+r.BytesIn, out+r.BytesOut
	}
	return in, out
}

// A session remote that has only a policy, approvals, cache entries and locks counts as empty: a new session is thin,
// or, if other machines cannot read the mounted remote, owns the plain names.
func TestSessionOnRemoteWithPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("policy"))
	policy := w.place("policy.json")
	w.sh(w.root, `echo '{"version":1,"branches":[{"match":"main","quorum":1}]}' >`+policy)
	for _, url := range []string{w.serve(gittest.ServerOptions{}).URL("r.git"), r.Path} {
		scheme := map[bool]string{true: "path", false: "http"}[url == r.Path]
		c := w.sessionRemote(scheme, nil)
		w.ok("session", "policy", "--set", policy, "--remote", c.arg)
		w.ok("session", "cache", "put", "--session-remote", c.arg, "key", policy)
		blob := w.sh(c.Path, "git hash-object -w --stdin </dev/null")
		for _, ref := range []string{"refs/afs/approvals/old", "refs/afs/locks/old"} {
			w.git(c.Path, "update-ref", ref, strings.TrimSpace(blob))
		}
		m := w.bare(url, "--session", "on-"+scheme, "--session-remote", c.arg, "--wait", "git", "--checkpoint", "off")
		w.sh(m.Dir, "git switch -qc topic && echo x >new && git add new && git commit -qm new")
		m.checkpoint("--sync")
		mode := m.status().Session.Mode
		refs := w.git(c.Path, "for-each-ref", "--format=%(refname)")
		owns := strings.Contains(refs, session.OwnerRef) && strings.Contains(refs, "refs/heads/topic")
		if thin := mode == "thin"; thin != (scheme == "http") || !thin && !owns {
			t.Errorf("session of %s: got mode %s and refs %s, want a thin session or the owner of the plain names",
				url, mode, refs)
		}
		w.unmount(m)
		again := w.elsewhere().bare(url, "--session", "on-"+scheme, "--session-remote", c.arg, "--wait", "git")
		w.sh(again.Dir, "git rev-parse --verify topic && cat new")
	}
}

// A small change in a large repository sends little data to an empty session remote, and the session can be resumed
// elsewhere.
func TestSessionThinIsSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.sized(100, 50)
	must[[]object.ID](t)(r.History(300))
	s := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", nil)
	m := w.bare(s.URL("sized.git"), append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "echo x >>d0001/f0001.txt && git commit -qam small && echo y >new")
	p := m.checkpoint("--sync")
	before := w.look(m.Dir)
	in, out := bytesOf(c.server)
	t.Logf("sent %d, received %d", in, out)
	if in+out > 200_000 || in == 0 {
		t.Errorf("a small change cost %d bytes to the session remote and %d back, want 200 KB at most:\n%s", in, out,
			c.server.Log())
	}
	st := m.status().Session
	if st.Mode != "thin" || st.Sent < in || st.Received < out || st.Seeded != 0 {
		t.Errorf("status %+v, want mode thin, and %d bytes sent and %d received at least", st, in, out)
	}
	var show control.SessionShowReply
	w.json(&show, "session", "show", "-C", m.Dir)
	if show.Status.Mode != "thin" || show.Status.Sent < in {
		t.Errorf("session show reports %+v", show.Status)
	}
	if text := w.ok("session", "show", "-C", m.Dir); !strings.Contains(text, "(thin: ") ||
		!strings.Contains(text, " sent, ") {
		t.Errorf("session show prints:\n%s", text)
	}
	w.unmount(m)
	w.sound(c.Path)

	o := w.elsewhere()
	again := o.bare(s.URL("sized.git"), append(c.flags("work"), "--wait", "git")...)
	if !again.Resumed || again.Session != "work" {
		t.Errorf("reply of mount elsewhere: got %+v", again.MountReply)
	}
	w.same("resumed elsewhere", before, o.look(again.Dir))
	if checkpoints := again.checkpoints(); len(checkpoints) == 0 || !containsCheckpoint(checkpoints, p.ID) {
		t.Errorf("checkpoints elsewhere: got %+v, want %s among them", checkpoints, p.ID)
	}
	o.unmount(again)
}

func containsCheckpoint(checkpoints []control.Checkpoint, id string) bool {
	for _, p := range checkpoints {
		if p.ID == id {
			return true
		}
	}
	return false
}

// A session with all kinds of changes can be resumed elsewhere, resumed back, and taken over, while the mounted remote
// gets new commits.
func TestSessionThinGoesOn(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	s := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", nil)
	m := w.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, everything)
	m.checkpoint("--sync", "-m", "before the journey")
	before := w.look(m.Dir)
	w.unmount(m)

	o := w.elsewhere()
	again := o.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
	w.same("resumed elsewhere", before, o.look(again.Dir))
	w.commit(r, map[string]gittest.File{"pulled/deep/file": {Data: []byte("later\n")},
		"d0005/f0001.txt": {Data: []byte("changed later\n")}})
	o.sh(again.Dir,
		"git reset -q --hard && git clean -qfd && git fetch -q origin && git merge -qm merged origin/main && echo more >>pulled/deep/file && git commit -qam 'on top' && git rm -q pulled/deep/file && echo z >z")
	again.checkpoint("--sync")
	before = o.look(again.Dir)

	// The session is not unmounted there: a third machine takes it over.
	third := w.elsewhere()
	if r := third.afs("mount", s.URL("r.git"), third.place("third"), "--session", "work", "--session-remote",
		c.arg); r.code == 0 {
		t.Errorf("a session that is mounted elsewhere was mounted without --take-over: %s", r)
	}
	back := third.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git", "--take-over")...)
	w.same("taken over", before, third.look(back.Dir))
	// this mount notices the take-over, and pushes its own lane to the container, the commit that holds all refs of the
	// session
	o.unmount(again)
	third.sh(back.Dir,
		"git log --all >/dev/null && git rev-list --objects --all --not --remotes >/dev/null && cat d0005/f0001.txt >/dev/null && echo taken >taken")
	back.checkpoint("--sync")
	if st := back.pushed(); st.Mode != "thin" {
		t.Errorf("status after the take-over: %+v", st)
	}
	w.sound(c.Path)
	third.unmount(back)
	// A mount with the same state directory does not fetch the container again.
	c.server.Log().Reset()
	back = third.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
	back.sync()
	if _, out := bytesOf(c.server); out > 20_000 {
		t.Errorf("%d bytes were fetched from the session remote for data that is on this host:\n%s", out, c.server.Log())
	}
	third.unmount(back)
}

// A branch may point to the commit that the session started from. The mounted remote has that commit, and its trees may
// still be being fetched.
func TestSessionThinResumesWhileTreesStream(t *testing.T) {
	w, _ := newTravelled(t)
	s := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", nil)
	m := w.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "git branch old && git switch -qc topic && echo topic >topic && git add topic && git commit -qm topic")
	m.checkpoint("--sync")
	w.unmount(m)

	o := w.elsewhere()
	stall := s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 700})
	again := o.bare(s.URL("r.git"), c.flags("work")...)
	if stall.Hits() == 0 || again.status().Tree.Complete {
		t.Error("all trees were fetched before the session was resumed")
	}
	stall.Remove()
	again.await("all trees are here", func(st control.MountStatus) bool { return st.Tree.Complete && st.GitReady })
	if got := o.sh(again.Dir, "git log --format=%s old..topic --"); strings.TrimSpace(got) != "topic" {
		t.Errorf("commits after branch old elsewhere: got %q, want topic", got)
	}
	o.unmount(again)
}
