package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// users are the directories of overlays that use the same shares.
type users struct {
	t      testing.TB
	shares string
	dirs   func() []string
}

// lockShare locks a share as statedir.Homes does, without waiting.
func lockShare(dir string, how int) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// sole returns the Sole of the overlay in the directory self. Locked shares are skipped.
func (u users) sole(self string) Sole {
	return func(ids []string) (mine []string, release func(), err error) {
		var locks []func()
		release = func() {
			for _, unlock := range locks {
				unlock()
			}
		}
		var locked []string
		for _, id := range ids {
			if unlock, err := lockShare(filepath.Join(u.shares, id), syscall.LOCK_EX); err == nil {
				locks, locked = append(locks, unlock), append(locked, id)
			}
		}
		others := map[string]bool{}
		for _, dir := range u.dirs() {
			listed, err := ListedShares(dir)
			if err != nil {
				return nil, release, err
			}
			for _, id := range listed {
				others[id] = others[id] || dir != self
			}
		}
		for _, id := range locked {
			if !others[id] {
				mine = append(mine, id)
			}
		}
		return mine, release, nil
	}
}

// removeShares removes the shares that no overlay lists and that are not locked, and returns the number of the others.
func (u users) removeShares() (left int) {
	u.t.Helper()
	all, err := os.ReadDir(u.shares)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, e := range all {
		dir := filepath.Join(u.shares, e.Name())
		unlock, err := lockShare(dir, syscall.LOCK_EX)
		if err != nil {
			left++
			continue
		}
		used := false
		for _, home := range u.dirs() {
			listed, err := ListedShares(home)
			used = used || err != nil || slices.Contains(listed, e.Name())
		}
		if used {
			left++
		} else if err := os.RemoveAll(dir); err != nil {
			u.t.Error(err)
		}
		unlock()
	}
	return left
}

// reclaim runs Reclaim, or ReclaimClosed if the layer is not open, and no longer expects the files that it has removed
// and that no world of the family names.
func (u users) reclaim(w *world, family []*world) (r Reclaimed) {
	u.t.Helper()
	var err error
	if w.l != nil {
		r, err = Reclaim(u.t.Context(), u.sole(w.dir), w.l)
	} else {
		closed := 0
		r, err = ReclaimClosed(w.dir, w.o, u.sole(w.dir), func() { closed++ }, false)
		if closed != 1 {
			u.t.Errorf("closed was called %d times", closed)
		}
	}
	if err != nil {
		u.t.Errorf("reclaim: %v", err)
	}
	u.removeShares()
	for _, other := range family {
		for path := range other.sealed {
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				delete(other.sealed, path) // the comparison of the files finds the file, if one needs it
			}
		}
	}
	return r
}

// A family of forks changes on its own, while its members remove unused contents at random moments, open and closed,
// over kills, takeovers, compactions and the end of single members.
func TestReclaimModel(t *testing.T) {
	seeds := uint64(16)
	if testing.Short() {
		seeds = 4
	}
	files, dropped := int64(0), 0
	for seed := range seeds {
		top := t.TempDir()
		r := rand.New(rand.NewPCG(seed, 17))
		first := newWorld(t, filepath.Join(top, "0"), sharing(t, top, Options{idle: 3}))
		first.mustOpen()
		family := []*world{first}
		u := users{t, first.o.Shares, func() (dirs []string) {
			for _, w := range family {
				dirs = append(dirs, w.dir)
			}
			return dirs
		}}
		reclaim := func(w *world) {
			t.Helper()
			got := u.reclaim(w, family)
			files, dropped = files+got.Files, dropped+len(got.Dropped)
		}
		for round := 1; round < 24; round++ {
			for _, w := range family {
				for range 8 {
					w.must(w.step(r))
				}
			}
			w := family[r.IntN(len(family))]
			switch r.IntN(7) {
			case 0, 1:
				if len(family) < 4 {
					family = append(family, w.fork(filepath.Join(top, fmt.Sprint(round)), round*1_000_000))
				}
			case 2, 3:
				w.kill()
				if r.IntN(2) == 0 {
					reclaim(w)
				}
				w.o.TakeOver = r.IntN(2) == 0
				if rec := w.mustOpen(); len(rec.Problems) > 0 {
					t.Errorf("open after a kill: got the problems %q", rec.Problems)
				}
			case 4:
				w.must(w.l.janitor.compact())
			case 5, 6:
				w.mustClose()
				w.sound()
				if len(family) > 1 && r.IntN(3) > 0 {
					w.must(os.RemoveAll(w.dir))
					family = slices.DeleteFunc(family, func(other *world) bool { return other == w })
					break
				}
				reclaim(w)
				w.sound()
				w.o.TakeOver = false
				w.mustOpen()
			}
			for _, w := range family {
				if r.IntN(3) == 0 {
					reclaim(w)
				}
			}
			for _, w := range family {
				w.compare()
			}
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		for _, w := range family {
			w.mustClose()
			w.sound()
		}
	}
	if files == 0 || dropped == 0 {
		t.Errorf("removed %d files and dropped %d segments, want both more than 0", files, dropped)
	}
}

// alone returns the Sole of an overlay that uses all shares alone.
func alone(ids []string) ([]string, func(), error) { return ids, func() {}, nil }

// replaced returns a closed world on fs with two segments, of which the first is not used any more, and the second has
// files that are not used.
func replaced(t testing.TB, top string, fs disk.FS) *world {
	w := newWorld(t, filepath.Join(top, "overlay"), sharing(t, top, Options{FS: fs, idle: 3}))
	w.o.pause, w.o.quiet = time.Hour, time.Hour // the test itself does the janitor's work
	w.mustOpen()
	for _, name := range []string{"a", "b"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte("contents of "+name)))
	}
	w.must(w.write("base3", 5, []byte("changed")))
	w.must(w.seal())
	for _, name := range []string{"a", "b", "base3"} {
		w.must(w.write(name, 3, []byte("again")))
	}
	w.must(w.seal())
	w.must(w.write("a", 5, []byte("third")))
	w.must(w.remove("b"))
	w.sealed = nil
	return w
}

// TestReclaimFaults makes the n-th disk operation fail, as TestEveryFault does, while unused contents are removed.
func TestReclaimFaults(t *testing.T) {
	disktest.EveryFault(t, 7, 3, func(t *testing.T, f *disktest.Faults, errno error) {
		w := replaced(t, t.TempDir(), disktest.Faulty(disktest.Unsynced(disk.OS), f.Fail))
		attempt := func(what string, do func() error) {
			before := f.Struck()
			if err := f.During(do); err != nil && (!errors.Is(err, errno) || f.Struck() == before) {
				t.Errorf("%s failed with %v, want success or the injected error", what, err)
			}
			w.compare()
			w.sealed = nil
		}
		reclaim := func() error { _, err := Reclaim(t.Context(), alone, w.l); return err }
		attempt("reclaim", reclaim)
		attempt("write", func() error { return w.write("a", 3, []byte("later")) })
		attempt("reclaim again", reclaim)
		attempt("seal", w.seal)
		attempt("write", func() error { return w.write("base3", 3, []byte("later")) })
		attempt("compact", w.l.janitor.compact)
		attempt("reclaim after another seal", reclaim)
		if r, err := Reclaim(t.Context(), alone, w.l); err != nil {
			t.Errorf("reclaim without faults: got %+v, %v", r, err)
		}
		if got := w.listed(); len(got) > 2 { // the last segment stays, and the one before if a seal has failed
			t.Errorf("list after a reclaim without faults: got %q", got)
		}
		w.compare()
		w.kill()
		w.mustOpen()
		w.compare()
		w.mustClose()
		w.sound()
	})
}

// A process may be killed between any two disk operations of Reclaim.
func TestReclaimIsKilled(t *testing.T) {
	for _, takeOver := range []bool{false, true} {
		for killed, at := true, 1; killed; at++ {
			first, n := 0, 0
			w := replaced(t, t.TempDir(), disktest.Faulty(disktest.Unsynced(disk.OS), func(op disktest.Op) error {
				if n = op.N; first > 0 && n >= first+at {
					return syscall.EIO
				}
				return nil
			}))
			first = n
			_, err := Reclaim(t.Context(), alone, w.l)
			killed = err != nil
			w.kill()
			w.o.FS, w.o.TakeOver = disktest.Unsynced(disk.OS), takeOver
			if rec := w.mustOpen(); len(rec.Problems) > 0 {
				t.Errorf("reclaim was killed at operation %d: got the problems %q", at, rec.Problems)
			}
			w.compare()
			if _, err := Reclaim(t.Context(), alone, w.l); err != nil {
				t.Errorf("reclaim after the kill: %v", err)
			}
			if got := w.listed(); !slices.Equal(got, []string{shareOf(2)}) {
				t.Errorf("list after the kill at operation %d: got %q", at, got)
			}
			w.must(w.seal())
			w.must(w.write("a", 4, []byte("fourth")))
			w.compare()
			w.mustClose()
			w.sound()
		}
	}
}

// A killed process has not synced the data that its last records refer to, without which a power cut cuts the log: a
// closed overlay syncs them before it removes files.
func TestReclaimClosedSyncsWhatTheLogRefersTo(t *testing.T) {
	w := replaced(t, t.TempDir(), disk.OS)
	w.kill()
	fail := errors.New("sync of the inode table failed")
	w.o.BeforeSync = func() error { return fail }
	if r, err := ReclaimClosed(w.dir, w.o, alone, func() {}, false); !errors.Is(err, fail) || r.Files != 0 {
		t.Errorf("reclaim after a failed sync: got %+v, %v, want the error and no file", r, err)
	}
	w.o.BeforeSync = nil
	if r, err := ReclaimClosed(w.dir, w.o, alone, func() {}, false); err != nil || r.Files == 0 {
		t.Errorf("reclaim: got %+v, %v", r, err)
	}
	w.mustOpen()
	w.compare()
	w.mustClose()
}

// A change that finds no disk space asks for Reclaim, if there are sealed files.
func TestFullDiskAsksForReclaim(t *testing.T) {
	var full atomic.Bool
	asked := make(chan struct{}, 1)
	w := opened(t, sharing(t, t.TempDir(), Options{Full: asked, FS: disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() && op.Name == "WriteAt" && strings.Contains(filepath.Dir(op.Path), "contents") {
			return syscall.ENOSPC
		}
		return nil
	})}))
	w.must(w.create("a"))
	w.must(w.write("a", 0, []byte("contents")))
	for _, sealed := range []bool{false, true} {
		if sealed {
			w.must(w.seal())
		}
		w.must(w.create(fmt.Sprint("b", sealed)))
		full.Store(true)
		if err := w.write(fmt.Sprint("b", sealed), 0, []byte("more")); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("write on a full disk: got %v", err)
		}
		full.Store(false)
		if got := len(asked) > 0; got != sealed {
			t.Errorf("sealed files %v: full disk asks for reclaim: got %v", sealed, got)
		}
	}
	w.mustClose()
}

// On a disk without room for the list of shares, the files of a share that was dropped from the log are removed one by
// one, and the share is reported when the list is written.
func TestReclaimOnAFullDisk(t *testing.T) {
	var full atomic.Bool
	w := replaced(t, t.TempDir(), disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() && strings.HasPrefix(filepath.Base(op.Path), listName) {
			return syscall.ENOSPC
		}
		return nil
	}))
	first := w.listed()[0]
	full.Store(true)
	if r, err := Reclaim(t.Context(), alone, w.l); !errors.Is(err, syscall.ENOSPC) || r.Files != 5 || len(r.Dropped) > 0 {
		t.Errorf("reclaim on a full disk: got %+v, %v, want the files of both shares", r, err)
	}
	full.Store(false)
	if r, err := Reclaim(t.Context(), alone, w.l); err != nil || !slices.Equal(r.Dropped, []string{first}) {
		t.Errorf("reclaim with room again: got %+v, %v, want share %s dropped", r, err, first)
	}
	w.compare()
	w.mustClose()
}

// A mount that ends does not wait until all files are removed.
func TestReclaimEndsWithItsContext(t *testing.T) {
	w := replaced(t, t.TempDir(), disk.OS)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Reclaim(ctx, alone, w.l); !errors.Is(err, context.Canceled) || r.Files != 0 {
		t.Errorf("reclaim after the end of its context: got %+v, %v", r, err)
	}
	if r, err := Reclaim(t.Context(), alone, w.l); err != nil || r.Files == 0 {
		t.Errorf("next reclaim: got %+v, %v, want removed files", r, err)
	}
	w.compare()
	w.mustClose()
}

// A sealed contents file may be in use after its file was removed.
func TestReclaimSparesWhatIsInUse(t *testing.T) {
	text := bytes.Repeat([]byte("precious "), 1000)
	for _, c := range []struct {
		what string
		hold func(w *world) (check func() []byte, end func())
	}{
		{"pin", func(w *world) (func() []byte, func()) {
			in, _ := w.l.Inode(w.files["a"].node)
			p := w.l.Pin(in)
			w.must(w.remove("a"))
			return func() []byte { return []byte(w.content(p)) }, p.Release
		}},
		{"Kept record", func(w *world) (func() []byte, func()) {
			w.keepAndRemove("a", 7)
			return func() []byte {
				w.kill()
				_, err := ReclaimClosed(w.dir, w.o, alone, func() {}, false)
				w.must(err)
				rec := w.mustOpen()
				if len(rec.Kept) != 1 {
					w.t.Fatalf("kept files: got %+v", rec.Kept)
				}
				got := []byte(w.content(rec.Kept[0].Pin))
				rec.Kept[0].Pin.Release()
				return got
			}, func() { w.must(w.l.Update(func(tx *Tx) error { tx.Unkeep(7, 7); return nil })) }
		}},
		{"removed file that a program has open", func(w *world) (func() []byte, func()) {
			n := w.files["a"].node
			w.l.Remember(n)
			w.must(w.l.Update(func(tx *Tx) error {
				in, _ := tx.Inode(n)
				in.Nlink = 0
				tx.PutInode(in)
				tx.Hide(root, "a")
				return nil
			}))
			delete(w.files, "a")
			return func() []byte {
				f := w.l.File(n)
				defer f.Done()
				got := make([]byte, len(text)+1)
				k, err := f.ReadAt(got, 0)
				w.must(err)
				return got[:k]
			}, func() { w.l.Forget(n, 2) }
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := opened(t, sharing(t, t.TempDir(), Options{pause: time.Hour, quiet: time.Hour}))
			w.must(w.create("a"))
			w.must(w.write("a", 0, text))
			w.must(w.create("b"))
			w.must(w.write("b", 0, text))
			w.must(w.seal())
			w.sealed = nil
			w.must(w.create("c"))
			w.must(w.write("c", 0, text))
			w.must(w.remove("b"))
			check, end := c.hold(w)
			w.must(w.seal())
			w.sealed = nil
			if r, err := Reclaim(t.Context(), alone, w.l); err != nil || r.Files != 1 || r.Bytes < int64(len(text)) || len(r.Dropped) > 0 {
				t.Errorf("reclaim: got %+v, %v, want the file b", r, err)
			}
			if got := check(); !bytes.Equal(got, text) {
				t.Errorf("contents after reclaim: got %d bytes, want %d", len(got), len(text))
			}
			end()
			w.must(w.l.janitor.tidy(true))
			w.l.files.spare()
			if r, err := Reclaim(t.Context(), alone, w.l); err != nil || !slices.Equal(r.Dropped, []string{shareOf(w.serial - 1)}) {
				t.Errorf("reclaim after the end of the use: got %+v, %v, want that the first segment is dropped", r, err)
			}
			if r, err := Reclaim(t.Context(), alone, w.l); err != nil || r.Files != 0 || len(r.Dropped) > 0 {
				t.Errorf("reclaim without new unused files: got %+v, %v", r, err)
			}
		})
	}
}

// While a fork is being made, nothing is removed, because the fork may use any file.
func TestReclaimWaitsForASeal(t *testing.T) {
	w := replaced(t, t.TempDir(), disktest.Unsynced(disk.OS))
	s, err := BeginSeal(w.l, shareOf(9))
	w.must(err)
	if r, err := Reclaim(t.Context(), alone, w.l); err != nil || r.Files != 0 || len(r.Dropped) > 0 {
		t.Errorf("reclaim during a seal: got %+v, %v", r, err)
	}
	s.Close()
	locked := func([]string) ([]string, func(), error) { return nil, func() {}, nil }
	if r, err := Reclaim(t.Context(), locked, w.l); err != nil || r.Files != 0 || len(r.Dropped) != 1 {
		t.Errorf("reclaim while others use the shares: got %+v, %v, want one segment dropped", r, err)
	}
	if r, err := Reclaim(t.Context(), alone, w.l); err != nil || r.Files != 2 {
		t.Errorf("reclaim of the only user: got %+v, %v, want two files", r, err)
	}
	w.compare()
	w.mustClose()
	w.sound()
}

// The fork of an overlay that was removed is the only user of its shares. It removes the files that it does not have.
func TestReclaimOfAForkWithoutParent(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	for i := range 20 {
		name := fmt.Sprint("file", i)
		w.must(w.create(name))
		w.must(w.write(name, 0, bytes.Repeat([]byte(name), 2000)))
	}
	f := w.fork(filepath.Join(top, "fork"), 1_000_000)
	for i := range 15 {
		f.must(f.remove(fmt.Sprint("file", i)))
	}
	u := users{t, w.o.Shares, func() []string { return []string{w.dir, f.dir} }}
	if r := u.reclaim(f, nil); r.Files != 0 {
		t.Errorf("reclaim while the parent uses the files: got %+v", r)
	}
	w.compare()
	w.mustClose()
	w.must(os.RemoveAll(w.dir))
	if r := u.reclaim(f, nil); r.Files != 15 || r.Bytes < 15*10_000 {
		t.Errorf("reclaim after the parent was removed: got %+v, want 15 files", r)
	}
	f.compare()
	f.mustClose()
	f.must(os.WriteFile(filepath.Join(f.dir, "lock"), nil, 0o600))
	if r, err := ReclaimClosed(f.dir, f.o, u.sole(f.dir), func() {}, true); err != nil || r.Files != 0 {
		t.Errorf("reclaim of the closed fork: got %+v, %v", r, err)
	}
	f.sound()
}

// In an overlay that replaces its files and is forked again and again, disk space and segments do not grow.
func TestReclaimBoundsForksInALoop(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	dirs := []string{w.dir}
	u := users{t, w.o.Shares, func() []string { return dirs }}
	most, mostShares := int64(0), 0
	for cycle := range 50 {
		for i := range 30 {
			name := fmt.Sprint("file", i)
			if cycle == 0 {
				w.must(w.create(name))
			} else {
				w.must(w.truncate(name, 0))
			}
			w.must(w.write(name, 0, bytes.Repeat([]byte{byte(cycle)}, 8000)))
		}
		f := w.fork(filepath.Join(top, "fork"), 1_000_000*(cycle+1))
		dirs = []string{w.dir, f.dir}
		u.reclaim(w, []*world{w})
		f.compare()
		f.mustClose()
		w.must(os.RemoveAll(f.dir))
		dirs = []string{w.dir}
		u.removeShares()
		u.reclaim(w, []*world{w})
		mostShares = max(mostShares, u.removeShares(), len(w.listed()), len(w.l.state.Segments))
		bytes := int64(0)
		for _, dir := range []string{w.o.Shares, w.dir} {
			w.must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if info, statErr := os.Stat(path); statErr == nil && info.Mode().IsRegular() && e.Name() != "log" {
					bytes += info.Size()
				}
				return err
			}))
		}
		most = max(most, bytes)
		w.compare()
	}
	t.Logf("at most %d bytes and %d segments", most, mostShares)
	if most > 2*30*8000 || mostShares > 2 {
		t.Errorf("after 50 forks: got at most %d bytes and %d segments, want those of one set of files", most, mostShares)
	}
}

// Forks are made while files are replaced and unused ones are removed. Each fork has the bytes of its moment.
func TestReclaimWhileForksAreMade(t *testing.T) {
	top := t.TempDir()
	w := opened(t, sharing(t, top, Options{}))
	var mu sync.Mutex
	dirs := []string{w.dir}
	u := users{t, w.o.Shares, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(dirs) }}
	for i := range 10 {
		w.must(w.create(fmt.Sprint("file", i)))
		w.must(w.write(fmt.Sprint("file", i), 0, make([]byte, 5000)))
	}
	var nodes []Node
	for i := range 10 {
		nodes = append(nodes, w.files[fmt.Sprint("file", i)].node)
	}
	stop, busy := make(chan struct{}), sync.WaitGroup{}
	repeat := func(do func(n int) error) {
		busy.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for _, node := range nodes {
		repeat(func(n int) error { // each file has the same byte everywhere, except during a write
			f := w.l.File(node)
			defer f.Done()
			if n%2 == 0 {
				if err := separately(f, 0, func() error { return f.Truncate(0) }); err != nil {
					return err
				}
			}
			return separately(f, 5000, func() error {
				_, err := f.WriteAt(bytes.Repeat([]byte{byte(n)}, 5000), 0)
				return err
			})
		})
	}
	removed := int64(0)
	repeat(func(int) error {
		r, err := Reclaim(t.Context(), u.sole(w.dir), w.l)
		removed += r.Files
		u.removeShares()
		return err
	})
	for round := range 40 {
		forkWhileBusy(t, w, u, &mu, &dirs, filepath.Join(top, fmt.Sprint("fork", round)), round)
		if t.Failed() {
			break
		}
	}
	close(stop)
	busy.Wait()
	if removed == 0 {
		t.Error("no file was removed")
	}
	w.files, w.sealed = map[string]*modelFile{}, nil
}

// forkWhileBusy makes a fork as a daemon does, reads it, and removes it.
func forkWhileBusy(t *testing.T, w *world, u users, mu *sync.Mutex, dirs *[]string, dir string, round int) {
	id := shareOf(round + 1)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(w.o.Shares, id), 0o700))
	var held []func()
	hold := func(id string) {
		for {
			release, err := lockShare(filepath.Join(w.o.Shares, id), syscall.LOCK_SH)
			if errors.Is(err, syscall.EWOULDBLOCK) {
				time.Sleep(time.Millisecond)
				continue
			}
			if errors.Is(err, fs.ErrNotExist) { // it was removed before it was locked
				must(os.Mkdir(filepath.Join(w.o.Shares, id), 0o700))
				continue
			}
			must(err)
			held = append(held, release)
			return
		}
	}
	hold(id)
	s, err := BeginSeal(w.l, id)
	must(err)
	listed, err := ListedShares(w.dir)
	must(err)
	for _, id := range listed {
		hold(id)
	}
	s.Freeze(func(Reader) bool { return true })
	must(s.Publish())
	var inodes []Inode
	s.Names().EachInode(func(in Inode) bool { inodes = append(inodes, in); return true })
	o := w.o
	o.Segments = s.Segments()
	s.Close()
	time.Sleep(time.Duration(round%5) * time.Millisecond)
	f, _, err := Open(dir, o)
	must(err)
	mu.Lock()
	*dirs = append(*dirs, dir)
	mu.Unlock()
	for i := range inodes {
		must(f.Update(func(tx *Tx) error {
			n, err := tx.NewNode()
			if err != nil {
				return err
			}
			inodes[i].Node = n
			tx.SetEntry(root, fmt.Sprint("file", i), n)
			return tx.Adopt(inodes[i])
		}))
	}
	for _, release := range held {
		release()
	}
	time.Sleep(2 * time.Millisecond)
	for _, in := range inodes {
		file := f.File(in.Node)
		got := make([]byte, 6000)
		n, err := file.ReadAt(got, 0)
		file.Done()
		if err != nil || int64(n) != in.Size {
			t.Errorf("round %d: got %d bytes, %v, want %d", round, n, err, in.Size)
		}
		if n > 0 && !bytes.Equal(got[:n], bytes.Repeat(got[:1], n)) {
			t.Errorf("round %d: contents are not of one moment", round)
		}
	}
	must(f.Close())
	must(os.RemoveAll(dir))
	mu.Lock()
	*dirs = (*dirs)[:1]
	mu.Unlock()
}

// The power is cut during the removal of unused contents: after any number of its disk operations, and with any part of
// what was not synced lost. Files that were fsynced have their contents.
func TestPowerCutDuringReclaim(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 5
	}
	for at := 1; ; at++ {
		done := false
		for seed := range seeds {
			t.Run(fmt.Sprintf("%d,%d", at, seed), func(t *testing.T) { done = cutDuringReclaim(t, at, seed) })
		}
		if t.Failed() || done {
			return
		}
	}
}

// cutDuringReclaim cuts the power at the given disk operation of Reclaim, with what is lost determined by seed. It
// reports whether Reclaim ended before.
func cutDuringReclaim(t *testing.T, at int, seed uint64) (done bool) {
	top := t.TempDir()
	before, after := filepath.Join(top, "before"), filepath.Join(top, "after")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(before)
	if err != nil {
		t.Fatal(err)
	}
	first, n := 0, 0
	w := newWorld(t, filepath.Join(before, "overlay"), Options{idle: 3,
		FS: disktest.Faulty(crash, func(op disktest.Op) error {
			if n = op.N; first > 0 && n >= first+at {
				return syscall.EIO
			}
			return nil
		})})
	w.o.pause, w.o.quiet, w.o.Shares = time.Hour, time.Hour, filepath.Join(before, "shares")
	w.must(crash.Mkdir(w.o.Shares, 0o700))
	w.must(crash.SyncDir(before))
	w.mustOpen()
	for _, name := range []string{"a", "b", "c"} {
		w.must(w.create(name))
		w.must(w.write(name, 0, []byte("contents of "+name)))
		w.must(w.fsync(name))
	}
	w.must(w.seal())
	w.must(w.write("a", 3, []byte("again")))
	w.must(w.write("c", 3, []byte("again")))
	w.must(w.fsync("a"))
	w.must(w.fsync("c"))
	w.must(w.seal())
	w.must(w.write("a", 5, []byte("third"))) // after the power cut, the file may have the synced contents
	w.must(w.remove("b"))
	first = n
	_, err = Reclaim(t.Context(), alone, w.l)
	done = err == nil
	if listed := w.listed(); !slices.Contains(listed, shareOf(1)) { // others remove a share that is not listed
		files, err := filepath.Glob(filepath.Join(w.o.Shares, shareOf(1), "contents", "*", "*"))
		w.must(err)
		for _, path := range files {
			w.must(crash.Remove(path))
		}
	}
	w.must(crash.Crash(after, seed))
	w.kill()
	w.must(crash.Close())
	w = newWorld(t, filepath.Join(after, "overlay"), Options{boot: "boot-2"})
	w.o.Shares = filepath.Join(after, "shares")
	if rec := w.mustOpen(); len(rec.Problems) > 0 {
		t.Errorf("operation %d, seed %d: got the problems %q", at, seed, rec.Problems)
	}
	for name, want := range map[string][]string{
		"a": {"conagain of a", "conagthirdf a"}, "b": {"contents of b"}, "c": {"conagain of c"},
	} {
		m, ok, err := w.look(name)
		if err != nil || !ok && name != "b" || ok && !slices.Contains(want, string(m.data)) {
			t.Errorf("operation %d, seed %d: file %s: got %+v, %v, %v", at, seed, name, m, ok, err)
		}
	}
	if _, err := Reclaim(t.Context(), alone, w.l); err != nil {
		t.Errorf("operation %d, seed %d: reclaim after the power cut: %v", at, seed, err)
	}
	w.mustClose()
	w.sound()
	return done
}
