package readable

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/mounted"
)

func TestMain(m *testing.M) { os.Exit(mounted.WithoutConfig(m.Run)) }

// TestMake checks that stock git can read the checkpoints in the readable branch without the history of the mounted
// repository, and that Make returns no new commit for a branch that lacks nothing.
func TestMake(t *testing.T) {
	p := mounted.New(t, object.SHA1)
	p.Commit("d/new.txt", "one")
	p.Checkpoint("manual")
	m := Maker{Repo: p.Repo, Log: zaptest.NewLogger(t)}
	made, err := m.Make(t.Context(), t.TempDir(), object.ID{}, false)
	if err != nil || made.Tip.IsZero() {
		t.Fatalf("first value of the branch: got %v, %v", made.Tip, err)
	}
	var pack bytes.Buffer
	if err := made.Pack(context.Background(), &pack); err != nil {
		t.Fatal(err)
	}
	reader := t.TempDir()
	mounted.Run(t, reader, "", "init", "-q", "--bare")
	mounted.Run(t, reader, pack.String(), "index-pack", "--stdin")
	mounted.Run(t, reader, "", "update-ref", "refs/heads/readable", made.Tip.String())
	mounted.Run(t, reader, "", "fsck", "--strict")
	if files := mounted.Run(t, reader, "", "ls-tree", "-r", "--name-only", "readable"); files != "d/new.txt" {
		t.Errorf("files of the branch: got %q, want d/new.txt", files)
	}
	if log := mounted.Run(t, reader, "", "log", "--format=%s", "readable"); !strings.HasPrefix(log,
		"checkpoint (manual)\n") {
		t.Errorf("commits of the branch: got %q, want the checkpoint first", log)
	}
	made.Pushed()
	if again, err := m.Make(t.Context(), t.TempDir(), made.Tip, false); err != nil || !again.Tip.IsZero() {
		t.Errorf("value of the branch without a new checkpoint: got %v, %v, want none", again.Tip, err)
	}
}
