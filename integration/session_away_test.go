package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// pushes are the requests to a session remote that a fault applies to.
func pushes(kind gittest.Kind, status int) gittest.Fault {
	return gittest.Fault{Kind: kind, Status: status, On: gittest.Push}
}

// orderly checks that the session remote received all commits and checkpoints once, in the order in which they were
// made.
func (c *carried) orderly(commits []string, checkpoints []control.Checkpoint) {
	c.w.Helper()
	var gotCommits []string
	last, seen := map[string]object.ID{}, map[object.ID]string{}
	for _, u := range must[[]gittest.Update](c.w)(c.Updates()) {
		if was, known := last[u.Ref]; known && was != u.Old {
			c.w.Errorf("ref %s was moved from %s to %s, but was %s", u.Ref, u.Old, u.New, was)
		}
		last[u.Ref] = u.New
		if u.Ref == "refs/heads/main" {
			if before, twice := seen[u.New]; twice {
				c.w.Errorf("%s was sent twice, first as %s", u.New, before)
			}
			seen[u.New] = u.Ref
			gotCommits = append(gotCommits, u.New.String())
		}
	}
	// One push may contain several commits, so the values of main are a subsequence of the commits, in order, and end with
	// the last commit.
	if at := subsequence(gotCommits, commits); at >= 0 {
		c.w.Errorf("commit %s was pushed out of order", gotCommits[at])
	}
	if got := c.w.git(c.Path, "rev-parse", "main"); got != commits[len(commits)-1] {
		c.w.Errorf("main on the session remote is %s, want %s", got, commits[len(commits)-1])
	}
	all := c.w.git(c.Path, "rev-list", "--all")
	for _, id := range commits {
		if !strings.Contains(all, id) {
			c.w.Errorf("commit %s is not on the session remote", id)
		}
	}
	for _, p := range checkpoints {
		if !strings.Contains(all, p.Commit) {
			c.w.Errorf("checkpoint %s is not on the session remote", p.ID)
		}
	}
}

// subsequence returns the index of the first element of part that is not in whole in the same order, or -1 if all are.
func subsequence(part, whole []string) int {
	for i, p := range part {
		for len(whole) > 0 && whole[0] != p {
			whole = whole[1:]
		}
		if len(whole) == 0 {
			return i
		}
	}
	return -1
}

// A session remote that was unreachable receives everything once and in order when it is back. Until then the mount
// works.
func TestSessionRemoteAway(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", r)
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	w.sh(m.Dir, "echo 0 >work && git add work && git commit -qm 0")
	m.checkpoint("--sync")
	commits := []string{w.git(m.Dir, "rev-parse", "HEAD")}
	c.server.Down()
	var checkpoints []control.Checkpoint
	for i := range 8 {
		w.sh(m.Dir, fmt.Sprintf("echo %d >>work && git commit -qam %d && echo untracked >>more", i, i))
		commits = append(commits, w.git(m.Dir, "rev-parse", "HEAD"))
		p := m.checkpoint()
		if p.Synced {
			t.Errorf("checkpoint %+v is reported as pushed", p)
		}
		checkpoints = append(checkpoints, p.Checkpoint)
		if i == 3 { // the next worker pushes the rest
			w.killDaemon()
			var said string
			m, said = w.mountAt(url, m.Dir, "--session", "work", "--checkpoint", "off", "--wait", "git")
			if !strings.Contains(said, "session remote has not answered") {
				t.Errorf("mount without the session remote said %q", said)
			}
		}
	}
	st := m.await("the status says so", func(s control.MountStatus) bool { return s.Session.Error != "" }).Session
	if st.Pending == 0 || !strings.Contains(st.Error, "refused") {
		t.Errorf("status: got %+v", st)
	}
	if res := w.afs("sync", m.Dir, "--timeout", "300ms"); res.code != control.ExitUnsynced {
		t.Errorf("sync without the session remote: got %s", res)
	}
	if res := w.afs("unmount", m.Dir, "--timeout", "300ms"); res.code != control.ExitUnsynced {
		t.Errorf("unmount without the session remote: got %s", res)
	}
	if err := c.server.Up(); err != nil {
		t.Fatal(err)
	}
	m, _ = w.mountAt(url, m.Dir, "--session", "work", "--checkpoint", "off", "--wait", "git")
	m.sync()
	c.orderly(commits, checkpoints)
	w.sound(c.Path)
	if st := m.status().Session; st.Pending != 0 || st.Error != "" {
		t.Errorf("status: got %+v", st)
	}
	if res := w.afs("unmount", m.Dir); res.code != 0 {
		t.Error(res)
	}
}

// For each failure of a session remote, status reports the cause, nothing is lost, and everything is pushed once the
// remote works.
func TestSessionRemoteFails(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", r)
	token := gittest.Fault{Kind: gittest.RequireAuth, User: "u", Pass: "new-" + password, On: gittest.Push}
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	w.sh(m.Dir, "echo 0 >work && git add work && git commit -qm 0")
	m.checkpoint("--sync")
	n := 0
	for _, f := range []struct {
		name, says string
		begin      func() (end func())
	}{
		{"refuses", "forbidden", func() func() { return c.server.Inject(pushes(gittest.Status, 403)).Remove }},
		{"is overloaded", "503", func() func() { return c.server.Inject(pushes(gittest.Status, 503)).Remove }},
		{"revokes the token", "", func() func() { return c.server.Inject(token).Remove }},
		{"cuts answers off", "", func() func() {
			return c.server.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Push, After: 20}).Remove
		}},
		{"talks nonsense", "", func() func() { return c.server.Inject(pushes(gittest.Garbage, 0)).Remove }},
		{"has a hook that declines", "not today", func() func() {
			check2(w, c.Decline("not today"))
			return func() { check2(w, c.Accept()) }
		}},
		{"is not there", "", func() func() {
			check2(w, os.Rename(c.Path, c.Path+".away"))
			return func() { check2(w, os.Rename(c.Path+".away", c.Path)) }
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			end := f.begin()
			n++
			w.sh(m.Dir, fmt.Sprintf("echo %d >>work && git commit -qam %d && echo %d >>more", n, n, n))
			p := m.checkpoint()
			var st control.SessionStatus
			for end := time.Now().Add(patience); st.Error == "" || st.Pending == 0; time.Sleep(10 * time.Millisecond) {
				if st = m.status().Session; time.Now().After(end) {
					t.Errorf("status does not report the failure: %+v", st)
					break
				}
			}
			t.Logf("%s, mode %s, %d pending", st.Error, st.Mode, st.Pending)
			if !strings.Contains(st.Error, f.says) || strings.Contains(st.Error, password) {
				t.Errorf("error in the status: got %q, want %q", st.Error, f.says)
			}
			if res := w.afs("sync", m.Dir, "--timeout", "300ms"); res.code != control.ExitUnsynced {
				t.Errorf("sync without the session remote: got %s", res)
			}
			w.wantFile(m.path("d0000/f0000.txt"), w.git(r.Path, "show", "main:d0000/f0000.txt")+"\n")
			end()
			m.sync()
			if id := w.git(m.Dir, "rev-parse", "HEAD"); w.git(c.Path, "rev-parse", "main") != id || !w.has(c.Path, p.Commit) {
				t.Errorf("commit %s or checkpoint %s is not on the session remote", id, p.Commit)
			}
			if st := m.status().Session; st.Pending != 0 || st.Error != "" {
				t.Errorf("status: got %+v", st)
			}
		})
	}
	t.Run("loses refs", func(t *testing.T) {
		var lost []string
		for name := range must[map[string]object.ID](t)(c.Refs()) {
			if name == "refs/heads/main" || strings.HasPrefix(name, "refs/afs/j/") {
				w.git(c.Path, "update-ref", "-d", name)
				lost = append(lost, name)
			}
		}
		w.sh(m.Dir, "echo lost >>work && git commit -qam lost")
		m.checkpoint("--sync")
		refs := must[map[string]object.ID](t)(c.Refs())
		for _, name := range lost {
			if refs[name].IsZero() {
				t.Errorf("ref %s was not pushed again", name)
			}
		}
	})
	t.Run("diverges", func(t *testing.T) {
		clone := w.clone(c.Path)
		w.sh(clone, "git commit -q --allow-empty -m theirs && git push -q origin HEAD:main")
		theirs := w.git(clone, "rev-parse", "HEAD")
		w.sh(m.Dir, "echo ours >>work && git commit -qam ours")
		ours := w.git(m.Dir, "rev-parse", "HEAD")
		st := m.await("the status says so", func(s control.MountStatus) bool { return len(s.Session.Diverged) > 0 }).Session
		if st.Diverged[0] != "refs/heads/main" && st.Diverged[0] != "main" {
			t.Errorf("status: got %+v", st)
		}
		w.until("our commit is on the session remote beside theirs", func() bool { return w.has(c.Path, ours) })
		if got := w.git(c.Path, "rev-parse", "main"); got != theirs {
			t.Errorf("main was force-pushed to %s, was %s", got, theirs)
		}
		if got := w.git(m.Dir, "rev-parse", "HEAD"); got != ours {
			t.Errorf("the branch in the mount was moved to %s", got)
		}
		// After the user has merged the branch with git, pushes continue.
		w.sh(m.Dir, "git fetch -q "+c.arg+" main && git merge -q -m merged FETCH_HEAD")
		merged := w.git(m.Dir, "rev-parse", "HEAD")
		w.until("the merge is on the session remote", func() bool { return w.git(c.Path, "rev-parse", "main") == merged })
		m.await("nothing diverges any more", func(s control.MountStatus) bool { return len(s.Session.Diverged) == 0 })
	})
	w.sound(c.Path)
	w.unmount(m)
}

// A session remote whose disk is full receives the rest when it has space.
func TestSessionRemoteIsFull(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	disk := w.place("disk")
	check(t, errors.Join(os.Mkdir(disk, 0o755), unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m")))
	t.Cleanup(func() { w.until("the disk is free", func() bool { return unix.Unmount(disk, 0) == nil }) })
	path := filepath.Join(disk, "s.git")
	check(t, os.MkdirAll(path, 0o755))
	c := &carried{w: w, Receiver: must[*gittest.Receiver](t)(gittest.NewReceiver(path, gittest.RepoOptions{}))}
	w.git(path, "fetch", "--quiet", r.Path, "refs/heads/*:refs/heads/*")
	c.own("work")
	c.server = must[*gittest.Server](t)(gittest.Serve(gittest.ServerOptions{Root: disk}))
	t.Cleanup(func() { w.afs("unmount", "--all"); c.server.Close() })
	c.arg = c.server.URL("s.git")
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	check(t, os.WriteFile(m.path("large"), randomBytes(6<<20), 0o644))
	w.sh(m.Dir, "git add large && git commit -qm large")
	p := m.checkpoint()
	st := m.await("the status says so", func(s control.MountStatus) bool { return s.Session.Error != "" }).Session
	t.Logf("%s", st.Error)
	if res := w.afs("unmount", m.Dir, "--timeout", "1s"); res.code != control.ExitUnsynced {
		t.Errorf("unmount without the session remote: got %s", res)
	}
	check(t, unix.Mount("", disk, "", unix.MS_REMOUNT, "size=64m"))
	m, _ = w.mountAt(url, m.Dir, "--session", "work", "--wait", "git")
	m.sync()
	if !w.has(path, p.Commit) || w.git(path, "rev-parse", "main") != w.git(m.Dir, "rev-parse", "HEAD") {
		t.Error("the checkpoint or the commit is not on the session remote")
	}
	w.sound(path)
	w.unmount(m)
}

// An empty session remote receives the base in one push, and the mount does not fetch it blob by blob.
func TestSessionRemoteIsSeeded(t *testing.T) {
	w := newWorld(t)
	r := w.sized(20, 30)
	must[[]object.ID](t)(r.History(20))
	s := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", nil)
	m := w.bare(s.URL("sized.git"), append(c.flags("work"), "--wait", "git", "--session-base", "seed")...)
	s.forget()
	w.sh(m.Dir, "echo new >new && echo more >>d0001/f0001.txt && git add -A && git commit -qm new")
	m.checkpoint("--sync")
	if n := len(s.Log().Requests()); n > 5 {
		t.Errorf("got %d requests to the mounted remote:\n%s", n, s.Log())
	}
	in, out := bytesOf(c.server)
	st := m.await("status counts the bytes of all pushes", func(s control.MountStatus) bool {
		return s.Session.Pending == 0 && s.Session.Sent >= in && s.Session.Received >= out
	}).Session
	if st.Mode != "seed" && st.Mode != "shared" {
		t.Errorf("status: got %+v", st)
	}
	if seeded, _ := bytesOf(s.Server); st.Seeded == 0 || in == 0 || seeded == 0 {
		t.Errorf("status reports %d bytes sent, %d received and %d for seeding; the session remote got %d and sent %d",
			st.Sent, st.Received, st.Seeded, in, out)
	}
	w.sound(c.Path)
	clone := w.clone(c.arg)
	w.sound(clone)
	if w.git(clone, "rev-parse", "HEAD") != w.git(m.Dir, "rev-parse", "HEAD") ||
		w.git(clone, "status", "--porcelain") != "" {
		t.Error("the clone differs from the mount")
	}
	w.unmount(m)
}

// Without a session remote, the state directory stores the changes and no session repository.
func TestSessionRemoteNone(t *testing.T) {
	w := newWorld(t)
	w.sized(3, 3)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work",
		"--session-remote", "none")
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm new && echo dirty >dirty")
	if st := m.status().Session; st.Mode != "none" || st.Checkpoints != 0 || st.Pending != 0 {
		t.Errorf("status: got %+v", st)
	}
	if res := w.afs("unmount", m.Dir); res.code != 0 {
		t.Error(res)
	}
	if exists(filepath.Join(w.state, "mounts", "work", "session.git")) {
		t.Error("session.git exists")
	}
}
