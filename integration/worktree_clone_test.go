package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// newClone serves a repository and clones it with stock git. The clone has settings, another branch, and uncommitted
// changes of all kinds. Commands run in the clone.
func newClone(t *testing.T) (w *world, dir string) {
	w = newWorld(t)
	w.commit(w.repo("app.git", object.SHA1), sample("clone"))
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	dir = filepath.Join(w.root, "app")
	w.sh(w.root, "git clone -q "+url+" app && cd app && git branch other && git config user.name 'In The Clone' && "+
		"git config alias.st 'status -sb'")
	// the hook writes beside the tree in which it runs
	w.sh(dir, `printf '#!/bin/sh\ntouch "$(git rev-parse --show-toplevel)-hook"\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit`)
	w.sh(dir, `git rm -q "$(git ls-files | head -n 1)"; rm "$(git ls-files | tail -n 1)"
f=$(git ls-files | head -n 1); echo changed >>"$f"; chmod +x "$f"
echo a >staged; git add staged; echo b >>staged; ln -s staged newlink
mkdir new dist; echo 1 >new/untracked; echo dist >.git/info/exclude; echo x >dist/ignored`)
	return w, dir
}

// A clone that is not a mount gets trees like those of git worktree: HEAD without uncommitted changes, with the remotes
// and settings of the clone, and commits appear in the clone as branches.
func TestWorktreeOfAClone(t *testing.T) {
	w, app := newClone(t)
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	add := func(dir, args string) string { return w.sh(dir, state+binary+" worktree add "+args) }
	fix := filepath.Join(w.root, "fix")
	out := add(app, "../fix")
	if !strings.HasPrefix(out, "mounted "+app+" at "+fix+" (fix, ") {
		t.Errorf("worktree add: got %q", out)
	}
	defer w.afs("unmount", "--all")
	for script, want := range map[string]string{
		"git status --porcelain":                     "",
		"git symbolic-ref HEAD":                      "refs/heads/fix",
		"git rev-parse HEAD^{tree}":                  w.sh(app, "git rev-parse HEAD^{tree}"),
		"git config remote.origin.url":               w.sh(app, "git config remote.origin.url"),
		"git rev-parse origin/main":                  w.sh(app, "git rev-parse origin/main"),
		"git config user.name":                       "In The Clone",
		"git config alias.st":                        "status -sb",
		"git config remote.clone.url":                app,
		"git config lfs.storage":                     filepath.Join(app, ".git", "lfs"),
		"git check-ignore dist/x":                    "dist/x",
		"git fetch -q origin && git diff --stat":     "",
		"test ! -e dist && test ! -e new; echo $?":   "0",
		"git rev-list --count --branches --not HEAD": "0",
	} {
		if got := w.sh(fix, script); got != want {
			t.Errorf("%s in the tree: got %q, want %q", script, got, want)
		}
	}
	w.sh(fix, "mkdir sub && echo 1 >sub/f && git add sub && git -c user.email=a@b.invalid commit -qm 'In the tree' && "+
		state+binary+" sync .")
	if got := w.sh(app, "git log -1 --format=%s fix && git symbolic-ref --short HEAD"); got != "In the tree\nmain" {
		t.Errorf("branch of the tree in the clone: got %q", got)
	}

	// A tree that is made in a tree of the clone is a tree of the clone, too.
	add(fix, "../again")
	again := filepath.Join(w.root, "again")
	if got, want := w.sh(again, "git config remote.origin.url && git rev-parse origin/main HEAD"),
		w.sh(fix, "git config remote.origin.url && git rev-parse origin/main HEAD"); got != want {
		t.Errorf("tree made in a tree of the clone: got %q, want %q", got, want)
	}
	w.sh(again, "git -c user.email=a@b.invalid commit -q --allow-empty -m 'In the second' && "+state+binary+" sync .")
	if got := w.sh(app, "git log -1 --format=%s again"); got != "In the second" {
		t.Errorf("branch of the second tree in the clone: got %q", got)
	}
	if _, err := os.Lstat(fix + "-hook"); err != nil {
		t.Errorf("the hook of the clone did not run in the tree: %v", err)
	}
	// Contents are converted as in the clone.
	w.sh(w.root, "git clone -q -c core.autocrlf=true app crlf")
	add(filepath.Join(w.root, "crlf"), "../converted")
	const sums = "git ls-files -z | xargs -0 sha1sum; git status --porcelain"
	if got, want := w.sh(filepath.Join(w.root, "converted"), sums), w.sh(filepath.Join(w.root, "crlf"), sums); got != want {
		t.Errorf("tree of a clone with core.autocrlf: got\n%s\nwant\n%s", got, want)
	}

	// The uncommitted changes come along if they are demanded: git status is the same in both.
	add(filepath.Join(app, "new"), "--changes -b with "+filepath.Join(w.root, "with"))
	with := filepath.Join(w.root, "with")
	for _, script := range []string{"git status --porcelain --untracked-files=all", "git diff --cached", "git diff",
		"git ls-files -s", "readlink newlink; cat staged new/untracked; stat -c '%a %Y' staged new/untracked"} {
		if got, want := w.sh(with, script), w.sh(app, script); got != want {
			t.Errorf("%s in the tree with changes: got\n%s\nwant\n%s", script, got, want)
		}
	}

	// An existing branch is checked out, and moves in the clone.
	add(app, filepath.Join(w.root, "o")+" other")
	w.sh(filepath.Join(w.root, "o"), "git -c user.email=a@b.invalid commit -q --allow-empty -m moved && "+state+
		binary+" sync .")
	if got := w.sh(app, "git log -1 --format=%s other"); got != "moved" {
		t.Errorf("existing branch in the clone: got %q", got)
	}
	add(app, "--detach "+filepath.Join(w.root, "d")+" origin/main")
	if got := w.sh(filepath.Join(w.root, "d"), "git symbolic-ref -q HEAD || git rev-parse HEAD"); got != w.sh(app,
		"git rev-parse origin/main") {
		t.Errorf("detached HEAD: got %q", got)
	}

	w.sh(w.root, "git clone -q --bare app bare.git")
	add(filepath.Join(w.root, "bare.git"), "-b from-bare "+filepath.Join(w.root, "b"))
	if got := w.sh(filepath.Join(w.root, "b"), "git status -sb"); got != "## from-bare" {
		t.Errorf("tree of a bare repository: got %q", got)
	}

	refused := func(code int, text, args string) {
		t.Helper()
		r := w.run(w.state, "sh", "-c", "cd "+app+" && exec "+binary+" worktree add "+args)
		if r.code != code || !strings.Contains(r.stderr, text) {
			t.Errorf("want code %d and %q: %s", code, text, r)
		}
	}
	refused(1, "'main' is already used by worktree at '"+app+"'", "../x main")
	refused(1, "'other' is already used by worktree at '"+filepath.Join(w.root, "o")+"'", "../x other")
	refused(1, "a branch named 'other' already exists", "-b other ../x")
	refused(1, "invalid reference: nowhere", "../x nowhere")
	refused(2, "--changes excludes", "--changes ../x other")
	w.sh(app, "git branch ahead $(git commit-tree -p HEAD -m ahead HEAD^{tree})")
	refused(1, "--changes takes the changes of HEAD", "--changes ../ahead")
	refused(1, "has commits that", "-B ahead ../x HEAD")
	if _, err := os.Lstat(filepath.Join(w.root, "x")); err == nil {
		t.Error("a refused tree has a directory")
	}

	// The clone keeps the commit of a tree, and keeps nothing when an unchanged tree is gone.
	w.sh(app, `git branch gone $(git commit-tree -m gone $(printf '100644 blob %s\tonly\n' $(echo only | git hash-object -w --stdin) |
git mktree))`)
	gone := filepath.Join(w.root, "gone")
	add(app, "--detach "+gone+" gone")
	w.sh(app, "git branch -qD gone && git gc -q --prune=now")
	if got := w.sh(gone, "cat only; git log -1 --format=%s; git -C "+app+" log -1 --format=%s $(git rev-parse HEAD)"); got !=
		"only\ngone\ngone" {
		t.Errorf("tree whose branch was deleted in the clone: got %q", got)
	}
	const bases = "git for-each-ref refs/afs/base | wc -l"
	before := w.sh(app, bases)
	w.ok("worktree", "remove", "--force", gone)
	if after := w.sh(app, bases); after == before {
		t.Errorf("base refs after the removal of a tree: got %s, as many as before", after)
	}

	// A tree that was unmounted keeps its session, which no other tree takes over.
	kept := filepath.Join(w.root, "kept")
	add(app, "../kept")
	w.sh(kept, "echo work >unsaved")
	w.ok("unmount", kept)
	refused(1, "belongs to this path", "../kept")
	w.ok("mount", app, kept)
	if got := w.sh(kept, "cat unsaved"); got != "work" {
		t.Errorf("file of the session that was mounted again: got %q", got)
	}

	// The trees of a mirror do not mirror, and fetch to remote branches.
	w.sh(w.root, "git clone -q --mirror app mirror.git")
	add(filepath.Join(w.root, "mirror.git"), "-b mirrored "+filepath.Join(w.root, "mirrored"))
	if got := w.sh(filepath.Join(w.root, "mirrored"), "git config remote.origin.mirror || git config remote.origin.fetch"); got !=
		"+refs/heads/*:refs/remotes/origin/*" {
		t.Errorf("settings of a tree of a mirror: got %q", got)
	}

	// A nested repository is not copied, and neither is the new tree itself.
	w.sh(app, "git init -q nested && git -C nested commit -q --allow-empty -m nested")
	inside := filepath.Join(app, "trees", "one")
	if out := add(app, "--changes -b one trees/one 2>&1"); !strings.Contains(out, "not copied: the git repositories nested") {
		t.Errorf("tree with changes inside of the clone: got %q", out)
	}
	if _, err := os.Lstat(filepath.Join(inside, "nested")); err == nil {
		t.Error("a nested repository was copied")
	}

	list := w.sh(app, state+binary+" worktree list --porcelain")
	for _, want := range []string{"worktree " + app + "\nHEAD ", "worktree " + fix + "\n", "branch refs/heads/fix\n",
		"worktree " + with + "\n"} {
		if !strings.Contains(list, want) {
			t.Errorf("worktree list: %q is missing in\n%s", want, list)
		}
	}
	if r := w.run(w.state, binary, "worktree", "remove", with); r.code != 1 ||
		!strings.Contains(r.stderr, "modified or untracked") {
		t.Errorf("removal of a tree with changes: %s", r)
	}
	w.ok("worktree", "remove", fix)
	if got := w.sh(app, "git log -1 --format=%s fix"); got != "In the tree" {
		t.Errorf("branch of the removed tree in the clone: got %q", got)
	}
}

// Of several trees of a clone that are added with the same branch at the same time, one gets it. An addition that fails
// leaves neither a branch nor a moved one.
func TestWorktreesOfACloneAtOnce(t *testing.T) {
	w, app := newClone(t)
	defer w.afs("unmount", "--all")
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	w.sh(app, state+binary+" worktree add -b first ../first && git branch old HEAD && git branch newer origin/main")
	first := filepath.Join(w.root, "first")
	w.sh(first, "git -c user.email=a@b.invalid commit -q --allow-empty -m first && "+state+binary+" sync .")

	// two in the clone, two in a tree of it, and two without -b
	out := w.sh(app, state+`for n in 1 2; do
	(`+binary+` worktree add -b same ../same$n >../log$n 2>&1; echo same $? >>../log$n) &
	(cd ../first && `+binary+` worktree add -b same ../tree$n >../logt$n 2>&1; echo same $? >>../logt$n) &
	(mkdir ../d$n && `+binary+` worktree add ../d$n/base >../logb$n 2>&1; echo base $? >>../logb$n) &
done; wait; cat ../log*`) + "\n"
	for _, branch := range []string{"same", "base"} {
		if n := strings.Count(out, branch+" 0\n"); n != 1 {
			t.Errorf("%d of the trees with the branch %s were added, want 1:\n%s", n, branch, out)
		}
	}
	if n := strings.Count(out, "already exists\n") + strings.Count(out, "is already used by worktree"); n != 4 {
		t.Errorf("refusals because of the branch: got %d, want 4:\n%s", n, out)
	}

	// A tree that was made in a tree pushes its branch to the clone.
	w.until("the branch is in the clone", func() bool {
		return w.sh(app, "git for-each-ref refs/heads/same") != ""
	})
	w.sh(app, "git branch -q --set-upstream-to=other old; git config branch.old.description older; "+
		"git config branch.tracks.description new")
	const told = "git for-each-ref refs/heads; git config --local --list | sort"
	before := w.sh(app, told)
	w.sh(w.root, "mkdir full && echo x >full/f")
	for _, args := range []string{"-b new ../full", "-b tracks ../full origin/main", "-B old ../full first",
		"-B old ../full origin/main", "../full newer"} {
		if r := w.run(w.state, "sh", "-c", "cd "+app+" && exec "+binary+" worktree add "+args); r.code != 1 {
			t.Errorf("worktree add %s: %s", args, r)
		}
		if got := w.sh(app, told); got != before {
			t.Errorf("branches and settings after worktree add %s has failed: got\n%s\nwant\n%s", args, got, before)
		}
	}
	// The branch is in the clone as soon as the tree is there, and tracks the branch of the remote in both.
	w.sh(app, state+binary+" worktree add -b tracks ../tracks origin/main")
	const tracking = "git rev-parse --abbrev-ref tracks@{upstream}; git rev-parse tracks"
	if got, want := w.sh(app, tracking), w.sh(filepath.Join(w.root, "tracks"), tracking); got != want ||
		!strings.HasPrefix(got, "origin/main\n") {
		t.Errorf("upstream of the branch: got %q in the clone, %q in the tree", got, want)
	}
	const described = "git config --get-all branch.tracks.description; git config branch.old.description || true"
	if got := w.sh(filepath.Join(w.root, "tracks"), described); got != "new" {
		t.Errorf("settings of branches in the tree: got %q, want only those of its branch", got)
	}
}

// A tree of a clone is there before its git directory is. If the worker is killed in between, its successor gives the
// git directory what it was promised, and git waits for that.
func TestWorktreeOfACloneOutlivesAKill(t *testing.T) {
	w, app := newClone(t)
	defer w.afs("unmount", "--all")
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	w.sh(app, state+binary+" worktree add ../first && git branch parted $(git commit-tree -p HEAD -m parted HEAD^{tree})"+
		" && git update-ref refs/remotes/origin/only parted && git branch -qD parted")
	const told = "git config alias.st; git config user.name; git config remote.origin.url; git rev-parse origin/main origin/only;" +
		"git log -1 --format=%s origin/only"
	want := w.sh(app, told)
	for i, pause := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		name := fmt.Sprintf("killed%d", i)
		serving := w.serving()
		w.sh(app, state+binary+" worktree add ../"+name)
		time.Sleep(pause)
		check(t, syscall.Kill(serving, syscall.SIGKILL))
		tree := filepath.Join(w.root, name)
		w.until("the tree has the remote-tracking branches", func() bool {
			return w.sh(tree, "git branch -r --list origin/only") != ""
		})
		if got := w.sh(tree, told); got != want {
			t.Errorf("settings and remote branches of a tree whose worker was killed after %v: got\n%s\nwant\n%s", pause, got, want)
		}
		if got := w.sh(tree, "git symbolic-ref HEAD; git status --porcelain"); got != "refs/heads/"+name {
			t.Errorf("HEAD and status of the tree: got %q", got)
		}
		if got := w.sh(tree, "git fsck --connectivity-only 2>&1 | grep -c 'error\\|missing' || true"); got != "0" {
			t.Errorf("git fsck in the tree: got %s errors", got)
		}
	}
}

// What a partial clone lacks is fetched through its remote when a tree of it is read, as with git worktree add.
func TestWorktreeOfAPartialClone(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("app.git", object.SHA1), sample("partial"))
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	defer w.afs("unmount", "--all")
	w.sh(w.root, "git clone -q "+url+" whole && git clone -q --no-checkout --filter=blob:none "+url+" app")
	app, whole, tree := filepath.Join(w.root, "app"), filepath.Join(w.root, "whole"), filepath.Join(w.root, "tree")
	const missing = "git rev-list --objects --missing=print HEAD | grep -c '^?' || true"
	if got := w.sh(app, missing); got == "0" {
		t.Fatal("the clone is not partial")
	}
	w.sh(app, "export ARTIFACTFS_STATE="+w.state+"; "+binary+" worktree add ../tree")
	const sums = "git ls-files -z | xargs -0 sha1sum; git status --porcelain"
	if got, want := w.sh(tree, sums), w.sh(whole, sums); got != want {
		t.Errorf("files of the tree of a partial clone: got\n%s\nwant\n%s", got, want)
	}
	if got := w.sh(app, missing); got != "0" {
		t.Errorf("objects that the clone lacks after all were read: got %s", got)
	}
}

// A tree of a clone that cannot be added because the disk is full leaves neither a branch nor a mount.
func TestWorktreeOfACloneOnAFullDisk(t *testing.T) {
	w := newWorldOnSmallDisk(t, 24<<20)
	w.commit(w.repo("app.git", object.SHA1), sample("full"))
	url := w.serve(gittest.ServerOptions{}).URL("app.git")
	app, full := filepath.Join(w.root, "app"), filepath.Join(w.root, "full")
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	w.sh(w.root, "git clone -q "+url+" app && cd app && "+state+binary+" worktree add ../first && git -C ../first status -s")
	free := w.fill()
	r := w.run(w.state, "sh", "-c", "cd "+app+" && exec "+binary+" worktree add ../full")
	if r.code == 0 || !strings.Contains(r.stderr, "no space left") {
		t.Errorf("worktree add on a full disk: %s", r)
	}
	if got := w.sh(app, "git for-each-ref --format='%(refname)' refs/heads"); got != "refs/heads/first\nrefs/heads/main" {
		t.Errorf("branches after it has failed: got %q", got)
	}
	if _, err := os.Lstat(full); err == nil {
		t.Error("the directory stays")
	}
	free()
	w.sh(app, state+binary+" worktree add ../full")
	if got := w.sh(full, "git symbolic-ref HEAD; git status --porcelain; git rev-parse origin/main"); got !=
		"refs/heads/full\n"+w.sh(app, "git rev-parse origin/main") {
		t.Errorf("tree after the disk has space again: got %q", got)
	}
}
