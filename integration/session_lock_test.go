package integration

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/locks"
)

// lockers are two mounts on two machines with sessions on one session remote.
type lockers struct {
	t     *testing.T
	w, o  *world
	one   mounted // session one on machine w
	other mounted // session two on machine o
}

// locks runs one of the commands for locks, which must succeed.
func (w *world) locks(m mounted, args ...string) (reply control.SessionLocksReply) {
	w.Helper()
	w.json(&reply, append([]string{"session"}, append(args, "-C", m.Dir)...)...)
	return reply
}

// try opens a file of a mount for writing.
func try(m mounted, name string) error {
	f, err := os.OpenFile(m.path(name), os.O_WRONLY, 0)
	if err == nil {
		err = f.Close()
	}
	return err
}

// locked waits until programs in a mount cannot write to a file.
func locked(t *testing.T, m mounted, name string) {
	t.Helper()
	m.w.until(name+" is locked in "+m.Session, func() bool { return errors.Is(try(m, name), syscall.EACCES) })
}

// unlocked waits until programs in a mount can write to a file.
func unlocked(t *testing.T, m mounted, name string) {
	t.Helper()
	m.w.until(name+" is not locked in "+m.Session, func() bool { return try(m, name) == nil })
}

func TestSessionLocks(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w, r := newTravelled(t)
			s := w.serve(gittest.ServerOptions{})
			c := w.sessionRemote(kind, r)
			l := &lockers{t: t, w: w, o: w.elsewhere()}
			l.one = w.bare(s.URL("r.git"), append(c.flags("one"), "--wait", "git")...)
			l.other = l.o.bare(s.URL("r.git"), "--session", "two", "--session-remote", c.arg, "--wait", "git")
			l.run(c.arg)
		})
	}
}

// The same with a server whose tokens are for one session each.
func TestServerLocks(t *testing.T) {
	t.Parallel()
	w, _, _ := hosted(t)
	l := &lockers{t: t, w: w, o: w.elsewhere()}
	l.one = w.bare("team/app", "--create", "--session", "one", "--wait", "git")
	l.other = l.o.bare("team/app", "--create", "--session", "two", "--wait", "git")
	l.run("")
}

func (l *lockers) run(remote string) {
	t, w, o, one, other := l.t, l.w, l.o, l.one, l.other
	const file = "d0001/f0001.txt"
	// In the other session there is a branch with another version of the file, and a checkpoint.
	o.sh(other.Dir, "git switch -qc topic && echo topic >>"+file+" && git commit -qam topic && git switch -q -")
	before := other.checkpoint("--sync")
	got := w.locks(one, "lock", file, "d0002", "new*.txt", "-m", "new login")
	if len(got.Done) != 3 || got.Done[0].Pattern != file || got.Done[0].Session != "one" || !got.Done[0].Mine ||
		got.Mode != "refuse" {
		t.Fatalf("lock: got %+v", got)
	}
	locked(t, other, file)
	unlocked(t, one, file) // its own lock
	path := other.path(file)
	for what, do := range map[string]func() error{
		"write":       func() error { return os.WriteFile(path, []byte("x"), 0o644) },
		"append":      func() error { f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0); f.Close(); return err },
		"create":      func() error { return os.WriteFile(other.path("new1.txt"), nil, 0o644) },
		"create in":   func() error { return os.WriteFile(other.path("d0002/new"), nil, 0o644) },
		"mkdir":       func() error { return os.Mkdir(other.path("d0002/new"), 0o755) },
		"symlink":     func() error { return os.Symlink("a", other.path("d0002/link")) },
		"rename away": func() error { return os.Rename(path, other.path("moved")) },
		"rename over": func() error { return os.Rename(other.path("d0003/f0003.txt"), path) },
		"rename dir":  func() error { return os.Rename(other.path("d0001"), other.path("d0009")) },
		"unlink":      func() error { return os.Remove(path) },
		"truncate":    func() error { return os.Truncate(path, 0) },
		"chmod":       func() error { return os.Chmod(path, 0o600) },
		"link":        func() error { return os.Link(path, other.path("hard")) },
	} {
		if err := do(); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s: got %v, want EACCES", what, err)
		}
	}
	o.sh(other.Dir, "cat "+file+" >/dev/null && echo fine >d0003/fine && rm d0003/fine && git status --porcelain")
	content, err := os.ReadFile(path)
	check(t, err)
	// git prints the error, moves HEAD and keeps the file.
	if out := o.sh(other.Dir, "git checkout topic 2>&1 || true"); !strings.Contains(out, "Permission denied") {
		t.Errorf("git checkout: got %s", out)
	}
	o.wantFile(path, string(content))
	o.sh(other.Dir, "git symbolic-ref HEAD refs/heads/main && git reset -q")
	head := o.git(other.Dir, "rev-parse", "HEAD")
	for _, args := range [][]string{{"switch", "topic", "-C", other.Dir},
		{"session", "merge", "-C", other.Dir, "two@" + before.ID}} {
		r := o.afs(args...)
		if args[0] == "switch" && (r.code == 0 || !strings.Contains(r.stderr, "locked by session one")) {
			t.Errorf("%s: got %s, want the holder", args[0], r)
		}
	}
	if now := o.git(other.Dir, "rev-parse", "HEAD"); now != head || o.git(other.Dir, "status", "--porcelain") != "" {
		t.Errorf("HEAD after refused commands: got %s, want %s and no changes", now, head)
	}
	var status control.MountStatus
	o.json(&status, "status", other.Dir)
	if !slices.ContainsFunc(status.Notes, func(n string) bool {
		return strings.Contains(n, file+" is locked by session one") && strings.Contains(n, "new login")
	}) {
		t.Errorf("notes of status: got %q, want the holder of %s", status.Notes, file)
	}
	if log, err := os.ReadFile(o.logFile()); err != nil || strings.Count(string(log), `"path": "`+file+`"`) > 10 ||
		!strings.Contains(string(log), "locked by another session") {
		t.Errorf("log: got %v, %s", err, log)
	}

	// Locks that overlap are refused.
	if r := o.afs("session", "lock", "d0002/sub", "free", "-C", other.Dir); r.code != 1 ||
		!strings.Contains(r.stderr, "d0002 is locked by session one") {
		t.Errorf("lock that overlaps: got %s", r)
	}
	if r := o.afs("session", "unlock", file, "-C", other.Dir); r.code != 1 ||
		!strings.Contains(r.stderr, "locked by session one") {
		t.Errorf("unlock of another session's lock: got %s", r)
	}
	list := o.locks(other, "locks")
	if len(list.Locks) != 3 || list.Locks[0].Mine || list.Locks[0].Reason != "new login" {
		t.Errorf("locks: got %+v", list)
	}
	w.locks(one, "unlock", file)
	unlocked(t, other, file)
	if r := o.afs("switch", "topic", "-C", other.Dir); r.code != 0 {
		t.Errorf("switch after unlock: %s", r)
	}

	// A forced removal leaves a record.
	o.locks(other, "unlock", "d0002", "--force", "-m", "holiday")
	if list = w.locks(one, "locks"); len(list.Locks) != 1 || len(list.Forced) != 1 ||
		list.Forced[0].Lock.Pattern != "d0002" ||
		list.Forced[0].Session != "two" || list.Forced[0].Reason != "holiday" {
		t.Errorf("locks after a forced removal: got %+v", list)
	}

	// Both lock the same path at the same time: exactly one gets it.
	for i := range 3 {
		var results [2]result
		var both sync.WaitGroup
		name := fmt.Sprint("race", i)
		both.Go(func() { results[0] = w.afs("session", "lock", name, "-C", one.Dir) })
		both.Go(func() { results[1] = o.afs("session", "lock", name+"/x", "-C", other.Dir) })
		both.Wait()
		if results[0].code+results[1].code != 1 {
			t.Errorf("two sessions lock at the same time: got %s and %s, want one success", results[0], results[1])
		}
	}

	// By policy, mounts only warn.
	if remote != "" {
		name := w.place("policy.json")
		w.sh(w.root, `echo '{"version":1,"locks":"warn"}' >`+name)
		w.ok("session", "policy", "--set", name, "--remote", remote)
		if got := w.locks(one, "lock", "d0003"); got.Mode != "warn" {
			t.Errorf("mode of the policy: got %s", got.Mode)
		}
		o.until("the change is noticed", func() bool {
			o.sh(other.Dir, "echo x >d0003/f0003.txt")
			o.json(&status, "status", other.Dir)
			return slices.ContainsFunc(status.Notes,
				func(n string) bool { return strings.Contains(n, "d0003/f0003.txt is locked by session one") })
		})
		w.sh(w.root, `echo '{"version":1}' >`+name)
		w.ok("session", "policy", "--set", name, "--remote", remote)
		locked(t, other, "d0003/f0003.txt")
		if r := o.afs("session", "restore", before.ID, "-C", other.Dir); r.code == 0 ||
			!strings.Contains(r.stderr, "locked by session one") {
			t.Errorf("restore of a locked file: got %s", r)
		}
	}

	// The lock of a session whose machine has died expires. While the session is mounted, it is renewed.
	w.locks(one, "lock", "short", "--ttl", "10s")
	w.until("the lock is renewed", func() bool {
		l := w.locks(one, "locks").Locks
		i := slices.IndexFunc(l, func(l control.SessionLock) bool { return l.Pattern == "short" })
		return i >= 0 && l[i].Expires.Sub(l[i].Since) > 2*locks.MinTTL
	})
	w.json(&status, "status", one.Dir)
	group, err := syscall.Getpgid(status.PID)
	check(t, err)
	check(t, syscall.Kill(-group, syscall.SIGKILL)) // worker and supervisor
	o.until("the lock has expired", func() bool { return o.afs("session", "lock", "short", "-C", other.Dir).code == 0 })

	// not mounted any more
	if err := syscall.Unmount(one.Dir, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}

	// A closed session has no locks. On the server, the daemon has no token for a session that is not mounted.
	o.unmount(other)
	if remote == "" {
		return
	}
	o.ok("session", "close", "two")
	o.json(&list, "session", "locks", "-C", "two")
	if slices.ContainsFunc(list.Locks, func(l control.SessionLock) bool { return l.Session == "two" }) {
		t.Errorf("locks after the session was closed: got %+v", list.Locks)
	}
}

// Without locks, a mount asks for them in the requests that it makes anyway. Only a mount whose session was never
// pushed makes requests of its own, one at first and then every 30 s.
func TestLocksCostNoRequests(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	c := w.sessionRemote("http", r)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), append(c.flags("one"), "--wait", "git")...)
	count := func() (own, shared, fetches int) {
		for _, r := range c.server.Log().Requests() {
			switch asks := slices.Contains(r.Prefixes, locks.Ref); {
			case r.Command == gittest.Fetch:
				fetches++
			case asks && slices.Contains(r.Prefixes, session.MetaRef("one")):
				shared++
			case asks:
				own++
			}
		}
		return own, shared, fetches
	}
	w.until("the mount asks for locks", func() bool { own, _, _ := count(); return own > 0 })
	w.sh(m.Dir, "echo x >x")
	m.checkpoint("--sync")
	if own, _, _ := count(); own != 1 {
		t.Errorf("requests for locks of a new session: got %d, want 1", own)
	}
	c.server.Log().Reset()
	w.until("the mount looks for a takeover", func() bool { _, shared, _ := count(); return shared > 1 })
	if own, _, fetches := count(); own+fetches > 0 {
		t.Errorf("of a session on the session remote: got %d requests for locks, and %d fetches, want none", own, fetches)
	}
}

// The locks that are known stay in force if the session remote cannot be reached, also in the next process of the
// mount.
func TestLocksOfUnreachableSessionRemote(t *testing.T) {
	t.Parallel()
	w, r := newTravelled(t)
	c := w.sessionRemote("path", r)
	url, o := w.serve(gittest.ServerOptions{}).URL("r.git"), w.elsewhere()
	one := w.bare(url, append(c.flags("one"), "--wait", "git")...)
	other := o.bare(url, "--session", "two", "--session-remote", c.arg, "--wait", "git")
	const file = "d0001/f0001.txt"
	w.locks(one, "lock", file)
	locked(t, other, file)
	check(t, os.Rename(c.Path, c.Path+".away"))
	var status control.MountStatus
	o.json(&status, "status", other.Dir)
	check(t, syscall.Kill(status.PID, syscall.SIGKILL))
	if err := try(other, file); !errors.Is(err, syscall.EACCES) {
		t.Errorf("write after the worker was killed: got %v, want EACCES", err)
	}
	check(t, os.Rename(c.Path+".away", c.Path))

	// An agent sees the same by its tools, and locks and unlocks for its session.
	a := w.agent(one.Dir, "--tools", "lock,locks,unlock")
	var reply control.SessionLocksReply
	a.ok("lock", map[string]any{"paths": []string{"free"}, "reason": "by an agent", "ttl_seconds": 600}, &reply)
	if len(reply.Done) != 1 || reply.Done[0].Expires.Sub(reply.Done[0].Since) != 10*time.Minute {
		t.Errorf("tool lock: got %+v", reply)
	}
	a.ok("unlock", map[string]any{"paths": []string{"free", file}}, &reply)
	a.ok("locks", nil, &reply)
	if len(reply.Locks) != 0 {
		t.Errorf("tool locks: got %+v", reply)
	}
	unlocked(t, other, file)
}
