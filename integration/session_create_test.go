package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A configured command creates the repository of a session remote that the git server does not have. If it fails, the
// error has its output.
func TestSessionRemoteIsCreatedByCommand(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	root := w.place("served")
	w.check(os.Mkdir(root, 0o755))
	server := must[*gittest.Server](t)(gittest.Serve(gittest.ServerOptions{Root: root}))
	t.Cleanup(func() {
		w.ok("unmount", "--all")
		server.Close()
	})
	script := func(name, text string) string {
		path := filepath.Join(w.root, name)
		w.check(os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
		return path
	}
	ran := filepath.Join(w.root, "ran")
	makes := script("makes", fmt.Sprintf(`set -e
echo "$1|$ARTIFACTFS_SESSION|$ARTIFACTFS_SESSION_REMOTE|$ARTIFACTFS_REMOTE|$ARTIFACTFS_OBJECT_FORMAT" >>%s
git init -q --bare %s/"${ARTIFACTFS_SESSION_REMOTE##*/}"
git -C %s/"${ARTIFACTFS_SESSION_REMOTE##*/}" config http.receivepack true
`, ran, root, root))
	at := server.URL("new.git")
	for _, name := range []string{"one", "two"} { // the second time the repository exists
		m := w.bare(url, "--session", name, "--session-remote", at, "--session-remote-create",
			makes+" 'two words; touch "+w.root+"/shell'", "--wait", "git")
		w.sh(m.Dir, "echo x >x")
		m.checkpoint("--sync")
		if got := w.git(filepath.Join(root, "new.git"), "for-each-ref", "--format=%(refname)",
			"refs/afs/meta/"+name); got == "" {
			t.Errorf("session %s is not on the session remote that the command created", name)
		}
	}
	text, _ := os.ReadFile(ran)
	if want := fmt.Sprintf("two words; touch %s/shell|one|%s|%s|sha1\n", w.root, at, url); string(text) != want {
		t.Errorf("the command ran with %q, want once with %q", text, want)
	}
	if exists(filepath.Join(w.root, "shell")) {
		t.Error("the command was run by a shell")
	}

	secret := "s3cr3t-of-the-hook"
	for name, c := range map[string]struct{ script, want string }{
		"fails": {"echo no room for $1 >&2; exit 3", "no room for ***"},
		"lies":  {"exit 0", "the repository does not exist"},
	} {
		path := script(name, c.script)
		res := w.afs("mount", url, w.place("m"), "--session", name, "--session-remote", server.URL(name+".git"),
			"--session-remote-create", path+" "+secret)
		if res.code != control.ExitRemote || !strings.Contains(res.stderr, c.want) ||
			!strings.Contains(res.stderr, "hint: ") || strings.Contains(res.stderr, secret) {
			t.Errorf("a command that %s: got %s, want exit code %d and %q", name, res, control.ExitRemote, c.want)
		}
	}
	if log, _ := os.ReadFile(w.logFile()); strings.Contains(string(log), secret) {
		t.Error("the log has an argument of the command")
	}
	if r := w.afs("mount", url, w.place("m"), "--session-remote", at, "--session-remote-create",
		"sh -c 'x"); r.code != control.ExitUsage {
		t.Errorf("a command with an open quote: got %s, want exit code %d", r, control.ExitUsage)
	}
	// A shell runs only if the command names it, and an environment variable has the default command.
	w.env = append(w.env, "ARTIFACTFS_SESSION_REMOTE_CREATE=sh -c '"+makes+" by-shell'")
	m := w.bare(url, "--session", "three", "--session-remote", server.URL("three.git"), "--wait", "git")
	w.sh(m.Dir, "echo x >x")
	m.checkpoint("--sync")
	if !exists(filepath.Join(root, "three.git", "HEAD")) {
		t.Error("the command in the environment did not create the repository")
	}
}
