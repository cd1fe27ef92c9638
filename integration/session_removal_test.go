package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// removal waits for a checkpoint of removed files that is newer than the checkpoint with the ID after, or for any if
// after is "". It returns the oldest one. If a program pauses while it removes files, or is slow because the machine is
// busy, several checkpoints are made. The oldest one contains all files as they were before, because it also contains
// the files that were removed later. The next one contains only those that were removed since.
func (m mounted) removal(after string) (p control.Checkpoint) {
	m.w.Helper()
	m.w.until("a checkpoint of the removed files is made", func() bool {
		p = control.Checkpoint{}
		for _, q := range m.checkpoints() {
			if q.ID == after {
				break
			}
			if q.Reason == "removal" {
				p = q
			}
		}
		return p.ID != ""
	})
	return p
}

// Files that were written within the idle window and then removed, replaced by a rename or truncated can be found by
// log and restored.
func TestMassRemovalsAreUndone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sized(3, 3)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work")
	w.sh(m.Dir,
		`mkdir -p src/deep; for i in $(seq 20); do echo precious $i >src/f$i; done; echo deep >src/deep/f; ln -s f1 src/link; chmod +x src/f2; echo kept >kept; rm -rf src`)
	p := m.removal("")
	if !strings.Contains(p.Message, "were removed or overwritten") {
		t.Errorf("message of the checkpoint: got %q, want the number of removed files", p.Message)
	}
	if exists(m.path("src")) {
		t.Error("the removed directory exists without a restore")
	}
	check := func(what string) {
		t.Helper()
		for i := 1; i <= 20; i++ {
			w.wantFile(m.path(fmt.Sprint("src/f", i)), fmt.Sprintf("precious %d\n", i))
		}
		w.wantFile(m.path("src/deep/f"), "deep\n")
		if t.Failed() {
			t.Fatal("restored files differ after " + what)
		}
	}
	w.ok("session", "restore", p.ID, "src", "-C", m.Dir)
	check("rm -rf")
	if got := w.sh(m.Dir, "readlink src/link; test -x src/f2 && echo executable"); got != "f1\nexecutable" &&
		got != "f1\nexecutable\n" {
		t.Errorf("link and mode after restore: got %q", got)
	}

	// Files that are written and replaced by a rename within one second.
	restored := m.checkpoints()[0].ID
	w.sh(m.Dir,
		`for i in $(seq 20); do echo precious $i >src/f$i; done; for i in $(seq 20); do echo new >tmp; mv tmp src/f$i; done`)
	p = m.removal(restored)
	w.ok("session", "restore", p.ID, "src", "-C", m.Dir)
	check("mv")

	restored = m.checkpoints()[0].ID
	w.sh(m.Dir, `for i in $(seq 20); do echo precious $i >src/f$i; done; for i in $(seq 20); do : >src/f$i; done`)
	m.removal(restored)
	truncated := m.checkpoint().ID
	found := false
	for _, q := range m.checkpoints() {
		if q.Reason == "removal" && m.in(q.Tree, "src/f20") == "precious 20\n" && m.in(q.Tree, "src/f1") == "precious 1\n" &&
			q.ID > p.ID {
			found = true
		}
		if found {
			break
		}
	}
	if !found {
		t.Error("no checkpoint has the contents of the files before they were truncated")
	}

	// A checkpoint that is requested right after the removal does not have the removed files; the one before it does.
	w.sh(m.Dir, `mkdir late && for i in $(seq 20); do echo late >late/f$i; done; rm -rf late`)
	now := m.checkpoint()
	if tree := w.git(m.sessionGit(), "ls-tree", "-r", "--name-only", now.Tree); strings.Contains(tree, "late/") {
		t.Errorf("a requested checkpoint has files that were removed before:\n%s", tree)
	}
	p = m.removal(truncated)
	if tree := w.git(m.sessionGit(), "ls-tree", "-r", "--name-only", p.Tree); strings.Count(tree, "late/") != 20 {
		t.Errorf("files of the removed directory in %s: got %d, want 20", p.ID, strings.Count(tree, "late/"))
	}

	// Changes of ignored files cause no checkpoint.
	w.sh(m.Dir, "echo 'cache/' >.gitignore && mkdir cache && touch cache/a")
	m.checkpoint()
	before := len(m.checkpoints())
	w.sh(m.Dir, "for i in $(seq 50); do echo x >cache/$i; done; rm -rf cache; echo end >end")
	m.checkpoint()
	if got := len(m.checkpoints()); got != before+1 {
		t.Errorf("checkpoints after an ignored directory was removed: got %d, want %d", got, before+1)
	}
	w.unmount(m)
}
