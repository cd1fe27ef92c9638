package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// everything returns all inodes and entries as text.
func everything(r Reader) string {
	var lines []string
	r.EachInode(func(in Inode) bool {
		target, _ := r.Target(in.Node)
		lines = append(lines, fmt.Sprintf("%+v %s %q", in, target, r.Xattrs(in.Node)))
		return true
	})
	r.EachDir(func(dir Node) bool {
		r.ReadDir(dir, 0, func(cookie uint64, name string, n Node, p Presence) bool {
			lines = append(lines, fmt.Sprint(dir, cookie, name, n, p))
			return true
		})
		return true
	})
	slices.Sort(lines) // the order of the nodes of the base tree is not kept
	return strings.Join(lines, "\n")
}

// The names of a Sealing are those of the moment, although names and contents change while they are copied.
func TestSealingHasTheNamesOfTheMoment(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		w.must(w.step(r))
	}
	for i := range 5000 { // the copy takes several slices
		w.must(w.create(fmt.Sprint("many", i)))
	}
	for round := range 5 {
		stop, writing := make(chan struct{}), sync.WaitGroup{}
		writing.Go(func() {
			f := w.file("many1")
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				err := separately(f, math.MaxInt64, func() error { _, err := f.WriteAt([]byte("x"), int64(n)); return err })
				if err != nil {
					t.Error(err)
					return
				}
				err = w.l.Update(func(tx *Tx) error {
					tx.SetEntry(1, fmt.Sprint("busy", n%100), f.node)
					if n%3 == 0 {
						tx.Hide(1, fmt.Sprint("busy", (n+50)%100))
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		w.serial++
		s, err := BeginSeal(w.l, shareOf(w.serial))
		w.must(err)
		time.Sleep(5 * time.Millisecond)
		var want string
		if err := s.Publish(); !errors.Is(err, errNoMoment) {
			t.Errorf("publish before the moment: got %v", err)
		}
		s.Freeze(func(Reader) bool { return false })
		time.Sleep(time.Millisecond)
		s.Freeze(func(r Reader) bool { want = everything(r); return true })
		time.Sleep(5 * time.Millisecond)
		close(stop)
		writing.Wait()
		w.must(s.Publish())
		if got := everything(s.Names()); got != want {
			t.Errorf("round %d: names are %d bytes of text, want the %d bytes of the moment", round, len(got), len(want))
		}
		segments := s.Segments()
		s.Names().EachInode(func(in Inode) bool {
			if in.Content >= segments[len(segments)-1].Bound {
				t.Errorf("round %d: contents file %d is not sealed", round, in.Content)
			}
			return true
		})
		s.Close()
	}
	w.mustClose()
}

// If no contents file was created since the last seal, there is nothing to seal.
func TestSealWithoutNewContents(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	w.must(w.seal())
	if got := w.listed(); len(w.l.state.Segments) != 0 {
		t.Errorf("seal of an empty layer: got the segments %+v and the list %q", w.l.state.Segments, got)
	}
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	w.must(w.seal())
	w.must(w.create("empty"))
	w.must(w.remove("empty"))
	w.must(w.seal())
	want := []Segment{{Share: shareOf(2), Bound: 1024}}
	if got := w.l.state.Segments; !slices.Equal(got, want) {
		t.Errorf("seal without new contents: got the segments %+v, want %+v", got, want)
	}
	if _, err := os.Stat(w.l.contents.ownDir(shareOf(3))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory that the seal did not need: %v", err)
	}
	if got := w.listed(); !slices.Equal(got, []string{shareOf(2)}) {
		t.Errorf("list after a seal without new contents: got %q", got)
	}
	w.compare()
	w.must(w.write("a", 0, []byte("changed")))
	w.must(w.seal())
	if got := w.l.state.Segments; len(got) != 2 {
		t.Errorf("seal with new contents: got the segments %+v", got)
	}
	w.compare()
}

// A seal that was not published, because moving the files has failed, is published with the next one.
func TestPublishLater(t *testing.T) {
	top := t.TempDir()
	fail := false
	on := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if fail && op.Name == "Rename" {
			return syscall.EIO
		}
		return nil
	})
	w := opened(t, sharing(t, top, Options{FS: on}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	s, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	s.Freeze(func(Reader) bool { return true })
	fail = true
	if err := s.Publish(); !errors.Is(err, syscall.EIO) {
		t.Errorf("publish: got %v, want the injected error", err)
	}
	fail = false
	s.Close()
	w.must(os.Remove(filepath.Join(w.o.Shares, shareOf(1)))) // as an empty share is removed
	w.serial++
	w.compare()
	w.must(w.seal())
	if _, err := os.Stat(pathIn(filepath.Join(w.o.Shares, shareOf(1), "contents"), 1)); err != nil {
		t.Errorf("files of the first seal: %v", err)
	}
	w.compare()
}

// A Sealing may move the directories of contents files between any two steps of an fsync.
func TestFsyncWhileFilesAreMoved(t *testing.T) {
	top := t.TempDir()
	for moved, at := true, 1; moved; at++ {
		var w *world
		n, armed := 0, false
		moved = false
		fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
			if !strings.Contains(op.Path, "contents") || !armed { // an operation on the log may hold locks
				return nil
			}
			if n++; n == at {
				armed, moved = false, true
				w.must(seal(w.l, shareOf(1)))
			}
			return nil
		})
		dir := filepath.Join(top, fmt.Sprint(at))
		w = newWorld(t, filepath.Join(dir, "overlay"), sharing(t, dir, Options{FS: fs}))
		w.o.pause, w.o.quiet = time.Hour, time.Hour
		w.mustOpen()
		w.must(w.create("a"))
		w.must(w.write("a", 0, []byte("contents")))
		w.must(w.write("base3", 0, []byte("contents")))
		for _, name := range []string{"a", "base3"} {
			armed = !moved
			if err := w.fsync(name); err != nil {
				t.Errorf("fsync of %s while files are moved before its operation %d: %v", name, at, err)
			}
		}
		armed = false
		w.compare()
		w.mustClose()
	}
}

// If the process fails or dies after the files were moved, and before the directories were synced, the next Publish
// syncs them.
func TestPublishSyncsAnEarlierMove(t *testing.T) {
	for _, killed := range []bool{false, true} {
		top := t.TempDir()
		share := filepath.Join(top, "shares", shareOf(1))
		syncs, fail := 0, true
		w := opened(t, sharing(t, top, Options{FS: disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error {
			if op.Name == "SyncDir" && op.Path == share {
				if fail {
					return syscall.EIO
				}
				syncs++
			}
			return nil
		})}))
		w.must(w.create("a"))
		w.must(w.write("a", 0, []byte("contents")))
		if err := w.seal(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("seal: got %v, want the injected error", err)
		}
		if _, err := os.Stat(pathIn(filepath.Join(share, "contents"), 1)); err != nil {
			t.Fatalf("contents file that was moved: %v", err)
		}
		if fail = false; killed {
			w.kill()
			w.mustOpen()
		}
		w.must(w.seal())
		w.must(w.seal())
		if syncs != 1 {
			t.Errorf("killed: %v: share with an earlier move was synced %d times by two seals, want once", killed, syncs)
		}
		w.compare()
	}
}

// logVersion returns the version in the header of the overlay's log.
func (w *world) logVersion() uint32 {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "log"))
	w.must(err)
	return binary.NativeEndian.Uint32(text[8:])
}

// A power cut may lose the version of the log that a seal has raised, and keep the record of the seal.
func TestPowerCutLosesTheVersionOfTheLog(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	path := filepath.Join(w.dir, "log")
	text, err := os.ReadFile(path)
	w.must(err)
	w.must(w.seal())
	w.kill()
	log, err := os.OpenFile(path, os.O_WRONLY, 0)
	w.must(err)
	_, err = log.WriteAt(text[:4096], 0)
	w.must(errors.Join(err, log.Close()))
	if got := w.logVersion(); got != 3 {
		t.Fatalf("version of the log without a seal: got %d, want 3", got)
	}
	w.o.boot = "boot-2"
	w.mustOpen()
	w.compare()
	if got := w.logVersion(); got != 4 || len(w.l.state.Segments) != 1 {
		t.Errorf("log after the cut: got version %d with the segments %+v, want version 4 with one", got, w.l.state.Segments)
	}
}

// A seal for which the log has no space leaves the version of the log as it was.
func TestSealWithoutSpaceKeepsTheVersionOfTheLog(t *testing.T) {
	top := t.TempDir()
	var full atomic.Bool // the overlay's own goroutines use the file system, too
	w := opened(t, sharing(t, top, Options{FS: disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error {
		if full.Load() && op.Name == "Allocate" {
			return syscall.ENOSPC
		}
		return nil
	})}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	s, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	full.Store(true)
	for err == nil { // use up the space that was reserved
		err = w.l.tryUpdate(func(tx *Tx) error { tx.SetTarget(w.files["a"].node, strings.Repeat("x", 100)); return nil })
	}
	s.Freeze(func(Reader) bool { return true })
	if err := s.Publish(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("seal on a full disk: got %v, want ENOSPC", err)
	}
	full.Store(false)
	s.Close()
	if got := w.logVersion(); got != 3 || len(w.l.state.Segments) != 0 {
		t.Errorf("log after the seal has failed: got version %d with the segments %+v", got, w.l.state.Segments)
	}
	w.compare()
	w.must(w.seal())
	w.compare()
}

// Reads and lookups do not wait for the function that a freeze calls, also while a change waits for it.
func TestReadsDuringAFreeze(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	f := w.file("a")
	changed := make(chan error, 2)
	reads := func() bool {
		go func() {
			changed <- w.l.Update(func(tx *Tx) error { tx.SetEntry(root, "b", f.node); return nil })
		}()
		time.Sleep(20 * time.Millisecond) // the change waits for the lock
		read := make(chan struct{})
		go func() {
			w.l.Inode(f.node)
			w.l.Entry(root, "a")
			_, _ = f.ReadAt(make([]byte, 8), 0)
			close(read)
		}()
		select {
		case <-read:
		case <-time.After(5 * time.Second):
			t.Error("read waits for the freeze")
		}
		if len(changed) > 0 {
			t.Error("change was made during the freeze")
		}
		return true
	}
	w.l.Freeze(func(Reader) { reads() })
	w.must(<-changed)
	s, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	s.Freeze(func(Reader) bool { return reads() })
	w.must(<-changed)
	w.must(s.Publish())
	s.Close()
	w.must(w.l.Update(func(tx *Tx) error { tx.Hide(root, "b"); return nil }))
	w.compare()
}
