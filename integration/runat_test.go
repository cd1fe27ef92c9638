package integration

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestRunAt runs commands in a fork that see the fork at the directory of its parent. Scripts with the parent's absolute
// path then act on the fork, as do git and artifactfs. The parent does not change, and other processes see no
// difference.
func TestRunAt(t *testing.T) {
	w := newWorld(t)
	files := sample("at")
	files["tool"] = gittest.File{Data: []byte("#!/bin/sh\necho tool\n"), Mode: "100755"}
	w.commit(w.repo("app.git", object.SHA1), files)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("app.git"), "--session", "parent", "--wait", "git")
	script := filepath.Join(m.Dir, "absolute")
	check2(w, os.WriteFile(script, []byte("#!"+m.Dir+"/tool\n"), 0o755))
	check2(w, os.WriteFile(filepath.Join(m.Dir, "who"), []byte("parent\n"), 0o644))
	fork := w.place("fork")
	w.ok("session", "fork", "-C", m.Dir, fork, "--session", "child")
	defer w.afs("unmount", fork)
	check2(w, os.WriteFile(filepath.Join(fork, "who"), []byte("child\n"), 0o644))
	deep := filepath.Join(fork, "deep")
	check2(w, os.MkdirAll(deep, 0o755))

	w.ok("switch", "-C", fork, "-c", "work") // so that git has a configuration of a branch to write
	const inFork = `set -eu; at=$1
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.invalid GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.invalid
test "$(pwd)" = "$at"; test "$PWD" = "$at"; test "$(cat "$at/who")" = child
test "$(git rev-parse --show-toplevel)" = "$at"
cd deep; echo new >file; test "$(git rev-parse --show-prefix)" = deep/
git add file; git config branch.work.description text; git commit -qm in; test -z "$(git status --porcelain .)"
git log -1 --format=%s; "$ARTIFACTFS" status . --json`
	for _, c := range []struct {
		name string
		wrap []string // command that runs artifactfs
	}{
		{"root", nil},
		// without CAP_SYS_ADMIN, a user namespace is needed
		{"user", []string{"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := slices.Concat([]string{"env", "ARTIFACTFS=" + binary}, c.wrap,
				[]string{binary, "run", "-C", "child", "--at", m.Dir, "--", "sh", "-c", inFork, "sh", m.Dir})
			r := w.run(w.state, args[0], args[1:]...)
			if r.code != 0 || !strings.HasPrefix(r.stdout, "in\n") || !strings.Contains(r.stdout, `"dir":"`+fork+`"`) {
				t.Fatalf("command in the fork, shown at %s: %s", m.Dir, r)
			}
			got := w.sh(fork, "git log -1 --format=%s && git config branch.work.description && git rm -q --cached deep/file && "+
				"git commit -qm out")
			if got != "in\ntext" {
				t.Errorf("fork after the command: got %q", got)
			}
		})
	}
	if who := string(must[[]byte](w)(os.ReadFile(filepath.Join(m.Dir, "who")))); who != "parent\n" {
		t.Errorf("file of the parent: got %q", who)
	}
	if got := w.sh(m.Dir, "git rev-parse --show-toplevel; git log --format=%s | grep -cx -e in -e out || true"); got != m.Dir+"\n0" {
		t.Errorf("parent after the commands: got %q", got)
	}
	// The interpreter of the script has the parent's path, which exists in both.
	if r := w.afs("run", "-C", fork, "--at", m.Dir, "--", m.Dir+"/absolute"); r.stdout != "tool\n" || r.code != 0 {
		t.Error(r)
	}

	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{2, "needs --at PATH", []string{"-C", fork, "--", "true"}},
		{2, "in the mount that would be shown", []string{"-C", fork, "--at", deep, "--", "true"}},
		{2, "contains the mount", []string{"-C", fork, "--at", "/", "--", "true"}},
		{2, "contains the mount", []string{"-C", fork, "--at", w.root, "--", "true"}},
		{2, "contains the state directory", []string{"-C", fork, "--at", w.state, "--", "true"}},
		{2, "no such file or directory", []string{"-C", fork, "--at", fork + "x", "--", "true"}},
		{2, "--ref needs REMOTE", []string{"-C", fork, "--at", m.Dir, "--ref", "main", "--", "true"}},
		{4, "no artifactfs mount", []string{"-C", w.root, "--at", m.Dir, "--", "true"}},
		{127, "no such file", []string{"-C", fork, "--at", m.Dir, "--", "./missing"}},
		{7, "", []string{"-C", fork, "--at", m.Dir, "--", "sh", "-c", "exit 7"}},
		{143, "", []string{"-C", fork, "--at", m.Dir, "--", "sh", "-c", "kill -TERM $$"}},
	} {
		if r := w.afs(append([]string{"run"}, c.args...)...); r.code != c.code || !strings.Contains(r.stderr, c.text) {
			t.Errorf("want code %d and %q: %s", c.code, c.text, r)
		}
	}
	// CMD does not run in a directory in which the mount is not visible.
	hidden := w.run(w.state, "unshare", "--mount", "--propagation", "private", "sh", "-c",
		`umount "$2" && exec "$1" run -C child --at "$3" -- sh -c 'echo ran >"$0"/ran' "$3"`, "sh", binary, fork, m.Dir)
	if hidden.code != 1 || !strings.Contains(hidden.stderr, "mount namespace") || exists(m.path("ran")) {
		t.Errorf("command in a mount namespace without the fork: %s", hidden)
	}
	// A git directory that the environment names is that of another repository, whose configuration stays.
	w.sh(w.root, "git init -q foreign && git -C foreign config core.worktree ../../fork")
	foreign := filepath.Join(w.root, "foreign", ".git")
	config := string(must[[]byte](w)(os.ReadFile(filepath.Join(foreign, "config"))))
	r := w.run(w.state, "env", "GIT_DIR="+foreign, binary, "run", "-C", fork, "--at", m.Dir, "--", "sh", "-c",
		"unset GIT_DIR; git rev-parse --show-toplevel")
	if r.code != 0 || r.stdout != m.Dir+"\n" {
		t.Errorf("git with a foreign git directory in the environment: %s", r)
	}
	if is := string(must[[]byte](w)(os.ReadFile(filepath.Join(foreign, "config")))); is != config {
		t.Errorf("configuration of the foreign repository: got %s, want %s", is, config)
	}
	// Descriptors of the user reach CMD.
	r = w.run(w.state, "sh", "-c", `exec 3<&1 "$1" run -C "$2" --at "$3" -- sh -c 'echo three >&3; ls /proc/self/fd | wc -l'`,
		"sh", binary, fork, m.Dir)
	plain := w.run(w.state, "sh", "-c", `exec 3<&1; ls /proc/self/fd | wc -l`)
	if r.code != 0 || r.stdout != "three\n"+plain.stdout {
		t.Errorf("descriptors of CMD: %s, want those of its parent: %s", r, plain)
	}
	if left := mountsBelow(w.root); len(left) != 2 {
		t.Errorf("mounts after the commands: %q, want those of parent and fork", left)
	}
}

// TestRunAtKeepsTheMountBusy checks that no mount is removed in which a command works that sees it at another path.
func TestRunAtKeepsTheMountBusy(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("app.git", object.SHA1), sample("busy"))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("app.git"), "--session", "parent", "--wait", "git")
	for name, wrap := range map[string][]string{
		"root": {"env"}, "user": {"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"},
	} {
		fork := w.place("fork")
		w.ok("session", "fork", "-C", m.Dir, fork, "--session", name)
		args := append(wrap, binary, "run", "-C", name, "--at", m.Dir, "--", "sh", "-c", "echo in; read x; echo late >late")
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "ARTIFACTFS_STATE="+w.state)
		in, out := must[io.WriteCloser](t)(cmd.StdinPipe()), must[io.ReadCloser](t)(cmd.StdoutPipe())
		w.check(cmd.Start())
		must[string](t)(bufio.NewReader(out).ReadString('\n'))
		for _, args := range [][]string{{"unmount", fork}, {"worktree", "remove", "--force", fork}} {
			if r := w.afs(args...); r.code == 0 || !strings.Contains(r.stderr, "a copy of the mount at "+m.Dir) {
				t.Errorf("%s: artifactfs %q while a command works in the mount: %s", name, args, r)
			}
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: command: %v", name, err)
		}
		w.wantFile(filepath.Join(fork, "late"), "late\n")
		w.ok("worktree", "remove", "--force", fork)
	}
}

// TestRunAtOfAVenv makes a Python virtual environment in the parent, whose scripts contain its absolute path, and uses
// it in a copy at another place.
func TestRunAtOfAVenv(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil && os.Getenv("CI") == "" {
		t.Skip("there is no python3")
	}
	w := newWorld(t)
	w.commit(w.repo("app.git", object.SHA1), sample("venv"))
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	m := w.bare(url, "--session", "parent")
	w.sh(m.Dir, "python3 -m venv --without-pip .venv && "+
		"printf '#!%s/.venv/bin/python\\nimport sys; print(sys.prefix)\\n' \"$PWD\" >.venv/bin/tool && "+
		"chmod +x .venv/bin/tool")
	o := w.bare(url, "--session", "other")
	w.sh(o.Dir, "cp -a "+m.Dir+"/.venv . && rm "+m.Dir+"/.venv/pyvenv.cfg")
	r := w.afs("run", "-C", o.Dir, "--at", m.Dir, "--", ".venv/bin/tool")
	if want := m.Dir + "/.venv\n"; r.code != 0 || r.stdout != want {
		t.Errorf("script of the copied environment: %s, want %q", r, want)
	}
}
