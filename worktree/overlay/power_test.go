package overlay

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// TestPowerCut cuts the power after random operations. Fsynced data must exist, a base file has the contents of the
// base or those that were synced in their place, the namespace is the state of one moment, and the overlay works
// afterwards.
func TestPowerCut(t *testing.T) {
	runs := uint64(100)
	if testing.Short() {
		runs = 20
	}
	for seed := range runs {
		powerRun(t, seed, false)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestRemovalWaitsForTheLog: after a power loss, an earlier record may be the last one, and the contents file that it
// refers to must exist.
func TestRemovalWaitsForTheLog(t *testing.T) {
	for seed := range uint64(60) {
		top := t.TempDir()
		before := filepath.Join(top, "before")
		if err := os.Mkdir(before, 0o700); err != nil {
			t.Fatal(err)
		}
		crash, err := disktest.NewCrashFS(before)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, filepath.Join(before, "overlay"), Options{FS: crash})
		w.o.pause, w.o.quiet = time.Hour, time.Hour
		w.mustOpen()
		w.must(w.create("file1"))
		w.must(w.write("file1", 0, []byte("precious")))
		w.must(w.fsync("file1"))
		w.must(w.remove("file1"))
		w.must(w.l.removeDead())
		after := filepath.Join(top, "after")
		w.must(crash.Crash(after, seed))
		w.kill()
		w.must(crash.Close())
		w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2"})
		w.mustOpen()
		if m, ok, err := w.look("file1"); err != nil || ok && string(m.data) != "precious" {
			t.Errorf("seed %d: got file %+v, %v", seed, m, err)
		}
		w.mustClose()
	}
}

// powerRun cuts the power after random operations, among which are seals and calls of Reclaim if the parameter seals is
// true.
func powerRun(t *testing.T, seed uint64, seals bool) {
	top := t.TempDir()
	before := filepath.Join(top, "before")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(before)
	if err != nil {
		t.Fatal(err)
	}
	defer crash.Close()
	r := rand.New(rand.NewPCG(seed, 3))
	w := newWorld(t, filepath.Join(before, "overlay"), Options{FS: crash, idle: 3})
	w.o.pause, w.o.quiet = time.Hour, time.Hour // the test itself does the janitor's work
	if seals {
		w.o.Shares = filepath.Join(before, "shares")
		w.must(crash.Mkdir(w.o.Shares, 0o700))
		w.must(crash.SyncDir(before))
	}
	w.mustOpen()
	moments := []map[string]Node{w.namespace()} // since the last sync of the log
	synced := map[Node][]byte{}                 // data that was fsynced and not changed since
	trusted := map[Node]bool{}                  // base files whose new contents were synced once
	w.synced = func(m *modelFile) {
		if !m.base {
			synced[m.node], trusted[m.node] = bytes.Clone(m.data), true
		}
		moments = moments[:0]
	}
	for range 1 + r.IntN(50) {
		was := map[Node][]byte{}
		for _, m := range w.files {
			was[m.node] = bytes.Clone(m.data)
		}
		if len(w.names) > 0 && r.IntN(4) == 0 {
			w.must(w.fsync(w.names[r.IntN(len(w.names))]))
		} else {
			w.must(w.step(r))
		}
		for _, m := range w.files {
			if !bytes.Equal(was[m.node], m.data) {
				delete(synced, m.node)
			}
		}
		moments = append(moments, w.namespace())
		switch r.IntN(16) {
		case 0:
			w.must(w.l.janitor.compact())
		case 1, 2:
			w.must(w.l.janitor.tidy(true))
			for _, m := range w.files {
				trusted[m.node] = !m.base
			}
		case 3, 4, 5:
			if seals {
				_, err := Reclaim(t.Context(), alone, w.l)
				w.must(err)
				w.sealed = nil
			}
		}
	}
	after := filepath.Join(top, "after")
	w.must(crash.Crash(after, seed))
	w.kill()

	w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2", idle: 3})
	if seals {
		w.o.Shares = filepath.Join(after, "shares")
	}
	rec := w.mustOpen()
	if rec.Start == Killed {
		t.Errorf("recovery after the power loss: got %+v, want another start than killed", rec)
	}
	now := map[string]Node{}
	for _, n := range w.everyName() {
		m, ok, err := w.look(n)
		if err != nil {
			t.Errorf("look at %s: %v", n, err)
		}
		if !ok {
			continue
		}
		now[n] = m.node
		want, ok := synced[m.node]
		switch {
		case ok && !bytes.Equal(m.data, want):
			t.Errorf("contents of %s: got %d bytes, want the %d fsynced ones", n, len(m.data), len(want))
		case !m.node.Own() && !m.base && !trusted[m.node]:
			t.Errorf("contents of %s: got neither the base's nor fsynced ones", n)
		}
		w.files[n] = m
	}
	found := false
	for _, m := range moments {
		found = found || maps.Equal(m, now)
	}
	if !found {
		t.Errorf("the names are the state of no moment since the last fsync:\n%v\nlast: %v", now, moments[len(moments)-1])
	}
	w.adopt(now)
	for range 10 {
		w.must(w.step(r))
	}
	w.compare()
	w.mustClose()
	w.sound()
}

// namespace returns the nodes by name.
func (w *world) namespace() map[string]Node {
	names := map[string]Node{}
	for name, m := range w.files {
		names[name] = m.node
	}
	return names
}

// everyName returns all names that may exist.
func (w *world) everyName() (names []string) {
	for i := range 80 {
		names = append(names, fmt.Sprint("file", i))
	}
	for n := root + 1; n < root+1+baseFiles; n++ {
		names = append(names, baseName(n))
	}
	return names
}

// adopt sets the model to the state that was found.
func (w *world) adopt(now map[string]Node) {
	w.serial = 1000
	w.names = w.names[:0]
	for _, name := range w.everyName() {
		if _, ok := now[name]; ok {
			w.names = append(w.names, name)
			if n := now[name]; n.Own() {
				w.l.Remember(n)
			}
		} else {
			delete(w.files, name)
		}
	}
}

// crashed returns a disk in top/before whose power can be cut.
func crashed(t *testing.T, top string) (dir string, crash *disktest.CrashFS) {
	t.Helper()
	before := filepath.Join(top, "before")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(before)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { crash.Close() })
	return before, crash
}

// TestPowerCutAfterClose: Close does not sync contents, so the next boot must not trust the sizes in the log, also if a
// process is killed while it checks them.
func TestPowerCutAfterClose(t *testing.T) {
	shrunk := 0
	for seed := range uint64(40) {
		top := t.TempDir()
		before, crash := crashed(t, top)
		w := newWorld(t, filepath.Join(before, "overlay"), Options{FS: crash})
		w.mustOpen()
		for i := range 5 {
			name := fmt.Sprint("file", i)
			w.must(w.create(name))
			w.must(w.write(name, 0, bytes.Repeat([]byte("x"), 9000)))
		}
		w.mustClose()
		after := filepath.Join(top, "after")
		w.must(crash.Crash(after, seed))
		n := 0
		for operation := 1; seed%2 == 0; operation += 3 {
			w = newWorld(t, filepath.Join(after, "overlay"),
				Options{boot: "boot-2", FS: disktest.Faulty(disk.OS, func(op disktest.Op) error {
					n = op.N
					if op.N >= operation {
						return syscall.EIO
					}
					return nil
				})})
			if _, err := w.open(); err == nil {
				w.kill()
				break
			}
		}
		w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2"})
		rec := w.mustOpen()
		shrunk += len(rec.Shrunk)
		for i := range 5 {
			if _, ok, err := w.look(fmt.Sprint("file", i)); err != nil || !ok {
				t.Errorf("seed %d: file%d after %d operations: got %v", seed, i, n, err)
			}
		}
		w.mustClose()
	}
	if shrunk == 0 {
		t.Error("no file became shorter: the power loss was not simulated")
	}
}

// TestDirectoriesAreSyncedAfterAFault: if an Open has created the overlay's directory and failed to sync its name, the
// next Open must sync the name. Otherwise a power loss could lose fsynced files.
func TestDirectoriesAreSyncedAfterAFault(t *testing.T) {
	for operation := 1; ; operation++ {
		top := t.TempDir()
		before, crash := crashed(t, top)
		var over, failed atomic.Bool // the overlay's own goroutines use the file system, too
		w := newWorld(t, filepath.Join(before, "overlay"), Options{FS: disktest.Faulty(crash, func(op disktest.Op) error {
			if op.N == operation && !over.Load() {
				failed.Store(true)
				return syscall.EIO
			}
			return nil
		})})
		if _, err := w.open(); err != nil {
			w.mustOpen()
		}
		over.Store(true)
		if !failed.Load() {
			w.mustClose()
			return
		}
		w.must(w.create("file1"))
		w.must(w.write("file1", 0, []byte("precious")))
		w.must(w.fsync("file1"))
		after := filepath.Join(top, "after")
		w.must(crash.Crash(after, uint64(operation)))
		w.kill()
		w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2"})
		w.mustOpen()
		if m, ok, err := w.look("file1"); err != nil || !ok || string(m.data) != "precious" {
			t.Errorf("fsynced file after operation %d of Open failed: got %+v, %v", operation, m, err)
		}
		w.mustClose()
	}
}
