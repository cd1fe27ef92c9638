package overlay

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A kill before the moment of a seal, and a power cut that loses its record, leave a directory for new contents files.
func TestDirectoryOfALostSealIsRemoved(t *testing.T) {
	top := t.TempDir()
	w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{}))
	w.o.pause, w.o.quiet = time.Hour, time.Hour
	w.mustOpen()
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	_, err := BeginSeal(w.l, shareOf(1))
	w.must(err)
	w.kill()
	w.o.TakeOver = true
	w.mustOpen()
	w.o.TakeOver = false
	w.compare()
	if _, err := os.Stat(filepath.Join(w.dir, "contents-"+shareOf(1))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a seal that was killed before its moment: %v", err)
	}
	path := filepath.Join(w.dir, "log")
	before, err := os.ReadFile(path)
	w.must(err)
	s, err := BeginSeal(w.l, shareOf(2))
	w.must(err)
	s.Freeze(func(Reader) bool { return true }) // files are sealed, and not moved
	w.must(w.create("b"))
	w.must(w.write("b", 0, []byte("later")))
	in, _ := w.l.Inode(w.files["b"].node)
	w.kill()
	w.must(os.WriteFile(path, before, 0o600))
	delete(w.files, "b")
	w.o.boot = "boot-2"
	w.mustOpen()
	w.compare()
	stray := "contents-" + shareOf(2)
	if _, err := os.Stat(filepath.Join(w.dir, stray)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a seal that was lost in a power cut: %v", err)
	}
	if got, err := os.ReadFile(pathIn(filepath.Join(w.dir, "lost+found", stray), in.Content)); string(got) != "later" {
		t.Errorf("contents that were written after the seal: got %q, %v, want them in lost+found", got, err)
	}
	w.must(w.seal())
	w.must(w.write("a", 0, []byte("changed")))
	w.compare()
	w.mustClose()
	w.sound()
}

// A synced file of the base tree that was sealed, and then truncated and written without a sync, does not get the base
// tree's contents back in a power cut.
func TestPowerCutAfterATruncationOfSealedContents(t *testing.T) {
	for seed := range uint64(20) {
		top, crash, w := crashedSharing(t)
		w.must(w.create("other"))
		w.must(w.write("base3", 0, bytes.Repeat([]byte("a"), 9000)))
		w.must(w.fsync("base3"))
		w.must(w.seal())
		w.must(w.truncate("base3", 0))
		w.compare()
		w.must(w.write("base3", 0, []byte("bbb")))
		w.must(w.fsync("other"))
		w.compare()
		after := filepath.Join(top, "after")
		w.must(crash.Crash(after, seed))
		w.kill()
		w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2", Shares: filepath.Join(after, "shares")})
		w.mustOpen()
		m, ok, err := w.look("base3")
		if err != nil || !ok || m.base || strings.Trim(string(m.data), "b\x00") != "" && len(m.data) != 9000 {
			t.Errorf("seed %d: got file %+v, %v, %v", seed, m, ok, err)
		}
		w.mustClose()
	}
}
