package main

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	loopback "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
)

// treeWorld is a git working tree that a fake daemon reports as the mount app of the session work, on the branch main.
type treeWorld struct {
	*afs
	sessions *sessionsOf
	daemon   *fakeDaemon
	shown    map[string]*fuse.Server // mounts by their names
}

func newTreeWorld(t *testing.T) treeWorld {
	t.Helper()
	w := treeWorld{shown: map[string]*fuse.Server{}}
	w.afs, w.sessions, w.daemon = newWork(t)
	w.git("app", "init", "-q", "-b", "main")
	w.git("app", "commit", "-q", "--allow-empty", "-m", "one")
	w.git("app", "branch", "other")
	w.git("app", "update-ref", "refs/remotes/origin/far", "HEAD")
	w.git("app", "config", "remote.origin.url", "https://127.0.0.1/app")
	w.git("app", "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
	w.git("app", "commit", "-q", "--allow-empty", "-m", "two")
	w.daemon.set(func() {
		m := &w.daemon.mounts[0]
		m.ReadOnly, m.Head, m.Session.Mode, m.Session.SessionRemote = false, "main", "shared", "https://127.0.0.1/work"
	})
	w.sessions.set(func() { w.sessions.list = []control.SessionInfo{sessionInfo("work", "", w.dir+"/app")} })
	return w
}

// sessionInfo describes a session of the list.
func sessionInfo(name, parent, dir string) control.SessionInfo {
	return control.SessionInfo{SessionStatus: control.SessionStatus{Name: name}, Parent: parent, Dir: dir}
}

// git runs git in a directory of the world.
func (w treeWorld) git(dir string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", filepath.Join(w.dir, dir)}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// mount clones app, and mounts the clone at a directory of the world as a daemon mounts a fork.
func (w treeWorld) mount(name string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, name)
	files := dir + ".files"
	w.git(".", "clone", "-q", "app", files)
	root, err := loopback.NewLoopbackRoot(files)
	if err = errors.Join(err, os.MkdirAll(dir, 0o755)); err != nil {
		w.t.Fatal(err)
	}
	w.shown[name], err = loopback.Mount(dir, root,
		&loopback.Options{MountOptions: fuse.MountOptions{Name: "artifactfs", DirectMount: os.Geteuid() == 0}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if w.shown[name] != nil {
			w.gone(name)
		}
	})
}

// gone ends a mount and removes its files.
func (w treeWorld) gone(name string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, name)
	if err := errors.Join(w.shown[name].Unmount(), os.Remove(dir), os.RemoveAll(dir+".files")); err != nil {
		w.t.Fatal(err)
	}
	delete(w.shown, name)
}

// mounted adds a fork to the mounts that the fake daemon reports, which is a clone of app.
func (w treeWorld) mounted(name, parent, branch string) {
	w.t.Helper()
	w.git(".", "clone", "-q", "app", name)
	w.git(name, "checkout", "-q", "-b", branch)
	m := mountStatus(filepath.Join(w.dir, name))
	m.Session.Name, m.Head, m.ReadOnly = name, branch, false
	w.daemon.set(func() { w.daemon.mounts = append(w.daemon.mounts, m) })
	w.sessions.set(func() { w.sessions.list = append(w.sessions.list, sessionInfo(name, parent+" 01ABC", m.Dir)) })
}

func TestWorktreeAddForksThePresentState(t *testing.T) {
	w := newTreeWorld(t)
	w.mount("app/fix")
	w.mount("app/deep/fix")
	for args, want := range map[string]control.NewHead{
		"../fix": {Branch: "fix"}, "-b it ../fix": {Branch: "it"}, "-B other ../fix": {Branch: "other", Reset: true},
		"-d ../fix": {Detach: true}, "../deep/fix": {Branch: "fix"},
	} {
		cmd := w.command(append([]string{"worktree", "add"}, strings.Fields(args)...)...)
		cmd.Dir = filepath.Join(w.dir, "app", "sub")
		out, err := cmd.CombinedOutput()
		q := last[control.ForkRequest](t, w.sessions)
		path := strings.Fields(args)[len(strings.Fields(args))-1]
		if err != nil || q.Head == nil || *q.Head != want || q.Of != w.dir+"/app" || q.ID != "" ||
			q.Mount.Dir != filepath.Join(cmd.Dir, path) {
			t.Errorf("worktree add %s: got %v, request %+v, head %+v: %s", args, err, q, q.Head, out)
		}
		shown := map[bool]string{true: "detached HEAD", false: want.Branch}[want.Detach]
		if !strings.HasPrefix(string(out), "forked session copy: mounted https://127.0.0.1/app at "+q.Mount.Dir+" ("+shown+", ") {
			t.Errorf("worktree add %s printed %s", args, out)
		}
		if q.Mount.SessionOptions.Remote != "https://127.0.0.1/work" {
			t.Errorf("session remote of the fork: got %q, want that of its parent", q.Mount.SessionOptions.Remote)
		}
	}
	w.gone("app/fix")
	w.gone("app/deep/fix")
	w.mount("fix")
	if err := os.WriteFile(filepath.Join(w.dir, "app", "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := w.run("worktree", "add", "fix", "-C", "work", "--session", "mine")
	if q := last[control.ForkRequest](t, w.sessions); r.code != 0 || q.Mount.Dir != w.dir+"/fix" || q.Mount.Session != "mine" ||
		r.stderr != "artifactfs: the new tree has 1 uncommitted path of "+w.dir+"/app (--clean leaves them out)\n" {
		t.Errorf("worktree add with an uncommitted file: got %+v, request %+v", r, q)
	}
	if r := w.run("worktree", "add", "-q", "fix", "-C", "work"); r.code != 0 || r.stdout != "" || r.stderr != "" {
		t.Errorf("worktree add -q: got %+v", r)
	}
	// The embedded session remote of the parent is not that of the fork.
	w.daemon.set(func() {
		m := &w.daemon.mounts[0]
		m.Session.Mode, m.Session.SessionRemote = control.RemoteEmbedded, w.state+"/mounts/work/session.git"
	})
	w.ok("worktree", "add", "-q", "fix", "-C", "app")
	if q := last[control.ForkRequest](t, w.sessions); q.Mount.SessionOptions.Remote != "" {
		t.Errorf("session remote of the fork of an embedded session: got %q", q.Mount.SessionOptions.Remote)
	}
	var reply struct{ Dir, Session, Branch string }
	if err := json.Unmarshal([]byte(w.ok("worktree", "add", "fix", "-C", "work", "--json")), &reply); err != nil ||
		reply.Dir != w.dir+"/fix" || reply.Session != "copy" || reply.Branch != "fix" {
		t.Errorf("worktree add --json: got %+v, %v", reply, err)
	}
}

func TestWorktreeAddChecksOutACommit(t *testing.T) {
	w := newTreeWorld(t)
	head, old := w.git("app", "rev-parse", "HEAD"), w.git("app", "rev-parse", "HEAD~1")
	for args, want := range map[string]string{
		"try HEAD~1": " " + old, "try " + old: " " + old, "-d try other": " " + old, "try other": "other " + old,
		"other": "other " + old, "-b new try HEAD~1": "new " + old, "-B other try HEAD": "other " + head,
		"try far": "far " + old, "--clean try": "try " + head, "--clean -d try": " " + head, "-b far try origin/far": "far " + old,
	} {
		// The daemon is a fake, so the tree that it would mount is there already, with uncommitted changes.
		path := "try"
		if args == "other" {
			path = "other"
		}
		w.mount(path)
		w.git(path, "fetch", "-q", "origin", "refs/remotes/origin/far:refs/remotes/origin/far")
		w.git(path, "branch", "-q", "other", "origin/other")
		w.git(path, "bisect", "start", "-q")
		w.git(path, "config", "checkout.guess", "false")
		if err := os.WriteFile(filepath.Join(w.dir, path, "new"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		r := w.run(append([]string{"worktree", "add", "-C", "app"}, strings.Fields(args)...)...)
		q := last[control.ForkRequest](t, w.sessions)
		if r.code != 0 || r.stderr != "" || q.Head != nil {
			t.Errorf("worktree add %s: got %+v, head %+v", args, r, q.Head)
		}
		got := w.git(path, "branch", "--show-current") + " " + w.git(path, "rev-parse", "HEAD")
		if status := w.git(path, "status", "--porcelain"); got != want || status != "" {
			t.Errorf("tree after worktree add %s: got %q with changes %q, want %q", args, got, status, want)
		}
		if _, err := os.Stat(filepath.Join(w.dir, path, ".git", "BISECT_START")); err == nil {
			t.Errorf("worktree add %s took along a bisection", args)
		}
		if strings.Contains(args, "far") && w.git(path, "config", "branch.far.merge") != "refs/heads/far" {
			t.Errorf("worktree add %s has set no upstream", args)
		}
		w.gone(path)
	}
}

func TestWorktreeAddRefusesWhatGitRefuses(t *testing.T) {
	w := newTreeWorld(t)
	w.mounted("fork", "work", "busy")
	for args, want := range map[string]string{
		"try nope": "invalid reference: nope", "-b new try nope": "invalid reference: nope",
		"-b other try HEAD": "a branch named 'other' already exists",
		"main":              "'main' is already used by worktree at '" + w.dir + "/app'",
		"-b busy try":       "'busy' is already used by worktree at '" + w.dir + "/fork'",
		"busy":              "'busy' is already used by worktree at '" + w.dir + "/fork'",
	} {
		asked := len(w.sessions.asked)
		r := w.run(append([]string{"worktree", "add", "-C", "app"}, strings.Fields(args)...)...)
		if r.code != control.ExitFailed || !strings.Contains(r.stderr, want) || len(w.sessions.asked) != asked {
			t.Errorf("worktree add %s: got %+v, want %s", args, r, want)
		}
	}
	w.mount("try")
	w.ok("worktree", "add", "-C", "app", "-f", "-b", "busy", "try")
	w.git("app", "update-ref", "refs/heads/-m", "HEAD")
	asked := len(w.sessions.asked)
	for _, args := range []string{"", "a b c", "-b x -B y z", "-b x -d z", "a..b", "--orphan x", "-b -D try HEAD", "-B -D try",
		"--clean -b HEAD try", "../-m", "../-n", "try fa*", "..", "-b a..b try HEAD", "-f -b -D try HEAD"} {
		r := w.run(append([]string{"worktree", "add", "-C", "app"}, strings.Fields(args)...)...)
		if r.code != control.ExitUsage || len(w.sessions.asked) != asked {
			t.Errorf("worktree add %s: got %+v", args, r)
		}
	}
	if r := w.run("worktree", "add", "try"); r.code != control.ExitNotMounted {
		t.Errorf("worktree add outside of a mount: got %+v", r)
	}
	for word, want := range map[string]string{"lock": "session set --hold", "sprint": "artifactfs worktree --help"} {
		if r := w.run("worktree", word, "x"); r.code != control.ExitUsage || !strings.Contains(r.stderr, want) {
			t.Errorf("worktree %s: got %+v, want the hint %s", word, r, want)
		}
	}
}

// A fork has the linked worktrees of its parent, whose branches git then considers checked out.
func TestWorktreeAddOfTheBranchOfALinkedWorktree(t *testing.T) {
	w := newTreeWorld(t)
	w.mount("try")
	w.git("try", "worktree", "add", "-q", "-b", "linked", "../linked")
	w.git("app", "branch", "linked")
	w.daemon.set(func() {
		w.daemon.mounts = append(w.daemon.mounts, control.MountStatus{Dir: w.dir + "/try", State: control.StateMounted})
	})
	if r := w.run("worktree", "add", "-C", "app", "try", "linked"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "linked") || w.git("try", "branch", "--show-current") != "main" {
		t.Errorf("worktree add of the branch of a linked worktree: got %+v", r)
	}
	if r := w.run("worktree", "add", "-C", "app", "--force", "try", "linked"); r.code != 0 ||
		w.git("try", "branch", "--show-current") != "linked" {
		t.Errorf("worktree add --force of the branch of a linked worktree: got %+v", r)
	}
}

// A checkout that fails removes the fork.
func TestWorktreeAddLeavesNothingIfItFails(t *testing.T) {
	w := newTreeWorld(t)
	try := w.dir + "/try"
	w.mount("try")
	if err := os.WriteFile(filepath.Join(try, ".git", "index.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.daemon.set(func() {
		w.daemon.mounts = append(w.daemon.mounts, control.MountStatus{Dir: try, State: control.StateMounted})
	})
	if r := w.run("worktree", "add", "-C", "app", "try", "HEAD~1"); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "index.lock") {
		t.Errorf("worktree add whose checkout fails: got %+v", r)
	}
	if n := len(get(w.daemon, &w.daemon.mounts)); n != 1 {
		t.Errorf("mounts after a worktree add that has failed: got %d, want 1", n)
	}
}

// If the fork is not visible in the mount namespace of the command, nothing changes in the repository that contains its
// directory, and the fork is removed.
func TestWorktreeAddOfAnInvisibleMount(t *testing.T) {
	w := newTreeWorld(t)
	head, file := w.git("app", "rev-parse", "HEAD"), filepath.Join(w.dir, "app", "sub", "precious")
	for _, args := range [][]string{{"sub"}, {"sub", "HEAD~1"}, {"--clean", "sub"}, {"-B", "main", "sub", "other", "--force"}} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		w.daemon.set(func() {
			w.daemon.mounts = append(w.daemon.mounts,
				control.MountStatus{Dir: w.dir + "/app/sub", State: control.StateMounted})
		})
		cmd := w.command(append([]string{"worktree", "add", "-C", "work"}, args...)...)
		cmd.Dir = w.dir + "/app"
		out, err := cmd.CombinedOutput()
		if _, lost := os.Stat(file); err == nil || lost != nil || w.git("app", "rev-parse", "HEAD") != head ||
			w.git("app", "branch", "--show-current") != "main" || !strings.Contains(string(out), "mount namespace") {
			t.Errorf("worktree add %q: got %v, file %v: %s", args, err, lost, out)
		}
		if n := len(get(w.daemon, &w.daemon.mounts)); n != 1 {
			t.Errorf("mounts after worktree add %q: got %d, want 1", args, n)
		}
	}
}

func TestWorktreeAddCopiesHooks(t *testing.T) {
	w := newTreeWorld(t)
	w.ok("agent", "install", "claude", "--dir", "app")
	w.mount("try")
	w.ok("worktree", "add", "-C", "app", "-q", "try")
	file := filepath.Join(w.dir, "try", ".claude", "settings.local.json")
	hooks, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(hooks), "session hook claude") ||
		w.git("try", "status", "--porcelain") != "?? .mcp.json" {
		t.Errorf("hooks in the new tree: got %s, %v", hooks, err)
	}
	for _, name := range []string{".mcp.json", ".claude/skills/artifactfs/SKILL.md"} {
		if _, err := os.Lstat(filepath.Join(w.dir, "try", name)); err != nil {
			t.Errorf("tools and skill in the new tree: %v", err)
		}
	}
	if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.ok("worktree", "add", "-C", "app", "-q", "try")
	if text, err := os.ReadFile(file); err != nil || string(text) != "{}" {
		t.Errorf("configuration that the new tree has already: got %s, %v", text, err)
	}
}

// TestWorktreeInclude checks which ignored files are copied to a new tree, and that their times and modes are kept.
func TestWorktreeInclude(t *testing.T) {
	w := newTreeWorld(t)
	app, try := filepath.Join(w.dir, "app"), filepath.Join(w.dir, "try")
	at := time.Date(2024, 5, 6, 7, 8, 9, 1000, time.UTC)
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, []byte(text), 0o640),
			os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	ignored := ".env\nsecrets/\nbuild/\nlocal\n*.link\nfifo\ntracked\nnested/\n"
	write(app+"/.worktreeinclude", "# comment\n.env\nsecrets/*\n!secrets/not\n/local\n*.link\nfifo\ntracked\nnotes\nnested/\n")
	write(app+"/tracked", "committed\n")
	w.git("app", "add", "-f", ".worktreeinclude", "tracked")
	w.git("app", "commit", "-q", "-m", "three")
	write(app+"/.gitignore", ignored)
	w.git("app", "add", ".gitignore")
	w.git("app", "commit", "-q", "-m", "four")
	for _, name := range []string{".env", "sub/.env", "secrets/a/b", "secrets/not", "build/x", "local", "sub/local", "notes"} {
		write(filepath.Join(app, name), name+"\n")
	}
	write(app+"/tracked", "changed\n")
	w.git(".", "init", "-q", "app/nested")
	for link, target := range map[string]string{"in.link": "sub/../.env", "out.link": "../state", "abs.link": app} {
		if err := os.Symlink(target, filepath.Join(app, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(app+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	w.mount("try")
	write(try+"/local", "here already\n")
	r := w.run("worktree", "add", "-C", "app", "try", "--json")
	var reply struct {
		Included struct {
			Files, Bytes, Others int64
			LeftOut              []struct{ Path, Why string } `json:"left_out"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &reply); r.code != 0 || r.stderr != "" || err != nil {
		t.Fatalf("worktree add: got %+v, %v", r, err)
	}
	left := map[string]string{}
	for _, l := range reply.Included.LeftOut {
		left[l.Path] = l.Why
	}
	if want := map[string]string{"local": "exists", "out.link": "link", "abs.link": "link", "nested/": "repository"}; !maps.Equal(
		left, want) || reply.Included.Files != 4 || reply.Included.Bytes != 26 {
		t.Errorf("included files: got %+v, want %v to be left out", reply.Included, want)
	}
	for name, want := range map[string]string{".env": ".env\n", "sub/.env": "sub/.env\n", "secrets/a/b": "secrets/a/b\n",
		"local": "here already\n", "tracked": "committed\n", "in.link": ".env\n"} {
		if got, err := os.ReadFile(filepath.Join(try, name)); err != nil || string(got) != want {
			t.Errorf("file %s of the new tree: got %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"build", "sub/local", "notes", "secrets/not", "out.link", "abs.link", "fifo", "nested"} {
		if _, err := os.Lstat(filepath.Join(try, name)); err == nil {
			t.Errorf("%s is in the new tree", name)
		}
	}
	if info, err := os.Stat(try + "/secrets/a/b"); err != nil || info.Mode() != 0o640 || !info.ModTime().Equal(at) {
		t.Errorf("copied file: got mode %v and time %v", info.Mode(), info.ModTime())
	}
	if info, err := os.Stat(try + "/secrets"); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("copied directory: got mode %v", info.Mode())
	}
	if status := w.git("try", "status", "--porcelain"); status != "" {
		t.Errorf("git status in the new tree: got %q, want that git ignores what was copied", status)
	}

	// In the tree of an earlier commit git does not ignore them, and a directory is a link out of the tree.
	again := filepath.Join(w.dir, "again")
	w.mount("again")
	r = w.run("worktree", "add", "-C", "app", "again", "HEAD~1")
	if _, err := os.Lstat(again + "/.env"); err == nil || r.code != 0 || r.stderr != "" {
		t.Errorf("worktree add of a commit that does not ignore the files: got %+v", r)
	}
	w.git("again", "checkout", "-q", "--detach", "origin/main")
	if err := os.Symlink(w.state, again+"/secrets"); err != nil {
		t.Fatal(err)
	}
	r = w.run("worktree", "add", "-C", "app", "again")
	if _, err := os.Lstat(w.state + "/a"); err == nil || r.code != 0 ||
		!strings.Contains(r.stderr, "not all files that .worktreeinclude names are in the new tree: git check-ignore: ") {
		t.Errorf("worktree add into a tree with a link out of it: got %+v", r)
	}
}

func TestWorktreeList(t *testing.T) {
	w := newTreeWorld(t)
	w.mounted("fork", "work", "fix")
	w.mounted("deep", "fork", "deep")
	w.git("deep", "checkout", "-q", "--detach")
	w.git("fork", "worktree", "add", "-q", "../linked")
	head := w.git("app", "rev-parse", "HEAD")
	w.sessions.set(func() {
		away := sessionInfo("away", "work 01ABC", w.dir+"/away")
		away.Last = &control.Checkpoint{Head: head, Branch: "gone"}
		w.sessions.list = append(w.sessions.list, away, sessionInfo("stranger", "", "/s"))
	})
	pad := func(name string) string {
		return w.dir + "/" + name + strings.Repeat(" ", len("linked")-len(name)) + "  " + head[:10]
	}
	want := pad("app") + " [main]\n" + pad("deep") + " (detached HEAD)\n" + pad("fork") + " [fix]\n" + pad("linked") + " [linked]\n"
	for _, of := range []string{"app", "fork", "deep"} {
		if got := w.ok("worktree", "list", "-C", of); got != want {
			t.Errorf("worktree list of %s printed\n%swant\n%s", of, got, want)
		}
	}
	verbose := w.ok("worktree", "list", "-C", "app", "-v")
	for _, line := range []string{"/app     " + head[:10] + " [main]  session work, 0 changed paths\n",
		"/away    " + head[:10] + " [gone]  session away, not mounted\n",
		"/linked  " + head[:10] + " [linked]  linked worktree of session fork\n"} {
		if !strings.Contains(verbose, line) {
			t.Errorf("worktree list -v does not print %q:\n%s", line, verbose)
		}
	}
	porcelain := w.ok("worktree", "list", "-C", "app", "--porcelain")
	if want := "worktree " + w.dir + "/app\nHEAD " + head + "\nbranch refs/heads/main\n\nworktree " + w.dir + "/deep\nHEAD " + head +
		"\ndetached\n\n"; !strings.HasPrefix(porcelain, want) || strings.Contains(porcelain, "away") {
		t.Errorf("worktree list --porcelain printed\n%s", porcelain)
	}
	if got := w.ok("worktree", "list", "-C", "app", "--porcelain", "-z"); got != strings.ReplaceAll(porcelain, "\n", "\x00") {
		t.Errorf("worktree list --porcelain -z printed %q", got)
	}
	// Newlines in paths and reasons are printed as git prints them.
	w.git("app", "worktree", "add", "-q", "-b", "odd", "--lock", "--reason", "two\nlines \"\\\x01\u00e9", "../li\nked")
	w.git("app", "worktree", "add", "-q", "-b", "even", "--lock", "../even")
	for _, flags := range [][]string{{"--porcelain"}, {"--porcelain", "-z"}} {
		cmd := exec.Command("git", append([]string{"-C", w.dir + "/app", "worktree", "list"}, flags...)...)
		out, err := cmd.Output()
		end := out[len(out)-1:]
		_, linked, _ := strings.Cut(string(out), string(end)+string(end))
		if got := w.ok(append([]string{"worktree", "list", "-C", "app"}, flags...)...); err != nil || !strings.Contains(got, linked) {
			t.Errorf("worktree list %q printed %q, want the trees as git prints them, %q", flags, got, linked)
		}
	}
	w.git("app", "worktree", "remove", "-f", "-f", "../li\nked")
	w.git("app", "worktree", "remove", "-f", "-f", "../even")
	var reply struct{ Worktrees []map[string]any }
	if err := json.Unmarshal([]byte(w.ok("worktree", "list", "-C", "app", "--json")), &reply); err != nil ||
		len(reply.Worktrees) != 5 || reply.Worktrees[1]["mounted"] != false || reply.Worktrees[2]["parent"] != "fork" ||
		reply.Worktrees[0]["kind"] != "mount" || reply.Worktrees[4]["kind"] != "linked" {
		t.Errorf("worktree list --json: got %+v, %v", reply, err)
	}
	for _, args := range []string{"-z", "--porcelain -v", "--porcelain --json", "x"} {
		if r := w.run(append([]string{"worktree", "list", "-C", "app"}, strings.Fields(args)...)...); r.code != control.ExitUsage {
			t.Errorf("worktree list %s: got %+v", args, r)
		}
	}
}

func TestWorktreeRemove(t *testing.T) {
	w := newTreeWorld(t)
	w.mounted("fork", "work", "fix")
	until := time.Now().Add(time.Hour)
	w.daemon.set(func() {
		w.daemon.kept = map[string]control.UnmountReply{w.dir + "/fork": {Dir: w.dir + "/fork", Trashed: "fork", Until: until}}
	})
	refused := func(path, cause, hint string) {
		t.Helper()
		r := w.run("worktree", "remove", path)
		if r.code == 0 || !strings.Contains(r.stderr, cause) || !strings.Contains(r.stderr, hint) || r.stdout != "" {
			t.Errorf("worktree remove %s: got %+v, want %s", path, r, cause)
		}
	}
	refused("app", "'app' is a main working tree", "artifactfs unmount "+w.dir+"/app")
	refused("nowhere", "'nowhere' is not a working tree", "worktree list")
	refused("app/sub", "'app/sub' is not a working tree", "worktree list")
	file := filepath.Join(w.dir, "fork", "new")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused("fork", "'fork' contains modified or untracked files", "--force")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	w.git("fork", "commit", "-q", "--allow-empty", "-m", "mine")
	refused("fork", "'fork' contains commits that neither a remote nor "+w.dir+"/app has: 1", "session merge fork")
	// Commits that only a tag, a linked worktree or the stash has are work, too, unless the parent has them.
	w.git("fork", "tag", "-a", "-m", "mine", "mine")
	w.git("fork", "reset", "-q", "--hard", "HEAD~1")
	refused("fork", "'fork' contains tagged commits that neither a remote nor "+w.dir+"/app has: 1", "session merge fork")
	w.git("app", "fetch", "-q", "../fork", "mine:refs/tags/theirs")
	w.git("fork", "worktree", "add", "-q", "--detach", "../loose")
	w.git("loose", "commit", "-q", "--allow-empty", "-m", "loose")
	refused("fork", "'fork' contains commits that neither a remote nor "+w.dir+"/app has: 1", "session merge fork")
	w.git("fork", "worktree", "remove", "../loose")
	stash := func(message string) string {
		return w.git("app", "commit-tree", "-p", "HEAD", "-p", "HEAD~1", "-m", message, "HEAD^{tree}")
	}
	for _, id := range []string{stash("same"), stash("own")} {
		w.git("app", "update-ref", "--create-reflog", "-m", "stash", "refs/stash", id)
		w.git("fork", "fetch", "-q", "../app", "refs/stash")
		w.git("fork", "update-ref", "--create-reflog", "-m", "stash", "refs/stash", id)
	}
	w.git("app", "stash", "drop", "-q")
	refused("fork", "'fork' contains stashes that are nowhere else: 1", "--force")
	if n := len(get(w.daemon, &w.daemon.mounts)); n != 2 {
		t.Fatalf("mounts after refused removals: got %d, want 2", n)
	}
	r := w.run("worktree", "remove", "--force", "fork")
	if r.code != 0 || r.stdout != "removed "+w.dir+"/fork\n" ||
		!strings.HasPrefix(r.stderr, "artifactfs: artifactfs session undelete fork --mount "+w.dir+"/fork --deleted ") {
		t.Errorf("worktree remove --force: got %+v", r)
	}

	// A fork without commits of its own, and one that is not mounted.
	w.mounted("clean", "work", "clean")
	if got := w.ok("worktree", "remove", "clean"); got != "removed "+w.dir+"/clean\n" {
		t.Errorf("worktree remove of a tree without work printed %q", got)
	}
	a := w.afs
	a.keep(t, "away", w.dir+"/away", 1)
	w.sessions.set(func() { w.sessions.list = append(w.sessions.list, sessionInfo("away", "work 01ABC", w.dir+"/away")) })
	refused("away", "session away is not mounted", "--force")
	var done struct{ Path, Session, Restore string }
	if err := json.Unmarshal([]byte(w.run("worktree", "remove", "-f", "away", "--json").stdout), &done); err != nil ||
		done.Path != w.dir+"/away" || !strings.HasPrefix(done.Restore, "artifactfs session undelete work --mount "+w.dir+"/away --deleted ") {
		t.Errorf("worktree remove of a tree that is not mounted: got %+v, %v", done, err)
	}

}

// A worktree of git is removed after a checkpoint. Where no checkpoint can have its files, --force is refused.
func TestWorktreeRemoveOfALinkedWorktree(t *testing.T) {
	w := newTreeWorld(t)
	w.sessions.set(func() { w.sessions.checkpoint.ID = checkpointA })
	w.git(".", "clone", "-q", "app", "other")
	w.git("app", "worktree", "add", "-q", "../linked")
	w.git("app", "worktree", "add", "-q", "sub/inside")
	w.git("other", "worktree", "add", "-q", "../app/sub/foreign")
	for _, c := range []struct {
		path  string
		keeps bool // whether a checkpoint has its files
	}{{"linked", false}, {"app/sub/foreign", false}, {"app/sub/inside", true}} {
		dir := filepath.Join(w.dir, c.path)
		file := filepath.Join(dir, "new")
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		asked := len(w.sessions.asked)
		r := w.run("worktree", "remove", c.path)
		if _, err := os.Stat(file); err != nil || r.code != control.ExitFailed || !strings.Contains(r.stderr, "untracked files") {
			t.Errorf("worktree remove of %s with a new file: got %+v, file %v", c.path, r, err)
		}
		if made := len(w.sessions.asked) > asked; made != c.keeps {
			t.Errorf("worktree remove of %s: checkpoint made: %t", c.path, made)
		}
		r = w.run("worktree", "remove", "--force", c.path)
		_, err := os.Stat(dir)
		if !c.keeps && (err != nil || r.code != control.ExitFailed || !strings.Contains(r.stderr, "git worktree remove --force")) {
			t.Errorf("worktree remove --force of %s, which is in no checkpoint: got %+v, directory %v", c.path, r, err)
		}
		if c.keeps && (err == nil || r.code != 0 || r.stdout != "removed "+dir+"\n" || !strings.Contains(r.stderr,
			"checkpoint "+checkpointA+" of session work")) {
			t.Errorf("worktree remove --force of %s: got %+v", c.path, r)
		}
		if c.keeps {
			continue
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if r := w.run("worktree", "remove", c.path); r.code != 0 || r.stdout != "removed "+dir+"\n" || r.stderr != "" {
			t.Errorf("worktree remove of %s without changes: got %+v", c.path, r)
		}
	}
}

func TestWorktreePrune(t *testing.T) {
	w := newTreeWorld(t)
	w.git("app", "worktree", "add", "-q", "../linked")
	if err := os.RemoveAll(filepath.Join(w.dir, "linked")); err != nil {
		t.Fatal(err)
	}
	want := "Removing worktrees/linked: gitdir file points to non-existent location\n"
	if got := w.ok("worktree", "prune", "-C", "app", "-n"); got != want {
		t.Errorf("worktree prune -n printed %q", got)
	}
	if got := w.ok("worktree", "prune", "-C", "app", "--expire", "never", "-v"); got != "" {
		t.Errorf("worktree prune --expire never printed %q", got)
	}
	if r := w.run("worktree", "prune", "-C", "app", "--expire", "some day"); r.code != control.ExitUsage {
		t.Errorf("worktree prune with an invalid time: got %+v", r)
	}
	if got := w.ok("worktree", "prune", "-C", "app", "-v"); got != want {
		t.Errorf("worktree prune -v printed %q", got)
	}
	if got := w.ok("worktree", "prune", "-C", "app", "--json"); got != `{"pruned":[]}`+"\n" {
		t.Errorf("worktree prune after another printed %q", got)
	}
}

// TestWorktreePruneOfInvisibleMount checks that prune changes no repository that contains the directory of a mount which
// this mount namespace does not have, and prunes the other mounts.
func TestWorktreePruneOfInvisibleMount(t *testing.T) {
	w := newTreeWorld(t)
	for _, repo := range []string{"app", "other"} {
		if repo != "app" {
			w.git(".", "clone", "-q", "app", repo)
		}
		w.git(repo, "worktree", "add", "-q", "../linked-"+repo)
		if err := os.RemoveAll(filepath.Join(w.dir, "linked-"+repo)); err != nil {
			t.Fatal(err)
		}
	}
	w.mounted("other/hidden", "work", "hidden")
	if err := os.RemoveAll(filepath.Join(w.dir, "other/hidden/.git")); err != nil {
		t.Fatal(err)
	}
	r := w.run("worktree", "prune", "-C", "app", "-v")
	if r.code != control.ExitFailed || !strings.Contains(r.stderr, "mount namespace") ||
		!strings.Contains(r.stdout, "Removing worktrees/linked-app: ") {
		t.Errorf("worktree prune with an invisible mount: got %+v", r)
	}
	if got := w.git("other", "worktree", "list", "--porcelain"); !strings.Contains(got, "linked-other") {
		t.Errorf("worktree prune has pruned the repository that contains an invisible mount:\n%s", got)
	}
}
