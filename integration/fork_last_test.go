package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// An unchanged fork may have the last copies of what it has carried: the parent may have removed the files since. It
// comes back from the trash, and after a restart of the daemon.
func TestForkHasLastCopies(t *testing.T) {
	w, _, m := forkRepo(t)
	want := m.everythingIn()
	f := m.fork("safe")
	w.sh(m.Dir, "rm -r .env node_modules build && echo overwritten >src/a.o")
	for _, remove := range [][]string{{"unmount"}, {"unmount", "--discard", "--yes"}, {"worktree", "remove", "--force"}} {
		r := w.afs(append(remove, f.Dir)...)
		back := restoring(r.stderr)
		if slices.Contains(w.homes(), "safe") { // its git directory has something that the remote lacks
			back = "artifactfs mount " + m.Remote + " " + f.Dir + " --session safe"
		}
		if r.code != 0 || back == "" {
			t.Fatalf("%q: got %s, want the command that brings the fork back", remove, r)
		}
		f = w.mountAgain(back, f.Dir)
		f.wantCarried(strings.Join(remove, " "), want)
	}
	f.Session = "safe"

	// The daemon ends, as when the machine goes down, and mounts everything again.
	syscall.Kill(w.daemon(), syscall.SIGTERM)
	w.until("the daemon has ended", func() bool { return len(daemonsBelow(w.root)) == 0 })
	w.startDaemon("--restore")
	f.await("the fork is mounted again", func(s control.MountStatus) bool { return s.GitReady })
	f.wantCarried("fork after a restart", want)
	w.unmount(m)
	w.killDaemon()
	w.ok("mount", m.Remote, f.Dir, "--session", "safe")
	f.wantCarried("fork after a kill", want)
	w.ok("unmount", "--discard", "--yes", f.Dir)
	w.ok("session", "undelete", "safe")
	if got := w.ok("list"); !strings.Contains(got, "safe") {
		t.Errorf("list after session undelete: got %s", got)
	}
	w.ok("unmount", "--session", "safe", "--discard", "--yes")
	if slices.Contains(w.homes(), "safe") {
		t.Errorf("homes: got %q", w.homes())
	}
}

// A fork that cannot be mounted seals nothing.
func TestForkAtABadDirectory(t *testing.T) {
	w, _, m := forkRepo(t)
	full := w.place("full")
	w.sh(w.root, "mkdir -p "+full+" && echo >"+full+"/file")
	for _, dir := range []string{full, m.Dir} {
		if r := w.afs("session", "fork", "-C", m.Dir, dir, "--session", "bad"); r.code == 0 {
			t.Errorf("fork at %s: got %s", dir, r)
		}
	}
	if got := w.shares(); len(got) > 0 || slices.Contains(w.homes(), "bad") {
		t.Errorf("shares after failed forks: got %q and the homes %q", got, w.homes())
	}
	if got := m.checkpoints(); len(got) > 0 {
		t.Errorf("checkpoints after failed forks: got %+v", got)
	}
}

// A fork of a session without ignored files changes nothing in the overlay of its parent: an older program can still
// mount it.
func TestForkWithoutIgnoredFilesSealsNothing(t *testing.T) {
	w, _ := newTravelled(t)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--session", "work", "--checkpoint", "off", "--wait", "git")
	w.sh(m.Dir, "mkdir src && echo new >src/new")
	f := m.fork("fork")
	w.wantFile(f.path("src/new"), "new\n")
	if list := filepath.Join(w.state, "mounts", "work", "overlay", "shares"); len(w.shares()) > 0 || exists(list) {
		t.Errorf("shares: got %q, and the list exists: %v", w.shares(), exists(list))
	}
	w.ok("unmount", "--discard", "--yes", f.Dir)
}
