package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Doctor checks the sessions' repositories too: refs, packs, lock files, and refs that are not on the session remote.
func TestDoctorLooksAtSessions(t *testing.T) {
	w := newWorld(t)
	r := w.repo("kept.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x")}})
	s := w.serve(gittest.ServerOptions{})
	work, dir := filepath.Join(w.root, "work.git"), filepath.Join(w.root, "m")
	w.git(w.root, "init", "-q", "--bare", work)
	w.ok("mount", s.URL("kept.git"), dir, "--session", "kept", "--session-remote", work, "--checkpoint", "off")
	check(t, os.WriteFile(filepath.Join(dir, "new"), []byte("one"), 0o644))
	first := strings.TrimSpace(w.ok("checkpoint", dir, "--sync"))
	check(t, os.WriteFile(filepath.Join(dir, "new"), []byte("two"), 0o644))
	second := strings.TrimSpace(w.ok("checkpoint", dir, "--sync"))
	w.says("doctor", 0, "kept: checkpoints are complete: 2, the newest ("+second+")",
		work+": session remote of kept: pushes are accepted")
	w.ok("unmount", dir)
	home := filepath.Join(w.state, "mounts", "kept")
	repo := filepath.Join(home, "session.git")
	w.says("doctor", 0, "kept: checkpoints are complete: 2, the newest ("+second+")", "; all are on "+work)

	// The session remote is unreachable, and a session has pending refs.
	check(t, os.Rename(work, work+".away"))
	w.says("doctor", 0, "warn  "+work+": session remote of kept: push is not possible: ")
	w.ok("session", "pin", "-C", "kept", first, "good")
	w.says("doctor --offline", 0, "warn  kept: checkpoints are complete: 2",
		" 1 refs are not on "+work+", last pushed completely at ", "artifactfs session resume kept to push them")
	if list := w.ok("session", "list"); !strings.Contains(list, "  1        "+dir) {
		t.Errorf("session list does not show the pending refs:\n%s", list)
	}
	check(t, os.Rename(work+".away", work))

	// A power failure has emptied a ref file, and git was killed while it held a lock.
	w.until("no process uses the session's repository", func() bool { return w.afs("doctor", "--offline").code == 0 })
	segment := filepath.Join(repo, "refs", "afs", "j", "kept", "main", "000001")
	check(t, os.WriteFile(segment, nil, 0o644))
	lock := filepath.Join(repo, "packed-refs.lock")
	check(t, os.WriteFile(lock, nil, 0o644))
	hours := time.Now().Add(-3 * time.Hour)
	check(t, os.Chtimes(lock, hours, hours))
	w.says("doctor --offline", control.ExitFailed,
		"bad   "+repo+": refs have invalid contents, as after a power failure: refs/afs/j/kept/main/000001",
		"--fix restores the refs",
		"bad   "+lock+": lock file was left by a killed git command 3h0m0s ago")
	w.says("doctor --offline --fix", 0, "fixed "+repo+": refs have invalid contents", "fixed "+lock,
		"checkpoints are complete: 2, the newest ("+second+")")
	if log := w.ok("session", "log", "-C", "kept"); !strings.Contains(log, first) || !strings.Contains(log, second) {
		t.Errorf("session log after doctor --fix:\n%s", log)
	}

	// A pack is truncated.
	w.until("no process uses the session's repository", func() bool { return w.afs("doctor", "--offline").code == 0 })
	packs := must[[]string](t)(filepath.Glob(filepath.Join(repo, "objects", "pack", "*.pack")))
	for _, pack := range packs {
		check(t, os.Truncate(pack, 12))
	}
	w.says("doctor --offline --fix", control.ExitFailed, "bad   "+packs[0]+": ",
		"hint: the files of the mount are not affected")
	for _, pack := range packs {
		check(t, os.Remove(pack))
		check(t, os.Remove(strings.TrimSuffix(pack, ".pack")+".idx"))
	}
	w.says("doctor --offline", control.ExitFailed,
		"bad   kept: ref refs/afs/j/kept/main/000001 has missing or damaged objects: ")
}

// A successor knows the checkpoints of a mount from its first status on.
func TestCheckpointsAreToldOfAfterATakeover(t *testing.T) {
	w := newWorld(t)
	r := w.repo("taken.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x")}})
	s := w.serve(gittest.ServerOptions{})
	dir := filepath.Join(w.root, "m")
	w.ok("mount", s.URL("taken.git"), dir, "--session", "taken")
	check(t, os.WriteFile(filepath.Join(dir, "new"), []byte("one"), 0o644))
	id := strings.TrimSpace(w.ok("checkpoint", dir))
	for i := range 5 {
		check(t, syscall.Kill(w.daemonStatus().PID, syscall.SIGKILL))
		w.says("session log -C taken", 0, id)
		check(t, syscall.Kill(w.daemonStatus().PID, syscall.SIGKILL))
		w.says("session show -C taken "+id, 0, id)
		check(t, syscall.Kill(w.daemonStatus().PID, syscall.SIGKILL))
		w.says(fmt.Sprintf("session pin -C taken %s p%d", id, i), 0, "pinned")
	}
}

// The commit of a submodule is not an object of this repository, so the mount does not request it.
func TestDiffOfASubmodule(t *testing.T) {
	w := newWorld(t)
	r := w.repo("super.git", object.SHA1)
	w.commit(r, map[string]gittest.File{"file": {Data: []byte("x\n")}})
	s := w.serve(gittest.ServerOptions{})
	dir := filepath.Join(w.root, "m")
	w.ok("mount", s.URL("super.git"), dir, "--session", "super", "--wait", "git")
	check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("y\n"), 0o644))
	w.git(w.root, "init", "-q", filepath.Join(dir, "sub"))
	w.git(filepath.Join(dir, "sub"), "commit", "-q", "--allow-empty", "-m", "sub")
	w.git(dir, "add", "sub")
	w.git(dir, "commit", "-q", "-m", "super")
	w.says("session diff -C super --stat", 0, "file", "sub")
	w.says("session diff -C super", 0, "+y", "+Subproject commit ")
}

// says runs a command line, and checks its exit code and that its output contains the texts.
func (w *world) says(line string, code int, wants ...string) {
	w.Helper()
	r := w.afs(strings.Fields(line)...)
	if r.code != code {
		w.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, want := range wants {
		if !strings.Contains(r.stdout, want) {
			w.Errorf("output does not contain %q", want)
			code = -1
		}
	}
	if r.code != code {
		w.Error(r)
	}
}
