package daemon

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/gittest"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
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

// keepPoint makes, beside the daemon, a point of the mount at dir in a repository that serves as session remote.
func keepPoint(t *testing.T, k *testKeeper, dir, name string, repo *session.Repo) session.Point {
	t.Helper()
	git := strings.TrimSpace(strings.TrimPrefix(k.sh(dir, "cat .git"), "gitdir: "))
	say := func(script string) string { t.Helper(); return strings.TrimSpace(k.sh(dir, script)) }
	id := func(script string) object.ID {
		t.Helper()
		out, err := object.ParseID(say(script))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	s := session.State{Branch: say("git symbolic-ref HEAD"), Head: id("git rev-parse HEAD"), Files: map[string]session.File{}}
	s.Index.Tree = id("git write-tree")
	if strings.Contains(say("git status --porcelain"), "intent") {
		s.Index.Special = append(s.Index.Special, session.IndexEntry{Path: "intent", Mode: object.ModeFile, IntentToAdd: true})
	}
	tree := id("cp '" + git + "/index' '" + git + "/tmp-index'; export GIT_INDEX_FILE='" + git + "/tmp-index'; git add -A; git write-tree; rm '" + git + "/tmp-index'")
	for line := range strings.Lines(say("git for-each-ref --format='%(objectname) %(refname)'")) {
		ref, err := packedrefs.Decode([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(ref[0].Name, "refs/remotes/") {
			s.Remote = append(s.Remote, ref...)
		} else {
			s.Refs = append(s.Refs, ref...)
		}
	}
	for line := range strings.Lines(say("git log -g --format='%H %gs' refs/stash 2>/dev/null || true")) {
		commit, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		s.Stashes = append(s.Stashes, session.Stash{Commit: object.MustID(commit), Message: message})
	}
	s.Files["config"] = session.File{Content: []byte(say("awk '/^[[]/ { on = /^.branch / || /^.user/ } on' '"+git+"/config'") + "\n")}

	var own []odb.Outgoing
	loose := odb.NewLoose(filepath.Join(git, "objects"), object.SHA1)
	dirs, _ := filepath.Glob(filepath.Join(git, "objects", "??", "*"))
	for _, path := range dirs {
		id := object.MustID(filepath.Base(filepath.Dir(path)) + filepath.Base(path))
		kind, size, err := loose.Size(id)
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, odb.Outgoing{ID: id, Type: kind, Size: size, Open: func() (io.ReadCloser, error) {
			_, content, err := loose.Get(id, 1<<20)
			return io.NopCloser(strings.NewReader(string(content))), err
		}})
	}
	now := time.Now()
	parents := []object.ID{s.Head}
	for _, st := range s.Stashes {
		parents = append(parents, st.Commit)
	}
	for _, r := range s.Refs {
		if !strings.HasPrefix(r.Name, "refs/tags") && !slices.Contains(parents, r.ID) {
			parents = append(parents, r.ID)
		}
	}
	stateID, more, err := session.EncodeState(object.SHA1, s, parents, now)
	if err != nil {
		t.Fatal(err)
	}
	p := session.Point{
		ID: session.NewPointID(now), Tree: tree, State: stateID, Session: name, Lane: "main", Segment: 1, Reason: session.Manual, Time: now,
		Head: s.Head, Branch: s.Branch, Base: id("git rev-parse origin/main"),
	}
	commit, err := session.Outgoing(object.SHA1, object.Commit, p.Encode(object.ID{}))
	if err != nil {
		t.Fatal(err)
	}
	p.Commit = commit.ID
	if err := repo.Write(t.Context(), append(append(own, more...), commit)); err != nil {
		t.Fatal(err)
	}
	changes := []session.RefChange{{Name: session.SegmentRef(name, "main", 1), New: p.Commit, Force: true}}
	for _, r := range s.Refs {
		if r.Name != "refs/stash" && repo.Owned(r.ID) {
			changes = append(changes, session.RefChange{Name: r.Name, New: r.ID, Force: true})
		}
	}
	if err := repo.Update(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	return p
}

// sessionPlace makes a repository that serves as session remote of a session.
func sessionPlace(t *testing.T, k *testKeeper, remote, name, base string) *session.Repo {
	t.Helper()
	stores, err := filepath.Glob(filepath.Join(k.state, "stores", "*", "git", "objects"))
	if err != nil || len(stores) != 1 {
		t.Fatalf("stores: %q, %v", stores, err)
	}
	repo, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"), session.RepoOptions{Format: object.SHA1, Session: name, Remote: remote, Borrow: stores})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { repo.Close() })
	m := session.Meta{Session: name, Remote: remote, Ref: "refs/heads/main", Base: base, Format: "sha1", Began: time.Now()}
	if _, err := session.Begin(context.Background(), repo, m, "somebody"); err != nil {
		t.Fatal(err)
	}
	return repo
}

// A session that was worked in elsewhere goes on with everything as it was, and no content is fetched before it is read.
func TestASessionGoesOnElsewhere(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	root := t.TempDir()
	sample(t, filepath.Join(root, "r.git"))
	server, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	remote := server.URL("r.git")
	dir := k.dir("m")
	r := k.request(remote, dir)
	r.Session = "hour"
	reply := k.mount(r)
	k.sh(dir, anHour)
	repo := sessionPlace(t, k, remote, "hour", reply.Commit)
	p := keepPoint(t, k, dir, "hour", repo)
	before := k.sh(dir, look)

	other := newKeep(t)
	other.start()
	other.await()
	there := other.dir("m")
	r = other.request(remote, there)
	r.Session, r.Prefetch, r.Wait = "hour", control.PrefetchNone, control.WaitGit
	r.SessionOptions.Remote = repo.Dir()
	reply = other.mount(r)
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
