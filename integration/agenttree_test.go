package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// claude runs the hook of claude in a directory with an event about the tree with a name, or the one at a path.
func (w *world) claude(dir, event, tree string) result {
	w.Helper()
	cmd := w.command(w.Context(), "session", "hook", "claude")
	var stdout, stderr strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Stdin = strings.NewReader(`{"hook_event_name":"` + event + `","session_id":"c-1","cwd":"` + dir +
		`",` + tree + `}`)
	_ = cmd.Run() // the caller checks the exit code
	return result{[]string{"session", "hook", event}, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// The trees that claude asks for are forks with everything of the mount, on branches of their own, in which the hooks
// record too. A removal, also of a tree with changes and in use, prints the command that brings all of it back.
func TestClaudeMakesTrees(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work")
	w.sh(m.Dir, binary+" --state "+w.state+" agent install claude && echo .env >.gitignore && "+
		"echo .env >.worktreeinclude && echo A=1 >.env && echo half >half && git add half && mkdir sub")
	trees := m.Dir + "-worktrees"
	fix := trees + "/fix"
	if r := w.claude(m.path("sub"), "WorktreeCreate", `"name":"fix"`); r.code != 0 || r.stdout != fix+"\n" {
		t.Fatalf("first tree: got %s", r)
	}
	for script, want := range map[string]string{
		"git symbolic-ref HEAD":         "refs/heads/worktree-fix",
		"cat .env half":                 "A=1\nhalf",
		"git status --porcelain":        w.sh(m.Dir, "git status --porcelain"),
		"ls .claude/*.json":             ".claude/settings.local.json",
		"git rev-parse --show-toplevel": fix,
	} {
		if got := w.sh(fix, script); got != want {
			t.Errorf("%s in the tree: got %q, want %q", script, got, want)
		}
	}

	// Two agents that ask for the name at once get a tree each.
	var wait sync.WaitGroup
	var got [2]string
	for i := range got {
		wait.Go(func() { got[i] = w.claude(m.Dir, "WorktreeCreate", `"worktree_name":"fix"`).stdout })
	}
	wait.Wait()
	slices.Sort(got[:])
	if got != [2]string{fix + "-2\n", fix + "-3\n"} {
		t.Errorf("trees with the same name: got %q", got)
	}
	if r := w.claude(m.Dir, "WorktreeCreate", `"name":"try","base_ref":"nowhere"`); r.code != 1 || r.stdout != "" ||
		!strings.Contains(r.stderr, "invalid reference: nowhere") || exists(trees+"/try") {
		t.Errorf("tree of a commit that does not exist: got %s", r)
	}

	if r := w.claude(fix, "UserPromptSubmit", `"prompt":"Fix the menu"`); r.code != 0 || r.stderr != "" {
		t.Errorf("prompt in the tree: got %s", r)
	}
	w.sh(fix, "git commit -qm half && echo two >two && git add two && echo three >three && echo more >>half")
	before := w.look(fix)
	user := exec.Command("sleep", "300")
	user.Dir = fix
	check(t, user.Start())
	defer func() {
		check(t, user.Process.Kill())
		_ = user.Wait()
	}()
	gone := w.claude(fix, "WorktreeRemove", `"worktree_path":"`+fix+`"`)
	back := restoring(gone.stderr)
	if gone.code != 0 || gone.stdout != "" || back == "" || exists(fix) {
		t.Fatalf("removal: got %s, want the command that brings the tree back", gone)
	}
	again := w.mountAgain(back, fix)
	w.same("tree that was brought back", before, w.look(fix))
	if got := w.ok("session", "transcript", fix); !strings.Contains(got, "Fix the menu") {
		t.Errorf("transcript of the tree that was brought back:\n%s", got)
	}
	w.unmount(again)

	if r := w.claude(m.Dir, "WorktreeRemove", `"worktree_path":"`+m.Dir+`"`); r.code != 1 ||
		!strings.Contains(r.stderr, "is a main working tree") || !exists(m.path("half")) {
		t.Errorf("removal of the mount itself: got %s", r)
	}
	for _, dir := range []string{fix + "-2", fix + "-3"} {
		if r := w.claude(m.Dir, "WorktreeRemove", `"worktree_path":"`+dir+`"`); r.code != 0 || exists(dir) {
			t.Errorf("removal of %s: got %s", dir, r)
		}
	}
	w.unmount(m)
}

// In a clone that is not a mount, the trees of claude are mounts beside it, whose branches appear in it.
func TestClaudeMakesTreesOfAClone(t *testing.T) {
	w, app := newClone(t)
	fix := filepath.Join(w.root, "app-worktrees", "fix")
	if r := w.claude(filepath.Join(app, "new"), "WorktreeCreate", `"name":"fix"`); r.code != 0 || r.stdout != fix+"\n" {
		t.Fatalf("tree of a clone: got %s", r)
	}
	w.sh(fix, "git -c user.email=a@b.invalid commit -q --allow-empty -m 'In the tree' && echo new >new && "+
		"ARTIFACTFS_STATE="+control.ShellWord(w.state)+" "+binary+" sync .")
	if got := w.sh(app, "git log -1 --format=%s worktree-fix"); got != "In the tree" {
		t.Errorf("branch of the tree in the clone: got %q", got)
	}
	gone := w.claude(app, "WorktreeRemove", `"worktree_path":"`+fix+`"`)
	back := restoring(gone.stderr)
	if gone.code != 0 || back == "" || exists(fix) {
		t.Fatalf("removal: got %s, want the command that brings the tree back", gone)
	}
	// The branch is still in the clone, so the next tree of this name has another one.
	if r := w.claude(app, "WorktreeCreate", `"name":"fix"`); r.code != 0 || r.stdout != fix+"-2\n" {
		t.Errorf("second tree of a clone: got %s", r)
	}
	again := w.mountAgain(back, fix)
	if text := string(must[[]byte](t)(os.ReadFile(filepath.Join(fix, "new")))); text != "new\n" {
		t.Errorf("file of the tree that was brought back: got %q", text)
	}
	w.unmount(again)
	w.ok("unmount", fix+"-2")
}
