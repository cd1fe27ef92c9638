package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
)

// everything creates a working tree with all kinds of changes that resume must restore.
const everything = `
git switch -qc topic && echo topic >topic && git add topic && git commit -qm topic && git tag -am annotated v9 && git notes add -m noted
echo stashed >>d0000/f0000.txt && echo untracked >stash-me && git stash push -qu -m 'for later'
echo staged >>d0000/f0001.txt && git add d0000/f0001.txt && echo unstaged >>d0000/f0001.txt
echo unstaged >>d0000/f0002.txt; chmod +x d0000/f0003.txt; git mv d0001/f0000.txt d0001/renamed.txt; git rm -q d0001/f0001.txt; rm d0001/f0002.txt
mv d0002 d0009; rm -r d0003; ln -s nowhere link; mkdir -p new/deep && echo new >new/deep/file && printf '#!/bin/sh\n' >new/run && chmod +x new/run
git add new/run; echo later >later && git add -N later; echo "ünï cödé" >'a name with "quotes" é'; : >empty
git update-index --assume-unchanged d0004/f0000.txt && git update-index --skip-worktree d0004/f0001.txt
mkdir -p build && echo ignored >build/out
`

// newTravelled returns a world with the repository that everything needs.
func newTravelled(t *testing.T) (*world, *gittest.Repo) {
	w := newWorld(t)
	r := w.repo("r.git", object.SHA1)
	must[object.ID](t)(r.Sized(6, 6))
	w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte("build/\n")}})
	return w, r
}

// A session that is resumed on another machine has the same state, and only contents that a process reads are fetched.
func TestSessionResumesElsewhere(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"path", "http"} {
		t.Run(kind, func(t *testing.T) {
			w, r := newTravelled(t)
			s := w.serve(gittest.ServerOptions{})
			c := w.sessionRemote(kind, r)
			m := w.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
			w.sh(m.Dir, everything)
			p := m.checkpoint("--sync", "-m", "before the journey")
			before, sum := w.look(m.Dir), strings.ReplaceAll(w.treeSum(m.Dir), m.Dir, "")
			if p.Tree != before.Tree || p.Message != "before the journey" || p.Branch != "topic" || !p.Synced {
				t.Errorf("checkpoint: got %+v, want git's tree %s", p, before.Tree)
			}
			w.unmount(m)
			s.forget()
			if c.server != nil {
				c.server.Log().Reset()
			}

			o := w.elsewhere()
			again := o.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
			if !again.Resumed || again.Session != "work" {
				t.Errorf("reply of mount: got %+v", again.MountReply)
			}
			w.sh(again.Dir, "ls -R >/dev/null; find . -name .git -prune -o -type f -print >/dev/null")
			if sent, n := s.Log().Blobs(); n > 0 {
				t.Errorf("%d blobs were fetched from the remote before the first read: %v", n, sent)
			}
			if c.server != nil { // git's data beside the files is fetched, but no contents of files
				sent, _ := c.server.Log().Blobs()
				for line := range strings.Lines(w.git(c.Path, "ls-tree", "-r", p.Commit)) {
					if f := strings.Fields(line); !strings.Contains(line, "\tempty") && sent[object.MustID(f[2])] > 0 {
						t.Errorf("contents were fetched before they were read: %s", line)
					}
				}
			}
			w.same("resumed elsewhere", before, o.look(again.Dir))
			if exists(again.path("build/out")) || !exists(again.path("empty")) {
				t.Error("an ignored file was restored, or an empty file was not")
			}
			check(t, os.MkdirAll(again.path("build"), 0o755))
			check(t, os.WriteFile(again.path("build/out"), []byte("ignored\n"), 0o644))
			if strings.ReplaceAll(o.treeSum(again.Dir), again.Dir, "") == "" || sum == "" {
				t.Error("sha256sum printed nothing")
			}
			w.sh(again.Dir,
				"git diff >/dev/null && git stash list && git log --all >/dev/null && git rev-list --objects --all --not --remotes >/dev/null")

			// The resumed session can be changed and pushed.
			w.sh(again.Dir,
				"git update-index --no-assume-unchanged d0004/f0000.txt; git update-index --no-skip-worktree d0004/f0001.txt; git add -A && git commit -qm 'from elsewhere' && git stash pop -q")
			after := o.look(again.Dir)
			again.checkpoint("--sync")
			if got := w.git(c.Path, "rev-parse", "topic"); got != after.Head {
				t.Errorf("HEAD on the session remote: got %s, want %s", got, after.Head)
			}
			w.sound(c.Path)
			ids := map[string]bool{}
			for _, p := range again.checkpoints() {
				ids[p.ID] = true
			}
			if !ids[p.ID] {
				t.Errorf("the earlier checkpoints are not in the log: %v", ids)
			}
			o.unmount(again)
			// A third machine resumes from the newest checkpoint.
			third := w.elsewhere()
			last := third.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git")...)
			w.same("resumed again", after, third.look(last.Dir))
			third.unmount(last)
		})
	}
}

// A merge with conflicts that is in progress can be continued and finished where the session is resumed.
func TestConflictsResumeElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ begin, finish string }{
		"merge":       {"git merge side", "git checkout -q --theirs . && git add -A && git commit -qm merged"},
		"rebase":      {"git rebase side", "git checkout -q --ours . && git add -A && git rebase --continue"},
		"cherry-pick": {"git cherry-pick side", "git cherry-pick --abort"},
		"stash": {"echo z >d0000/f0000.txt && git stash -q && git switch -q side && git stash pop",
			"git checkout -q --theirs . && git add -A"},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newTravelled(t)
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			c2 := w.sessionRemote("path", r)
			m := w.bare(url, append(c2.flags("work"), "--wait", "git", "--checkpoint", "off")...)
			w.sh(m.Dir,
				"git switch -qc side && echo x >d0000/f0000.txt && git commit -qam x && git switch -q main && echo y >d0000/f0000.txt && git commit -qam y")
			w.sh(m.Dir, c.begin+" || true")
			before := w.look(m.Dir)
			if !slices.ContainsFunc(before.Index, func(line string) bool { return !strings.Contains(line, " 0\t") }) {
				t.Fatalf("the merge caused no conflict: %+v", before)
			}
			m.checkpoint("--sync")
			w.unmount(m)
			o := w.elsewhere()
			again := o.bare(url, append(c2.flags("work"), "--wait", "git")...)
			w.same(name, before, o.look(again.Dir))
			w.sh(again.Dir, c.finish)
			if st := o.look(again.Dir); len(st.Operation) > 0 {
				t.Errorf("operation after it was finished: got %q", st.Operation)
			}
			o.unmount(again)
		})
	}
}

// Checkpoints can be shown, restored and forked, and a restore can be undone.
func TestTimeTravel(t *testing.T) {
	t.Parallel()
	w, _ := newTravelled(t)
	s := w.serve(gittest.ServerOptions{})
	m := w.bare(s.URL("r.git"), "--session", "work", "--checkpoint", "off", "--wait", "git")
	var ids []string
	var looks []workday.State
	for i, script := range []string{"echo 1 >one && git add one",
		"rm -r d0001 && mv one two && git commit -qam two -- . || true",
		"git add -A && git commit -qm three && echo 4 >>two && chmod +x two && ln -s two four"} {
		w.sh(m.Dir, script)
		ids = append(ids, m.checkpoint("-m", fmt.Sprint("checkpoint ", i)).ID)
		looks = append(looks, w.look(m.Dir))
	}
	if p := m.checkpoints(); len(p) != 3 || p[0].ID != ids[2] || p[2].Message != "checkpoint 0" {
		t.Errorf("session log: got %+v", p)
	}
	s.forget()

	t.Run("at", func(t *testing.T) {
		old := w.bare(s.URL("r.git"), "--session", "work", "--at", ids[0])
		w.wantFile(old.path("one"), "1\n")
		if exists(old.path("two")) || !exists(old.path("d0001/f0000.txt")) {
			t.Error("the mount of the checkpoint has other files than the checkpoint")
		}
		if err := os.WriteFile(old.path("x"), nil, 0o644); err == nil {
			t.Error("a write to a mount of a checkpoint succeeded")
		}
		w.unmount(old)
	})
	t.Run("diff", func(t *testing.T) {
		var d control.SessionDiffReply
		w.json(&d, "session", "diff", ids[0], ids[2], "-C", m.Dir)
		got := map[string]string{}
		for _, c := range d.Changes {
			got[c.Path] = c.Status
		}
		if got["one"] != "D" || got["two"] != "A" || got["four"] != "A" || got["d0001/f0000.txt"] != "D" || len(got) != 9 {
			t.Errorf("changes of the checkpoint: got %v", got)
		}
		var show control.SessionShowReply
		w.json(&show, "session", "show", ids[0], "-C", m.Dir)
		if len(show.Staged) != 1 || show.Staged[0].Path != "one" || show.Message != "checkpoint 0" {
			t.Errorf("session show: got %+v", show)
		}
	})
	t.Run("restore", func(t *testing.T) {
		w.sh(m.Dir, "echo unsaved >unsaved; mkdir -p build && echo ignored >build/out")
		head := w.git(m.Dir, "rev-parse", "HEAD")
		before := w.look(m.Dir)
		w.ok("session", "restore", ids[0], "--dry-run", "-C", m.Dir)
		w.same("a dry run", before, w.look(m.Dir))
		var r control.RestoreReply
		w.json(&r, "session", "restore", ids[0], "--staged", "-C", m.Dir)
		now := w.look(m.Dir)
		if now.Tree != looks[0].Tree || strings.Join(now.Index, "\n") != strings.Join(looks[0].Index, "\n") {
			t.Errorf("working tree after restore: %s", looks[0].Differs(now))
		}
		if w.git(m.Dir, "rev-parse", "HEAD") != head || !exists(m.path("build/out")) || exists(m.path("unsaved")) {
			t.Error("restore moved HEAD, changed an ignored file, or kept a later file")
		}
		if r.Before == nil {
			t.Fatalf("reply of restore has no checkpoint of the previous state: %+v", r)
		}
		w.ok("session", "restore", r.Before.ID, "--staged", "-C", m.Dir)
		w.same("undone", before, w.look(m.Dir))
		w.ok("session", "restore", ids[0], "d0001", "one", "-C", m.Dir)
		w.wantFile(m.path("one"), "1\n")
		if !exists(m.path("d0001/f0003.txt")) || !exists(m.path("unsaved")) || !exists(m.path("two")) {
			t.Error("a restore of some paths changed other paths")
		}
		w.ok("session", "restore", r.Before.ID, "--staged", "-C", m.Dir)
	})
	t.Run("fork", func(t *testing.T) {
		before := w.look(m.Dir)
		var dirs []string
		for i := range 3 {
			dirs = append(dirs, w.place("fork"))
			args := []string{"session", "fork", "--session", fmt.Sprint("fork", i), "-C", m.Dir}
			if i > 0 {
				args = append(args, ids[2])
			}
			w.ok(append(args, dirs[i])...)
		}
		w.same("a fork of now", before, w.look(dirs[0]))
		w.same("a fork of a checkpoint", looks[2], w.look(dirs[1]))
		if _, n := s.Log().Blobs(); n > 0 && len(s.Log().Fetches()) > 0 {
			t.Logf("%d blobs were fetched for git to compare", n)
		}
		for i, dir := range dirs {
			w.sh(dir, fmt.Sprintf("echo %d >mine && git add -A && git commit -qm fork%d", i, i))
		}
		for i, dir := range dirs {
			w.wantFile(filepath.Join(dir, "mine"), fmt.Sprintln(i))
			p := mounted{control.MountReply{Dir: dir}, w}.checkpoint()
			if p.Session != fmt.Sprint("fork", i) {
				t.Errorf("checkpoint of the fork: got %+v", p)
			}
			w.sound(filepath.Join(w.state, "mounts", p.Session, "session.git"))
		}
		w.same("the parent", before, w.look(m.Dir))
		w.ok(append([]string{"unmount"}, dirs...)...)
	})
}

// A session that another mount holds is not mounted without --take-over.
func TestSessionHasOneWriter(t *testing.T) {
	w, r := newTravelled(t)
	url := w.serve(gittest.ServerOptions{}).URL("r.git")
	c := w.sessionRemote("http", r)
	m := w.bare(url, append(c.flags("work"), "--wait", "git")...)
	w.sh(m.Dir, "echo first >first")
	m.checkpoint("--sync")
	o := w.elsewhere()
	dir := w.place("m")
	args := append([]string{"mount", url, dir}, c.flags("work")...)
	if res := o.afs(args...); res.code != control.ExitFailed || !strings.Contains(res.stderr, "--take-over") {
		t.Errorf("mount of a session that another mount holds: got %s", res)
	}
	taken := o.bare(url, append(c.flags("work"), "--take-over", "--wait", "git")...)
	w.wantFile(taken.path("first"), "first\n")
	w.sh(taken.Dir, "echo second >second")
	taken.checkpoint("--sync")
	w.sh(m.Dir, "echo third >third")
	m.checkpoint()
	st := m.await("it says that it was taken over",
		func(s control.MountStatus) bool { return s.Session.Error != "" || len(s.Notes) > 0 })
	t.Logf("%q %q, lane %s", st.Session.Error, st.Notes, st.Session.Lane)
	p := taken.checkpoints()
	if p[0].Lane != "main" && p[1].Lane != "main" {
		t.Errorf("checkpoints: got %+v", p)
	}
	o.unmount(taken)
	if res := w.afs("unmount", m.Dir); res.code != 0 && res.code != control.ExitUnsynced {
		t.Error(res)
	}
	again := w.mount(url, "--session", "work")
	w.wantFile(again.path("third"), "third\n")
	w.ok("unmount", again.Dir, "--discard", "--yes")
}
