package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A discarded session is removed here and on its session remote, mounted or not, and can be restored including changes that were in
// no checkpoint.
func TestDiscardedSessionComesBack(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(3, 3))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", nil)
	own := w.refsLeft(c.Path)
	flags := append(c.flags("work"), "--wait", "git", "--checkpoint", "interval=1h")
	m := w.bare(url, flags...)
	w.sh(m.Dir, "echo one >one && git add one && git switch -qc topic && git commit -qm one && echo two >>one")
	m.checkpoint("--sync")
	w.sh(m.Dir, "echo unsaved >unsaved")

	if r := w.afs("unmount", m.Dir, "--discard"); r.code != control.ExitUsage || !strings.Contains(r.stderr, "hint: add --yes") || !exists(m.path("unsaved")) {
		t.Errorf("unmount --discard without --yes and a terminal: got %s, want exit code %d, and the mount as it was", r, control.ExitUsage)
	}
	if r := w.afs("unmount", m.Dir, "--yes"); r.code != control.ExitUsage {
		t.Errorf("unmount --yes without --discard: got %s, want exit code %d", r, control.ExitUsage)
	}
	discard := func(args ...string) {
		t.Helper()
		r := w.afs(append([]string{"unmount", "--discard", "--yes"}, args...)...)
		if r.code != 0 || !strings.Contains(r.stderr, "artifactfs session undelete work restores it until ") {
			t.Errorf("unmount --discard --yes: got %s, want the command that restores it", r)
		}
		if left := w.refsLeft(c.Path); !slices.Equal(left, own) {
			t.Errorf("refs on the session remote after unmount --discard %v: got %v, want %v", args, left, own)
		}
		if exists(filepath.Join(w.state, "mounts", "work")) {
			t.Errorf("after unmount --discard %v the session is still in the state directory", args)
		}
		var there control.SessionTrashReply
		w.json(&there, "session", "list", "--deleted")
		if len(there.Deleted) != 1 || there.Deleted[0].Name != "work" {
			t.Errorf("session list --deleted after unmount --discard %v: got %+v, want work", args, there.Deleted)
		}
		w.ok("session", "undelete", "work")
	}
	before := w.look(m.Dir)
	discard(m.Dir)
	again := w.bare(url, flags...)
	w.same("brought back", before, w.look(again.Dir))
	w.wantFile(again.path("unsaved"), "unsaved\n")
	if checkpoints := again.checkpoints(); len(checkpoints) < 2 { // the last one was made when git moved a branch, or at the unmount
		t.Errorf("checkpoints after the session was restored: got %+v, want at least 2", checkpoints)
	}
	again.sync()
	w.unmount(again)
	discard("--session", "work")
	third := w.bare(url, flags...)
	w.same("brought back though it was not mounted", before, w.look(third.Dir))
	w.unmount(third)
	w.sound(c.Path)
}

// A session of run --keep is moved to the trash when its time is over, and can be restored from there; without --keep it stays.
func TestRunKeeps(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	w.ok("run", url, "--session", "forever", "--", "sh", "-c", "echo x >x")
	if r := w.afs("run", url, "--session", "week", "--keep", "7d", "--", "sh", "-c", "echo x >x"); r.code != 0 || !strings.Contains(r.stderr, " until ") {
		t.Errorf("run --keep 7d: got %s, want until when the session is kept", r)
	}
	w.ok("run", url, "--session", "short", "--keep", "1ms", "--", "sh", "-c", "echo x >x")
	if r := w.afs("run", url, "--keep", "1d", "--discard", "--", "true"); r.code != control.ExitUsage {
		t.Errorf("run --keep --discard: got %s, want exit code %d", r, control.ExitUsage)
	}
	w.ok("session", "gc", "forever")
	if left := w.homes(); !slices.Equal(left, []string{"forever", "week"}) {
		t.Errorf("sessions after gc: got %v, want forever and week", left)
	}
	w.ok("session", "undelete", "short")
	dir := w.place("m")
	w.ok("mount", url, dir, "--session", "short")
	if text, err := os.ReadFile(filepath.Join(dir, "x")); string(text) != "x\n" {
		t.Errorf("file of the restored session: got %q, %v", text, err)
	}
	w.ok("unmount", dir)
	w.ok("session", "gc", "forever")
	if left := w.homes(); !slices.Contains(left, "short") {
		t.Errorf("sessions after a session was restored and mounted: got %v, want short to stay", left)
	}
}
