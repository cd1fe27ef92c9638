package integration

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/gittest"
)

// A program in a container that sees nothing but the mount works with the session of the mount, and with nothing else.
func TestSessionVerbsInsideAContainer(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	m := w.mount(url, "--git-dir", "inside", "--prefetch", "none")
	other := w.mount(url, "--session", "other-work")
	const artifactfs = `artifactfs() { /work/.git/artifactfs/helper "$@"; }; `
	boxed := func(script string) result {
		t.Helper()
		return w.inBox(m.Dir, artifactfs+script)
	}
	r := boxed(`set -e
		echo one >known/a; artifactfs checkpoint -m first --pin good >/dev/null
		echo two >known/a; cd d1/sub; artifactfs checkpoint -m second >/dev/null; cd /work
		artifactfs session restore good known/a >/dev/null 2>&1; cat known/a
		artifactfs session log | grep -c 'first\|second'
		artifactfs session diff good @~1 --name-only
		artifactfs session show good | grep -c first
		artifactfs session note '{"task":"in a box"}'; git log -1 --notes=agent --format=%N | grep -o 'in a box'
		echo '{"role":"user"}' | artifactfs session record | grep -o 'recorded 1 line'
		artifactfs session pin @ newest >/dev/null; artifactfs session unpin newest >/dev/null
		artifactfs prefetch . d2 --wait >/dev/null
		artifactfs session list | grep -c /work
		artifactfs sync >/dev/null && artifactfs status --json`)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code != 0 || len(lines) < 8 || lines[0] != "one" || lines[1] != "2" {
		t.Fatalf("session verbs in a container: %s", r)
	}
	var status control.Status
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &status); err != nil || len(status.Mounts) != 1 || status.Mounts[0].Dir != "/work" || status.Mounts[0].Session.Name != m.Session {
		t.Errorf("status in a container: got %s (%v), want the mount at /work alone", lines[len(lines)-1], err)
	}
	if strings.Contains(r.stdout, w.root) || strings.Contains(r.stdout, other.Session) {
		t.Errorf("a container sees the host's paths or sessions: %s", r.stdout)
	}
	for _, c := range []struct{ script, code string }{
		{`artifactfs unmount . --json`, "permission"},
		{`artifactfs session fork /tmp/try --json`, "permission"},
		{`artifactfs switch HEAD~1 --detach --json`, "permission"},
		{`artifactfs session close --json`, "permission"},
		{`artifactfs session log -C other-work --json`, "not-found"},
		{`cd /tmp; artifactfs checkpoint --json`, "not-mounted"},
	} {
		if r := boxed(c.script); r.code == 0 || !strings.Contains(r.stdout, `{"error":{"code":"`+c.code+`"`) {
			t.Errorf("%s in a container: got %s, want error code %s", c.script, r, c.code)
		}
	}
	for range 3 { // the next worker goes on with the socket
		syscall.Kill(w.serving(), syscall.SIGKILL)
		if r := boxed(`echo again >>known/b; artifactfs checkpoint`); r.code != 0 {
			t.Errorf("checkpoint in a container after the worker was killed: %s", r)
		}
	}
	// A container that removes its socket, or puts something else there, harms itself alone.
	boxed(`rm .git/artifactfs-control; ln -s /etc/passwd .git/artifactfs-control`)
	before, err := os.Stat("/etc/passwd")
	w.check(err)
	w.unmount(m)
	if after, err := os.Stat("/etc/passwd"); err != nil || after.Mode() != before.Mode() {
		t.Errorf("mode of the target of a link in place of the socket: got %v, %v, want %v", after.Mode(), err, before.Mode())
	}
	if r := w.afs("mount", url, m.Dir, "--git-dir", "inside"); r.code != 0 {
		t.Errorf("mount again: %s", r)
	}
	if r := boxed(`artifactfs session log | grep -c first`); strings.TrimSpace(r.stdout) != "1" {
		t.Errorf("log after the next mount: %s", r)
	}
}
