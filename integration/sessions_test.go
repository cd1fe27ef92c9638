package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// mountAt mounts at a given directory, and also returns the stderr of the command.
func (w *world) mountAt(remote, dir string, args ...string) (mounted, string) {
	w.Helper()
	m := mounted{w: w}
	r := w.afs(append([]string{"mount", remote, dir, "--json", "--history", "none", "--prefetch", "none"}, args...)...)
	if r.code != 0 || json.Unmarshal([]byte(r.stdout), &m.MountReply) != nil {
		w.Fatal(r)
	}
	return m, r.stderr
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// killed kills all processes of the world's only daemon.
func (w *world) killed() {
	w.Helper()
	w.killDaemon()
}

// homes returns the names of the directories below mounts/.
func (w *world) homes() []string {
	w.Helper()
	var names []string
	entries, err := os.ReadDir(filepath.Join(w.state, "mounts"))
	w.check(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (w *world) wantFile(path, want string) {
	w.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		w.Errorf("read %s: got %.60q, %v; want %.60q", path, got, err, want)
	}
}

// Unmount prints the kept changes, status and list show them, and the next mount resumes them with the same commit and
// inodes, even if the branch has moved.
func TestSessionGoesOn(t *testing.T) {
	w := newWorld(t)
	files := sample("session")
	repo := w.repo("r.git", object.SHA1)
	first := w.commit(repo, files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	dir := w.place("m")
	m, _ := w.mountAt(url, dir)
	if m.Resumed || m.Session == "" || m.ID != m.Session || m.Changed != 0 {
		t.Errorf("reply of mount: got %+v", m.MountReply)
	}
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	check(t, os.Remove(m.path("known/a")))
	check(t, os.WriteFile(m.path("d0/sub/f0"), []byte("changed\n"), 0o644))
	if st := m.status(); st.Overlay.Changed != 3 || st.Session.Name != m.Session || st.ReadOnly {
		t.Errorf("status: got %+v", st)
	}
	before := w.faces(dir)
	moved := w.commit(repo, map[string]gittest.File{"later": {Data: []byte("later\n")}})

	r := w.afs("unmount", dir)
	if want := fmt.Sprintf("artifactfs: kept 3 changed paths in session %s (artifactfs mount %s %s resumes it)\n",
		m.Session, url, dir); r.code != 0 || r.stderr != want {
		t.Errorf("%s\nwant %s", r, want)
	}
	if exists(dir) {
		t.Error("the directory still exists")
	}
	st := m.status()
	if st.State != control.StateUnmounted || st.Overlay.Changed != 3 || st.Commit != first.String() || st.Remote != url ||
		st.Session.Name != m.Session {
		t.Errorf("status of the unmounted session: got %+v", st)
	}
	if out := w.ok("list"); !strings.Contains(out, "unmounted") || !strings.Contains(out, dir) {
		t.Errorf("list printed\n%s", out)
	}
	w.refusal(w.afs("unmount", dir), control.ExitNotMounted, "no artifactfs mount at this directory",
		"run artifactfs mount "+url+" "+dir+" to resume session")
	w.refusal(w.afs("prefetch", dir), control.ExitNotMounted, "no artifactfs mount at this directory", "to resume session")

	again, said := w.mountAt(url, dir)
	if !again.Resumed || again.Session != m.Session || again.Commit != first.String() || again.Changed != 3 ||
		again.Ref != "main" || !strings.Contains(said, "resuming session "+m.Session+": 3 changed paths") {
		t.Errorf("mount again: got %+v and stderr %s", again.MountReply, said)
	}
	w.sameFaces("mounted again", w.faces(dir), before)
	w.wantFile(m.path("new"), "new\n")
	if exists(m.path("later")) {
		t.Error("the base commit has changed")
	}
	w.unmount(again)

	// --ref must name the base commit of the changes.
	w.refused(control.ExitUsage, moved.String()[:12], "--session NAME", url, dir, "--ref", "main")
	w.refused(control.ExitUsage, moved.String()[:12], "--discard --session "+m.Session, url, dir, "--ref", moved.String())
	w.refused(control.ExitRemote, "mian", "", url, dir, "--ref", "mian")
	again, _ = w.mountAt(url, dir, "--ref", first.String())
	w.wantFile(m.path("new"), "new\n")
	w.unmount(again)
	other, _ := w.mountAt(url, dir, "--ref", "main", "--session", "other")
	if other.Resumed || other.Commit != moved.String() || exists(other.path("new")) {
		t.Errorf("reply of mount for the other session: got %+v", other.MountReply)
	}
	w.unmount(other)
	if homes := w.homes(); len(homes) != 1 || homes[0] != m.Session {
		t.Errorf("directories below mounts/: got %q, want none for a session without changes", homes)
	}
	if out := w.ok("unmount", dir, "--discard", "--yes"); out != "discarded session "+m.Session+"\n" {
		t.Errorf("unmount --discard printed %q", out)
	}
	fresh, _ := w.mountAt(url, dir)
	if fresh.Resumed || fresh.Commit != moved.String() || exists(fresh.path("new")) {
		t.Errorf("reply of mount after --discard: got %+v", fresh.MountReply)
	}
	check(t, os.WriteFile(fresh.path("new"), nil, 0o644))
	w.ok("unmount", dir, "--discard", "--yes")
	w.nothingLeft(dir)
}

// A file that was changed and changed back, or created and removed, does not count as a change.
func TestMountWithoutChangesLeavesNothing(t *testing.T) {
	w := newWorld(t)
	files := sample("no changes")
	w.commit(w.repo("r.git", object.SHA1), files)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	readAll(t, m.Dir, files)
	check(t, os.WriteFile(m.path("d0/new"), []byte("x"), 0o644))
	check(t, os.Mkdir(m.path("dir"), 0o755))
	check(t, os.Remove(m.path("d0/new")))
	check(t, os.Remove(m.path("dir")))
	if r := w.afs("unmount", m.Dir); r.code != 0 || r.stderr != "" {
		t.Error(r)
	}
	w.nothingLeft(m.Dir)
}

// A session can be resumed while its remote is unreachable: changed files and fetched files can be read.
func TestSessionGoesOnWithoutNetwork(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"unmounted", "killed"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			files := sample("no network " + how)
			w.commit(w.repo("r.git", object.SHA1), files)
			s := w.serve(gittest.ServerOptions{})
			m := w.bare(s.URL("r.git"), "--wait", "git", "--ref", "main")
			known := subtree(files, "known")
			readAll(t, m.Dir, known)
			check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
			check(t, os.Rename(m.path("d2"), m.path("moved")))
			m.flushed()
			if how == "killed" {
				w.killed()
			} else {
				w.unmount(m)
			}
			s.Down()
			s.Log().Reset()
			for _, args := range [][]string{nil, {"--ref", "main"}} {
				again, said := w.mountAt(m.Remote, m.Dir, append(args, "--timeout", "2s")...)
				if !again.Resumed || again.Changed != 3 || (args != nil) != strings.Contains(said, "cannot be reached") {
					t.Errorf("mount with %q: got %+v and output %s, want a resumed session with 3 changed paths", args,
						again.MountReply, said)
				}
				if n := readAll(t, m.Dir, known); n > 0 {
					t.Errorf("%d reads of fetched files failed", n)
				}
				w.wantFile(m.path("new"), "new\n")
				if names, err := os.ReadDir(m.path("moved/sub")); err != nil || len(names) != 6 {
					t.Errorf("read the directory: got %d names, %v", len(names), err)
				}
				w.until("git is ready", func() bool { return again.status().GitReady })
				w.unmount(again)
			}
			w.refused(control.ExitRemote, "", "", m.Remote, m.Dir, "--ref", "v1", "--timeout", "2s")
			os.Remove(m.Dir) // the new daemon does not know whether the killed one created the directory
			s.up()
		})
	}
}

func TestSessionIsMountedOnce(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("once"))
	w.commit(w.repo("other.git", object.SHA1), sample("once, other"))
	s := w.serve(gittest.ServerOptions{})
	url := s.URL("r.git")
	m := w.bare(url, "--session", "work")
	if m.Session != "work" || m.ID != "work" {
		t.Errorf("reply of mount: got %+v", m.MountReply)
	}
	dir := w.place("m")
	pid := fmt.Sprint(w.serving())
	for _, args := range [][]string{{"--session", "work"}, {"--session", "work", "--foreground"},
		{"--session", "work", "--read-only"}} {
		w.refused(control.ExitFailed, "mounted at "+m.Dir+" by process "+pid, "artifactfs unmount "+m.Dir,
			append([]string{url, dir}, args...)...)
		if exists(dir) {
			t.Errorf("directory %s still exists", dir)
		}
	}
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	w.ok("unmount", "--session", "work")
	w.refused(control.ExitUsage, "another remote", "--session NAME", s.URL("other.git"), dir, "--session", "work")
	// At another directory the session has the same changes.
	again, _ := w.mountAt(url, dir, "--session", "work")
	w.wantFile(again.path("new"), "new\n")
	if st := again.status(); st.Dir != dir || st.Session.Name != "work" {
		t.Errorf("status: got %+v", st)
	}
	w.refusal(w.afs("unmount", "--session", "play"), control.ExitNotMounted, "no such session", "artifactfs list")
	r := w.afs("unmount", dir)
	if r.code != 0 || !strings.Contains(r.stderr, dir+" --session work resumes it") {
		t.Error(r)
	}
	w.ok("unmount", "--session", "work", "--discard", "--yes")
	w.nothingLeft(dir)
}

func TestReadOnlyMountOfASession(t *testing.T) {
	w := newWorld(t)
	files := sample("read-only session")
	w.commit(w.repo("r.git", object.SHA1), files)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	w.refused(control.ExitNotMounted, "no session work", "artifactfs list", url, w.place("m"), "--read-only",
		"--session", "work")
	m := w.bare(url, "--session", "work")
	check(t, os.WriteFile(m.path("known/a"), []byte("changed\n"), 0o644))
	w.unmount(m)
	log := filepath.Join(w.state, "mounts", "work", "overlay", "log")
	before, err := os.ReadFile(log)
	check(t, err)

	plain, _ := w.mountAt(url, m.Dir, "--read-only")
	if plain.Session != "" || plain.Resumed {
		t.Errorf("reply of mount: got %+v", plain.MountReply)
	}
	w.wantFile(plain.path("known/a"), string(files["known/a"].Data))
	w.unmount(plain)
	look, _ := w.mountAt(url, m.Dir, "--read-only", "--session", "work")
	w.wantFile(look.path("known/a"), "changed\n")
	if err := os.WriteFile(look.path("known/a"), nil, 0o644); err == nil ||
		!strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("write to a read-only mount: got %v", err)
	}
	if st := look.status(); !st.ReadOnly || st.Session.Name != "work" || st.Overlay.Changed != 1 {
		t.Errorf("status: got %+v", st)
	}
	w.unmount(look)
	if after, err := os.ReadFile(log); err != nil || string(after) != string(before) {
		t.Errorf("a read-only mount changed the log (%v)", err)
	}
	again, _ := w.mountAt(url, m.Dir, "--session", "work")
	w.wantFile(again.path("known/a"), "changed\n")
	w.ok("unmount", m.Dir, "--discard", "--yes")
	w.nothingLeft(m.Dir)
}

// A foreground mount prints at its end what it kept, whichever process ends it. Every other end of a mount keeps the
// changes, too.
func TestEndsKeepTheWork(t *testing.T) {
	for name, end := range map[string]func(w *world, p *waiting, dir string){
		"SIGTERM":   func(w *world, p *waiting, dir string) { p.Process.Signal(syscall.SIGTERM) },
		"unmount":   func(w *world, p *waiting, dir string) { w.ok("unmount", dir) },
		"umount(8)": func(w *world, p *waiting, dir string) { w.umount(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit(w.repo("r.git", object.SHA1), sample("ends"))
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			dir := w.place("m")
			p := w.foreground(url, dir)
			check(t, os.WriteFile(filepath.Join(dir, "new"), []byte("new\n"), 0o644))
			end(w, p, dir)
			if err := p.Wait(); err != nil || !strings.Contains(p.out.String(), "kept 1 changed path in session") {
				t.Errorf("end of the command: got %v, want a report of 1 kept path\n%s", err, &p.out)
			}
			m, _ := w.mountAt(url, dir)
			w.wantFile(m.path("new"), "new\n")
			w.ok("unmount", dir, "--discard", "--yes")
			w.nothingLeft(dir)
		})
	}
}

// SIGTERM makes the daemon detach a busy mount; the changes in it are kept.
func TestTerminatedDaemonKeepsTheWork(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("terminated with work"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url)
	f := must[*os.File](t)(os.Create(m.path("open")))
	defer f.Close()
	data := strings.Repeat("written before the end\n", 50_000)
	must[int](t)(f.WriteString(data))
	syscall.Kill(w.daemon(), syscall.SIGTERM)
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	again, _ := w.mountAt(url, m.Dir)
	w.wantFile(again.path("open"), data)
	w.ok("unmount", m.Dir, "--discard", "--yes")
	w.nothingLeft(m.Dir)
}

// unmount --discard of a busy mount fails, and the mount and its changes stay.
func TestBusyMountKeepsItsWork(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("busy with work"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url)
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	f := must[*os.File](t)(os.Open(m.path("new")))
	w.refusal(w.afs("unmount", m.Dir, "--discard", "--yes"), control.ExitFailed, "in use by", "holds new")
	w.wantFile(m.path("new"), "new\n")
	f.Close()
	w.unmount(m)
	again, _ := w.mountAt(url, m.Dir)
	w.wantFile(again.path("new"), "new\n")
	w.ok("unmount", m.Dir, "--discard", "--yes")
}

// A session that is based on an empty repository can be resumed after the repository has commits, or while it is
// unreachable.
func TestSessionOnAnEmptyRepository(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("r.git", object.SHA256)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"))
	check(t, os.WriteFile(m.path("new"), []byte("new\n"), 0o644))
	before := w.faces(m.Dir)
	w.unmount(m)
	w.commit(repo, sample("not empty any more"))
	again, _ := w.mountAt(m.Remote, m.Dir)
	w.sameFaces("mounted again", w.faces(m.Dir), before)
	w.unmount(again)
	s.Down()
	w.mountAt(m.Remote, m.Dir)
	w.sameFaces("without network", w.faces(m.Dir), before)
	w.ok("unmount", m.Dir, "--discard", "--yes")
	s.up()
}

// A commit in the mount's git directory counts as a change, even if no path has changed.
func TestGitObjectsAreKept(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("r.git", object.SHA1)
	tip := w.commit(repo, sample("git objects"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--wait", "git")
	made := w.git(m.gitDir(), "commit-tree", "-m", "mine", "-p", tip.String(), tip.String()+"^{tree}")
	w.git(m.gitDir(), "update-ref", "refs/heads/mine", made)
	if r := w.afs("unmount", m.Dir); r.code != 0 || !strings.Contains(r.stderr, "kept git objects in session "+m.Session) {
		t.Error(r)
	}
	again, _ := w.mountAt(url, m.Dir, "--wait", "git")
	if got := w.git(m.gitDir(), "rev-parse", "mine"); got != made {
		t.Errorf("branch after the next mount: got %s, want %s", got, made)
	}
	if !again.Resumed {
		t.Errorf("reply of the second mount: got %+v", again.MountReply)
	}
	w.ok("unmount", m.Dir, "--discard", "--yes")
	w.nothingLeft(m.Dir)
}

// An unprivileged user's changes are kept in the same way.
func TestUnprivilegedSession(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("unprivileged session"))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	u := w.user()
	dir := filepath.Join(u.home, "m")
	if r := u.afs("mount", url, dir); r.code != 0 {
		t.Error(r)
	}
	u.sh("echo new > " + dir + "/new && rm " + dir + "/known/a && sync -f " + dir + "/new")
	if r := u.afs("unmount", dir); r.code != 0 || !strings.Contains(r.stderr, "kept 2 changed paths") {
		t.Error(r)
	}
	if r := u.afs("mount", url, dir); r.code != 0 {
		t.Error(r)
	}
	u.sh("test ! -e " + dir + "/known/a && grep -q new " + dir + "/new")
	w.killDaemon()
	if r := u.afs("mount", url, dir); r.code != 0 {
		t.Error(r)
	}
	u.sh("grep -q new " + dir + "/new")
	if r := u.afs("unmount", dir, "--discard", "--yes"); r.code != 0 {
		t.Error(r)
	}
	u.end()
}

// user is an unprivileged user with an own directory and an own state directory.
type user struct {
	w           *world
	home, state string
}

func (w *world) user() user {
	w.Helper()
	for dir := w.root; dir != "/"; dir = filepath.Dir(dir) { // all directories above the binary and the user's files
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o001 == 0 {
			os.Chmod(dir, info.Mode()|0o011)
		}
	}
	// On most hosts all users may open /dev/fuse. If not, the test changes the mode of the device while it runs.
	if info, err := os.Stat("/dev/fuse"); err == nil && info.Mode()&0o006 != 0o006 {
		w.check(os.Chmod("/dev/fuse", 0o666))
		w.Cleanup(func() { os.Chmod("/dev/fuse", info.Mode().Perm()) })
	}
	u := user{w, w.place("own"), ""}
	u.state = filepath.Join(u.home, "state")
	w.check(os.Mkdir(u.home, 0o755))
	w.check(os.Chown(u.home, nobody, nobody))
	return u
}

func (u user) as(name string, args ...string) result {
	return u.w.asNobody(u.home, u.state, name, args...)
}

// asNobody runs a program as the unprivileged user ID 65534, with home as the home directory. In the home directory of
// the tests there may be directories of other programs that the user may not enter.
func (w *world) asNobody(home, state, name string, args ...string) result {
	ids := fmt.Sprint(nobody)
	return w.run(state, "setpriv", append([]string{"--reuid", ids, "--regid", ids, "--clear-groups", "--inh-caps=-all",
		"env", "HOME=" + home, name}, args...)...)
}

func (u user) afs(args ...string) result { return u.as(binary, args...) }

func (u user) sh(script string) {
	u.w.Helper()
	if r := u.as("sh", "-c", script); r.code != 0 {
		u.w.Errorf("run %s as the user: %s", script, r)
	}
}

// end ends the user's daemon, which the world does not end.
func (u user) end() {
	u.w.Helper()
	if r := u.afs("unmount", "--all"); r.code != 0 {
		u.w.Error(r)
	}
	u.w.until("the user's daemon has ended", func() bool { return len(daemonsBelow(u.home)) == 0 })
}
