package worktree_test

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// A copy-up that waits for contents does not block other calls, and can be interrupted without an effect.
func TestSlowCopyUp(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"slow": {Data: "slow data"}, "quick": {Data: "q"}})
	release := make(chan struct{})
	w.src.Rule("slow", worktreetest.Rule{Block: release})
	slow := w.node("slow")
	ctx, interrupt := context.WithCancel(t.Context())
	write := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := w.Write(ctx, slow, []byte("S"), 0, false)
			done <- err
		}()
		return done
	}
	interrupted, patient := write(ctx), write(t.Context())
	await.Until(t, "two callers wait for slow", func() bool { return w.src.Waiting("slow") == 2 })
	w.write(w.node("quick"), "Quick", 0)
	w.ok(w.rename("slow", "moved"))
	w.set("moved", Change{Set: SetMode, Mode: 0o600})
	interrupt()
	w.want("interrupted write", <-interrupted, context.Canceled)
	close(release)
	w.ok(<-patient)
	w.both(func() { w.contents(map[string]string{"moved": "Slow data", "quick": "Quick"}) })
}

// A write during a copy-up that waits is not overwritten by it.
func TestCopyUpRace(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: strings.Repeat("base", 1000)}})
	release := make(chan struct{})
	w.src.Rule("f", worktreetest.Rule{Block: release})
	n, done := w.node("f"), make(chan error, 1)
	go func() {
		_, err := w.Write(t.Context(), n, []byte("late"), 2, false)
		done <- err
	}()
	await.Until(t, "one caller waits for f", func() bool { return w.src.Waiting("f") == 1 })
	w.set("f", Change{Set: SetSize, Size: 0})
	w.write(n, "first", 0)
	close(release)
	w.ok(<-done)
	if got := w.read(n); got != "filate" {
		t.Errorf("contents after the copy-up: got %q", got)
	}
}

// A copy from a file whose contents are missing fetches those contents only. A copy within the overlay requests
// nothing.
func TestCopyRange(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"base": {Data: "0123456789"}, "other": {Data: "other"}})
	ctx, base := t.Context(), w.node("base")
	own := w.create("own", "")
	copyRange := func(from Node, fromOff int64, to Node, toOff, n, want int64) {
		t.Helper()
		if k, err := w.CopyRange(ctx, from, fromOff, to, toOff, n); k != want || err != nil {
			t.Errorf("copy: copied %d bytes, %v, want %d", k, err, want)
		}
	}
	w.calls("from the base", 0, 0, 1, func() { copyRange(base, 2, own, 0, 5, 5) })
	w.calls("into the base", 0, 0, 1, func() { copyRange(own, 0, w.node("other"), 1, 100, 5) })
	w.calls("within the overlay", 0, 0, 0, func() { copyRange(own, 1, own, 10, 3, 3) })
	copyRange(base, 10, own, 0, 5, 0)
	w.contents(map[string]string{"base": "0123456789", "own": "23456\x00\x00\x00\x00\x00345", "other": "o23456"})
	_, err := w.CopyRange(ctx, Root, 0, own, 0, 1)
	w.want("copy a directory", err, ErrIsDir)
	_, err = w.CopyRange(ctx, own, 0, Root, 0, 1)
	w.want("copy to a directory", err, ErrIsDir)
	_, err = w.CopyRange(ctx, own, -1, own, 0, 1)
	w.want("copy from before the start", err, unix.EINVAL)
}

func TestFallocate(t *testing.T) {
	w := newWorkspace(t, map[string]worktreetest.File{"f": {Data: "base data"}})
	n := w.node("f")
	w.ok(w.Fallocate(t.Context(), n, 0, 0, 20))
	w.ok(w.Fallocate(t.Context(), n, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<16))
	w.ok(w.Fallocate(t.Context(), n, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1, 3))
	w.want("allocate nothing", w.Fallocate(t.Context(), n, 0, 0, 0), unix.EINVAL)
	w.want("allocate a directory", w.Fallocate(t.Context(), Root, 0, 0, 1), ErrIsDir)
	w.both(func() { w.contents(map[string]string{"f": "b\x00\x00\x00 data" + strings.Repeat("\x00", 11)}) })
}
