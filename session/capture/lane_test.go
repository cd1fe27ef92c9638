package capture_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// Segments end when the lane goes to somebody else, and a lane that is left keeps what it has.
func TestSegments(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	n := 0
	checkpoint := func() session.Checkpoint {
		t.Helper()
		n++
		w.write("a", fmt.Sprint(n))
		p, r := w.checkpoint(session.Manual)
		if !r.Made {
			t.Fatal("nothing was made")
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
		t.Errorf("after a take-over: %+v", third)
	}
	_, content, err := w.repo.Get(third.Commit, 1<<20)
	must(t, err)
	if parent, err := session.CheckpointParent(object.SHA1, content); err != nil || !parent.IsZero() {
		t.Errorf("the first of a segment has parent %s, %v", parent, err)
	}
	w.c.SetLane("main-host", 1)
	fourth := checkpoint()
	if fourth.Lane != "main-host" || fourth.Segment != 1 || fourth.Prev != third.ID {
		t.Errorf("on a lane of its own: %+v", fourth)
	}
	if fifth := checkpoint(); fifth.Lane != "main-host" || fifth.Segment != 1 || fifth.Prev != fourth.ID {
		t.Errorf("then: %+v", fifth)
	}
	checkpoints, err := w.repo.Checkpoints(0)
	if err != nil || len(checkpoints) != 5 {
		t.Fatalf("%d checkpoints, %v", len(checkpoints), err)
	}
	for i, p := range checkpoints {
		for _, name := range []string{fmt.Sprintf("@~%d", i), string(p.ID), string(p.ID[:25])} {
			if i == 0 && name == "@~0" {
				name = "@"
			}
			if got, err := w.repo.Find(name); err != nil || got != p {
				if len(name) == 25 && err != nil {
					continue // several may begin with that
				}
				t.Errorf("%s is %+v, %v", name, got, err)
			}
		}
	}
}

// A checkpoint with a message is made even if nothing changed since the last one. The same message a second time makes none.
func TestMessageOfWhatIsKeptAlready(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	w.write("a", "1")
	before, _ := w.checkpoint(session.Idle)
	said, r, err := w.c.Checkpoint(w.ctx, session.Manual, "before the clean-up")
	must(t, err)
	if !r.Made || said.ID <= before.ID || said.Tree != before.Tree || said.Message != "before the clean-up" {
		t.Errorf("manual checkpoint of an unchanged tree: got %+v (made: %v), want a new one with the same tree", said, r.Made)
	}
	for _, message := range []string{"before the clean-up", ""} {
		again, r, err := w.c.Checkpoint(w.ctx, session.Manual, message)
		must(t, err)
		if r.Made || again.ID != said.ID {
			t.Errorf("said %q: %+v (%v)", message, again, r.Made)
		}
	}
}

// What the checkpoints before are called after a gc does not matter to the next one.
func TestGCBetweenCheckpoints(t *testing.T) {
	w := newWorld(t, object.SHA1, map[string]gittest.File{"a": text("a\n")})
	for i := range 4 {
		w.write("a", fmt.Sprint(i))
		w.checkpoint(session.Manual)
	}
	result, err := session.GC(w.ctx, w.repo, session.GCOptions{Session: "s", Keep: session.Retention{All: time.Nanosecond, Daily: time.Nanosecond}, Now: time.Now().Add(100 * 24 * time.Hour)})
	if err != nil || len(result.Dropped) != 3 {
		t.Fatalf("dropped %d, %v", len(result.Dropped), err)
	}
	p, r := w.checkpoint(session.Idle)
	tip, err := w.repo.Ref(session.SegmentRef("s", "main", 1))
	must(t, err)
	if r.Made || p.Commit != tip {
		t.Errorf("made %v, %+v; the ref is %s", r.Made, p, tip)
	}
	w.write("a", "next")
	q, _ := w.checkpoint(session.Manual)
	if q.Prev != p.ID || q.Segment != 1 {
		t.Errorf("checkpoint after the gc: got %+v", q)
	}
	w.git(w.repo.Dir(), "fsck")
}

// A disk that is full, or whatever else: the checkpoint fails, nothing is lost, and the next one has it all.
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
		t.Fatal("a checkpoint without a place to write to")
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
		t.Error("a checkpoint after its end")
	}
	w.check("after an end")
}
