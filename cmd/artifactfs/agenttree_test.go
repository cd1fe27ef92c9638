package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// hook runs the hook of claude in a directory of the world, with an event about a working tree.
func (w treeWorld) hook(dir, event string, members map[string]string) result {
	w.t.Helper()
	all := map[string]string{"hook_event_name": event, "session_id": "s-1", "cwd": filepath.Join(w.dir, dir)}
	for name, value := range members {
		all[name] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		w.t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := w.command("session", "hook", "claude")
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = all["cwd"], bytes.NewReader(text), &stdout, &stderr
	_ = cmd.Run() // the exit code is checked
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// The tree that claude asks for is a fork beside the mount, on a branch of its own. Only its directory is on stdout.
func TestHookMakesATree(t *testing.T) {
	w := newTreeWorld(t)
	trees := w.dir + "/app-worktrees"
	w.sessions.set(func() {
		w.sessions.forked = func(dir string) { w.mount(strings.TrimPrefix(dir, w.dir+"/")) }
	})
	for _, c := range []struct {
		members      map[string]string
		path, branch string
	}{
		{map[string]string{"name": "fix"}, trees + "/fix", "worktree-fix"},
		{map[string]string{"name": "fix"}, trees + "/fix-2", "worktree-fix-2"},
		{map[string]string{"worktree_name": "a/b"}, trees + "/a+b", "worktree-a+b"},
		{map[string]string{"name": "in", "worktree_path": w.dir + "/app/.claude/worktrees/in"}, trees + "/in", "worktree-in"},
		{map[string]string{"worktree_path": w.dir + "/app/.claude/worktrees/no"}, trees + "/no", "worktree-no"},
		{map[string]string{"name": "x", "worktree_path": w.dir + "/other/out"}, w.dir + "/other/out", "worktree-out"},
		{map[string]string{"name": "base", "base_path": w.dir + "/app", "cwd": "/"}, trees + "/base", "worktree-base"},
	} {
		r := w.hook("app/sub", "WorktreeCreate", c.members)
		q := last[control.ForkRequest](t, w.sessions)
		if r.code != 0 || r.stdout != c.path+"\n" || q.Of != w.dir+"/app" || q.Mount.Dir != c.path || q.Head == nil ||
			*q.Head != (control.NewHead{Branch: c.branch}) {
			t.Errorf("WorktreeCreate with %v: got %+v, request %+v with head %+v", c.members, r, q, q.Head)
		}
		if !strings.HasPrefix(r.stderr, "forked session copy: mounted https://127.0.0.1/app at "+c.path+" (") {
			t.Errorf("WorktreeCreate printed on stderr: %q", r.stderr)
		}
	}

	// A branch or a session that is not mounted also has the name.
	w.git("app", "branch", "worktree-b")
	w.keep(t, "away", trees+"/b-2", 1)
	if r := w.hook("app", "WorktreeCreate", map[string]string{"name": "b"}); r.stdout != trees+"/b-3\n" {
		t.Errorf("WorktreeCreate with a name in use: got %+v", r)
	}
	// Another tree is on the branch, or a branch has a name below it.
	w.mounted("c", "work", "worktree-c")
	w.git("app", "branch", "worktree-c-2/x")
	if r := w.hook("app", "WorktreeCreate", map[string]string{"name": "c"}); r.stdout != trees+"/c-3\n" {
		t.Errorf("WorktreeCreate with the name of a branch in use: got %+v", r)
	}
	// Another conflict, which concerns all branches, is reported at once.
	w.sessions.set(func() {
		w.sessions.asked, w.sessions.noFork = nil, &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict,
			Cause: "git is rebasing"}
	})
	r := w.hook("app", "WorktreeCreate", map[string]string{"name": "d"})
	forks := 0
	w.sessions.set(func() {
		for _, q := range w.sessions.asked {
			if _, ok := q.(control.ForkRequest); ok {
				forks++
			}
		}
	})
	if r.code != 1 || !strings.Contains(r.stderr, "git is rebasing") || forks != 1 {
		t.Errorf("WorktreeCreate during a rebase: got %+v after %d forks", r, forks)
	}
	if got := w.ok("agent", "status", "--dir", "app"); !strings.Contains(got, "fired just now") {
		t.Errorf("agent status after WorktreeCreate: got\n%s", got)
	}
}

// A base is checked out; an event that cannot be carried out fails the creation, and leaves nothing.
func TestHookMakesNoTree(t *testing.T) {
	w := newTreeWorld(t)
	if err := os.Mkdir(w.dir+"/plain", 0o755); err != nil {
		t.Fatal(err)
	}
	asked := len(w.sessions.asked)
	for _, c := range []struct{ dir, name, base, want string }{
		{"app", "fix", "nope", "invalid reference: nope"},
		{"app", "", "", "agent has sent no valid name of a tree"},
		{"app", "..", "", "agent has sent no valid name of a tree"},
		{"app", "a\nb", "", "agent has sent no valid name of a tree"},
		{"plain", "fix", "", "no artifactfs mount at this directory"},
	} {
		r := w.hook(c.dir, "WorktreeCreate", map[string]string{"name": c.name, "base_ref": c.base})
		if r.code != control.ExitFailed || r.stdout != "" || !strings.HasPrefix(r.stderr, "artifactfs: ") ||
			!strings.Contains(r.stderr, c.want) {
			t.Errorf("WorktreeCreate of %q at %q in %s: got %+v, want %s", c.name, c.base, c.dir, r, c.want)
		}
	}
	if _, err := os.Lstat(w.dir + "/app-worktrees"); err == nil || len(w.sessions.asked) != asked {
		t.Errorf("a failed creation has left a directory, or has asked for %+v", w.sessions.asked[asked:])
	}

	// In a container, the socket of the daemon is not reachable.
	w.git(".", "init", "-q", "guest")
	l, err := net.Listen("unix", w.dir+"/guest/.git/artifactfs-control")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	r := w.hook("guest", "WorktreeCreate", map[string]string{"name": "fix"})
	if r.code != control.ExitFailed || r.stdout != "" ||
		!strings.Contains(r.stderr, "nothing can be mounted from inside of a container") ||
		!strings.Contains(r.stderr, "hint: run artifactfs worktree add outside of the container") {
		t.Errorf("WorktreeCreate in a container: got %+v", r)
	}
}

// The hook removes forks also with changes, and prints the command that brings them back.
func TestHookRemovesATree(t *testing.T) {
	w := newTreeWorld(t)
	w.mounted("fork", "work", "fix")
	fork := w.dir + "/fork"
	if err := os.WriteFile(fork+"/new", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.git("app", "worktree", "add", "-q", "../linked")
	remove := func(path string) result {
		t.Helper()
		r := w.hook("fork", "WorktreeRemove", map[string]string{"worktree_path": path})
		if r.code == 0 && strings.Contains(r.stderr, "worktree:") || r.stdout != "" {
			t.Errorf("WorktreeRemove of %s: got %+v, want no output", path, r)
		}
		return r
	}
	const other = "is not a working tree that artifactfs has made"
	for path, want := range map[string]string{w.dir + "/app": "is a main working tree", w.dir + "/app/sub": other,
		w.dir + "/linked": other, w.dir + "/nowhere": "", "": "no absolute worktree_path"} {
		if r := remove(path); (want == "") != (r.stderr == "") || (want == "") != (r.code == 0) ||
			!strings.Contains(r.stderr, want) {
			t.Errorf("WorktreeRemove of %q: got %+v, want %q", path, r, want)
		}
	}
	if _, err := os.Stat(w.dir + "/linked"); err != nil || len(get(w.daemon, &w.daemon.mounts)) != 2 {
		t.Error("WorktreeRemove has removed a worktree of git, or a mount that is no tree")
	}

	// A process uses the tree.
	var asked []control.UnmountRequest
	kind := control.CodeBusy
	w.daemon.set(func() {
		w.daemon.kept = map[string]control.UnmountReply{fork: {Dir: fork, Trashed: "fork", Until: time.Now().Add(time.Hour)}}
		w.daemon.refuse = func(r control.UnmountRequest) error {
			asked = append(asked, r)
			if len(asked) > 1 {
				return nil
			}
			return &control.Error{Code: control.ExitFailed, Kind: kind, Cause: "refused"}
		}
	})
	back := "artifactfs: artifactfs session undelete fork --mount " + fork + " --deleted "
	if r := remove(fork); r.code != 0 || !strings.Contains(r.stderr, back) {
		t.Errorf("WorktreeRemove of a tree in use: got %+v", r)
	}
	want := control.UnmountRequest{Dir: fork, Discard: true, Trash: true, Timeout: -1}
	if len(asked) != 2 || asked[0] != want || !asked[1].Detach || !asked[1].Trash {
		t.Errorf("WorktreeRemove of a tree in use: got the requests %+v", asked)
	}

	// The session is on hold.
	w.mounted("held", "work", "held")
	asked, kind = nil, control.CodeConflict
	if r := remove(w.dir + "/held"); r.code != 0 || !strings.Contains(r.stderr, "session held is kept: refused") ||
		len(asked) != 2 ||
		asked[1].Discard {
		t.Errorf("WorktreeRemove of a session on hold: got %+v, requests %+v", r, asked)
	}
}
