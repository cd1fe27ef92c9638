package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A discarded session is removed here and on its session remote, mounted or not, and can be restored including changes
// that were in no checkpoint.
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

	if r := w.afs("unmount", m.Dir, "--discard"); r.code != control.ExitUsage ||
		!strings.Contains(r.stderr, "hint: add --yes") || !exists(m.path("unsaved")) {
		t.Errorf("unmount --discard without --yes and a terminal: got %s, want exit code %d, and the mount as it was", r,
			control.ExitUsage)
	}
	if r := w.afs("unmount", m.Dir, "--yes"); r.code != control.ExitUsage {
		t.Errorf("unmount --yes without --discard: got %s, want exit code %d", r, control.ExitUsage)
	}
	// discard deletes the session, and returns the command that the message has.
	discard := func(args ...string) (back string) {
		t.Helper()
		r := w.afs(append([]string{"unmount", "--discard", "--yes"}, args...)...)
		if back = restoring(r.stderr); r.code != 0 || back == "" {
			t.Fatalf("unmount --discard --yes: got %s, want the command that restores it", r)
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
		return back
	}
	before := w.look(m.Dir)
	back := discard(m.Dir)

	// Nothing is restored if the directory has files.
	w.check(os.MkdirAll(m.path("sub"), 0o755))
	if r := w.paste(back); r.code != 1 || !strings.Contains(r.stderr, "directory is not empty") {
		t.Errorf("undelete --mount at a directory with files: got %s, want exit code 1", r)
	}
	w.check(os.RemoveAll(m.Dir))
	again := w.mountAgain(back, m.Dir)
	w.same("brought back", before, w.look(again.Dir))
	w.wantFile(again.path("unsaved"), "unsaved\n")
	// the last one was made when git moved a branch, or at the unmount
	if checkpoints := again.checkpoints(); len(checkpoints) < 2 {
		t.Errorf("checkpoints after the session was restored: got %+v, want at least 2", checkpoints)
	}
	again.sync()
	w.unmount(again)
	third := w.mountAgain(discard("--session", "work"), m.Dir)
	w.same("brought back though it was not mounted", before, w.look(third.Dir))

	// A session that has the name now stays as it is.
	back = discard(third.Dir)
	other := w.bare(url, "--session", "work", "--wait", "git")
	w.sh(other.Dir, "echo other >other")
	taken := w.paste(back)
	if taken.code != 1 || !strings.Contains(taken.stderr, "hint: run artifactfs session delete work") || exists(m.Dir) {
		t.Errorf("undelete --mount beside a session of the same name: got %s, want exit code 1 and a hint", taken)
	}
	used := w.afs("session", "undelete", "work", "--mount", other.Dir)
	if used.code != 1 || !strings.Contains(used.stderr, "directory already has an artifactfs mount") {
		t.Errorf("undelete --mount at a mount: got %s, want exit code 1", used)
	}
	w.wantFile(other.path("other"), "other\n")
	w.unmount(other)
	w.sound(c.Path)
}

// restoring returns the command in a message about a deleted session, or "".
func restoring(message string) string {
	m := regexp.MustCompile(`(?m)^artifactfs: (artifactfs .*) restores it until `).FindStringSubmatch(message)
	return append(m, "", "")[1]
}

// paste runs a command of artifactfs in a shell, as a user does who has copied it from a message.
func (w *world) paste(command string) result {
	w.Helper()
	cmd := exec.Command("sh", "-ec", `artifactfs() { "$BINARY" --state "$STATE" "$@"; }`+"\n"+command)
	cmd.Dir, cmd.Env = w.root, append(append(os.Environ(), w.env...), "BINARY="+binary, "STATE="+w.state)
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("%s: %v", command, err)
	}
	return result{[]string{command}, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// mountAgain runs the command of a message, which must mount a session at dir, and returns the mount when git works in
// it.
func (w *world) mountAgain(command, dir string) mounted {
	w.Helper()
	r := w.paste(command)
	if r.code != 0 || !strings.Contains(r.stdout, " at "+dir+" (") {
		w.Fatalf("%s, want a mount at %s", r, dir)
	}
	m := mounted{control.MountReply{Dir: dir}, w}
	m.await("git works", func(s control.MountStatus) bool { return s.GitReady })
	return m
}

// A session of run --keep is moved to the trash when its time is over, and can be restored from there; without --keep
// it stays.
func TestRunKeeps(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	w.ok("run", url, "--session", "forever", "--", "sh", "-c", "echo x >x")
	if r := w.afs("run", url, "--session", "week", "--keep", "7d", "--", "sh", "-c", "echo x >x"); r.code != 0 ||
		!strings.Contains(r.stderr, " until ") {
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
