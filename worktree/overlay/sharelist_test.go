package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	full := false
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full && strings.HasSuffix(op.Path, ".tmp") {
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
	w.o.TakeOver, full = true, true
	w.mustOpen()
	w.compare()
	if got := w.listed(); len(got) != 2 {
		t.Errorf("list on a full disk: got %q, want it unchanged", got)
	}
	full = false
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
