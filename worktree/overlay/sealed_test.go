package overlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// sharing returns options for a layer whose shares are in a new directory below top.
func sharing(t testing.TB, top string, o Options) Options {
	t.Helper()
	o.Shares = filepath.Join(top, "shares")
	if err := os.MkdirAll(o.Shares, 0o700); err != nil {
		t.Fatal(err)
	}
	return o
}

// After random operations and seals, over several lives of the process, the files have the expected contents, and the
// files in the shares are those that were sealed.
func TestSeal(t *testing.T) {
	for seed := range uint64(30) {
		top := t.TempDir()
		r := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{idle: 3}))
		for life := range 6 {
			w.o.TakeOver = life%3 == 2
			if rec := w.mustOpen(); len(rec.Problems) > 0 {
				t.Fatalf("seed %d, life %d: got the problems %q", seed, life, rec.Problems)
			}
			w.compare()
			for range 40 {
				if err := w.step(r); err != nil {
					t.Fatalf("seed %d, life %d: %v", seed, life, err)
				}
			}
			w.compare()
			switch life % 3 {
			case 0:
				w.mustClose()
				w.sound()
			case 1: // the next life takes over
				w.kill()
			case 2:
				w.must(w.l.janitor.compact())
				w.kill()
			}
		}
		w.o.TakeOver = false
		w.mustOpen()
		w.compare()
		if len(w.sealed) == 0 && seed > 3 {
			t.Errorf("seed %d: no file was sealed", seed)
		}
		w.mustClose()
		w.sound()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestSealFaults makes the n-th disk operation fail, as TestEveryFault does, while contents are sealed.
func TestSealFaults(t *testing.T) {
	disktest.EveryFault(t, 7, 11, func(t *testing.T, f *disktest.Faults, errno error) {
		top := t.TempDir()
		w := newWorld(t, filepath.Join(top, "overlay"),
			sharing(t, top, Options{FS: disktest.Faulty(disktest.Unsynced(disk.OS), f.Fail), idle: 3}))
		w.o.pause, w.o.quiet = time.Hour, time.Hour // the test itself does the janitor's work
		w.mustOpen()
		attempt := func(what string, do func() error) {
			before := f.Struck()
			if err := f.During(do); err != nil && (!errors.Is(err, errno) || f.Struck() == before) {
				t.Errorf("%s failed with %v, want success or the injected error", what, err)
			}
			w.compare()
		}
		w.must(w.create("a"))
		w.must(w.write("a", 0, []byte("contents of a")))
		w.must(w.write("base3", 5, []byte("changed")))
		for range 2 {
			attempt("seal", w.seal)
			attempt("write", func() error { return w.write("a", 3, []byte("later")) })
			attempt("truncate", func() error { return w.truncate("base3", 7) })
			attempt("copy-up", func() error { return w.write("base4", 0, []byte("x")) })
			attempt("fsync", func() error { return w.fsync("a") })
			attempt("tidy", func() error { return w.l.janitor.tidy(true) })
			attempt("compact", w.l.janitor.compact)
		}
		w.kill()
		w.mustOpen()
		w.compare()
		w.mustClose()
		w.sound()
	})
}

// A process may be killed between any two disk operations of Seal.
func TestSealIsKilled(t *testing.T) {
	for _, takeOver := range []bool{false, true} {
		for killed, at := true, 1; killed; at++ {
			top := t.TempDir()
			var dead bool
			first := 0
			count := func(op disktest.Op) error {
				if first == 0 {
					return nil
				}
				if dead = dead || op.N >= first+at; dead {
					return syscall.EIO
				}
				return nil
			}
			var n int
			fs := disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error { n = op.N; return count(op) })
			w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{FS: fs}))
			w.o.pause, w.o.quiet = time.Hour, time.Hour
			w.mustOpen()
			w.must(w.create("a"))
			w.must(w.write("a", 0, []byte("contents of a")))
			w.must(w.write("base3", 5, []byte("changed")))
			first = n
			killed = w.seal() != nil
			w.kill()
			w.o.FS, w.o.TakeOver = disktest.Unsynced(disk.OS), takeOver
			if rec := w.mustOpen(); len(rec.Problems) > 0 {
				t.Errorf("seal was killed at operation %d: got the problems %q", at, rec.Problems)
			}
			w.compare()
			w.must(w.write("a", 2, []byte("again")))
			w.must(w.write("base3", 0, []byte("again")))
			w.compare()
			w.must(w.seal())
			w.must(w.write("a", 4, []byte("third")))
			w.compare()
			w.mustClose()
			w.sound()
		}
	}
}

// TestPowerCutWithSeals does the same as TestPowerCut while contents are sealed.
func TestPowerCutWithSeals(t *testing.T) {
	runs := uint64(60)
	if testing.Short() {
		runs = 15
	}
	for seed := range runs {
		powerRun(t, seed, true)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A synced file that was sealed and then changed without a sync keeps its contents, or the new ones, in a power cut.
func TestPowerCutAfterACopyOfSealedContents(t *testing.T) {
	for seed := range uint64(40) {
		top, crash, w := crashedSharing(t)
		w.must(w.create("file1"))
		w.must(w.write("file1", 0, bytes.Repeat([]byte("a"), 5000)))
		w.must(w.fsync("file1"))
		w.must(w.seal())
		w.must(w.write("file1", 4000, []byte("b")))
		after := filepath.Join(top, "after")
		w.must(crash.Crash(after, seed))
		w.kill()
		w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2", Shares: filepath.Join(after, "shares")})
		w.mustOpen()
		m, ok, err := w.look("file1")
		if err != nil || !ok || len(m.data) != 5000 || strings.Trim(string(m.data), "a") != "" &&
			strings.Trim(string(m.data), "a") != "b" {
			t.Errorf("seed %d: got file %+v, %v", seed, ok, err)
		}
		w.mustClose()
	}
}

// Open files, pins, kept files and copies of base files continue to work across a seal.
func TestSealWhileFilesAreUsed(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	for _, name := range []string{"a", "b", "c", "d", "gone"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, bytes.Repeat([]byte(name), 3000)))
	}
	a, c, gone := w.file("a"), w.file("c"), w.file("gone")
	in, _ := w.l.Inode(w.files["b"].node)
	pin := w.l.Pin(in)
	defer pin.Release()
	w.must(w.remove("gone"))

	// The copy-up begins before the seal, and ends after it.
	w.must(w.promoted(w.files["base5"]))
	base := w.file("base5")
	w.must(base.CopyUp(readerFunc(func(p []byte, off int64) (int, error) {
		if off == 0 {
			w.must(w.sealOnce())
		}
		return bytes.NewReader(baseContents(w.files["base5"].node)).ReadAt(p, off)
	}), int64(len(w.files["base5"].data))))
	w.files["base5"].base = false
	if in, _ := w.l.Inode(w.files["base5"].node); w.l.contents.isSealed(in.Content) {
		t.Errorf("copy-up: contents file %d is sealed", in.Content)
	}
	w.compare()

	want := bytes.Repeat([]byte("gone"), 3000)
	got := make([]byte, len(want))
	if n, err := gone.ReadAt(got, 0); err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("read an open file that was removed before the seal: got %d bytes, %v", n, err)
	}
	w.must(w.write("b", 0, []byte("changed")))
	if n, err := pin.ReadAt(got[:3000], 0); err != nil || !bytes.Equal(got[:n], bytes.Repeat([]byte("b"), 3000)) {
		t.Errorf("read pinned contents after the seal: got %d bytes, %v", n, err)
	}
	if _, err := c.CopyRange(a, 0, 10, 100); !errors.Is(err, ErrSealed) {
		t.Errorf("copy a range to sealed contents: got %v, want ErrSealed", err)
	}
	w.must(separately(c, math.MaxInt64, func() error {
		n, err := c.CopyRange(a, 0, 10, 100)
		if err == nil && n != 100 {
			t.Errorf("copy a range to contents that were sealed: copied %d bytes, want 100", n)
		}
		return err
	}))
	copy(w.files["c"].data[10:], w.files["a"].data[:100])
	w.must(c.Fallocate(unix.FALLOC_FL_KEEP_SIZE, 0, 8192))
	w.must(w.truncate("a", 0))
	w.must(w.truncate("d", 100))
	w.must(w.truncate("base5", 5000))
	w.compare()
	kept := false
	w.must(w.file("b").SetAside(1<<20, func(tx *Tx, number uint64, size int64) bool {
		kept = size == int64(len(w.files["b"].data))
		tx.Keep(Kept{ID: 1, Content: number, Size: size, Path: "b", Mode: 0o100644})
		return true
	}))
	w.files["b"].data = nil
	if !kept {
		t.Error("set sealed contents aside: got another size")
	}
	w.must(w.seal())
	w.must(w.fsync("c"))
	w.must(w.l.janitor.tidy(true))
	w.compare()
	before := len(w.sealed)
	for name := range w.files {
		w.must(w.remove(name))
	}
	w.must(w.l.janitor.tidy(true))
	if w.compare(); before < 9 {
		t.Errorf("got %d sealed files, want those of 5 files and 4 copies", before)
	}
}

// sealOnce seals all contents on its first call.
func (w *world) sealOnce() error {
	if w.sealed != nil {
		return nil
	}
	return w.seal()
}

// readerFunc is a function that implements io.ReaderAt.
type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// Writers may run during a seal. No byte of a sealed file changes after the seal has returned.
func TestSealWhileFilesAreWritten(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	const files = 4
	stop := make(chan struct{})
	done := make(chan error, files)
	var writes [files]atomic.Int64
	for i := range files {
		w.must(w.create(fmt.Sprint("w", i)))
	}
	for i := range files {
		f := w.file(fmt.Sprint("w", i))
		go func() {
			for n := int64(1); ; n++ {
				err := separately(f, math.MaxInt64, func() error {
					_, err := f.WriteAt(bytes.Repeat([]byte{byte(n)}, 3000), 100)
					return err
				})
				if err != nil {
					done <- err
					return
				}
				writes[i].Store(n)
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
			}
		}()
	}
	for round := range 10 {
		for i := range files {
			before := writes[i].Load()
			await.Until(t, "the file is written", func() bool { return writes[i].Load() > before })
		}
		w.must(w.seal())
		for path, want := range w.sealed {
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("round %d: sealed contents file %s has changed: %v", round, path, err)
			}
		}
	}
	close(stop)
	for range files {
		w.must(<-done)
	}
	for i := range files {
		data := make([]byte, 3100)
		copy(data[100:], bytes.Repeat([]byte{byte(writes[i].Load())}, 3000))
		w.files[fmt.Sprint("w", i)].data = data
	}
	w.compare()
}

func TestSealIsRefused(t *testing.T) {
	top := t.TempDir()
	w := opened(t, Options{})
	if err := seal(w.l, shareOf(1)); !errors.Is(err, ErrShares) {
		t.Errorf("seal without a directory of shares: got %v, want ErrShares", err)
	}
	w = opened(t, sharing(t, top, Options{}))
	if err := seal(w.l, "../../../../../../../../e"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("seal with an invalid ID: got %v, want EINVAL", err)
	}
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	w.must(w.seal())
	if err := seal(w.l, shareOf(w.serial)); !errors.Is(err, os.ErrExist) {
		t.Errorf("seal with the ID of another segment: got %v, want ErrExist", err)
	}
	w.mustClose()
	o := w.o
	o.Shares = ""
	if _, _, err := Open(w.dir, o); !errors.Is(err, ErrShares) {
		t.Errorf("open without the directory of shares: got %v, want ErrShares", err)
	}
	share := filepath.Join(w.o.Shares, shareOf(w.serial))
	w.must(os.Rename(share, share+"-away"))
	if _, err := w.open(); !errors.Is(err, ErrDamaged) {
		t.Errorf("open without the share: got %v, want ErrDamaged", err)
	}
	w.o.ReadOnly = true
	if rec := w.mustOpen(); !strings.Contains(fmt.Sprint(rec.Problems), shareOf(w.serial)) {
		t.Errorf("open without the share for reading: got the problems %q, want one that names it", rec.Problems)
	}
	if err := seal(w.l, shareOf(9)); !errors.Is(err, syscall.EROFS) {
		t.Errorf("seal a layer that is open for reading: got %v, want EROFS", err)
	}
	w.mustClose()
	w.o.ReadOnly = false
	w.must(os.Rename(share+"-away", share))
	w.mustOpen()
	w.compare()
}

// A damaged log of a layer with sealed contents is mended.
func TestLogWithSegmentsIsMended(t *testing.T) {
	_, w := sealedFile(t)
	w.must(w.l.Sync())
	end := w.l.wal.Size()
	w.must(w.create("late"))
	w.mustClose()
	path := filepath.Join(w.dir, "log")
	text, err := os.ReadFile(path)
	w.must(err)
	text[end+30] ^= 0x40
	w.must(os.WriteFile(path, text, 0o600))
	r, err := check(w.dir, true, w.o)
	if err != nil || len(r.Findings) == 0 {
		t.Fatalf("repair of the log: got %+v, %v", r, err)
	}
	if text, err = os.ReadFile(path); err != nil || binary.NativeEndian.Uint32(text[8:]) != 4 {
		t.Errorf("mended log: got version %d, %v, want 4, because it has a segment", text[8], err)
	}
	delete(w.files, "late")
	w.mustOpen()
	w.compare()
	want := []state.Segment{{Share: shareOf(w.serial), Bound: 1024}}
	if got := w.l.state.Segments; !slices.Equal(got, want) {
		t.Errorf("segments of the mended log: got %+v", got)
	}
}

// A process may be killed after sealed contents were copied, and before the copy is changed. The log had an older size,
// because the inode was dirty.
func TestCopyOfSealedContentsIsLogged(t *testing.T) {
	top := t.TempDir()
	w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{}))
	w.o.pause, w.o.quiet = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	w.must(w.write("a", 8, []byte(" of a")))
	w.must(w.seal())
	w.must(w.file("a").Separate(1<<20, func(change func() error) error { return change() }))
	w.kill()
	w.mustOpen()
	w.compare()
	w.mustClose()
	w.sound()
}

// Several writes to one file with sealed contents make one copy: on a full disk, there may be space for only one.
func TestWritesToSealedContentsCopyOnce(t *testing.T) {
	top := t.TempDir()
	var copies atomic.Int64
	fs := disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error {
		if op.Name == "CopyFrom" {
			copies.Add(1)
			time.Sleep(20 * time.Millisecond) // the other writes begin meanwhile
		}
		return nil
	})
	w := opened(t, sharing(t, top, Options{FS: fs}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, make([]byte, 8000)))
	w.must(w.seal())
	f := w.file("a")
	done := make(chan error)
	for i := range 8 {
		go func() {
			done <- separately(f, math.MaxInt64,
				func() error { _, err := f.WriteAt([]byte{byte(i)}, int64(i)*1000); return err })
		}()
		w.files["a"].data[i*1000] = byte(i)
	}
	for range 8 {
		w.must(<-done)
	}
	w.compare()
	if got := copies.Load(); got != 1 {
		t.Errorf("8 writes to sealed contents: made %d copies, want 1", got)
	}
}

// sealedFile returns an open overlay in the directory top whose file "a" has sealed contents.
func sealedFile(t *testing.T) (top string, w *world) {
	top = t.TempDir()
	w = opened(t, sharing(t, top, Options{}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	w.must(w.seal())
	return top, w
}

// crashedSharing returns an open overlay in the directory top, with a directory of shares, on a file system whose power
// can be cut.
func crashedSharing(t *testing.T) (top string, crash *disktest.CrashFS, w *world) {
	top = t.TempDir()
	before, crash := crashed(t, top)
	w = newWorld(t, filepath.Join(before, "overlay"), Options{FS: crash, Shares: filepath.Join(before, "shares")})
	w.o.pause, w.o.quiet = time.Hour, time.Hour
	w.must(crash.Mkdir(w.o.Shares, 0o700))
	w.must(crash.SyncDir(before))
	w.mustOpen()
	return top, crash, w
}
