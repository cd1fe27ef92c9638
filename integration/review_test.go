package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// Five agents try the same task, each in a fork of one baseline on the server. The results are compared with the
// baseline, the best one is adopted into the session of the baseline, and the others are deleted.
func TestReviewOfFiveProposals(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	const proposals = 5
	m := w.bare("team/app", "--create", "--session", "baseline", "--session-branches", "as-is", "--wait", "git")
	w.sh(m.Dir, "printf '1\n2\n3\n4\n5\n6\n7\n8\n9\n' >task && git add task && git commit -qm 'describe the task'")
	base := m.checkpoint("--sync", "--pin", "baseline")
	url := c.proxy.url() + "/git/team/app.git"

	var words []string
	var tried []mounted
	for i := range proposals {
		name := fmt.Sprint("try-", i)
		dir := w.place(name)
		var reply control.MountReply
		w.json(&reply, "session", "fork", "-C", m.Dir, base.ID, dir, "--session", name, "--session-remote", url,
			"--wait", "git")
		f := mounted{MountReply: reply, w: w}
		if got := w.git(dir, "rev-parse", "HEAD^{tree}"); got != w.git(m.Dir, "rev-parse", "HEAD^{tree}") {
			t.Errorf("%s does not begin with the tree of the baseline", name)
		}
		w.sh(dir, fmt.Sprintf("sed -i s/%d/tried/ task && echo %d >result-%d && git add . && git commit -qm 'try %d'",
			1+2*i, i, i, i))
		f.checkpoint("--sync")
		words, tried = append(words, name), append(tried, f)
	}
	var compared control.SessionCompareReply
	o := w.elsewhere() // the reviewer has another machine
	o.json(&compared, append([]string{"session", "compare", "--session-remote", url}, words...)...)
	if len(compared.Sides) != proposals || len(compared.Shared) != 1 || compared.Shared[0].Path != "task" {
		t.Fatalf("compare: got %d sides, shared paths %+v, want %d and task", len(compared.Sides), compared.Shared, proposals)
	}
	for i, s := range compared.Sides {
		if s.Added != 1 || s.Modified != 1 || s.Removed != 0 || s.LinesAdded != 2 || s.LinesRemoved != 1 {
			t.Errorf("changes of proposal %d: got files +%d ~%d -%d, lines +%d -%d", i, s.Added, s.Modified, s.Removed,
				s.LinesAdded, s.LinesRemoved)
		}
	}
	comparedOnPage(t, o, c, api, compared, base.ID)

	const best = 3
	w.ok("session", "merge", "-C", m.Dir, words[best])
	w.sh(m.Dir, "git commit -qm 'adopt the fourth proposal'")
	if got, want := w.git(m.Dir, "rev-parse", "HEAD^{tree}"),
		w.git(tried[best].Dir, "rev-parse", "HEAD^{tree}"); got != want {
		t.Errorf("tree after the adoption: got %s, want that of the proposal, %s", got, want)
	}
	w.ok("sync", m.Dir)
	for i, f := range tried {
		w.unmount(f)
		if i != best {
			w.ok("session", "delete", words[i], "--yes")
		}
	}
	var left []string
	for ref, err := range api.Extensions().Refs(t.Context(), "team", "app", "refs/afs/meta/") {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, strings.TrimPrefix(ref.Name, "refs/afs/meta/"))
	}
	if want := "baseline " + words[best]; strings.Join(left, " ") != want {
		t.Errorf("sessions that are left: got %q, want %q", left, want)
	}
	clone := w.place("clone")
	made := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "app", Scope: "read"}))
	must[string](t)(gitAs(t.Context(), w.root, made.Plaintext, "clone", "--quiet", url, clone))
	w.git(clone, "fsck", "--no-dangling")
	if got, want := w.git(clone, "rev-parse", "HEAD"), w.git(m.Dir, "rev-parse", "HEAD"); got != want {
		t.Errorf("main of a clone: got %s, want %s", got, want)
	}
}

// A checkpoint before a risk: after renaming every file, and changing all of them, one command brings everything back,
// without fetching what was never read.
func TestCheckpointBeforeAMassRename(t *testing.T) {
	t.Parallel()
	w, _, _ := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git", "--prefetch", "none")
	w.sh(m.Dir, "echo changed >>d0000/f0000.txt && echo new >untracked")
	before := w.look(m.Dir)
	p := m.checkpoint("--pin", "before-rename")
	fetched := m.status().Blobs.Fetched
	w.sh(m.Dir, `for d in d*; do mv $d moved-$d; done; rm untracked; git add -A`)
	if got := strings.Count(w.git(m.Dir, "diff", "--cached", "--name-status", "-M"), "R"); got == 0 {
		t.Error("git sees no renamed file")
	}
	renamed := m.status().Blobs.Fetched
	w.ok("session", "restore", "-C", m.Dir, "before-rename", "--staged")
	if n := m.status().Blobs.Fetched; n != renamed {
		t.Errorf("the restore fetched %d blobs; it was %d before the renames and %d after them", n, fetched, renamed)
	}
	w.same("restored", before, w.look(m.Dir))
	if _, err := os.Stat(filepath.Join(m.Dir, "moved-d0000")); !os.IsNotExist(err) {
		t.Errorf("a renamed directory is still there: %v", err)
	}
	if again := m.checkpoint(); again.Tree != p.Tree {
		t.Errorf("tree of a checkpoint after the restore: got %s, want %s", again.Tree, p.Tree)
	}
}
