package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// promoteWorld is a remote to which people push, and a mounted session of it.
type promoteWorld struct {
	*world
	r      *gittest.Repo
	origin served
	m      mounted
}

// newPromote returns a world whose remote has two commits with many files, and a mount of it.
func newPromote(t *testing.T, flags ...string) *promoteWorld {
	t.Helper()
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	files := sample("promote")
	files["quiet"] = gittest.File{Data: []byte("before\n")}
	w.commit(r, files)
	for _, name := range []string{"shared", "quiet"} {
		files[name] = gittest.File{Data: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n")}
	}
	w.commit(r, files)
	w.git(r.Path, "config", "http.receivepack", "true")
	origin := w.serve(gittest.ServerOptions{})
	m := w.bare(origin.URL("r.git"),
		append([]string{"--session", "work", "--wait", "git", "--checkpoint", "off", "--prefetch", "none"}, flags...)...)
	return &promoteWorld{w, r, origin, m}
}

// upstream commits to a branch of the remote as another person would.
func (w *promoteWorld) upstream(branch, script string) {
	w.Helper()
	dir := w.clone(w.r.Path, "--branch", branch)
	w.sh(dir, script+" && git add -A && git commit -qm upstream && git push -q origin HEAD:"+branch)
}

// promote runs session promote, and returns its reply and the number of contents that the remote has sent.
func (w *promoteWorld) promote(args ...string) (reply control.SessionPromoteReply, blobs int) {
	w.Helper()
	w.origin.forget()
	w.json(&reply, append([]string{"session", "promote", "-C", w.m.Dir}, args...)...)
	w.origin.quiet()
	_, blobs = w.origin.Log().Blobs()
	return reply, blobs
}

// landed checks a branch in a clone of a repository: it has the tree want, the repository is sound, and nothing of the
// session is there.
func (w *promoteWorld) landed(repo, branch, want string) (clone string) {
	w.Helper()
	clone = w.clone(repo, "--branch", branch)
	if got := w.git(clone, "rev-parse", "HEAD^{tree}"); got != want {
		w.Errorf("tree of %s: got %s, want %s", branch, got, want)
	}
	w.git(clone, "fsck", "--strict", "--no-dangling")
	w.git(repo, "fsck", "--strict", "--no-dangling")
	if refs := w.git(repo, "for-each-ref", "refs/afs"); refs != "" {
		w.Errorf("refs of the session on the remote: %s", refs)
	}
	if out := w.git(repo, "log", "--all", "--grep=Afs-"); out != "" {
		w.Errorf("a checkpoint is on the remote: %s", out)
	}
	return clone
}

// A session is promoted by a fast-forward without fetching anything, and later commits follow.
func TestPromoteFastForward(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	w.sh(w.m.Dir, "echo new >new && git add new && git commit -qm 'add new'")
	w.sh(w.m.Dir, "echo open >open-file")
	if r := w.afs("session", "promote", "-C", w.m.Dir); r.code != control.ExitFailed ||
		!strings.Contains(r.stderr, "not committed: open-file") ||
		!strings.Contains(r.stderr, "promote HEAD") {
		t.Errorf("promote with a file that is not committed: got %s", r)
	}
	reply, blobs := w.promote("--dry-run", "HEAD")
	if !reply.DryRun || reply.Total != 1 || reply.Commits[0].Subject != "add new" || blobs != 0 {
		t.Errorf("dry run: got %+v and %d contents fetched, want one commit and none", reply, blobs)
	}
	if got := w.git(w.r.Path, "rev-parse", "main"); got != reply.Old {
		t.Errorf("a dry run moved the branch from %s to %s", reply.Old, got)
	}
	a := w.agent(w.m.Dir, "--tools", "promote")
	var planned control.SessionPromoteReply
	if a.ok("promote", map[string]any{"checkpoint": "HEAD", "dry_run": true}, &planned); !planned.DryRun ||
		planned.Total != 1 || planned.New != reply.New {
		t.Errorf("dry run of the tool promote: got %+v, want %+v", planned, reply)
	}
	reply, blobs = w.promote("HEAD")
	head := w.git(w.m.Dir, "rev-parse", "HEAD")
	if reply.Method != control.PromoteFF || reply.New != head || reply.Objects != 3 || blobs != 0 || reply.Fetched != 0 ||
		!reply.Mounted {
		t.Errorf("promote: got %+v and %d contents fetched, want the commit %s with 3 objects and none fetched",
			reply, blobs, head)
	}
	w.landed(w.r.Path, "main", w.git(w.m.Dir, "rev-parse", "HEAD^{tree}"))
	if reply, _ = w.promote("HEAD"); reply.Method != control.PromoteNone {
		t.Errorf("promote again: got %+v, want nothing to promote", reply)
	}

	// The previous contents of a file, which nobody has read here, are on the remote and are not fetched.
	w.sh(w.m.Dir,
		"rm open-file && git rm -q --cached quiet && git update-index --add --cacheinfo 100644,$(git rev-parse HEAD~2:quiet),quiet && "+
			"git commit -qm 'revert quiet' && git reset -q --hard")
	w.sh(w.m.Dir,
		"ssh-keygen -q -t ed25519 -N '' -f ../key && git config gpg.format ssh && git config user.signingKey $(realpath ../key.pub) && "+
			"git config commit.gpgSign true && git config gpg.ssh.program /bin/false") // the daemon runs no program that the mount names
	reply, blobs = w.promote("--squash", "-m", "squashed\n\nwith a body")
	if reply.Method != control.PromoteSquash || blobs != 0 || reply.Fetched != 0 || reply.Total != 1 {
		t.Errorf("squash of a revert: got %+v and %d contents fetched", reply, blobs)
	}
	clone := w.landed(w.r.Path, "main", w.git(w.m.Dir, "rev-parse", "HEAD^{tree}"))
	if got := w.git(clone, "log", "-1", "--format=%P|%B"); !strings.HasPrefix(got, head+"|squashed\n\nwith a body") {
		t.Errorf("commit of the squash: got %s", got)
	}

	if text := w.git(clone, "cat-file", "commit", "HEAD"); !strings.Contains(text, "gpgsig -----BEGIN SSH SIGNATURE") {
		t.Errorf("the commit of a mount with commit.gpgSign is not signed:\n%s", text)
	}

	// A branch that does not exist is created, and one that is behind moves.
	w.git(w.r.Path, "branch", "old", "main~2")
	reply, _ = w.promote("--to", ":release/1")
	if reply.Branch != "release/1" || reply.Old != "" {
		t.Errorf("promote to a new branch: got %+v", reply)
	}
	a.ok("promote", map[string]any{"branch": "by-agent", "method": "ff"}, &planned)
	w.landed(w.r.Path, "by-agent", w.git(w.m.Dir, "rev-parse", "HEAD^{tree}"))
	if reply, _ = w.promote("--to", ":old"); reply.Method != control.PromoteFF || reply.Old == "" {
		t.Errorf("promote to a branch that is behind the base: got %+v", reply)
	}
	w.landed(w.r.Path, "old", w.git(w.m.Dir, "rev-parse", "HEAD^{tree}"))
}

// A branch with other commits is refused without a flag, and merged with one. Conflicts are refused.
func TestPromoteDiverged(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	w.sh(w.m.Dir,
		"git config user.name Ada && git config user.email ada@example.org && sed -i s/9/nine/ shared && git commit -qam nine && "+
			"echo x >x && git add x && git commit -qm 'add x'")
	w.upstream("main", "sed -i s/1/one/ shared && echo theirs >theirs")
	tip := w.git(w.r.Path, "rev-parse", "main")
	if r := w.afs("session", "promote", "-C", w.m.Dir); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "not a fast-forward") ||
		!strings.Contains(r.stderr, "--merge") {
		t.Errorf("promote to a branch with other commits: got %s", r)
	}
	w.git(w.r.Path, "branch", "for-merge", "main")
	// The settings of the mount name the author, unless the caller's environment does.
	cmd := w.command(t.Context(), "session", "promote", "-C", w.m.Dir, "--squash", "--json")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
		return strings.HasPrefix(v, "GIT_AUTHOR_") || strings.HasPrefix(v, "GIT_COMMITTER_")
	})
	cmd.Env = append(cmd.Env, "GIT_COMMITTER_NAME=Grace")
	var squash control.SessionPromoteReply
	if out, err := cmd.Output(); err != nil || json.Unmarshal(out, &squash) != nil {
		t.Fatalf("squash: %v\n%s", err, out)
	}
	clone := w.landed(w.r.Path, "main", squash.Tree)
	if got := w.sh(clone,
		"cat shared x theirs | tr '\\n' ' '"); strings.TrimSpace(got) != "one 2 3 4 5 6 7 8 nine x theirs" {
		t.Errorf("files after the squash: got %q", got)
	}
	if got := w.git(clone, "log", "-1", "--format=%P %an %ae %cn|%B"); got != tip+
		" Ada ada@example.org Grace|nine\n\n* nine\n* add x\n" {
		t.Errorf("commit of the squash: got %q", got)
	}
	merge, _ := w.promote("--merge", "--to", "origin:for-merge")
	clone = w.landed(w.r.Path, "for-merge", merge.Tree)
	if got := w.git(clone, "log", "-1", "--format=%P|%s"); merge.Tree != squash.Tree ||
		got != tip+" "+w.git(w.m.Dir, "rev-parse", "HEAD")+"|Merge session work into for-merge" {
		t.Errorf("merge: got tree %s and commit %s", merge.Tree, got)
	}

	// The next squash has only what was changed since the previous one, and the base moves on by a merge, too.
	w.sh(w.m.Dir, "sed -i s/nine/NINE/ shared && git commit -qam again")
	if r := w.afs("session", "promote", "-C", w.m.Dir, "--squash"); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "shared") {
		t.Errorf("squash of lines that the squash before has changed, after others were merged: got %s", r)
	}
	reply, _ := w.promote("--merge", "--to", ":for-merge")
	if reply.Total != 1 || reply.Method != control.PromoteMerge {
		t.Errorf("second merge: got %+v, want one more commit", reply)
	}
	w.sh(w.landed(w.r.Path, "for-merge", reply.Tree), "grep -q NINE shared && grep -q one shared")

	w.upstream("main", "sed -i s/nine/neun/ shared")
	tip = w.git(w.r.Path, "rev-parse", "main")
	for _, flag := range []string{"--squash", "--merge"} {
		r := w.afs("session", "promote", "-C", w.m.Dir, flag)
		if r.code != control.ExitRemote || !strings.Contains(r.stderr, "same lines: shared") {
			t.Errorf("%s with a conflict: got %s", flag, r)
		}
	}
	if got := w.git(w.r.Path, "rev-parse", "main"); got != tip {
		t.Errorf("conflicts moved the branch from %s to %s", tip, got)
	}
}

// A branch that moves during the push is read again once. A refusal of the server is printed as it is.
func TestPromoteMoved(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	w.sh(w.m.Dir, "echo x >x && git add x && git commit -qm 'add x'")
	w.git(w.r.Path, "branch", "start", "main")
	w.upstream("start", "echo theirs >theirs")
	// Each push in which the file "moves" exists moves the branch first.
	hook :=
		"#!/bin/sh\n[ -e refuse ] && echo 'main is protected: ask alice' >&2 && exit 1\nn=$(cat moves 2>/dev/null || echo 0)\n" +
			"[ $n -gt 0 ] || exit 0\necho $((n-1)) >moves\n" +
			"unset GIT_QUARANTINE_PATH; c=$(git -c user.name=x -c user.email=x commit-tree -p main -m moved start^{tree}) && git update-ref refs/heads/main $c\n"
	check(t, os.MkdirAll(filepath.Join(w.r.Path, "hooks"), 0o755))
	check(t, os.WriteFile(filepath.Join(w.r.Path, "hooks", "pre-receive"), []byte(hook), 0o755))
	move := func(n string) { check(t, os.WriteFile(filepath.Join(w.r.Path, "moves"), []byte(n), 0o644)) }
	move("1")
	reply, _ := w.promote("--merge")
	if !reply.Retried || reply.Method != control.PromoteMerge {
		t.Errorf("promote to a branch that moved once: got %+v", reply)
	}
	w.sh(w.landed(w.r.Path, "main", reply.Tree), "cat x theirs")
	w.sh(w.m.Dir, "echo y >y && git add y && git commit -qm 'add y'")
	move("2")
	if r := w.afs("session", "promote", "-C", w.m.Dir, "--merge"); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "moved again") {
		t.Errorf("promote to a branch that moves each time: got %s", r)
	}
	check(t, os.WriteFile(filepath.Join(w.r.Path, "refuse"), nil, 0o644))
	if r := w.afs("session", "promote", "-C", w.m.Dir, "--merge"); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "main is protected: ask alice") {
		t.Errorf("promote that the server refuses: got %s", r)
	}
}

// A session is promoted to another repository, and after its mount has ended, and on another machine.
func TestPromoteElsewhere(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	s := w.sessionRemote("path", nil)
	m := w.bare(w.origin.URL("r.git"), "--session", "far", "--session-remote", s.arg, "--wait", "git",
		"--checkpoint", "off")
	w.sh(m.Dir,
		"git config user.name Ada && git config user.email ada@example.org && echo x >x && git add x && git commit -qm 'add x' && "+
			"git rm -q --cached quiet && git update-index --add --cacheinfo 100644,$(git rev-parse HEAD~2:quiet),quiet && git commit -qm 'revert quiet' && "+
			"git reset -q --hard && mkdir sub && echo deep >sub/deep && git add sub && git commit -qm 'add sub'")
	m.checkpoint("--sync", "-m", "done", "--pin", "done")
	head, tree := w.git(m.Dir, "rev-parse", "HEAD"), w.git(m.Dir, "rev-parse", "HEAD^{tree}")
	// The repository has the base commit, and not the previous contents of the file "quiet".
	other := filepath.Join(w.root, "other.git")
	w.git(w.root, "clone", "--quiet", "--bare", "--depth=1", "file://"+w.r.Path, other)
	w.git(other, "remote", "remove", "origin")
	var reply control.SessionPromoteReply
	w.json(&reply, "session", "promote", "-C", m.Dir, "--to", other+":main")
	if reply.New != head || reply.Mounted || reply.Total != 3 {
		t.Errorf("promote to another repository: got %+v", reply)
	}
	w.landed(other, "main", tree)
	empty := must[*gittest.Receiver](w)(gittest.NewReceiver(filepath.Join(w.root, "empty.git"), gittest.RepoOptions{}))
	if r := w.afs("session", "promote", "-C", m.Dir, "--to", empty.Path+":main"); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "lacks the commit") {
		t.Errorf("promote to an empty repository: got %s", r)
	}
	w.unmount(m)
	w.json(&reply, "session", "promote", "--to", ":unmounted", "-C", "far")
	if reply.New != head {
		t.Errorf("promote after unmount: got %+v", reply)
	}
	w.landed(w.r.Path, "unmounted", tree)

	w.git(w.r.Path, "branch", "elsewhere", "main")
	o := w.elsewhere()
	o.json(&reply, "session", "promote", s.arg+"#session=far@done", "--to", ":elsewhere", "--squash")
	if reply.Method != control.PromoteSquash || reply.Mounted != true {
		t.Errorf("promote on another machine: got %+v", reply)
	}
	w.landed(w.r.Path, "elsewhere", tree)
}

// The summary lists commits, files, notes, facts and prompts, and is the same on another machine.
func TestSessionSummary(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	s := w.sessionRemote("path", nil)
	m := w.bare(w.origin.URL("r.git"), "--session", "far", "--session-remote", s.arg, "--wait", "git",
		"--checkpoint", "off")
	var r control.SessionSummaryReply
	w.json(&r, "session", "summary", "-C", m.Dir)
	if r.TotalCommits != 0 || r.TotalFiles != 0 {
		t.Errorf("summary of a session without changes: got %+v", r)
	}
	m.record(`{"type":"prompt","role":"user","text":"please\nfix it"}`)
	w.sh(m.Dir,
		"sed -i s/9/nine/ shared && git mv quiet silent && git commit -qam 'fix it' && echo x >x && git add x && git commit -qm 'fixup! fix it'")
	w.ok("session", "note", "-C", m.Dir, "HEAD~1", `{"review":"looks good"}`)
	w.ok("session", "fact", "-C", m.Dir, "add", "the tests are slow")
	w.sh(m.Dir, "echo y >y")
	m.checkpoint("--sync")
	check := func(what string, r control.SessionSummaryReply) {
		t.Helper()
		var files []string
		for _, f := range r.Files {
			files = append(files, f.Status+" "+f.From+" "+f.Path)
		}
		if want := []string{"M  shared", "R quiet silent", "A  x", "A  y"}; !slices.Equal(files, want) || r.LinesAdded != 3 ||
			r.LinesRemoved != 1 || r.Uncommitted != 1 {
			t.Errorf("%s: files: got %q, +%d -%d, %d not committed, want %q, +3 -1, 1", what, files, r.LinesAdded,
				r.LinesRemoved, r.Uncommitted, want)
		}
		if r.Title != "fix it" || r.TotalCommits != 2 || r.Commits[0].Subject != "fixup! fix it" {
			t.Errorf("%s: got title %q and commits %+v", what, r.Title, r.Commits)
		}
		if len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Text, "looks good") || len(r.Facts) != 1 ||
			len(r.Prompts) != 1 || r.Prompts[0].Text != "please fix it" {
			t.Errorf("%s: got notes %+v, facts %+v, prompts %+v", what, r.Notes, r.Facts, r.Prompts)
		}
	}
	w.json(&r, "session", "summary", "-C", m.Dir)
	check("mounted", r)
	text := w.ok("session", "summary", "-C", m.Dir)
	for _, want := range []string{"# fix it\n", "## 2 commits", "## 4 files, +3 -1", "- R `quiet` → `silent` +0 -0",
		"1 changed file not committed", "1. please fix it"} {
		if !strings.Contains(text, want) {
			t.Errorf("summary lacks %q:\n%s", want, text)
		}
	}
	w.json(&r, "session", "summary", "-C", m.Dir, "--since", w.git(m.Dir, "rev-parse", "HEAD~1"))
	if r.TotalCommits != 1 || r.TotalFiles != 2 {
		t.Errorf("summary since a commit: got %d commits and %d files, want 1 and 2", r.TotalCommits, r.TotalFiles)
	}
	w.unmount(m)
	w.json(&r, "session", "summary", "-C", "far")
	check("not mounted", r)
	o := w.elsewhere()
	o.json(&r, "session", "summary", "--session-remote", s.arg, "far")
	check("on another machine", r)
}

// A session that was resumed on another machine is promoted, although contents of its commits are on the session remote
// alone.
func TestPromoteResumed(t *testing.T) {
	t.Parallel()
	w := newPromote(t)
	s := w.sessionRemote("path", nil)
	m := w.bare(w.origin.URL("r.git"), "--session", "far", "--session-remote", s.arg, "--wait", "git",
		"--checkpoint", "off")
	w.sh(m.Dir, "mkdir sub && echo deep >sub/deep && git add sub && git commit -qm 'add sub'")
	m.checkpoint("--sync")
	w.unmount(m)
	o := w.elsewhere()
	again := o.bare(w.origin.URL("r.git"), "--session", "far", "--session-remote", s.arg, "--wait", "git",
		"--checkpoint", "off")
	w.sh(again.Dir, "echo more >more && git add more && git commit -qm 'add more'")
	var reply control.SessionPromoteReply
	o.json(&reply, "session", "promote", "-C", again.Dir)
	if reply.Total != 2 || reply.Method != control.PromoteFF {
		t.Errorf("promote of a resumed session: got %+v, want two commits", reply)
	}
	w.landed(w.r.Path, "main", w.git(again.Dir, "rev-parse", "HEAD^{tree}"))
	o.unmount(again)
}

// A pull request of a session whose branches are on the same remote needs another name than afs/SESSION.
func TestPromoteBesideTheSession(t *testing.T) {
	t.Parallel()
	w := newPromote(t, "--session-remote", "origin")
	w.sh(w.m.Dir, "echo x >x && git add x && git commit -qm 'add x'")
	w.m.sync()
	var r struct{ Branch, Base string }
	w.json(&r, "session", "promote", "-C", w.m.Dir, "--pull-request", "--dry-run")
	if r.Branch != "afs-work" || r.Base != "main" {
		t.Errorf("branch of a pull request: got %+v, want afs-work", r)
	}
	if r := w.afs("session", "promote", "-C", w.m.Dir, "--to", ":afs/work"); r.code != control.ExitRemote ||
		!strings.Contains(r.stderr, "cannot exist beside afs/work/") {
		t.Errorf("promote to the directory of the session's branches: got %s", r)
	}
	// The session's own refs on its remote do not count as the commits that are promoted.
	reply, blobs := w.promote()
	if reply.Total != 1 || blobs != 0 || w.git(w.r.Path, "rev-parse", "main") != w.git(w.m.Dir, "rev-parse", "HEAD") {
		t.Errorf("promote to the session remote: got %+v and %d contents fetched", reply, blobs)
	}
	w.unmount(w.m) // while the session remote still answers
}

// Commits of the mounted remote that were merged into the session are not promoted again, and are not part of its
// summary.
func TestPromoteAfterMerge(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(map[bool]string{false: "thin", true: "shared"}[shared], func(t *testing.T) { testPromoteAfterMerge(t, shared) })
	}
}

func testPromoteAfterMerge(t *testing.T, shared bool) {
	t.Parallel()
	w := newPromote(t)
	s := w.sessionRemote("path", map[bool]*gittest.Repo{true: w.r}[shared])
	m := w.bare(w.origin.URL("r.git"), "--session", "far", "--session-remote", s.arg, "--wait", "git",
		"--checkpoint", "off")
	w.sh(m.Dir, "echo ours >ours && git add ours && git commit -qm 'add ours'")
	w.upstream("main", "echo theirs >theirs && sed -i s/1/one/ shared")
	w.sh(m.Dir, "git fetch -q && git merge -q -m 'merge main' origin/main && echo more >>ours && git commit -qam 'more'")
	m.checkpoint("--sync", "--pin", "merged")
	head, tree := w.git(m.Dir, "rev-parse", "HEAD"), w.git(m.Dir, "rev-parse", "HEAD^{tree}")
	for i := range 4 {
		w.git(w.r.Path, "branch", "b"+string(rune('0'+i)), "main")
	}
	w.upstream("b3", "echo new >new") // the branch moves on
	o := w.elsewhere()
	check := func(what string, x *world, branch string, point ...string) {
		t.Helper()
		var summary control.SessionSummaryReply
		x.json(&summary, append([]string{"session", "summary"}, point...)...)
		if summary.TotalCommits != 3 || summary.TotalFiles != 1 || summary.Files[0].Path != "ours" {
			t.Errorf("%s: summary: got %d commits and files %+v, want 3 and the file ours", what, summary.TotalCommits,
				summary.Files)
		}
		var reply control.SessionPromoteReply
		x.json(&reply, append([]string{"session", "promote", "--to", ":" + branch}, point...)...)
		if reply.New != head || reply.Total != 3 {
			t.Errorf("%s: promote: got %+v, want %s with 3 commits", what, reply, head)
		}
		w.landed(w.r.Path, branch, tree)
	}
	check("mounted", w.world, "b0", "-C", m.Dir)
	w.unmount(m)
	check("not mounted", w.world, "b1", "-C", "far")
	check("on another machine", o, "b2", s.arg+"#session=far@merged")
	var reply control.SessionPromoteReply
	o.json(&reply, "session", "promote", "--merge", "--to", ":b3", s.arg+"#session=far@merged")
	w.sh(w.landed(w.r.Path, "b3", reply.Tree), "cat ours theirs new")
	w.json(&reply, "session", "promote", "--squash", "--to", ":b3", "-C", "far")
	if reply.Method != control.PromoteNone {
		t.Errorf("squash after a merge of the same commits: got %+v, want nothing to promote", reply)
	}
}
