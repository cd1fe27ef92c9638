package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// dirModes lists the directories below a mount with their permissions.
func (m mounted) dirModes() string {
	m.w.Helper()
	return m.w.sh(m.Dir, `find . -name .git -prune -o -mindepth 1 -type d -printf '%P %m\n' | sort`)
}

// A directory that a restore has created is in the next checkpoint, even if all its files have been removed since.
func TestCheckpointsHoldDirectoriesThatARestoreHasMade(t *testing.T) {
	w := newWorld(t)
	w.sized(2, 2)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("sized.git"), "--wait", "git", "--session", "work",
		"--checkpoint", "off")
	w.sh(m.Dir, "mkdir -p new/deep && echo x >new/deep/x")
	p := m.checkpoint()
	w.sh(m.Dir, "rm -r new")
	w.ok("session", "restore", p.ID, "-C", m.Dir)
	w.sh(m.Dir, "rm new/deep/x")
	if tree := w.git(m.sessionGit(), "ls-tree", "-rt", "--name-only", m.checkpoint().Tree); !strings.Contains(tree,
		"new/deep") {
		t.Errorf("checkpoint of a directory that a restore has made, emptied since: got %s, want new/deep in it", tree)
	}
}

// Checkpoints contain empty directories: restore, fork and a resumed session create them with their modes.
func TestCheckpointsHoldEmptyDirectories(t *testing.T) {
	w, r := newTravelled(t)
	s := w.serve(gittest.ServerOptions{})
	c := w.sessionRemote("http", r)
	m := w.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	w.sh(m.Dir,
		"mkdir -p new/deep/er private tracked && chmod 700 private && chmod 2775 new/deep && echo x >tracked/x && git add tracked && git commit -qm x && rm tracked/x && chmod 750 tracked")
	want := m.dirModes()
	p := m.checkpoint()
	if p.Changed != 3 {
		t.Errorf("paths changed in the checkpoint: got %d, want three empty directories", p.Changed)
	}
	var show control.SessionShowReply
	w.json(&show, "session", "show", p.ID, "-C", m.Dir)
	added := map[string]string{}
	for _, change := range show.Changes {
		added[change.Path] = change.Status
	}
	if added["new/deep/er"] != "A" || added["private"] != "A" {
		t.Errorf("changes of the checkpoint: got %v, want the empty directories among them", added)
	}
	w.sh(m.Dir, "rm -r new private && mkdir other && rmdir tracked")
	w.ok("session", "restore", p.ID, "-C", m.Dir)
	if got := m.dirModes(); got != want {
		t.Errorf("directories after restore:\n%s\nwant\n%s", got, want)
	}
	w.sh(m.Dir, "rmdir private && echo file >private && rm -r new && mkdir -p new/deep && echo full >new/deep/er")
	w.ok("session", "restore", p.ID, "-C", m.Dir)
	if got := m.dirModes(); got != want {
		t.Errorf("directories after restore where files had their names:\n%s\nwant\n%s", got, want)
	}
	w.sh(m.Dir, "echo full >private/file && rmdir new/deep/er && echo file >new/deep/er")
	full := m.checkpoint()
	w.ok("session", "restore", p.ID, "-C", m.Dir)
	w.ok("session", "restore", full.ID, "-C", m.Dir)
	w.wantFile(m.path("private/file"), "full\n")
	w.wantFile(m.path("new/deep/er"), "file\n")
	w.ok("session", "restore", p.ID, "-C", m.Dir)

	var fork control.MountReply
	w.json(&fork, "session", "fork", p.ID, w.place("fork"), "-C", m.Dir)
	f := mounted{w: w, MountReply: fork}
	if got := f.dirModes(); got != want {
		t.Errorf("directories of a fork:\n%s\nwant\n%s", got, want)
	}
	if again := f.checkpoint(); again.Tree != p.Tree {
		t.Errorf("tree of the fork's checkpoint: got %s, want %s as nothing has changed", again.Tree, p.Tree)
	}
	// A commit in a mount of such a checkpoint has no empty directories.
	w.sh(f.Dir, "git checkout -q -- . && git commit -q --allow-empty -m same")
	if tree := w.sh(f.Dir, "git ls-tree -rt HEAD"); strings.Contains(tree, "private") {
		t.Errorf("tree of a commit in the fork has an empty directory:\n%s", tree)
	}
	w.unmount(f)

	m.checkpoint("--sync")
	w.unmount(m)
	o := w.elsewhere()
	again := o.bare(s.URL("r.git"), append(c.flags("work"), "--wait", "git", "--checkpoint", "off")...)
	if got := again.dirModes(); got != want {
		t.Errorf("directories of the session resumed elsewhere:\n%s\nwant\n%s", got, want)
	}
	o.unmount(again)
	for _, dir := range []string{c.Path, filepath.Join(w.state, "mounts", m.ID, "session.git")} {
		fsck := exec.Command("git", "fsck", "--strict", "--no-dangling", "--connectivity-only")
		fsck.Dir, fsck.Env = dir, append(os.Environ(), gittest.Env()...)
		if out, err := fsck.CombinedOutput(); err != nil {
			t.Errorf("git fsck --strict in %s: %v: %s", dir, err, out)
		}
	}
}
