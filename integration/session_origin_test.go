package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// newOrigin creates a remote that accepts pushes and is the session remote of mounts, too.
func newOrigin(t *testing.T) (w *world, r *gittest.Repo, url string) {
	w = newWorld(t)
	r = w.sized(3, 3)
	must[[]object.ID](t)(r.History(3))
	must[*gittest.Receiver](t)(gittest.Receiving(r))
	return w, r, w.serve(gittest.ServerOptions{}).URL("sized.git")
}

// plainOf returns the branches and tags of a repository without those below the names of sessions.
func (w *world) plainOf(dir string) string {
	w.Helper()
	return w.sh(dir,
		"git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags | grep -v '^refs/heads/afs/'")
}

// Commits of a session are pushed to origin, but the plain branches and tags there are moved only by git push.
func TestOriginsBranchesAreThePeoples(t *testing.T) {
	t.Parallel()
	w, r, url := newOrigin(t)
	before := w.plainOf(r.Path)
	m := w.bare(url, "--wait", "git", "--session", "work", "--session-remote", "origin", "--checkpoint", "off")
	there := func(ref string) string {
		id, err := gittest.Git(t.Context(), r.Path, "rev-parse", "--verify", "--quiet", ref)
		if err != nil {
			return ""
		}
		return id
	}
	for _, script := range []string{
		"echo new >new && git add new && git commit -qm one",
		"echo more >>new && git commit -qam two && git tag v9 && git tag -am annotated v10",
		"git commit -q --amend -m 'two, amended'",
		"git reset -q --hard HEAD~1",
		"git switch -qc topic && git commit -q --allow-empty -m topic && git branch -q other",
		"git branch -q -D other && git branch -q -m topic topic/renamed",
	} {
		w.sh(m.Dir, script)
		w.ok("sync", m.Dir, "--timeout", "60s")
		for _, line := range strings.Split(w.sh(m.Dir,
			"git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags"), "\n") {
			ref, id, _ := strings.Cut(line, " ")
			name := strings.Replace(ref, "refs/heads/", "refs/heads/afs/work/", 1)
			name = strings.Replace(name, "refs/tags/", "refs/afs/tags/work/", 1)
			if got := there(name); got != id && !strings.HasPrefix(before, line) && !strings.Contains(before, "\n"+line) {
				t.Errorf("after %s: %s is %q on origin, want %s", script, name, got, id)
			}
		}
		if now := w.plainOf(r.Path); now != before {
			t.Fatalf("after %s: branches and tags of origin are\n%s\nwere\n%s", script, now, before)
		}
	}
	if got := there("refs/heads/afs/work/other"); got != "" {
		t.Errorf("branch that was removed in the mount: got %s on origin", got)
	}
	st := m.status().Session
	if st.Pending != 0 || st.Error != "" || len(st.Diverged) > 0 || st.Branches != "afs/work/{branch}" {
		t.Errorf("status: got %+v", st)
	}
	if out := w.ok("status", m.Dir); !strings.Contains(out, "branches  afs/work/{branch} on the session remote") {
		t.Errorf("status prints\n%s", out)
	}
	m.checkpoint("--sync")
	if out := w.ok("session", "show", "-C", m.Dir); !strings.Contains(out,
		"refs/heads/afs/work/topic/renamed on the session remote") {
		t.Errorf("session show prints\n%s", out)
	}

	// The user's own push moves them, and nothing else interferes.
	w.sh(m.Dir,
		"git switch -q main && echo pushed >pushed && git add pushed && git commit -qm pushed && git push -q origin main")
	pushed := w.git(m.Dir, "rev-parse", "HEAD")
	w.sh(m.Dir, "git reset -q --hard HEAD~1")
	w.ok("sync", m.Dir, "--timeout", "60s")
	if got := there("refs/heads/main"); got != pushed {
		t.Errorf("main of origin is %s after a reset in the mount, want what was pushed, %s", got, pushed)
	}
	if st := m.status().Session; len(st.Diverged) > 0 || st.Pending > 0 || st.Error != "" {
		t.Errorf("status after a push: %+v", st)
	}
	heads := w.sh(m.Dir,
		"git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags; git rev-parse --abbrev-ref HEAD")
	w.unmount(m)

	// In the resumed session the branches have their plain names.
	other := w.elsewhere()
	again := other.bare(url, "--wait", "git", "--session", "work", "--session-remote", "origin")
	if got := other.sh(again.Dir,
		"git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags; git rev-parse --abbrev-ref HEAD"); got != heads {
		t.Errorf("branches and tags of the resumed session:\n%s\nwant\n%s", got, heads)
	}
	other.sh(again.Dir, "git commit -q --allow-empty -m elsewhere")
	other.ok("sync", again.Dir, "--timeout", "60s")
	if got, want := there("refs/heads/afs/work/main"), other.git(again.Dir, "rev-parse", "HEAD"); got != want {
		t.Errorf("main of the resumed session is %s on origin, want %s", got, want)
	}
	if got := there("refs/heads/main"); got != pushed {
		t.Errorf("main of origin is %s after the session was resumed elsewhere, want %s", got, pushed)
	}
	other.unmount(again)
	w.sound(r.Path)
}

// With as-is branches keep their names on origin and are only moved forward.
func TestBranchesAsTheyAre(t *testing.T) {
	w, r, url := newOrigin(t)
	m := w.bare(url, "--wait", "git", "--session", "work", "--session-remote", "origin", "--session-branches", "as-is",
		"--checkpoint", "off")
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm one && echo more >>new && git commit -qam two")
	two := w.git(m.Dir, "rev-parse", "HEAD")
	w.ok("sync", m.Dir, "--timeout", "60s")
	if got := w.git(r.Path, "rev-parse", "main"); got != two {
		t.Errorf("main of origin is %s, want %s", got, two)
	}
	w.sh(m.Dir, "git reset -q --hard HEAD~1")
	res := w.afs("sync", m.Dir, "--timeout", "60s")
	if got := w.git(r.Path, "rev-parse", "main"); got != two {
		t.Errorf("main of origin was moved back to %s, was %s", got, two)
	}
	if res.code != 0 || !strings.Contains(res.stderr, "refs/afs/diverged/work/heads/main") ||
		!strings.Contains(res.stderr, "git fetch "+url+" refs/heads/main && git merge FETCH_HEAD") {
		t.Errorf("sync after a reset: %s", res)
	}
	w.refused(control.ExitUsage, "{branch}", "--help", url, filepath.Join(w.root, "bad"), "--session-branches",
		"afs/{session}")
	w.unmount(m)
}

// Another user's commit on a branch of the session stays, the session's commit is pushed to a ref beside it, and a
// warning names both.
func TestDivergedIsThere(t *testing.T) {
	w, r, url := newOrigin(t)
	m := w.bare(url, "--wait", "git", "--session", "work", "--session-remote", "origin", "--checkpoint", "off")
	w.sh(m.Dir, "echo new >new && git add new && git commit -qm one")
	w.ok("sync", m.Dir, "--timeout", "60s")
	clone := w.clone(r.Path)
	w.sh(clone,
		"git fetch -q origin afs/work/main && git switch -qc review FETCH_HEAD && echo theirs >theirs && git add theirs && git commit -qm theirs && git push -q origin HEAD:afs/work/main")
	theirs := w.git(clone, "rev-parse", "HEAD")
	w.sh(m.Dir, "echo ours >>new && git commit -qam ours")
	ours := w.git(m.Dir, "rev-parse", "HEAD")
	const kept = "refs/afs/diverged/work/heads/main"
	hint := fmt.Sprintf("git fetch %s refs/heads/afs/work/main && git merge FETCH_HEAD", url)
	for _, args := range [][]string{{"sync", m.Dir, "--timeout", "60s"}, {"checkpoint", m.Dir, "--sync"}} {
		if res := w.afs(args...); res.code != 0 || args[0] == "sync" &&
			(!strings.Contains(res.stderr, kept) || !strings.Contains(res.stderr, hint)) {
			t.Errorf("sync with a diverged branch succeeded: %s", res)
		}
	}
	if got := w.git(r.Path, "rev-parse", "afs/work/main"); got != theirs {
		t.Errorf("the other user's commit is lost: the branch is %s", got)
	}
	if got := w.git(r.Path, "rev-parse", kept); got != ours {
		t.Errorf("ref %s is %s, want %s", kept, got, ours)
	}
	if res := w.afs("unmount", m.Dir); res.code != 0 || !strings.Contains(res.stderr, kept) ||
		!strings.Contains(res.stderr, hint) {
		t.Errorf("unmount with a diverged branch: %s", res)
	}
	// The command in the hint works as printed.
	m, _ = w.mountAt(url, m.Dir, "--session", "work", "--wait", "git", "--checkpoint", "off")
	w.sh(m.Dir, "git -c merge.autoEdit=no -c user.name=a -c user.email=a@b pull -q --no-rebase "+url+
		" refs/heads/afs/work/main 2>/dev/null || { "+hint+"; }")
	w.ok("sync", m.Dir, "--timeout", "60s")
	if got, want := w.git(r.Path, "rev-parse", "afs/work/main"), w.git(m.Dir, "rev-parse", "HEAD"); got != want {
		t.Errorf("the merged branch is %s on origin, want %s", got, want)
	}
	if st := m.status().Session; len(st.Diverged) > 0 {
		t.Errorf("status after the merge: %+v", st)
	}
	w.unmount(m)
}
