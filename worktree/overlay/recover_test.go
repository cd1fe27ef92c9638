package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func (w *world) mtime(name string) int64 {
	in, _ := w.l.Inode(w.files[name].node)
	return in.Mtime
}

func (w *world) setMtime(name string, mtime int64) {
	w.t.Helper()
	w.must(w.l.Update(func(tx *Tx) error {
		in, _ := tx.Inode(w.files[name].node)
		in.Mtime = mtime
		tx.PutInode(in)
		return nil
	}))
}

func TestKillKeepsWhatWasWritten(t *testing.T) {
	w := opened(t, Options{quiet: 0})
	w.o.quiet, w.o.pause = time.Hour, time.Hour // the janitor does nothing during the test
	w.must(w.create("written"))
	w.must(w.write("written", 0, []byte("late")))
	w.must(w.create("dated"))
	w.must(w.write("dated", 0, []byte("dated")))
	w.setMtime("dated", 12345)
	w.setMtime("written", 6789)
	w.must(w.write("written", 4, []byte("r")))
	w.must(w.truncate("base2", 0))
	w.must(w.write("base2", 0, []byte("in place of the base's")))
	w.kill()
	rec := w.mustOpen()
	if rec.Start != Killed || len(rec.Problems) > 0 {
		t.Errorf("recovery after the kill: got %+v, want no problem", rec)
	}
	w.compare()
	if m := w.mtime("dated"); m != 12345 {
		t.Errorf("mtime that was set before the kill: got %d", m)
	}
	if m := w.mtime("written"); m < time.Now().Add(-time.Minute).UnixNano() {
		t.Errorf("mtime after a write before the kill: got the old one, %d", m)
	}
}

func TestKillEndsFilesWithoutName(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("open"))
	w.must(w.write("open", 0, []byte("x")))
	node := w.files["open"].node
	w.l.Remember(node)
	w.must(w.remove("open"))
	w.kill()
	w.mustOpen()
	await.Until(t, "the inode is dropped and its contents file is removed",
		func() bool { _, ok := w.l.Inode(node); return !ok && w.contents() == 0 })
	if lost := w.lost(); len(lost) > 0 {
		t.Errorf("files in lost+found: got %v", lost)
	}
}

func TestOrphanGoesToLostAndFound(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	w.must(w.write("f", 0, []byte("x")))
	number, err := w.l.newNumber()
	w.must(err)
	w.must(os.WriteFile(pathIn(w.l.contents.layout.Load().own, number), []byte("nobody's"), 0o600))
	w.kill()
	w.mustOpen()
	await.Until(t, "the file is moved to lost+found", func() bool { return len(w.lost()) == 1 })
	w.compare()
	if n := w.contents(); n != 1 {
		t.Errorf("contents files: got %d", n)
	}
}

func TestUnsettledContentIsNotTrustedAfterPowerLoss(t *testing.T) {
	w := opened(t, Options{})
	w.kill()
	w.o.quiet, w.o.pause = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.truncate("base2", 0))
	w.must(w.write("base2", 0, []byte("synced")))
	w.must(w.fsync("base2"))
	w.must(w.write("base3", 5, []byte("not synced")))
	w.must(w.chmod("base3", 0o755))
	w.must(w.create("own"))
	w.must(w.write("own", 0, []byte("own")))
	w.must(w.create("missing"))
	w.must(w.write("missing", 0, []byte("missing")))
	in, _ := w.l.Inode(w.files["missing"].node)
	w.must(os.Remove(pathIn(w.l.contents.layout.Load().own, in.Content)))
	w.kill()
	w.o.boot = "boot-2"
	rec := w.mustOpen()
	if rec.Start != PowerLoss || len(rec.Problems) != 1 || !strings.Contains(rec.Problems[0], "empty") {
		t.Errorf("recovery after the power loss: got %+v, want one problem, an empty file", rec)
	}
	m := w.files["base3"]
	m.base, m.data = true, baseContents(m.node)
	w.files["missing"].data = nil
	w.compare()
	if lost := w.lost(); len(lost) != 1 {
		t.Errorf("files in lost+found: got %v", lost)
	}
	// Corrections are permanent, and numbers of contents files are not used twice.
	w.must(w.write("base3", 0, []byte("again")))
	w.kill()
	w.mustOpen()
	w.compare()
}

func TestNumbersBehindALostReserveAreSkipped(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	high := pathIn(w.l.contents.layout.Load().own, 5*perDirectory)
	w.must(os.MkdirAll(filepath.Dir(high), 0o700))
	w.must(os.WriteFile(high, []byte("of a record that the power took"), 0o600))
	w.kill()
	w.o.boot = "boot-2"
	w.mustOpen()
	w.must(w.write("f", 0, []byte("f")))
	in, _ := w.l.Inode(w.files["f"].node)
	if in.Content <= 5*perDirectory {
		t.Errorf("contents file of the new inode: got number %d", in.Content)
	}
	await.Until(t, "the orphan is moved to lost+found", func() bool { return len(w.lost()) == 1 })
}

func TestPowerLossDuringRecoveryIsStillPowerLoss(t *testing.T) {
	w := opened(t, Options{})
	w.kill()
	w.o.quiet, w.o.pause = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.write("base3", 5, []byte("not synced")))
	w.kill()
	w.o.boot = "boot-2"
	// If the directory of contents files cannot be read, Open fails after the log has been opened in the new boot.
	contents := filepath.Join(w.dir, "contents")
	w.must(os.Rename(contents, contents+".away"))
	w.must(os.WriteFile(contents, nil, 0o600))
	if _, err := w.open(); err == nil {
		t.Fatal("Open succeeded without the directory of contents files")
	}
	w.must(os.Remove(contents))
	w.must(os.Rename(contents+".away", contents))
	if rec := w.mustOpen(); rec.Start != PowerLoss {
		t.Errorf("recovery with the contents in place again: got %+v, want a power loss", rec)
	}
	m := w.files["base3"]
	m.base, m.data = true, baseContents(m.node)
	w.compare()
}

func TestReplayEndsWhereTheBaseDoes(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.chmod("base2", 0o700))
	w.must(w.chmod("base7", 0o700))
	w.must(w.create("behind"))
	w.kill()
	w.o.boot = "boot-2"
	w.o.ValidBase = func(n Node) bool { return n <= 5 }
	rec := w.mustOpen()
	if rec.Start != PowerLoss || rec.Cut == 0 {
		t.Errorf("recovery with another base: got %+v, want a power loss and a cut log", rec)
	}
	w.files["base7"].mode = syscall.S_IFREG | 0o644
	delete(w.files, "behind")
	w.compare()
}

func TestReadOnlyWritesNothing(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.create("f"))
	w.must(w.write("f", 0, []byte("kept")))
	w.must(w.write("base3", 0, []byte("kept")))
	w.kill()
	before := listing(t, w.dir)
	w.o.ReadOnly = true
	w.mustOpen()
	w.compare()
	if err := w.create("g"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("create in a read-only layer: got %v", err)
	}
	if err := w.write("f", 0, []byte("x")); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write in a read-only layer: got %v", err)
	}
	if err := w.truncate("f", 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("truncate in a read-only layer: got %v", err)
	}
	w.must(w.fsync("f"))
	w.mustClose()
	if after := listing(t, w.dir); after != before {
		t.Errorf("a read-only layer changed files: before\n%s\nafter\n%s", before, after)
	}
	w.o.ReadOnly = false
	w.mustOpen()
	w.compare()
}

// listing returns every file below dir with its size and mtime.
func listing(t *testing.T, dir string) string {
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(path + " " + info.ModTime().String() + " " + info.Mode().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOneProcessAtATime(t *testing.T) {
	w := opened(t, Options{})
	if _, _, err := Open(w.dir, w.o); !errors.Is(err, ErrInUse) {
		t.Errorf("second Open: got %v", err)
	}
	if _, err := Check(w.dir, true, ""); !errors.Is(err, ErrInUse) {
		t.Errorf("Check of an open overlay: got %v", err)
	}
	w.must(w.create("f"))
	w.compare()
}

func TestContentsAreSettled(t *testing.T) {
	w := opened(t, Options{})
	w.must(w.write("base3", 0, []byte("x")))
	w.must(w.create("own"))
	w.must(w.write("own", 0, []byte("x")))
	await.Until(t, "the log has the sizes of all files", func() bool {
		a, _ := w.l.Inode(w.files["base3"].node)
		b, _ := w.l.Inode(w.files["own"].node)
		return a.Flags == 0 && b.Flags == 0
	})
	w.must(w.write("own", 1, []byte("more")))
	w.kill()
	w.mustOpen()
	w.compare()
}

func TestChangedCountsPaths(t *testing.T) {
	w := opened(t, Options{})
	changed := func(want int64) {
		t.Helper()
		if n := w.l.Changed(); n != want {
			t.Errorf("changed paths: got %d, want %d", n, want)
		}
	}
	changed(0)
	w.must(w.create("f"))
	changed(1)
	w.must(w.chmod("base2", 0o755))
	changed(2)
	w.must(w.rename("base3", "moved"))
	changed(4)
	w.must(w.remove("base4"))
	changed(5)
	w.must(w.write("f", 0, []byte("four")))
	if s := w.l.Stats(); s.Entries != 2 || s.Hidden != 2 || s.Contents != 1 || s.Bytes != 4 || s.LogBytes == 0 {
		t.Errorf("statistics of the overlay: got %+v", s)
	}
}

// Truncating a file to zero succeeds although its contents file is missing.
func TestMissingContentIsReplaced(t *testing.T) {
	w := opened(t, Options{})
	for _, name := range []string{"own", "base3"} {
		if name == "own" {
			w.must(w.create(name))
		}
		w.must(w.write(name, 0, []byte("lost")))
		w.must(w.fsync(name))
		in, _ := w.l.Inode(w.files[name].node)
		w.must(os.Remove(pathIn(w.l.contents.layout.Load().own, in.Content)))
	}
	w.kill()
	w.mustOpen()
	for _, name := range []string{"own", "base3"} {
		f := w.l.File(w.files[name].node)
		if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrDamaged) {
			t.Errorf("read %s: got %v", name, err)
		}
		f.Done()
		w.must(w.truncate(name, 0))
		w.must(w.write(name, 0, []byte("anew")))
	}
	w.compare()
	w.kill()
	w.mustOpen()
	w.compare()
}
