package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/gittest"
)

// look is what a user sees of a working tree and its git directory.
const look = `git status --porcelain=v2 --branch; echo == staged; git diff --cached; echo == changed; git diff; echo == log; git log --oneline -n 5
echo == branches; git for-each-ref refs/heads refs/tags refs/stash refs/notes; echo == stashes; git stash list; git branch -vv; git config user.name
echo == files; find . -path ./.git -prune -o \( -type f -printf '%p %m ' -exec sha1sum {} \; \) -o -type l -printf '%p -> %l\n' -o -print | sort`

// work is an hour of somebody's.
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

// checkpoint makes a point of the mount at dir, and has it on the session remote.
func (k *testKeeper) checkpoint(dir string) control.CheckpointReply {
	k.t.Helper()
	p, err := k.client.Checkpoint(k.t.Context(), control.CheckpointRequest{Dir: dir, Sync: true}, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// served is a repository that is served, and a place for sessions.
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

// A session that was worked in elsewhere goes on with everything as it was, and no content is fetched before it is read.
func TestASessionGoesOnElsewhere(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	remote, sessions := served(t)
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session, r.SessionOptions.Remote, r.SessionOptions.Policy = "hour", sessions, control.PolicyOff
	k.mount(r)
	k.sh(dir, anHour)
	p := k.checkpoint(dir)
	before := k.sh(dir, look)
	k.unmount(dir)

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request(remote, there)
	r.Session, r.Prefetch, r.Wait = "hour", control.PrefetchNone, control.WaitGit
	r.SessionOptions.Remote, r.SessionOptions.Policy = sessions, control.PolicyOff
	other.mount(r)
	if n := other.status(there).Network.Blobs; n != 0 {
		t.Errorf("%d blobs were fetched to mount", n)
	}
	other.sh(there, "ls >/dev/null; ls dir0 >/dev/null")
	if n := other.status(there).Network.Blobs; n != 0 {
		t.Errorf("%d blobs were fetched to list", n)
	}
	if after := other.sh(there, look); after != before {
		t.Errorf("%s goes on otherwise:\n%s", p.ID, diffText(t, before, after))
	}
	other.sh(there, "git fsck --connectivity-only")

	// It goes on again here, from what lies here.
	other.sh(there, "echo more >>README.md")
	before = other.sh(there, look)
	other.unmount(there)
	other.mount(r)
	if after := other.sh(there, look); after != before {
		t.Errorf("here again: %s", diffText(t, before, after))
	}
	other.kill()
	other.again()
	if after := other.sh(there, look); after != before {
		t.Errorf("after a kill: %s", diffText(t, before, after))
	}
}

// diffText tells how two texts differ.
func diffText(t *testing.T, a, b string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a": a, "b": b} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("diff", "-u", filepath.Join(dir, "a"), filepath.Join(dir, "b")).Output() // status 1: they differ
	if len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}
