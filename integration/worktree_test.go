package integration

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// at runs the binary in a directory.
func (w *world) at(dir string, args ...string) result {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := w.command(ctx, args...)
	var stdout, stderr strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.Fatalf("artifactfs %q: %v", args, err)
	}
	return result{args, stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// A tree of worktree add has everything of its parent and a branch of its own; it is listed as git lists worktrees, and
// what is removed comes back by the printed command. The worker is killed between the steps.
func TestWorktree(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(3, 3))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", nil)
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--checkpoint", "interval=1h")...)
	kill := func() { w.check(syscall.Kill(w.serving(), syscall.SIGKILL)) }
	first := w.at(m.Dir, "worktree", "add", "../plain") // of a session without changes and checkpoints
	w.sh(m.Dir, "echo one >one && git add one && git commit -qm one && echo more >>one && git add one && echo new >new && git stash list")
	main := strings.TrimSpace(w.git(m.Dir, "branch", "--show-current"))

	added := w.at(m.path("d0000"), "worktree", "add", "../../fix")
	dir := filepath.Join(w.root, "fix")
	if first.code != 0 || added.code != 0 || !strings.Contains(added.stdout, " at "+dir+" (fix, ") ||
		!strings.Contains(added.stderr, "the new tree has 2 uncommitted paths of "+m.Dir) {
		t.Fatalf("worktree add: got %s%s", first, added)
	}
	kill()
	fix := mounted{control.MountReply{Dir: dir}, w}
	was := w.look(m.Dir)
	is := w.look(dir)
	if remote := fix.status().Session.SessionRemote; remote != m.status().Session.SessionRemote {
		t.Errorf("session remote of the new tree: got %s, want that of its parent", remote)
	}
	if got := strings.TrimSpace(w.git(dir, "branch", "--show-current")); got != "fix" {
		t.Errorf("branch of the new tree: got %s, want fix", got)
	}
	w.git(dir, "symbolic-ref", "HEAD", "refs/heads/"+main)
	w.git(dir, "branch", "-D", "fix")
	w.same("new tree", was, w.look(dir))
	w.git(dir, "switch", "-q", "-c", "fix")
	w.same("new tree on its branch again", is, w.look(dir))

	w.sh(dir, "git commit -qm two && echo three >three && git add three && echo four >four && rm new")
	w.sh(dir, "echo out >>$(git rev-parse --git-path info/exclude) && mkdir out && echo ignored >out/x")
	w.git(dir, "worktree", "add", "-q", "../linked")
	if got := w.git(m.Dir, "for-each-ref", "refs/heads/fix", "refs/heads/linked"); got != "" {
		t.Errorf("branches of the parent: got %s, want none of the fork", got)
	}
	// The list has the form of that of git, also of a worktree that git has made.
	listed := w.at(dir, "worktree", "list", "--porcelain").stdout
	head := strings.TrimSpace(w.git(m.Dir, "rev-parse", "HEAD"))
	own := strings.TrimSpace(w.git(dir, "rev-parse", "HEAD"))
	_, linked, _ := strings.Cut(w.git(dir, "worktree", "list", "--porcelain"), "\n\n")
	plain := strings.TrimSpace(w.git(filepath.Join(w.root, "plain"), "rev-parse", "HEAD"))
	want := "worktree " + m.Dir + "\nHEAD " + head + "\nbranch refs/heads/" + main + "\n\n" +
		"worktree " + dir + "\nHEAD " + own + "\nbranch refs/heads/fix\n\n" + strings.TrimRight(linked, "\n") + "\n\n" +
		"worktree " + filepath.Join(w.root, "plain") + "\nHEAD " + plain + "\nbranch refs/heads/plain\n\n"
	if listed != want {
		t.Errorf("worktree list --porcelain printed\n%swant\n%s", listed, want)
	}
	w.ok("worktree", "remove", filepath.Join(w.root, "linked"))

	kill()
	before := w.look(dir)
	for _, work := range []string{"modified or untracked files", "commits that"} {
		if r := w.afs("worktree", "remove", dir); r.code != 1 || !strings.Contains(r.stderr, "contains "+work) {
			t.Errorf("worktree remove of a tree with work: got %s, want a refusal because of %s", r, work)
		}
		if work == "commits that" {
			break
		}
		w.sh(dir, "git stash -qu")
	}
	w.sh(dir, "git stash pop -q --index")
	w.same("tree after refused removals", before, w.look(dir))
	if r := w.afs("worktree", "remove", m.Dir, "--force"); r.code != 1 || !strings.Contains(r.stderr, "main working tree") {
		t.Errorf("worktree remove of the first tree: got %s", r)
	}
	for range 2 {
		gone := w.afs("worktree", "remove", "--force", dir)
		back := restoring(gone.stderr)
		if gone.code != 0 || back == "" || exists(dir) {
			t.Fatalf("worktree remove --force: got %s, want the command that brings the tree back", gone)
		}
		kill()
		fix = w.mountAgain(back, dir)
		w.same("tree that was brought back", before, w.look(dir))
		w.wantFile(fix.path("out/x"), "ignored\n") // which is in no checkpoint
	}
	if r := w.afs("worktree", "remove", filepath.Join(w.root, "plain")); r.code != 0 ||
		exists(filepath.Join(w.root, "plain")) {
		t.Errorf("worktree remove of a tree without work: got %s", r)
	}
	w.unmount(fix)
	w.sound(c.Path)
}

// A command in another mount namespace than the daemon's does not see the new tree. It must change nothing in the
// repository of the user that contains the directory.
func TestWorktreeInAnotherNamespace(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"), "--wait", "git", "--session", "work")
	w.sh(w.root, "git init -q user && cd user && git commit -q --allow-empty -m one && git commit -q --allow-empty -m two && "+
		"echo changed >precious && git add precious && echo new >new")
	user := filepath.Join(w.root, "user")
	look := "git rev-parse HEAD; git status --porcelain --branch; cat precious"
	before := w.sh(user, look)
	for _, args := range []string{"tree", "tree HEAD", "-b other --clean tree"} {
		r := w.run(w.state, "unshare", "--mount", "--propagation", "private", "sh", "-c",
			`cd "$1" && exec "$2" worktree add -C "$3" `+args, "sh", user, binary, m.Dir)
		if r.code != control.ExitFailed || !strings.Contains(r.stderr, "mount namespace") {
			t.Errorf("worktree add %s in another mount namespace: got %s", args, r)
		}
		if after := w.sh(user, look); after != before {
			t.Errorf("repository of the user: got %q, want %q", after, before)
		}
	}
	if left := mountsBelow(w.root); len(left) != 1 {
		t.Errorf("mounts after the commands: %q, want that of the parent", left)
	}
	var all control.SessionsReply
	if w.json(&all, "session", "list"); len(all.Sessions) != 1 {
		t.Errorf("sessions after the commands: got %+v, want that of the parent", all.Sessions)
	}
}

// Trees of commits, and many at once. After the end of all processes of the daemon, the dead mounts are pruned and no
// session is lost.
func TestWorktreesOfCommits(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	m := w.bare(url, "--wait", "git", "--session", "work")
	w.sh(m.Dir, "git switch -qc topic && echo one >one && git add one && git commit -qm one && git switch -q - && echo new >new")
	old := strings.TrimSpace(w.git(m.Dir, "rev-parse", "HEAD"))
	topic := strings.TrimSpace(w.git(m.Dir, "rev-parse", "topic"))
	var wait sync.WaitGroup
	trees := map[string][]string{"a": {"-b", "a"}, "topic": nil, "loose": {"--detach"}, "b": {"--clean"}}
	for name, flags := range trees {
		wait.Go(func() {
			args := append([]string{"worktree", "add", "-C", "work", name}, flags...)
			if name == "a" || name == "loose" {
				args = append(args, "topic")
			}
			if r := w.afs(args...); r.code != 0 {
				t.Errorf("%s", r)
			}
		})
	}
	wait.Wait()
	for name, want := range map[string]string{"a": "a " + topic, "topic": "topic " + topic, "loose": " " + topic, "b": "b " + old} {
		dir := filepath.Join(w.root, name)
		got := strings.TrimSpace(w.sh(dir, `echo "$(git branch --show-current) $(git rev-parse HEAD)" && git status --porcelain`))
		if got != strings.TrimSpace(want) || exists(filepath.Join(dir, "new")) || exists(filepath.Join(dir, "one")) != (name != "b") {
			t.Errorf("tree %s: got %q, want %q and the files of this commit", name, got, want)
		}
		w.sh(dir, "echo mine >mine")
	}
	if r := w.afs("worktree", "add", "-C", "work", "again", "topic"); r.code != 1 ||
		!strings.Contains(r.stderr, "'topic' is already used by worktree at '"+filepath.Join(w.root, "topic")+"'") {
		t.Errorf("worktree add of a branch that is checked out: got %s", r)
	}
	w.ok("checkpoint", filepath.Join(w.root, "a"))
	var all control.SessionsReply
	w.json(&all, "session", "list")
	for _, s := range all.Sessions {
		if want := filepath.Join(w.state, "mounts", s.Name, "session.git"); s.SessionRemote != want {
			t.Errorf("session remote of %s: got %s, want its own, %s", s.Name, s.SessionRemote, want)
		}
	}
	w.killDaemon()
	listed := w.ok("worktree", "prune", "-C", "work", "-v")
	for name := range trees {
		dir := filepath.Join(w.root, name)
		if !strings.Contains(listed, "Removing "+dir+": the daemon of the mount has died\n") || exists(dir) {
			t.Errorf("worktree prune left %s, and printed\n%s", dir, listed)
		}
	}
	dir := filepath.Join(w.root, "a")
	for _, s := range all.Sessions {
		if s.Dir == dir {
			w.ok("session", "resume", s.Name, "--wait", "git")
		}
	}
	w.wantFile(filepath.Join(dir, "mine"), "mine\n")
	if got := strings.TrimSpace(w.git(dir, "branch", "--show-current")); got != "a" {
		t.Errorf("branch of a tree that was resumed: got %s, want a", got)
	}
	w.unmount(mounted{control.MountReply{Dir: dir}, w})
}

// What a checkpoint leaves out and is not carried is in the receipt of a fork, of a tree, of a session that is resumed on
// another machine, and of a restore. A session that is resumed on the same host has everything.
func TestReceiptNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(2, 2))
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", nil)
	m := w.bare(url, append(c.flags("work"), "--wait", "git", "--max-file-size", "1M")...)
	missing := func(command result, verb string) string {
		t.Helper()
		_, line, _ := strings.Cut(command.stderr, "artifactfs: not "+verb+": ")
		line, _, _ = strings.Cut(line, "\n")
		if command.code != 0 {
			t.Errorf("%s", command)
		}
		return line
	}
	w.sh(m.Dir, "echo out/ >.gitignore && git add .gitignore && mkdir out && echo x >out/x && echo one >one")
	m.checkpoint("-m", "first", "--pin", "first")
	out := w.place("out")
	w.sh(m.Dir, "mv out "+out)
	if got := missing(w.afs("session", "fork", w.place("f"), "-C", "work"), "carried"); got != "" {
		t.Errorf("receipt of a fork after the ignored files were removed: got %q, want none", got)
	}
	w.sh(m.Dir, "mv "+out+" out")
	w.sh(m.Dir, "echo TOKEN=1 >.env && echo .env >.worktreeinclude && mkfifo fifo && truncate -s 2M core")
	const first = "1 ignored (out/)"
	const all = "1 secret (.env), 1 too large (core), 1 no file or link (fifo), 1 ignored (out/)"
	fork := []string{"session", "fork", w.place("f"), "-C", "work"}
	if got := missing(w.afs(append(fork, "--without-ignored")...), "carried"); got != all {
		t.Errorf("receipt of a fork: got %q, want %q", got, all)
	}
	if got := missing(w.afs("session", "fork", "first", w.place("f"), "-C", "work"), "carried"); got != first {
		t.Errorf("receipt of a fork of an earlier checkpoint: got %q, want %q", got, first)
	}
	w.sh(m.Dir, "echo .env >>.gitignore")
	tree := w.place("t")
	added := w.afs("worktree", "add", tree, "-C", "work")
	want := "artifactfs: carried: 1 ignored file (8 B, shared), among them 1 secret (.env); not carried: 1 too large (core), " +
		"1 no file or link (fifo), 1 ignored (out/)\n"
	if !strings.HasPrefix(added.stderr, want) {
		t.Errorf("receipt of a tree: got %s, want %q", added, want)
	}
	w.wantFile(filepath.Join(tree, ".env"), "TOKEN=1\n")
	// What was carried stays on this host.
	p := mounted{control.MountReply{Dir: tree}, w}.checkpoint()
	if !slices.ContainsFunc(p.LeftOut, func(l control.LeftOut) bool { return l.Path == ".env" && l.Why == "ignored" }) {
		t.Errorf("checkpoint of the tree leaves out %+v, want .env among them", p.LeftOut)
	}
	var forked control.MountReply
	w.json(&forked, "session", "fork", w.place("f"), "-C", "work")
	if r, c := forked.Receipt, forked.Carried; r == nil || r.Ignored != 1 || r.TooLarge != 1 || r.Special != 1 ||
		len(r.Paths) != 3 || c == nil || c.Files != 1 || !slices.Equal(c.Secrets, []string{".env"}) {
		t.Errorf("fork with --json: got the receipt %+v, and %+v as carried", r, c)
	}
	forked = control.MountReply{}
	w.json(&forked, "session", "fork", w.place("f"), "-C", "work", "--ignored", "all")
	if forked.Receipt != nil || forked.Carried == nil || forked.Carried.Files != 4 {
		t.Errorf("fork with everything: got the receipt %+v, and %+v as carried", forked.Receipt, forked.Carried)
	}
	if got := missing(w.afs("session", "restore", "first", m.path("one"), "-C", "work"), "restored"); got != "" {
		t.Errorf("receipt of a restore of one file: got %q, want none", got)
	}
	if got := missing(w.afs("session", "restore", "first", "-C", "work"), "restored"); got != first {
		t.Errorf("receipt of a restore: got %q, want %q", got, first)
	}
	w.ok("unmount", m.Dir)
	if got := missing(w.afs("session", "resume", "work", m.Dir), "carried"); got != "" || !exists(m.path("out/x")) {
		t.Errorf("receipt of a session that is resumed on the same host: got %q, want none", got)
	}
	w.ok("unmount", m.Dir)
	other := w.elsewhere()
	resumed := mounted{control.MountReply{Dir: w.place("r")}, other}
	again := missing(other.afs("session", "resume", "work", resumed.Dir, "--session-remote", c.arg), "carried")
	if again != all {
		t.Errorf("receipt of a session that is resumed on another machine: got %q", again)
	}
	// A checkpoint names a hundred paths, so it is not known whether a directory has some of the others.
	w.sh(resumed.Dir, "mkdir a z && touch a/x z/x z/0.ign && echo '*.ign' >>.gitignore && "+
		"seq 120 | sed 's,.*,a/&.ign,' | xargs touch")
	resumed.checkpoint("-m", "many", "--pin", "many")
	if got := missing(other.afs("session", "restore", "many", resumed.path("z"), "-C", "work"), "restored"); got != "21 more" {
		t.Errorf("receipt of a restore from a checkpoint that leaves out many paths: got %q", got)
	}
}
