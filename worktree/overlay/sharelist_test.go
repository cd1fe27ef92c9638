package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// listed returns the list of shares of the overlay.
func (w *world) listed() []string {
	w.t.Helper()
	ids, err := ListedShares(w.dir)
	w.must(err)
	return ids
}

// The list of shares names every share of the log, before the log does, and after the next Open no other one.
func TestListOfShares(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	if ids, err := ListedShares(filepath.Join(top, "nothing")); err != nil || ids != nil {
		t.Errorf("list of an overlay that does not exist: got %q, %v", ids, err)
	}
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	if _, err := os.Lstat(filepath.Join(w.dir, listName)); w.listed() != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("overlay without a seal: got the list %q, %v", w.listed(), err)
	}
	w.must(w.seal())
	w.must(w.write("a", 0, []byte("changed")))
	w.must(w.seal())
	want := []string{shareOf(1), shareOf(2)}
	if got := w.listed(); !slices.Equal(got, want) {
		t.Errorf("list after two seals: got %q, want %q", got, want)
	}
	w.mustClose()
	list := filepath.Join(w.dir, listName)
	// A seal that fails may leave a share in the list. A damaged list may lack one.
	for _, text := range []string{"share " + shareOf(1) + "\nshare " + shareOf(2) + "\nshare " + shareOf(3) + "\n",
		"share " + shareOf(2) + "\n", "", "damage\n", "names " + shareOf(1) + "\n"} {
		w.must(os.WriteFile(list, []byte(text), 0o600))
		w.mustOpen()
		if got := w.listed(); !slices.Equal(got, want) {
			t.Errorf("list %q after the next start: got %q, want %q", text, got, want)
		}
		w.compare()
		w.mustClose()
	}
	w.must(os.WriteFile(list, []byte("share ../../etc\n"), 0o600))
	if ids, err := ListedShares(w.dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("read a damaged list: got %q, %v, want ErrDamaged", ids, err)
	}
}

// A takeover succeeds on a full disk, even if the list has a share that is not used.
func TestListOfSharesOnAFullDisk(t *testing.T) {
	top := t.TempDir()
	var full atomic.Bool // the overlay's own goroutines use the file system, too
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() && strings.HasSuffix(op.Path, ".tmp") {
			return syscall.ENOSPC
		}
		return nil
	})
	w := opened(t, sharing(t, top, Options{FS: fs}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	w.must(w.seal())
	w.must(writeList(w.o.FS, w.dir, []string{shareOf(1), shareOf(2)}))
	w.kill()
	w.o.TakeOver = true
	full.Store(true)
	w.mustOpen()
	w.compare()
	if got := w.listed(); len(got) != 2 {
		t.Errorf("list on a full disk: got %q, want it unchanged", got)
	}
	full.Store(false)
}

// If the record of a seal is lost with a damaged part of the log, the repair finds the moved files by the list.
func TestMendedLogNamesListedShares(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	for _, name := range []string{"a", "b"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte("contents of "+name)))
		w.must(w.fsync(name))
	}
	w.must(w.l.Sync())
	end := w.l.wal.Size()
	w.must(w.seal())
	w.must(w.create("late"))
	w.must(w.write("late", 0, []byte("contents")))
	w.mustClose()
	path := filepath.Join(w.dir, "log")
	text, err := os.ReadFile(path)
	w.must(err)
	text[end+30] ^= 0x40
	w.must(os.WriteFile(path, text, 0o600))
	if r, err := check(w.dir, true, w.o); err != nil || len(r.Findings) == 0 {
		t.Fatalf("repair of the log: got %+v, %v", r, err)
	}
	delete(w.files, "late")
	if rec := w.mustOpen(); len(rec.Problems) > 0 {
		t.Errorf("open after the repair: got the problems %q", rec.Problems)
	}
	w.compare()
	if got := w.listed(); !slices.Equal(got, []string{shareOf(1)}) {
		t.Errorf("list after the repair: got %q", got)
	}
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("contents")))
	w.must(w.write("a", 3, []byte("changed")))
	w.compare()
	w.mustClose()
	w.sound()
}

// A damaged log may name a share that Reclaim has dropped in the damaged part, or the seal after that as well. Reclaim
// may also have removed the files of that seal.
func TestMendedLogDoesNotNameDroppedShares(t *testing.T) {
	const unused = "before the second seal, of which no file is used"
	for _, where := range []string{"before the second seal", "after the second seal", unused} {
		top := t.TempDir()
		w := opened(t, sharing(t, top, Options{}))
		w.must(w.create("a"))
		w.must(w.write("a", 0, []byte("contents")))
		w.must(w.fsync("a"))
		w.must(w.seal())
		w.must(w.write("a", 0, []byte("changed")))
		w.must(w.fsync("a"))
		w.must(w.l.Sync())
		end := w.l.wal.Size()
		w.must(w.seal())
		if where == "after the second seal" {
			end = w.l.wal.Size()
		}
		w.must(w.create("late"))
		w.must(w.write("late", 0, []byte("contents")))
		if where == unused {
			w.must(w.write("a", 0, []byte("after the damage")))
		}
		if r, err := Reclaim(t.Context(), alone, w.l); err != nil || !slices.Equal(r.Dropped, []string{shareOf(1)}) {
			t.Fatalf("reclaim: got %+v, %v", r, err)
		} else if (r.Files > 0) != (where == unused) {
			t.Fatalf("damage %s: reclaim has removed %d files", where, r.Files)
		}
		w.must(os.RemoveAll(filepath.Join(w.o.Shares, shareOf(1))))
		w.sealed = nil
		w.mustClose()
		path := filepath.Join(w.dir, "log")
		text, err := os.ReadFile(path)
		w.must(err)
		text[end+30] ^= 0x40
		w.must(os.WriteFile(path, text, 0o600))
		if r, err := check(w.dir, true, w.o); err != nil || len(r.Findings) < 2 || !r.Findings[1].Repaired {
			t.Fatalf("damage %s: repair of the log: got %+v, %v", where, r, err)
		}
		delete(w.files, "late")
		if where == unused {
			w.files["a"].data = nil
		}
		if rec := w.mustOpen(); len(rec.Problems) > 0 {
			t.Errorf("damage %s: open after the repair: got the problems %q", where, rec.Problems)
		}
		w.compare()
		if got := w.listed(); !slices.Equal(got, []string{shareOf(2)}) {
			t.Errorf("damage %s: list after the repair: got %q", where, got)
		}
		w.must(w.write("a", 3, []byte("later")))
		w.must(w.seal())
		w.compare()
		w.mustClose()
		w.sound()
	}
}

// If the log was lost, or the record of a seal is cut off after a power cut, Open does not forget the share, whose
// files would then be removed. The repair adds the share to the log again.
func TestShareIsKeptIfTheLogHasLostIt(t *testing.T) {
	for _, what := range []string{"removed", "cut"} {
		top := t.TempDir()
		w := opened(t, sharing(t, top, Options{}))
		w.must(w.create("a"))
		w.must(w.write("a", 0, []byte("contents")))
		path := filepath.Join(w.dir, "log")
		before, err := os.ReadFile(path)
		w.must(err)
		end := w.l.wal.Size()
		w.must(w.seal())
		w.kill()
		if what == "removed" {
			w.must(os.Remove(path))
			w.files = map[string]*modelFile{}
		} else {
			// The part of the log that the header gives as synced is one sync older than the seal.
			text, err := os.ReadFile(path)
			w.must(err)
			copy(text[:4096], before)
			clear(text[end:])
			w.must(os.WriteFile(path, text, 0o600))
		}
		w.o.boot = "boot-2"
		for range 2 {
			if _, err := w.open(); !errors.Is(err, ErrDamaged) {
				t.Fatalf("%s log: open: got %v, want ErrDamaged", what, err)
			}
			if got := w.listed(); !slices.Equal(got, []string{shareOf(1)}) {
				t.Fatalf("%s log: list after the open: got %q", what, got)
			}
			if r, err := check(w.dir, false, w.o); err != nil || len(r.Findings) == 0 {
				t.Fatalf("%s log: check: got %+v, %v, want a finding", what, r, err)
			}
		}
		if r, err := check(w.dir, true, w.o); err != nil || len(r.Findings) == 0 || !r.Findings[0].Repaired {
			t.Fatalf("%s log: repair: got %+v, %v", what, r, err)
		}
		if rec := w.mustOpen(); len(rec.Problems) > 0 {
			t.Errorf("%s log: open after the repair: got the problems %q", what, rec.Problems)
		}
		if got := w.l.state.Segments; !slices.Equal(got, []Segment{{Share: shareOf(1), Bound: 1024}}) {
			t.Errorf("%s log: segments after the repair: got %+v", what, got)
		}
		w.compare()
		w.must(w.create("b"))
		w.must(w.write("b", 0, []byte("new")))
		w.compare()
		w.mustClose()
		w.sound()
	}
}

// The process of a new overlay may be killed after it has listed the shares of another overlay, and before its log
// names them.
func TestNewOverlayIsKilledBeforeItsLogNamesShares(t *testing.T) {
	top, w := sealedFile(t)
	for _, again := range []bool{false, true} {
		fork := newWorld(t, filepath.Join(top, fmt.Sprint("fork", again)), w.o)
		fork.mustOpen()
		fork.kill()
		w.must(writeList(disk.OS, fork.dir, []string{shareOf(1)}))
		if again {
			fork.o.Segments = w.l.state.Segments
			log, err := os.OpenFile(filepath.Join(fork.dir, "log"), os.O_WRONLY, 0)
			w.must(err)
			_, err = log.WriteAt(make([]byte, 4096), 4096) // the log has no record
			w.must(errors.Join(err, log.Close()))
		}
		for range 3 {
			fork.mustOpen()
			if got := fork.l.state.Segments; !slices.Equal(got, w.l.state.Segments) {
				t.Fatalf("segments of the new overlay: got %+v, want %+v", got, w.l.state.Segments)
			}
			fork.must(fork.create(fmt.Sprint("own", fork.serial)))
			fork.must(fork.write(fmt.Sprint("own", fork.serial), 0, []byte("contents")))
			fork.serial++
			fork.kill()
			fork.o.Segments = nil
		}
		fork.mustOpen()
		fork.mustClose()
	}
}

// A share that the log does not name any more, because all of its files were replaced, may still be listed.
func TestListHasAnEarlierShare(t *testing.T) {
	_, w := sealedFile(t)
	w.must(w.write("a", 0, []byte("changed")))
	w.must(w.seal())
	w.must(w.write("a", 0, []byte("again")))
	lost, err := lostSegments(w.dir, w.o, w.l.state.Segments[1:])
	if err != nil || len(lost) > 0 {
		t.Errorf("shares that a log with the second one has lost: got %+v, %v", lost, err)
	}
	lost, err = lostSegments(w.dir, w.o, w.l.state.Segments[:1])
	if err != nil || len(lost) != 1 || lost[0].Share != shareOf(2) {
		t.Errorf("shares that a log with the first one has lost: got %+v, %v", lost, err)
	}
}

// An error of the disk while Open looks for lost shares is not damage.
func TestListOfSharesCannotBeRead(t *testing.T) {
	top := t.TempDir()
	w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{}))
	w.o.FS = disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if op.Name == "OpenFile" && filepath.Base(op.Path) == listName {
			return syscall.EIO
		}
		return nil
	})
	if _, err := w.open(); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrDamaged) {
		t.Errorf("open a new overlay while its list cannot be read: got %v, want EIO, and not ErrDamaged", err)
	}
}
