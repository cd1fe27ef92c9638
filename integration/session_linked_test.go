package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// inLinked adds linked worktrees and changes them in all ways that checkpoints contain.
const inLinked = `
git worktree add -q .agents/trees/a -b a && git worktree add -q --detach lib/b
(cd .agents/trees/a
echo in >in && git add in && git commit -qm in-worktree && echo conflicting >d0002/f0001.txt && git commit -qam theirs && git switch -qc mine HEAD^
echo uncommitted >>d0000/f0000.txt; echo staged >d0000/f0001.txt && git add d0000/f0001.txt && echo unstaged >>d0000/f0001.txt
rm d0001/f0000.txt && git mv d0001/f0001.txt moved && git rm -q d0001/f0002.txt; echo untracked >untracked; chmod +x d0002/f0000.txt; ln -s nowhere link
echo later >later && git add -N later; printf '*.tmp\n' >.gitignore; echo x >x.tmp; mkdir -p build && echo x >build/out
git worktree add -q .agents/trees/inner -b inner && echo inner >.agents/trees/inner/d0000/f0000.txt)
(cd lib/b && echo other >d0000/f0000.txt && echo ours >d0002/f0001.txt && git commit -qam detached && echo b >b
git update-index --assume-unchanged d0000/f0002.txt; git merge -q a >/dev/null || true)
echo main >>d0003/f0000.txt
`

// linkedPaths are the linked worktrees that inLinked adds.
var linkedPaths = []string{".agents/trees/a", "lib/b", ".agents/trees/a/.agents/trees/inner"}

// inTree returns what git and other programs print in a working tree, without its path.
func (w *world) inTree(dir string) string {
	w.Helper()
	return w.sh(dir,
		`git branch --show-current; git status --porcelain=v2; git ls-files --stage -v; git diff | cat; git log -2 --format=%T%s
ls $(git rev-parse --git-dir) | grep -e MERGE -e rebase -e HEAD | grep -v -e FETCH -e AUTO_MERGE; git diff --name-only MERGE_HEAD || true
find . -name .git -prune -o -path ./.agents -prune -o \( -type f -o -type l \) -not -name x.tmp -not -path ./build/out -printf '%p %l %m\n' | sort
find . -name .git -prune -o -path ./.agents -prune -o -type f -not -name x.tmp -not -path ./build/out -print0 | sort -z | xargs -0 sha256sum`)
}

// sameLinked compares the linked worktrees of a mount with those of a clone in which the same was done.
func (w *world) sameLinked(when, dir, clone string) {
	w.Helper()
	for _, path := range linkedPaths {
		if _, err := os.Lstat(filepath.Join(dir, path, ".git")); err != nil {
			w.Errorf("%s: linked worktree %s: %v", when, path, err)
			continue
		}
		if got, want := w.inTree(filepath.Join(dir, path)), w.inTree(filepath.Join(clone, path)); got != want {
			w.Errorf("%s: linked worktree %s differs:\n%s", when, path, diffLines(want, got))
		}
	}
	list := w.git(dir, "worktree", "list", "--porcelain")
	for _, path := range linkedPaths {
		if !strings.Contains(list, "worktree "+filepath.Join(dir, path)+"\n") || strings.Contains(list, "prunable") {
			w.Errorf("%s: git worktree list:\n%s\nwant %s", when, list, path)
		}
	}
	if got, want := w.sh(dir, "git status --porcelain=v2; cat d0003/f0000.txt"),
		w.sh(clone, "git status --porcelain=v2; cat d0003/f0000.txt"); got != want {
		w.Errorf("%s: main working tree:\n%s", when, diffLines(want, got))
	}
}

// Linked worktrees inside a mount, with everything that is not committed in them, survive the death of the daemon, rm,
// a restore, a fork, and the way to another machine.
func TestSessionCarriesLinkedWorktrees(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		scheme, ignore string
		thin           bool
	}{{"http", "build/\n", true}, {"path", "build/\n.agents/\nlib/\n", false}} {
		t.Run(kind.scheme, func(t *testing.T) {
			w, r := newTravelled(t)
			w.commit(r, map[string]gittest.File{".gitignore": {Data: []byte(kind.ignore)}})
			s := w.serve(gittest.ServerOptions{})
			url := s.URL("r.git")
			base := r
			if kind.thin {
				base = nil
			}
			c := w.sessionRemote(kind.scheme, base)
			clone := w.clone(r.Path)
			w.sh(clone, inLinked)
			m := w.bare(url, append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
			w.sh(m.Dir, inLinked)
			w.sameLinked("at first", m.Dir, clone)
			p := m.checkpoint("--sync", "--pin", "all")
			if len(p.LeftOut) > 0 && strings.Contains(fmt.Sprint(p.LeftOut), "worktree") {
				t.Errorf("left out: %+v, want no linked worktree", p.LeftOut)
			}
			if again := m.checkpoint(); again.ID != p.ID {
				t.Errorf("a second checkpoint was made without a change: %+v", again)
			}
			if mode := m.status().Session.Mode; (mode == "thin") != kind.thin {
				t.Errorf("mode %s", mode)
			}
			check(t, syscall.Kill(w.serving(), syscall.SIGKILL))
			w.sameLinked("after the death of the daemon", m.Dir, clone)

			w.sh(m.Dir, "rm -rf .agents lib d0003")
			w.ok("session", "restore", "-C", m.Dir, "all")
			w.sameLinked("restored", m.Dir, clone)
			// A file that checkpoints do not contain is in the way.
			w.sh(m.Dir, "rm -rf lib && echo lib >>$(git rev-parse --git-dir)/info/exclude && echo mine >lib")
			var blocked control.RestoreReply
			w.json(&blocked, "session", "restore", "-C", m.Dir, "all")
			notes := fmt.Sprintf("%+v", m.status())
			if len(blocked.Failed) != 1 || blocked.Failed["lib/b"] == "" || !strings.Contains(notes, "lib/b") ||
				w.sh(m.Dir, "cat lib") != "mine" {
				t.Errorf("restore with a file in the way: failed %v, notices %s", blocked.Failed, notes)
			}
			w.sh(m.Dir, "rm lib && sed -i '/^lib$/d' $(git rev-parse --git-dir)/info/exclude")
			w.ok("session", "restore", "-C", m.Dir, "all", "lib/b")
			w.sameLinked("restored after the file was removed", m.Dir, clone)
			w.sh(m.Dir, "git worktree remove --force .agents/trees/a && git worktree remove --force lib/b && git worktree prune")
			if list := w.git(m.Dir, "worktree", "list"); strings.Contains(list, "trees") {
				t.Errorf("git worktree list after the removal:\n%s", list)
			}
			w.ok("session", "restore", "-C", m.Dir, "all", "lib/b", ".agents", "d0003")
			w.sameLinked("restored after git worktree remove", m.Dir, clone)
			m.checkpoint("--sync")

			var fork control.MountReply
			w.json(&fork, "session", "fork", "-C", m.Dir, w.place("fork"), "--session", "copy", "--session-remote", c.arg,
				"--prefetch", "none")
			w.sameLinked("forked", fork.Dir, clone)
			w.sh(filepath.Join(fork.Dir, linkedPaths[0]), "git add -A && git commit -qm 'in the fork'")
			w.sameLinked("after a commit in the fork", m.Dir, clone)
			w.ok("unmount", fork.Dir)
			w.killDaemon()
			check(t, syscall.Unmount(m.Dir, syscall.MNT_DETACH))

			s.forget()
			o := w.elsewhere()
			var again control.MountReply
			o.json(&again, "session", "resume", "work", o.place("again"), "--session-remote", c.arg, "--take-over",
				"--prefetch", "none")
			if sent, n := s.Log().Blobs(); n > 0 {
				t.Errorf("%d blobs were fetched from the remote before the first read: %v", n, sent)
			}
			w.sameLinked("resumed elsewhere", again.Dir, clone)
			w.sh(filepath.Join(again.Dir, linkedPaths[0]),
				"git add -A && git commit -qm 'from elsewhere' && git fsck --connectivity-only")
			w.sh(filepath.Join(again.Dir, "lib/b"),
				"git checkout -q --theirs . && git add -A && git commit -qm merged && git rev-parse --verify HEAD^2")
			for _, path := range []string{again.Dir, c.Path} {
				w.sound(path)
			}
			w.sh(again.Dir,
				"git worktree remove --force .agents/trees/a/.agents/trees/inner && git worktree remove --force .agents/trees/a")
			o.ok("unmount", again.Dir)
		})
	}
}
