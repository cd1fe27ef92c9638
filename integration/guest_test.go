package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
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
		artifactfs session transcript --json | grep -c '"role":"user"'
		artifactfs session compare @ @~1 --json | grep -c '"shared"'
		artifactfs session pin @ newest >/dev/null; artifactfs session unpin newest >/dev/null
		artifactfs prefetch . d2 --wait >/dev/null
		artifactfs session list | grep -c /work
		artifactfs sync >/dev/null && artifactfs status --json`)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code != 0 || len(lines) < 8 || lines[0] != "one" || lines[1] != "2" {
		t.Fatalf("session verbs in a container: %s", r)
	}
	var status control.Status
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &status); err != nil || len(status.Mounts) != 1 ||
		status.Mounts[0].Dir != "/work" || status.Mounts[0].Session.Name != m.Session {
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
	for range 3 { // each successor continues to serve the socket
		syscall.Kill(w.serving(), syscall.SIGKILL)
		if r := boxed(`echo again >>known/b; artifactfs checkpoint`); r.code != 0 {
			t.Errorf("checkpoint in a container after the worker was killed: %s", r)
		}
	}
	// A container that removes or replaces its control socket affects only itself.
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

// A program in the mount that speaks the protocol itself reaches no other session, no session remote and no path of the
// host.
func TestGuestsCannotLeaveTheMount(t *testing.T) {
	w := newWorld(t)
	w.history("app.git")
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	canary := w.sessionRemote("http", nil)
	m := w.mount(url, "--git-dir", "inside", "--prefetch", "none", "--session", "jail")
	other := w.bare(url, "--session", "other-work", "--session-remote", canary.arg)
	w.sh(other.Dir, "echo host-secret >secret.txt")
	other.checkpoint("--sync")
	other.record(`{"role":"user","text":"host-secret"}`)
	other.sync()
	m.record(`{"role":"user","text":"mine"}`)
	host := w.place("host")
	w.check(os.WriteFile(host, []byte("host-secret\n"), 0o644))
	w.sh(m.Dir, "echo mine >secret.txt")
	m.checkpoint()
	w.check(os.Remove(m.path("secret.txt")))
	w.unmount(other) // because a mount sends requests to its session remote now and then
	canary.server.Log().Reset()

	ask := func(op, args string) (line string) {
		t.Helper()
		c, err := net.Dial("unix", m.path(".git/artifactfs-control"))
		w.check(err)
		defer c.Close()
		fmt.Fprintf(c, `{"version":%d,"op":%q,"args":%s}`+"\n", control.Protocol, op, args)
		for r := bufio.NewReader(c); !strings.Contains(line, `"result":`) && !strings.Contains(line, `"error":`); {
			line, err = r.ReadString('\n')
			w.check(err)
		}
		return line
	}
	far := fmt.Sprintf(`"session_remote":%q`, canary.arg)
	for _, c := range []struct{ op, args string }{
		{"session-diff", `{"of":"/m","a_of":"other-work","a":"@","b":"@","patch":true}`},
		{"session-diff", `{"of":"/m","a_of":"` + other.Dir + `","a":"@","b":"@","patch":true}`},
		{"session-diff", `{"of":"other-work","a":"","b":"@","patch":true,` + far + `}`},
		{"session-diff", `{"of":"/m","a_of":"other-work","a_remote":"` + canary.arg + `","a":"@","b":"@","patch":true}`},
		{"session-diff", `{"of":"other-work","session_remote":"` + canary.Path + `","a":"","b":"@","patch":true}`},
		{"session-log", `{"of":"other-work",` + far + `}`},
		{"session-show", `{"of":"other-work","id":"@",` + far + `}`},
		{"session-compare", `{"sides":[{"of":"/m","id":"@"},{"of":"other-work","id":"@"}]}`},
		{"session-compare", `{"sides":[{"of":"/m","id":"@"},{"of":"other-work","id":"@",` + far + `}]}`},
		{"restore", `{"dir":"/m","of":"other-work","id":"@","paths":["secret.txt"]}`},
		{"restore", `{"dir":"/m","of":"other-work","id":"@","paths":["secret.txt"],` + far + `}`},
		{"restore", `{"dir":"/m","id":"@","paths":["../host"]}`},
		{"restore", `{"dir":"/m","id":"@","paths":["` + host + `"]}`},
		{"prefetch", `{"dir":"/m","paths":["../../host"]}`},
		{"prefetch", `{"dir":"/m","paths":["` + host + `"]}`},
		{"merge", `{"dir":"/m","of":"other-work","id":"@"}`},
		{"fork", `{"of":"/m","id":"@","mount":{"remote":"` + url + `","dir":"` + w.place("out") + `"}}`},
		{"session-set", `{"of":"/m","state":"closed","pin":"x"}`},
		{"session-delete", `{"of":"other-work"}`},
		{"session-erase", `{"of":"/m","records":["x"]}`},
		{"session-facts", `{"of":"/m","add":["x"]}`},
		{"sessions-on", `{` + far + `}`},
		{"mount", `{"remote":"` + url + `","dir":"` + w.place("out") + `"}`},
	} {
		if got := ask(c.op, c.args); !strings.Contains(got, `"permission"`) || strings.Contains(got, "host-secret") {
			t.Errorf("%s with %s from inside of the mount: got %s, want an error of kind permission", c.op, c.args, got)
		}
	}
	for _, c := range []struct{ op, args string }{
		{"session-note", `{"dir":"/m","ref":"../heads/evil","json":{"a":1}}`},
		{"session-note", `{"dir":"/m","commit":"--output=` + host + `","json":{"a":1}}`},
		{"checkpoint", `{"dir":"/m","pin":"../../../heads/evil"}`},
		{"session-set", `{"of":"/m","pin":"../../evil","id":"@"}`},
	} {
		if got := ask(c.op, c.args); !strings.Contains(got, `"error":`) {
			t.Errorf("%s with %s from inside of the mount: got %s, want an error", c.op, c.args, got)
		}
	}
	// A client inside of the mount can read and change only the session of that mount, whichever session the request
	// names, and no response contains a path of the host.
	for _, c := range []struct{ op, args string }{
		{"session-transcript", `{"of":"other-work"}`},
		{"session-transcript", `{"of":"` + other.Dir + `"}`},
		{"session-show", `{"of":"` + other.Dir + `","id":"@"}`},
		{"session-log", `{"of":"other-work"}`},
		{"session-compare", `{"sides":[{"of":"` + other.Dir + `","id":"@"},{"of":"/m","id":"@"}]}`},
		{"session-diff", `{"of":"` + other.Dir + `","a":"","b":"@","patch":true}`},
		{"status", `{}`},
		{"sessions", `{}`},
	} {
		got := ask(c.op, c.args)
		if !strings.Contains(got, `"result":`) || strings.Contains(got, "host-secret") || strings.Contains(got, w.root) {
			t.Errorf("%s with %s from inside of the mount: got %s, want a result about session jail that contains no path of the host", c.op, c.args, got)
		}
	}
	if n := len(canary.server.Log().Requests()); n > 0 {
		t.Errorf("requests from inside of a mount made the daemon send %d requests to a URL of theirs", n)
	}
	if text, err := os.ReadFile(host); string(text) != "host-secret\n" {
		t.Errorf("a file of the host: got %q, %v, want it as it was", text, err)
	}
	if _, err := os.Stat(m.path("secret.txt")); err == nil {
		t.Error("a refused restore wrote to the mount")
	}
}
