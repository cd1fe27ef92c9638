package follow

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/session/catalog"
)

func git(t *testing.T, top string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", top, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestUnchangedWhileTheMountMoves checks that a mount that was moved by following counts as unchanged, also between the
// move and the time when its record is stored. A call in between waits, and the process after a kill in between detects
// the move.
func TestUnchangedWhileTheMountMoves(t *testing.T) {
	top, home := t.TempDir(), t.TempDir()
	git(t, top, "init", "-q", "-b", "main")
	git(t, top, "commit", "-q", "--allow-empty", "-m", "one")
	if err := os.WriteFile(filepath.Join(top, "file"), []byte("two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git(t, top, "add", "-A")
	git(t, top, "commit", "-q", "-m", "two")
	tip, err := object.ParseID(git(t, top, "rev-parse", "main"))
	if err != nil {
		t.Fatal(err)
	}
	git(t, top, "reset", "-q", "--hard", "main~1")
	dir := gitdir.Reopen(filepath.Join(top, ".git"), gitdir.Options{Format: object.SHA1, WorkTree: top})
	from, err := dir.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// follower returns a Follower that moves the branch of a plain repository and then calls moved.
	follower := func(moved func()) *Follower {
		return New(Follower{
			Mount: &catalog.Mounted{Home: home, Writable: true}, On: true, Log: zap.NewNop(),
			MoveTo: func(_ context.Context, _ *gitdir.Dir, want checkout.SwitchIntent,
				_ func(control.Progress)) (control.SwitchReply, error) {
				git(t, top, "reset", "-q", "--hard", want.Forward)
				moved()
				return control.SwitchReply{}, nil
			},
			Snapshot: func() *fetch.Snapshot { return &fetch.Snapshot{Ref: "refs/heads/main", Commit: from.Commit} },
			Git:      func() *gitdir.Dir { return dir },
		})
	}
	var w *Follower
	during := make(chan bool, 1)
	w = follower(func() {
		if !follower(nil).Unchanged(t.Context(), true) {
			t.Error("a process after a kill before the record was stored finds changes")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if w.Unchanged(short, true) {
			t.Error("a call during the move did not wait")
		}
		go func() { during <- w.Unchanged(t.Context(), true) }()
	})
	if w.Unchanged(t.Context(), true) {
		t.Error("a mount that was never moved by following counts as unchanged")
	}
	var reply control.RefreshReply
	if err := w.advance(t.Context(), dir, "main", from, tip, from.Commit, &reply); err != nil || !reply.Moved {
		t.Fatalf("follow: got %+v, %v", reply, err)
	}
	if !<-during || !w.Unchanged(t.Context(), true) {
		t.Error("the mount counts as changed after the move")
	}
	if f := w.readFollowed(); f.Put != tip.String() || f.Next != "" {
		t.Errorf("stored state: got %+v", f)
	}
}
