package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// The remote-tracking branches of a clone of which this host lacks objects are fetched after its tree has been added,
// without file contents, and nothing else waits for them.
func TestWorktreeTrackingOfAPartialClone(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("app.git", object.SHA1)
	w.commit(repo, sample("tracking"))
	defer w.afs("unmount", "--all")
	w.sh(w.root, "git clone -q "+repo.Path+" whole && cd whole && git checkout -q -b other && echo other >only && "+
		"git add only && git commit -qm other && git push -q origin other && "+
		"for i in 1 2 3 4 5; do echo $i >old; git add old; git commit -qm $i; done; git push -q origin HEAD:topic/deep")
	w.sh(w.root, "git clone -q --filter=blob:none file://"+repo.Path+" app")
	app, tree := filepath.Join(w.root, "app"), filepath.Join(w.root, "tree")
	w.sh(app, "git commit -q --allow-empty -m ahead")
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	w.sh(app, state+binary+" worktree add ../tree")
	w.sh(tree, "git config user.email kept@example.invalid && git commit -q --allow-empty -m 'In the tree' && "+state+binary+
		" sync .")
	if got := w.sh(app, "git log -1 --format=%s tree"); got != "In the tree" {
		t.Errorf("branch of the tree in the clone: got %q", got)
	}
	const branches = "git for-each-ref --format='%(refname) %(objectname)' refs/remotes/origin"
	want := w.sh(app, branches)
	if strings.Count(want, "\n") != 3 {
		t.Fatalf("remote-tracking branches of the clone: got %q", want)
	}
	w.until("the tree has the branches of the clone", func() bool { return w.sh(tree, branches) == want })
	for _, c := range [][2]string{
		{"ls $(git rev-parse --git-dir)/objects/pack | wc -l", "0"},
		{"ls $(git rev-parse --git-dir)/.. | grep -c git-new.json || true", "0"},
		{"git symbolic-ref refs/remotes/origin/HEAD", "refs/remotes/origin/main"},
		{"git config user.email", "kept@example.invalid"},
		{"git log --format=%s -2 origin/topic/deep", "5\n4"},
		{"git show origin/other:only", "other"},
		{"git fsck --connectivity-only 2>&1 | grep -c error || true", "0"},
	} {
		script, want := c[0], c[1]
		if got := w.sh(tree, script); got != want {
			t.Errorf("%s in the tree: got %q, want %q", script, got, want)
		}
	}
}

// A tree whose clone cannot fetch what its remote-tracking branches need works, is pushed and ends at once, and gets the
// branches when the clone can fetch again.
func TestWorktreeTrackingThatStalls(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("app.git", object.SHA1)
	w.commit(repo, sample("stalls"))
	defer w.afs("unmount", "--all")
	w.sh(w.root, "git clone -q "+repo.Path+" whole && cd whole && git checkout -q -b other && mkdir deep && echo other >deep/f && "+
		"git add deep && git commit -qm other && git push -q origin other")
	w.sh(w.root, "git clone -q --filter=tree:0 file://"+repo.Path+" app")
	app, tree := filepath.Join(w.root, "app"), filepath.Join(w.root, "tree")
	state := "export ARTIFACTFS_STATE=" + w.state + "; "
	began := filepath.Join(w.root, "began")
	w.sh(app, "git config remote.origin.uploadpack 'echo >>"+began+"; sleep 60; false'; "+state+binary+" worktree add ../gone")
	start := now()
	w.afs("unmount", filepath.Join(w.root, "gone"))
	if took := start.elapsed(); took > 5*time.Second {
		t.Errorf("unmount during a fetch that stalls took %v", took)
	}
	w.sh(app, state+binary+" worktree add --session stalled ../tree")
	w.until("a fetch stalls", func() bool {
		_, err := os.Lstat(began)
		return err == nil
	})
	w.sh(tree, "git config user.email kept@example.invalid && git commit -q --allow-empty -m 'In the tree' && "+state+binary+
		" sync .")
	if got := w.sh(app, "git log -1 --format=%s tree"); got != "In the tree" {
		t.Errorf("branch of the tree in the clone while a fetch stalls: got %q", got)
	}
	start = now()
	w.afs("unmount", tree)
	if took := start.elapsed(); took > 5*time.Second {
		t.Errorf("unmount during a fetch that stalls took %v", took)
	}
	// The session continues what the unmount has interrupted. It fails, and is repeated.
	w.sh(app, "git config remote.origin.uploadpack false; export GIT_NO_LAZY_FETCH=0; "+state+binary+" session resume stalled")
	w.until("the status shows the failure", func() bool {
		return strings.Contains(w.afs("status", "--json").stdout, "add remote-tracking branches: ")
	})
	w.sh(app, "git config --unset remote.origin.uploadpack")
	w.until("the tree has the branch", func() bool { return w.sh(tree, "git branch -r --list origin/other") != "" })
	if got := w.sh(tree, "git config user.email; git show origin/other:deep/f"); got != "kept@example.invalid\nother" {
		t.Errorf("settings and branch of the tree: got %q", got)
	}
	w.until("the failure is gone", func() bool {
		return !strings.Contains(w.afs("status", "--json").stdout, "add remote-tracking branches: ")
	})
}
