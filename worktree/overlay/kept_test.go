package overlay

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// keepAndRemove removes a file and keeps its contents for a checkpoint, as the working tree does.
func (w *world) keepAndRemove(name string, id uint64) *Pin {
	w.t.Helper()
	m := w.files[name]
	var pin *Pin
	w.must(w.l.Update(func(tx *Tx) error {
		in, _ := tx.Inode(m.node)
		pin = w.l.PinKept(in, id)
		tx.Keep(Kept{ID: id, Content: in.Content, Size: in.Size, Mode: in.Mode, At: 1, Unlinked: true, Path: "dir/" + name})
		in.Nlink--
		tx.PutInode(in)
		tx.Hide(root, name)
		return nil
	}))
	w.forget(m)
	delete(w.files, name)
	w.names = w.names[:len(w.names)-1]
	return pin
}

// setAside truncates a file and keeps its contents for a checkpoint, as the working tree does.
func (w *world) setAside(name string, id uint64) {
	w.t.Helper()
	w.must(w.file(name).SetAside(100, func(tx *Tx, number uint64, size int64) bool {
		w.l.PinKept(Inode{Content: number, Size: size}, id)
		tx.Keep(Kept{ID: id, Content: number, Size: size, Mode: syscall.S_IFREG, At: 1, Path: name})
		return true
	}))
	w.files[name].data = nil
}

// content returns the contents of a pin.
func (w *world) content(p *Pin) string {
	w.t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(p, 0, p.Size()))
	w.must(err)
	return string(b)
}

func (w *world) contentFiles() int {
	w.t.Helper()
	n := 0
	w.must(w.l.contents.each(0, func(uint64) error { n++; return nil }))
	return n
}

// The next process finds the contents that a killed process kept, until they are released.
func TestKeptIsFoundAfterAKill(t *testing.T) {
	w := opened(t, Options{pause: time.Hour})
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("precious")))
	w.keepAndRemove("new", 7)
	w.must(w.l.removeDead())
	for _, compacted := range []bool{false, true} {
		if compacted {
			w.must(w.l.janitor.compact())
		}
		w.kill()
		rec := w.mustOpen()
		if len(rec.Kept) != 1 || rec.Kept[0].ID != 7 || rec.Kept[0].Path != "dir/new" || !rec.Kept[0].Unlinked {
			t.Fatalf("kept files after a kill (compacted: %v): got %+v, want dir/new", compacted, rec.Kept)
		}
		if got := w.content(rec.Kept[0].Pin); got != "precious" {
			t.Errorf("content after a kill (compacted: %v): got %q, want precious", compacted, got)
		}
		if !compacted {
			continue
		}
		w.must(w.l.Update(func(tx *Tx) error { tx.Unkeep(1, 7); return nil }))
		rec.Kept[0].Pin.Release()
		w.must(w.l.removeDead())
		if n := w.contentFiles(); n != 0 {
			t.Errorf("content files after nothing is kept: got %d, want 0", n)
		}
	}
	w.kill()
	if rec := w.mustOpen(); len(rec.Kept) != 0 {
		t.Errorf("kept files in the end: got %+v, want none", rec.Kept)
	}
}

// precious returns a world on a simulated disk whose file "new" was fsynced, and a function that cuts the power and
// opens the layer again.
func precious(t *testing.T, seed uint64) (w *world, cut func() (*world, Recovery)) {
	t.Helper()
	top := t.TempDir()
	before, after := filepath.Join(top, "before"), filepath.Join(top, "after")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(before)
	if err != nil {
		t.Fatal(err)
	}
	w = newWorld(t, filepath.Join(before, "overlay"), Options{FS: crash})
	w.o.pause, w.o.quiet = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("precious")))
	w.must(w.fsync("new"))
	return w, func() (*world, Recovery) {
		w.must(crash.Crash(after, seed))
		w.kill()
		w.must(crash.Close())
		w := newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2"})
		return w, w.mustOpen()
	}
}

// After a power cut, a file that was fsynced and removed exists, or its contents are kept.
func TestKeptOutlivesAPowerCut(t *testing.T) {
	for seed := range uint64(60) {
		w, cut := precious(t, seed)
		w.keepAndRemove("new", 7)
		w.must(w.l.removeDead())
		if seed%2 == 0 {
			w.must(w.l.Sync())
		}
		w, rec := cut()
		m, there, err := w.look("new")
		w.must(err)
		switch {
		case there && string(m.data) != "precious":
			t.Errorf("seed %d: content of the file: got %q, want precious", seed, m.data)
		case !there && (len(rec.Kept) != 1 || w.content(rec.Kept[0].Pin) != "precious"):
			t.Errorf("seed %d: the file does not exist, and the kept contents are %+v", seed, rec.Kept)
		}
		w.mustClose()
	}
}

// A file that is truncated to zero gets a new contents file, and the previous one is kept. After later writes and a
// kill both exist, and after a power cut the fsynced contents are those of the file or are kept.
func TestContentIsSetAside(t *testing.T) {
	w := opened(t, Options{pause: time.Hour})
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("precious")))
	w.setAside("new", 7)
	w.compare()
	w.must(w.write("new", 0, []byte("worth")))
	w.must(w.l.removeDead())
	w.kill()
	rec := w.mustOpen()
	if len(rec.Kept) != 1 || w.content(rec.Kept[0].Pin) != "precious" {
		t.Fatalf("kept content after a kill: got %+v, want one that is precious", rec.Kept)
	}
	w.compare()
	w.must(w.l.Update(func(tx *Tx) error { tx.Unkeep(7, 7); return nil }))
	rec.Kept[0].Pin.Release()
	w.must(w.l.removeDead())
	if n := w.contentFiles(); n != 1 {
		t.Errorf("contents when nothing is kept: got %d, want 1", n)
	}
	w.mustClose()

	for seed := range uint64(60) {
		w, cut := precious(t, seed)
		w.setAside("new", 7)
		w.must(w.write("new", 0, []byte("worth")))
		w.must(w.l.removeDead())
		want := "precious"
		if seed%2 == 0 {
			w.must(w.fsync("new"))
			want = "worth"
		}
		w, rec := cut()
		m, _, err := w.look("new")
		w.must(err)
		kept := len(rec.Kept) == 1 && w.content(rec.Kept[0].Pin) == "precious"
		if got := string(m.data); got != want && !(want == "precious" && kept) || want == "worth" && !kept {
			t.Errorf("seed %d: content of the file: got %q, want %q; kept is %+v", seed, got, want, rec.Kept)
		}
		w.mustClose()
	}
}

// On a full disk the space of kept contents is freed, so that neither a removal nor a write fails because of them.
func TestKeptYieldsToAFullDisk(t *testing.T) {
	var full, removed atomic.Bool
	w := opened(t, Options{pause: time.Hour, FS: disktest.Faulty(disk.OS, func(o disktest.Op) error {
		switch {
		case !strings.Contains(filepath.Dir(o.Path), "contents"):
		case o.Name == "Remove":
			removed.Store(true)
		case full.Load() && !removed.Load() && o.Name == "WriteAt":
			return syscall.ENOSPC
		}
		return nil
	})})
	w.must(w.create("other"))
	w.must(w.write("other", 0, []byte("begun")))
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("precious")))
	full.Store(true)
	pin := w.keepAndRemove("new", 7)
	w.must(w.write("other", 0, []byte("written")))
	if err := pin.Lost(); !errors.Is(err, ErrPinLost) {
		t.Errorf("pin whose space was freed: got %v, want ErrPinLost", err)
	}
	pin.Release()
	w.kill()
	if rec := w.mustOpen(); len(rec.Kept) != 0 {
		t.Errorf("kept files after their space was freed: got %+v, want none", rec.Kept)
	}
}

// Contents are copied before they are overwritten, once within an interval, and the copy has the old data.
func TestOverwrittenContentIsCopied(t *testing.T) {
	w := opened(t, Options{pause: time.Hour})
	w.must(w.create("new"))
	w.must(w.write("new", 0, []byte("precious")))
	f := w.l.File(w.files["new"].node)
	defer f.Done()
	for what, c := range map[string]struct {
		p    string
		off  int64
		want bool
	}{
		"the same bytes": {"prec", 0, false}, "bytes behind": {"more", 8, false}, "others": {"X", 7, true},
		"the same and more": {"precious and more", 0, false},
	} {
		if got := f.Overwrites([]byte(c.p), c.off); got != c.want {
			t.Errorf("writing %s overwrites: got %v, want %v", what, got, c.want)
		}
	}
	// Write the end of a new file before its beginning.
	const page = 64 << 10 // no file system has larger blocks
	w.must(w.create("holes"))
	w.must(w.write("holes", 2*page, []byte("end")))
	holes := w.l.File(w.files["holes"].node)
	defer holes.Done()
	filled := bytes.Repeat([]byte("x"), 2*page+3)
	if holes.Overwrites(filled[:2*page], 0) {
		t.Errorf("filling a hole overwrites: got true, want false")
	}
	if !holes.Overwrites(filled, 0) {
		t.Errorf("filling a hole and changing the bytes behind it overwrites: got false, want true")
	}
	copies := 0
	for range 2 {
		w.must(f.KeepCopy(time.Hour, 100, func(tx *Tx, number uint64, size int64) bool {
			copies++
			w.l.PinKept(Inode{Content: number, Size: size}, 7)
			tx.Keep(Kept{ID: 7, Content: number, Size: size, Mode: syscall.S_IFREG, At: 1, Copied: true, Path: "new"})
			return true
		}))
		w.must(w.write("new", 0, []byte("worth")))
	}
	if copies != 1 {
		t.Errorf("copies within the interval: got %d, want 1", copies)
	}
	w.kill()
	rec := w.mustOpen()
	if len(rec.Kept) != 1 || w.content(rec.Kept[0].Pin) != "precious" {
		t.Fatalf("kept copy after a kill: got %+v, want one that is precious", rec.Kept)
	}
	w.kill()
	w.o.boot = "boot-2" // the copy was not synced
	if rec := w.mustOpen(); len(rec.Kept) != 0 {
		t.Errorf("kept copies after a power cut: got %+v, want none", rec.Kept)
	}
}
