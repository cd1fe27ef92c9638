package capture_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestSegments checks that a segment ends when another writer takes over the lane, and that a lane that is no longer
// used keeps its checkpoints.
func TestSegments(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	n := 0
	checkpoint := func() session.Checkpoint {
		t.Helper()
		n++
		w.write("a", fmt.Sprint(n))
		p, r := w.checkpoint(session.Manual)
		if !r.Made {
			t.Fatal("no checkpoint was made")
		}
		return p
	}
	first, second := checkpoint(), checkpoint()
	if second.Segment != 1 || second.Prev != first.ID {
		t.Errorf("second checkpoint: got %+v, want segment 1 after the first checkpoint", second)
	}
	w.o.Segment = 3
	w.openCapturer()
	third := checkpoint()
	if third.Segment != 3 || third.Prev != second.ID {
		t.Errorf("checkpoint after a take-over: got %+v", third)
	}
	_, content, err := w.repo.Get(third.Commit, 1<<20)
	must(t, err)
	if parent, err := session.CheckpointParent(object.SHA1, content); err != nil || !parent.IsZero() {
		t.Errorf("parent of the first checkpoint of a segment: got %s, %v", parent, err)
	}
	w.c.SetLane("main-host", 1)
	fourth := checkpoint()
	if fourth.Lane != "main-host" || fourth.Segment != 1 || fourth.Prev != third.ID {
		t.Errorf("checkpoint on another lane: got %+v", fourth)
	}
	if fifth := checkpoint(); fifth.Lane != "main-host" || fifth.Segment != 1 || fifth.Prev != fourth.ID {
		t.Errorf("next checkpoint on that lane: got %+v", fifth)
	}
	checkpoints, err := w.repo.Checkpoints(0)
	if err != nil || len(checkpoints) != 5 {
		t.Fatalf("list of checkpoints: got %d, %v", len(checkpoints), err)
	}
	for i, p := range checkpoints {
		for _, name := range []string{fmt.Sprintf("@~%d", i), string(p.ID), string(p.ID[:25])} {
			if i == 0 && name == "@~0" {
				name = "@"
			}
			if got, err := w.repo.Find(name); err != nil || got != p {
				if len(name) == 25 && err != nil {
					continue // several ids may begin with this prefix
				}
				t.Errorf("checkpoint named %s: got %+v, %v", name, got, err)
			}
		}
	}
}

// TestMessageWithoutChanges checks that a checkpoint with a new message is made although nothing has changed, and
// that no second one is made with the same message.
func TestMessageWithoutChanges(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	w.write("a", "1")
	before, _ := w.checkpoint(session.Idle)
	said, r, err := w.c.Checkpoint(w.ctx, session.Manual, "before the clean-up")
	must(t, err)
	if !r.Made || said.ID <= before.ID || said.Tree != before.Tree || said.Message != "before the clean-up" {
		t.Errorf("manual checkpoint of an unchanged tree: got %+v (made: %v), want a new one with the same tree", said,
			r.Made)
	}
	for _, message := range []string{"before the clean-up", ""} {
		again, r, err := w.c.Checkpoint(w.ctx, session.Manual, message)
		must(t, err)
		if r.Made || again.ID != said.ID {
			t.Errorf("checkpoint with message %q: got %+v (made: %v)", message, again, r.Made)
		}
	}
}

// TestGCBetweenCheckpoints checks that gc may rewrite the previous checkpoints without an effect on the contents of the
// next one.
func TestGCBetweenCheckpoints(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	for i := range 4 {
		w.write("a", fmt.Sprint(i))
		w.checkpoint(session.Manual)
	}
	result, err := session.GC(w.ctx, w.repo, session.GCOptions{Session: "s",
		Keep: session.Retention{All: time.Nanosecond, Daily: time.Nanosecond}, Now: time.Now().Add(100 * 24 * time.Hour)})
	if err != nil || len(result.Dropped) != 3 {
		t.Fatalf("gc dropped %d checkpoints, %v", len(result.Dropped), err)
	}
	p, r := w.checkpoint(session.Idle)
	tip, err := w.repo.Ref(session.SegmentRef("s", "main", 1))
	must(t, err)
	if r.Made || p.Commit != tip {
		t.Errorf("checkpoint without a change after gc: got made %v, %+v; the ref is %s", r.Made, p, tip)
	}
	w.write("a", "next")
	q, _ := w.checkpoint(session.Manual)
	if q.Prev != p.ID || q.Segment != 1 {
		t.Errorf("checkpoint after gc: got %+v, want segment 1 after %s", q, p.ID)
	}
	w.git(w.repo.Dir(), "fsck")
}

// TestCheckpointThatFails checks that nothing is lost if a checkpoint fails, for example because the disk is full, and
// that the next checkpoint has all changes.
func TestCheckpointThatFails(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n"), ".gitignore": text("*.o\n")})
	w.write("a", "1")
	w.write("x.o", "x")
	p, _ := w.checkpoint(session.Manual)
	w.write("a", "2")
	w.write("b", "3")
	w.write("y.o", "y")
	pack := filepath.Join(w.repo.Dir(), "objects", "pack")
	must(t, os.Rename(pack, pack+".away"))
	must(t, os.WriteFile(pack, nil, 0o644))
	if _, _, err := w.c.Checkpoint(w.ctx, session.Manual, ""); err == nil {
		t.Fatal("a checkpoint without a writable repository succeeded")
	}
	must(t, os.Remove(pack))
	must(t, os.Rename(pack+".away", pack))
	q, r := w.check("after a failure")
	if q.Prev != p.ID || q.Changed != 2 || q.Left != 2 || !r.Made {
		t.Errorf("checkpoint after the pack was restored: got %+v, %+v", q, r)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	w.write("b", "4")
	if _, _, err := w.c.Checkpoint(ctx, session.Manual, ""); err == nil {
		t.Error("a checkpoint after Close succeeded")
	}
	w.check("after an end")
}
