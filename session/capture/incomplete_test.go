package capture_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
)

// TestIncompleteGitDirectory checks that checkpoints contain the previous state of git while the git directory has no
// HEAD, and that a missing index then does not count as an empty one.
func TestIncompleteGitDirectory(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": {Data: []byte("a\n")}, "d/b": {Data: []byte("b\n")}})
	w.o.InitialState = &capture.InitialState{Branch: "refs/heads/main", Commit: w.commit, Tree: w.root}
	w.openCapturer()
	move := func(from, to string) {
		t.Helper()
		for _, name := range []string{"HEAD", "index"} {
			if err := os.Rename(filepath.Join(w.o.GitDir, from+name), filepath.Join(w.o.GitDir, to+name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	state := func(p session.Checkpoint) session.State {
		t.Helper()
		s, err := w.repo.State(p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	move("", "away-")
	if same, err := w.o.InitialState.Untouched(w.o.GitDir, object.SHA1); !same || err != nil {
		t.Errorf("git directory without HEAD: got untouched %t, %v", same, err)
	}
	w.write("new", "new\n")
	first, _ := w.checkpoint(session.Idle)
	if s := state(first); s.Branch != "refs/heads/main" || s.Head != w.commit || s.Index.Tree != w.root {
		t.Errorf("first checkpoint: got branch %q, HEAD %s, index %s, want those of the new mount", s.Branch,
			s.Head, s.Index.Tree)
	}

	move("away-", "")
	w.git(w.plain, "switch", "-qc", "topic")
	w.git(w.plain, "rm", "-q", "--cached", "a")
	before, _ := w.checkpoint(session.Manual)
	move("", "away-")
	w.write("d/b", "changed\n")
	after, _ := w.checkpoint(session.Manual)
	was, is := state(before), state(after)
	if is.Branch != "refs/heads/topic" || is.Head != was.Head || is.Index.Tree != was.Index.Tree ||
		is.Index.Tree == w.root || after.Tree == before.Tree {
		t.Errorf("checkpoint without HEAD: got %+v, want git's state of the checkpoint before, %+v", is, was)
	}
	if _, report := w.checkpoint(session.Idle); report.Made {
		t.Error("a checkpoint was made without changes")
	}
	move("away-", "")
	w.git(w.plain, "add", "a")
	if s :=
		state(func() session.Checkpoint {
			p, _ :=
				w.checkpoint(session.Manual)
			return p
		}()); s.Index.Tree == was.Index.Tree {
		t.Error("the index was not read again when the git directory was complete")
	}
}
