package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// look is a script that prints the state of a working tree and its git directory.
const look = `git status --porcelain=v2 --branch; echo == staged; git diff --cached; echo == changed; git diff; echo == log; git log --oneline -n 5 || true
echo == branches; git for-each-ref refs/heads refs/tags refs/stash refs/notes; echo == stashes; git stash list; git branch -vv | sed 's/HEAD detached from [0-9a-f]*/HEAD detached/; s/HEAD detached at [0-9a-f]*/HEAD detached/; s/  */ /g'
echo == files; find . -path ./.git -prune -o -type f -printf '%p %m\n' -o -type l -printf '%p -> %l\n' -o -print | sort
find . -path ./.git -prune -o -type f -exec sha1sum {} + | sort`

// anHour is a script with the changes that a user makes in an hour of work: commits, a stash, a tag, staged and
// untracked files.
const anHour = `git config user.name a; git config user.email a@b
echo stashed >dir0/file0.txt; git stash push -q -m 'for later'
git checkout -q -b feature; echo one >dir1/new.txt; git add dir1/new.txt; git commit -q -m 'a new file'
git tag mine; git notes add -m 'a note' HEAD
echo staged >dir0/file4.txt; git add dir0/file4.txt; echo 'and changed' >>dir0/file4.txt
echo changed >dir2/file2.txt; rm dir3/file3.txt; git rm -q dir3/file7.txt; git mv dir1/file1.txt dir1/moved.txt
echo staged >added.txt; git add added.txt; git rm -q --cached dir2/file6.txt
mkdir -p untracked/deep; echo u >untracked/deep/file; chmod +x dir0/file8.txt; ln -s README.md link; echo intent >intent; git add -N intent
printf '%s\n' '#!/bin/sh' >dir2/script; chmod +x dir2/script; git add dir2/script
echo x >ignored.o; rm ignored.o; mkdir newdir; echo a >newdir/a; git add newdir; echo b >newdir/b`

// checkpoint makes a checkpoint of the mount at dir, and waits until it is on the session remote.
func (k *testKeeper) checkpoint(dir string) control.CheckpointReply {
	k.t.Helper()
	p, err := k.client.Checkpoint(k.t.Context(), control.CheckpointRequest{Dir: dir, Sync: true}, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// served creates a repository and an empty session remote, and returns their URLs.
func served(t *testing.T) (remote, sessions string) {
	t.Helper()
	root := t.TempDir()
	sample(t, filepath.Join(root, "r.git"))
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	sessions = filepath.Join(t.TempDir(), "sessions.git")
	if _, err := gittest.Git(t.Context(), root, "init", "-q", "--bare", sessions); err != nil {
		t.Fatal(err)
	}
	return server.URL("r.git"), sessions
}

// TestASessionGoesOnElsewhere checks that a session is resumed on another host with the same files and git state, and
// that no contents are fetched before they are read.
func TestASessionGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	t.Run("remote", func(t *testing.T) { goOnElsewhere(t, false) })
	t.Run("embedded", func(t *testing.T) { goOnElsewhere(t, true) })
}

func goOnElsewhere(t *testing.T, embedded bool) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, sessions := served(t)
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy = "hour", control.PolicyOff
	if !embedded {
		r.SessionOptions.Remote = sessions
	}
	k.mount(r)
	k.sh(dir, anHour)
	p := k.checkpoint(dir)
	before := k.sh(dir, look)
	k.unmount(dir)
	if embedded {
		sessions = filepath.Join(k.state, "mounts", "hour", statedir.SessionRepoName)
	}

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request(remote, there)
	r.Session, r.Prefetch, r.Wait = "hour", control.PrefetchNone, control.WaitGit
	r.SessionOptions.Remote, r.SessionOptions.Policy = sessions, control.PolicyOff
	if reply := other.mount(r); !reply.Resumed {
		t.Errorf("reply of mount does not report a resumed session: %+v", reply)
	}
	if n := other.status(there).Network.Blobs; n != 0 {
		t.Errorf("mount fetched %d blobs, want none", n)
	}
	other.sh(there, "ls >/dev/null; ls dir0 >/dev/null")
	if n := other.status(there).Network.Blobs; n != 0 {
		t.Errorf("listing directories fetched %d blobs, want none", n)
	}
	if after := other.sh(there, look); after != before {
		t.Errorf("state of checkpoint %s differs after resume:\n%s", p.ID, diffText(t, before, after))
	}
	other.sh(there, "git fsck --connectivity-only; git cat-file -e $(git ls-files -s intent | cut -d' ' -f2)")

	// The session is resumed again on this host, from its local state.
	other.sh(there, "echo more >>README.md")
	before = other.sh(there, look)
	other.unmount(there)
	other.mount(r)
	if after := other.sh(there, look); after != before {
		t.Errorf("state after the second mount differs: %s", diffText(t, before, after))
	}
	other.kill()
	other.again()
	if after := other.sh(there, look); after != before {
		t.Errorf("state after a kill differs: %s", diffText(t, before, after))
	}
	if p := other.checkpoint(there); !p.Made || p.Prev == "" {
		t.Errorf("next checkpoint: got %+v, want one with a predecessor", p)
	}
}

// TestOtherSessionsGoOnElsewhere resumes sessions with unusual bases on another host: SHA-256 IDs, a repository without
// a commit, and a git directory inside the mount.
func TestOtherSessionsGoOnElsewhere(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		format object.Format
		empty  bool
		inside control.GitDir
	}{"sha256": {object.SHA256, false, ""}, "empty": {object.SHA1, true, ""},
		"inside": {object.SHA1, false, control.GitDirInside}} {
		t.Run(name, func(t *testing.T) {
			k := newKeep(t)
			k.start()
			k.await()
			root := t.TempDir()
			repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: o.format})
			if err == nil && !o.empty {
				_, err = repo.Commit("main", map[string]gittest.File{"README.md": {Data: []byte("read me\n")},
					"dir/file": {Data: []byte("file\n")}}, "a commit")
			}
			if err != nil {
				t.Fatal(err)
			}
			server, err := gittest.Serve(gittest.ServerOptions{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			sessions := filepath.Join(root, "s.git")
			if _, err := gittest.Git(t.Context(), root, "init", "-q", "--bare", "--object-format="+o.format.String(),
				sessions); err != nil {
				t.Fatal(err)
			}
			r := k.request(server.URL("r.git"), k.dir("m"))
			r.Session, r.GitDir, r.SessionOptions = "hour", o.inside,
				control.SessionOptions{Remote: sessions, Policy: control.PolicyOff}
			k.mount(r)
			k.sh(r.Dir,
				"git config user.name a; git config user.email a@b; echo one >one; git add one; git commit -q -m one; echo two >two; git add two; echo three >>two; echo new >new")
			k.checkpoint(r.Dir)
			before := k.sh(r.Dir, lookCloser)
			k.unmount(r.Dir)

			other := newKeep(t)
			other.start()
			other.await()
			r.Dir, r.Prefetch = other.dir("m"), control.PrefetchNone
			other.mount(r)
			if after := other.sh(r.Dir, lookCloser); after != before {
				t.Errorf("state differs after resume:\n%s", diffText(t, before, after))
			}
			other.sh(r.Dir, "git fsck --connectivity-only; git commit -q -a -m two")
			other.kill()
			other.again()
			other.sh(r.Dir, "git log --format=%s | grep -x two; git show HEAD:one | grep -x one")
			other.unmount(r.Dir)
		})
	}
}

// TestCommitsAfterTheCheckpointAreKept checks commits that were pushed after the last checkpoint. They must be kept
// under another name when the session is resumed from that checkpoint, and the next commit replaces them on the branch.
func TestCommitsAfterTheCheckpointAreKept(t *testing.T) {
	t.Parallel()
	// created first, so that it is removed after the daemons, which push to it, have ended
	remote, sessions := served(t)
	k := newKeep(t)
	k.start()
	k.await()
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy, r.SessionOptions.Remote = "hour", control.PolicyOff, sessions
	r.SessionOptions.Base = control.BaseSeed // so that the session remote has the branches as plain refs
	k.mount(r)
	k.sh(dir, "git config user.name a; git config user.email a@b; echo one >one; git add one; git commit -q -m one")
	p := k.checkpoint(dir)
	k.sh(dir, "echo two >two; git add two; git commit -q -m two")
	late := strings.TrimSpace(k.sh(dir, "git rev-parse HEAD"))
	await.Until(t, "the commit is on the session remote", func() bool {
		return strings.TrimSpace(k.sh(sessions, "git rev-parse refs/heads/main")) == late
	})

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request("", there)
	r.Session, r.Wait = "hour", control.WaitGit
	r.SessionOptions = control.SessionOptions{Remote: sessions, Policy: control.PolicyOff, TakeOver: true}
	other.mount(r)
	if head := strings.TrimSpace(other.sh(there, "git rev-parse HEAD; git status --porcelain")); head != p.Head {
		t.Errorf("HEAD after resume: got %s, want that of the checkpoint, %s", head, p.Head)
	}
	oldest := strings.TrimSpace(other.sh(there, "git rev-list --max-parents=0 HEAD"))
	came := filepath.Join(other.state, "mounts", "hour", statedir.SessionRepoName, "objects", "pack")
	if text := other.sh(came, "for p in *.idx; do git show-index <$p; done"); strings.Contains(text, oldest) ||
		!strings.Contains(text, late) {
		t.Errorf("objects fetched from the session remote: want the late commit, and none of the mounted remote's:\n%s", text)
	}
	other.sh(there, "echo other >other; git add other; git commit -q -m other")
	other.checkpoint(there)
	mine := strings.TrimSpace(other.sh(there, "git rev-parse HEAD"))
	if main := strings.TrimSpace(k.sh(sessions, "git rev-parse refs/heads/main")); main != mine {
		t.Errorf("main on the session remote: got %s, want %s; the checkpoint has %s, the late commit is %s", main,
			mine, p.Head, late)
	}
	if refs := k.sh(sessions,
		"git for-each-ref --format='%(objectname) %(refname)' refs/afs/kept refs/afs/diverged"); !strings.Contains(refs,
		late+" ") {
		t.Errorf("commit %s is not kept on the session remote: %s", late, refs)
	}
}

// TestForksAndCheckpointsAreMounted checks that a fork has the files and git state of its parent and is then
// independent, and that a single checkpoint can be mounted read-only.
func TestForksAndCheckpointsAreMounted(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, _ := served(t)
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy = "hour", control.PolicyOff
	k.mount(r)
	k.sh(dir,
		"echo first >README.md; git add README.md; git config user.name a; git config user.email a@b; git commit -q -m first")
	first := k.checkpoint(dir)
	k.sh(dir, anHour)
	before := k.sh(dir, look)

	// The fork contains the present working tree, including changes that are in no checkpoint yet.
	fork := k.request("", k.dir("fork"))
	fork.Session, fork.Prefetch, fork.SessionOptions.Policy = "forked", control.PrefetchNone, control.PolicyOff
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: dir, Mount: fork}, nil); err != nil {
		t.Fatal(err)
	}
	if after := k.sh(fork.Dir, look); after != before {
		t.Errorf("state of the fork differs from its parent:\n%s", diffText(t, before, after))
	}
	k.sh(fork.Dir,
		"echo fork >dir0/file0.txt; git -c user.name=a -c user.email=a@b commit -q -a -m fork; git stash -q; rm dir2/file6.txt; git checkout -q main; git fsck --connectivity-only")
	if after := k.sh(dir, look); after != before {
		t.Errorf("a change in the fork changed the parent:\n%s", diffText(t, before, after))
	}
	k.sh(dir, "rm -r dir0; echo gone >link2")
	if text := k.sh(fork.Dir, "cat dir0/file0.txt"); text != "content 0\n" {
		t.Errorf("a change in the parent changed the fork: %q", text)
	}
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "hour", Mount: fork}, nil); err == nil {
		t.Error("a fork with the name of an existing session succeeded")
	}

	// Mount one checkpoint beside the session.
	at := k.request(remote, k.dir("at"))
	at.Session, at.At, at.ReadOnly = "hour", first.ID, true
	k.mount(at)
	if text := k.sh(at.Dir, "cat README.md; git status --porcelain; git log --format=%s -n 1"); text != "first\nfirst\n" {
		t.Errorf("mount of the checkpoint: got %q", text)
	}
	if err := os.WriteFile(filepath.Join(at.Dir, "x"), nil, 0o600); err == nil {
		t.Error("a write to a mount of a checkpoint succeeded")
	}
	k.kill()
	k.again()
	if text := k.sh(at.Dir, "cat README.md dir0/file4.txt"); text != "first\ncontent 4\n" {
		t.Errorf("mount of the checkpoint after a kill: got %q", text)
	}
	k.unmount(at.Dir)

	// Fork a session that is not mounted, and fork a fork.
	k.unmount(dir)
	fork2 := k.request("", k.dir("fork2"))
	fork2.Session, fork2.SessionOptions.Policy = "again", control.PolicyOff
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "hour", ID: first.ID, Mount: fork2}, nil); err != nil {
		t.Fatal(err)
	}
	if text := k.sh(fork2.Dir, "cat README.md; git status --porcelain; git branch"); text != "first\n* main\n" {
		t.Errorf("fork of a checkpoint: got %q", text)
	}
	fork3 := k.request("", k.dir("fork3"))
	fork3.Session, fork3.SessionOptions.Policy = "third", control.PolicyOff
	before = k.sh(fork.Dir, look)
	if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: "forked", Mount: fork3}, nil); err != nil {
		t.Fatal(err)
	}
	if after := k.sh(fork3.Dir, look); after != before {
		t.Errorf("state of the fork of a fork differs:\n%s", diffText(t, before, after))
	}
	for _, dir := range []string{fork.Dir, fork2.Dir, fork3.Dir} {
		k.unmount(dir)
	}
	fork.Remote = remote
	k.mount(fork) // the fork can be mounted again, although only its first checkpoint was made there
	k.sh(fork.Dir, "git log --format=%s -n 1 feature | grep -x fork")
}

// states contains scripts that leave git in the middle of an operation, such as a merge.
var states = map[string]string{
	"nothing done":   "true",
	"merge":          "git checkout -q -b a; echo a >README.md; git commit -q -a -m a; git checkout -q -b b main; echo b >README.md; git rm -q dir0/file0.txt; git commit -q -a -m b; git merge a || true; echo more >>dir1/file1.txt",
	"deleted by us":  "git checkout -q -b a; echo a >README.md; git commit -q -a -m a; git checkout -q -b b main; git rm -q README.md; git commit -q -m b; git merge a || true",
	"rebase":         "git checkout -q -b a; echo a >README.md; git commit -q -a -m a; echo x >x; git add x; git commit -q -m x; git checkout -q -b b main; echo b >README.md; git commit -q -a -m b; git rebase b a || true; echo half >README.md",
	"cherry-pick":    "git checkout -q -b a; echo a >README.md; git commit -q -a -m a; git checkout -q -b b main; echo b >README.md; git commit -q -a -m b; git cherry-pick a || true",
	"detached":       "git checkout -q HEAD~1; echo x >>README.md; git add README.md",
	"detached, own":  "git checkout -q --detach; echo x >>README.md; git commit -q -a -m own; git branch -q aside; git tag -a -m annotated t",
	"orphan":         "git checkout -q --orphan new; git rm -q --cached dir0/file0.txt",
	"nothing left":   "git rm -q -r .; rm -rf dir0 README.md",
	"all unstaged":   "git rm -q -r --cached .",
	"flags":          "git update-index --assume-unchanged dir0/file0.txt; git update-index --skip-worktree dir0/file4.txt; echo z >>dir0/file0.txt",
	"types":          "rm dir0/file0.txt; ln -s x dir0/file0.txt; rm -r dir1; echo file >dir1; rm README.md; mkdir README.md; echo r >README.md/r; git add README.md",
	"renamed":        "git branch -q -m main trunk; git branch -q --track other origin/main; git checkout -q other; git config branch.other.description text",
	"lines":          "echo 'dir0/* text eol=crlf' >.gitattributes; rm dir0/*; git add .gitattributes; printf 'a\\r\\nb\\r\\n' >dir0/file0.txt; git add dir0/file0.txt; printf 'c\\r\\n' >dir0/file4.txt; printf 'd\\r\\n' >dir0/new.txt",
	"odd names":      "echo x >'a b'; echo y >\"$(printf 'new\\nline')\"; echo z >\"$(printf 'bytes\\377')\"; git add -A; echo u >'\"quoted\"'; echo x >-dash",
	"excluded":       "echo '*.log' >>.git-exclude; cat .git-exclude >>\"$(git rev-parse --git-path info/exclude)\"; rm .git-exclude; echo x >a.txt; git add a.txt",
	"stash, applied": "for i in 1 2 3; do echo $i >README.md; git stash push -q -m s$i; done; git stash apply -q stash@{1}; echo u >u; git stash push -q -u -m all",
}

const lookCloser = look +
	`; echo == index; git ls-files -v --stage; git status | sed '/^HEAD detached/d'; git log --format='%H %s' --all; git stash list --format='%gd %gs %H'; git for-each-ref; git config --get-regexp '^branch'`

// TestForksAreInTheSameState checks that an operation of git that is in progress in the parent is also in progress in
// the fork.
func TestForksAreInTheSameState(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, _ := served(t)
	n := 0
	for name, script := range states {
		n++
		t.Run(name, func(t *testing.T) {
			r := k.request(remote, k.dir(fmt.Sprintf("m%d", n)))
			r.Session, r.SessionOptions.Policy, r.Prefetch = fmt.Sprintf("s%d", n), control.PolicyOff, control.PrefetchNone
			k.mount(r)
			defer k.unmount(r.Dir)
			k.sh(r.Dir, "export GIT_EDITOR=true; "+script)
			before := k.sh(r.Dir, lookCloser)
			fork := r
			fork.Dir, fork.Session = k.dir(fmt.Sprintf("f%d", n)), fmt.Sprintf("f%d", n)
			if _, err := k.client.Fork(t.Context(), control.ForkRequest{Of: r.Dir, Mount: fork}, nil); err != nil {
				t.Fatal(err)
			}
			defer k.unmount(fork.Dir)
			if after := k.sh(fork.Dir, lookCloser); after != before {
				t.Errorf("state of the fork differs from its parent:\n%s", diffText(t, before, after))
			}
			k.sh(fork.Dir, "git fsck --connectivity-only")
		})
	}
}

// TestRestore checks that a restore changes files and index, makes a checkpoint of the previous state first, and does
// not change files that checkpoints exclude.
func TestRestore(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	remote, _ := served(t)
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Policy = "hour", control.PolicyOff
	k.mount(r)
	k.sh(dir, anHour)
	first := k.checkpoint(dir)
	before := k.sh(dir, look)
	k.sh(dir, `echo 'object file' >keep.o; mkdir out; echo x >out/x.o
rm -r untracked dir1; echo other >README.md; git add README.md; git rm -q --cached added.txt; ln -sf nowhere link; rm dir2/script; mkdir dir2/script; echo s >dir2/script/s
echo new >new; chmod +x dir0/file12.txt; git reset -q dir0/file4.txt; mv newdir renamed; echo 'not a directory' >newdir`)
	changed := k.sh(dir, look)
	restore := func(q control.RestoreRequest) control.RestoreReply {
		t.Helper()
		q.Dir = dir
		reply, err := k.client.Restore(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	dry := restore(control.RestoreRequest{ID: first.ID, DryRun: true})
	if after := k.sh(dir, look); after != changed {
		t.Errorf("a dry run changed the mount:\n%s", diffText(t, changed, after))
	}
	done := restore(control.RestoreRequest{ID: first.ID, Staged: true})
	if done.Before == nil || len(done.Kept) > 0 || !reflect.DeepEqual(dry.Changes, done.Changes) ||
		len(done.Changes) < 15 {
		t.Errorf("reply of restore: got %+v, want the changes of the dry run: %+v", done, dry.Changes)
	}
	ignored := k.sh(dir, "cat keep.o out/x.o; rm -r keep.o out")
	if ignored != "object file\nx\n" {
		t.Errorf("ignored files after the restore: got %q", ignored)
	}
	if after := k.sh(dir, look); after != before {
		t.Errorf("state after the restore differs from the checkpoint:\n%s", diffText(t, before, after))
	}
	k.sh(dir, "git fsck --connectivity-only")

	// Restore the previous state.
	done = restore(control.RestoreRequest{ID: done.Before.ID, Staged: true})
	k.sh(dir, "mkdir -p out; echo 'object file' >keep.o; echo x >out/x.o")
	if after := k.sh(dir, look); after != changed {
		t.Errorf("state after restoring the previous state differs:\n%s", diffText(t, changed, after))
	}

	// Restore some paths without the index. A file that is in no checkpoint occupies one of the paths.
	k.sh(dir, "rm -r README.md dir2/script; mkdir dir2/script; echo o >dir2/script/built.o")
	staged := k.sh(dir, "git diff --cached")
	done = restore(control.RestoreRequest{ID: first.ID[:20], Paths: []string{"README.md", "dir2/script", "dir1"}})
	if !slices.Equal(done.Kept, []string{"dir2/script"}) {
		t.Errorf("paths that restore kept: got %q", done.Kept)
	}
	if after := k.sh(dir, "git diff --cached"); after != staged {
		t.Errorf("restore without the index changed the index:\n%s", diffText(t, staged, after))
	}
	if text := k.sh(dir,
		"cat README.md dir1/new.txt dir2/script/built.o newdir"); text != "read me\none\no\nnot a directory\n" {
		t.Errorf("files after the restore of some paths: got %q", text)
	}
	newest := k.checkpoint(dir)
	k.sh(dir, "echo oops >README.md")
	if done = restore(control.RestoreRequest{ID: "@"}); done.Checkpoint.ID != newest.ID || len(done.Changes) != 1 {
		t.Errorf("restore of the newest checkpoint: got %+v", done)
	}
	if text := k.sh(dir, "cat README.md"); text != "read me\n" {
		t.Errorf("README.md after the restore of the newest checkpoint: got %q", text)
	}
	for _, id := range []string{"01ZZZ", "nothing"} {
		if _, err := k.client.Restore(t.Context(), control.RestoreRequest{Dir: dir, ID: id}, nil); err == nil {
			t.Errorf("restore of the unknown checkpoint %s succeeded", id)
		}
	}
}

// diffText returns the differences of two texts.
func diffText(t *testing.T, a, b string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a": a, "b": b} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// exit status 1 means that they differ
	out, err := exec.Command("diff", "-u", filepath.Join(dir, "a"), filepath.Join(dir, "b")).Output()
	if len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}
