package worktree_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// faultBoot2 is the UUID of the boot after the power cut.
const faultBoot2 = "22222222-2222-2222-2222-222222222222"

// TestPowerCut cuts the power at a random disk operation, twice in a row. Fsynced files keep their contents and nodes,
// no query with a journal position from before the cut has a wrong answer, and the tree works afterwards. After a Close
// nothing is missing, also in the journal.
func TestPowerCut(t *testing.T) {
	runs := uint64(150)
	if testing.Short() {
		runs = 30
	}
	closed := 0
	for seed := range runs {
		if powerRun(t, seed) {
			closed++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if closed == 0 || closed == int(runs) {
		t.Errorf("got %d of %d runs in which the tree was closed before the cut", closed, runs)
	}
}

func powerRun(t *testing.T, seed uint64) (closed bool) {
	top, err := os.MkdirTemp("/dev/shm", "")
	if err != nil {
		top = t.TempDir()
	}
	defer os.RemoveAll(top)
	dir := filepath.Join(top, "before")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer crash.Close()
	r := rand.New(rand.NewPCG(seed, 7))
	var once sync.Once
	after := filepath.Join(top, "after")
	var durable map[string]string
	var w *faultTree
	killed, dark := false, false
	power := func() {
		once.Do(func() {
			durable, dark = maps.Clone(w.durable), true
			if err := crash.Crash(after, seed); err != nil {
				t.Error(err)
			}
		})
	}
	at := 1 + r.IntN(250)
	failing := r.IntN(2 * at) // this sync fails without a power loss, if it precedes the cut
	w = newFaultTree(t, dir, disktest.Faulty(crash, func(op disktest.Op) error {
		if op.N >= at {
			power()
			return syscall.EIO
		}
		if op.N >= failing && failing > 0 && strings.HasSuffix(op.Name, "Sync") {
			failing = 0
			return syscall.EIO
		}
		return nil
	}))
	if err := w.open(); err == nil {
		for i := 1 + r.IntN(40); i > 0 && !dark; i-- {
			if err := w.step(r); err != nil && !errors.Is(err, syscall.EIO) {
				t.Error(err)
			}
		}
		if r.IntN(2) == 0 {
			closed = w.Close() == nil
			power()
		} else {
			killed = true
			defer w.Close()
		}
	} else if !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	power()

	next := newFaultTree(t, after, disk.OS)
	next.options.FS = disktest.Booted(disk.OS, faultBoot2)
	if err := next.open(); err != nil {
		t.Fatalf("open after the cut: %v", err)
	}
	got := next.contents()
	for name, want := range durable {
		if data, ok := got[name]; !ok || data != want {
			t.Errorf("%s after the cut: got %d bytes (present: %v), want the %d that were fsynced", name, len(data),
				ok, len(want))
		}
	}
	if closed { // all names are on disk; contents that were not fsynced may be missing
		want, have := slices.Sorted(maps.Keys(w.files)), slices.Sorted(maps.Keys(got))
		if !slices.Equal(have, want) {
			t.Errorf("files after a close and a cut: got %q, want %q", have, want)
		}
	}
	next.changed, next.tokens, next.files, next.serial = w.changed, w.tokens, got, w.serial
	known := next.checkTokens()
	if closed && known != len(w.tokens) {
		t.Errorf("tokens known after a close and a cut: got %d, want %d", known, len(w.tokens))
	}
	if killed && known != 0 {
		t.Errorf("tokens known after a cut without a close: got %d, want 0", known)
	}
	for range 20 {
		if err := next.step(r); err != nil {
			t.Error(err)
		}
	}
	next.compare()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if err := next.open(); err != nil {
		t.Fatal(err)
	}
	next.compare()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	return closed
}
