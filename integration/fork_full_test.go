package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Forks are made while the disk has no or little space. Each fork fails, or has everything, or has no ignored files and
// says why. The parent loses nothing.
func TestForkOnAFullDisk(t *testing.T) {
	w := newWorldOnSmallDisk(t, 64<<20)
	m := w.forkable()
	want := m.everythingIn()
	made, without, failed := 0, 0, 0
	for i, room := range []int64{0, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 384 << 10, 512 << 10, 768 << 10, 1 << 20,
		2 << 20, 4 << 20, 8 << 20} {
		// A new file, so that each fork has something to seal.
		w.check(os.WriteFile(m.path(fmt.Sprint("build/round", i)), []byte("round"), 0o600))
		want = m.everythingIn()
		free := w.fill()
		w.check(os.Truncate(filepath.Join(w.state, "filler"), max(0, size(t, filepath.Join(w.state, "filler"))-room)))
		id := fmt.Sprint("fork", i)
		fork := mounted{w: w}
		fork.Dir = filepath.Join(w.root, id)
		r := w.afs("session", "fork", "-C", m.Dir, fork.Dir, "--session", id, "--wait", "git", "--history", "none", "--prefetch",
			"none", "--checkpoint", "off")
		what := fmt.Sprintf("fork with %d bytes of space", room)
		m.wantCarried(what+": parent", want)
		free()
		switch {
		case r.code != 0:
			failed++
			if w.inState("mounts", id) {
				t.Errorf("%s: failed, and its home is left: %s", what, r)
			}
			continue
		case strings.Contains(r.stderr, "artifactfs: carried: "):
			made++
			fork.wantCarried(what, want)
		default:
			without++
			if !strings.Contains(r.stderr, "no space left on device") || exists(fork.path("node_modules")) {
				t.Errorf("%s: got %s", what, r)
			}
		}
		w.ok("unmount", "--discard", "--yes", fork.Dir)
	}
	t.Logf("%d forks have everything, %d have no ignored files, and %d have failed", made, without, failed)
	if made == 0 || without+failed == 0 {
		t.Error("want forks with and without enough space")
	}
	m.wantCarried("parent", want)
	w.ok("cache", "gc")
	for _, s := range w.sharesWithUsers() {
		if len(s.Users) == 0 {
			t.Errorf("share %s has no user", s.ID)
		}
	}
	w.ok("unmount", "--discard", "--yes", m.Dir)
	w.check(os.RemoveAll(filepath.Join(w.state, "trash")))
	w.ok("cache", "gc")
	if got := w.shares(); len(got) > 0 {
		t.Errorf("shares after the end of all sessions: got %q", got)
	}
}

// size returns the size of a file.
func size(t *testing.T, path string) int64 {
	t.Helper()
	return must[fs.FileInfo](t)(os.Stat(path)).Size()
}

// Dependencies are removed and installed again, over and over, while forks are made. Each fork has those of one moment.
func TestForksDuringInstallations(t *testing.T) {
	w, _, m := forkRepo(t)
	const files = 60
	var installing sync.WaitGroup
	done := make(chan struct{})
	name := func(i int) string { return fmt.Sprintf("node_modules/pkg%d/f%02d.js", i%7, i) }
	installing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if err := os.RemoveAll(m.path("node_modules")); err != nil {
				t.Error(err)
				return
			}
			for i := range files {
				path := m.path(name(i))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(path, fmt.Appendf(nil, "version %d of file %d", n, i), 0o644); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for round := range 15 {
		f := m.fork(fmt.Sprint("fork", round))
		version, installed := "", 0
		var empty string
		for i := range files {
			text, err := os.ReadFile(f.path(name(i)))
			switch {
			case os.IsNotExist(err):
				continue
			case err != nil:
				t.Errorf("fork %d: %v", round, err)
				continue
			case len(text) == 0 && empty == "": // the file was created, and not written yet
				empty = name(i)
				continue
			}
			v, rest, ok := strings.Cut(string(text), " of file ")
			if version == "" {
				version = v
			}
			if !ok || v != version || rest != fmt.Sprint(i) {
				t.Errorf("fork %d: file %s has %q, others have %s", round, name(i), text, version)
			}
			installed++
		}
		t.Logf("fork %d: %d files of %s", round, installed, version)
		w.ok("unmount", "--discard", "--yes", f.Dir)
	}
	close(done)
	installing.Wait()
	want := m.everythingIn()
	m.fork("last").wantCarried("last fork", want)
}
