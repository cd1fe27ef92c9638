package worktree_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/carry"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// leftOut returns the paths of the files that a checkpoint of the tree would leave out: those that were created or
// moved in the tree.
func (w *faultTree) leftOut() (left []string) {
	for name := range w.files {
		if strings.Contains(name, "file") {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	return left
}

// take takes the files that a checkpoint leaves out, with a seal for the share with a number.
func (w *faultTree) take(n int, left []string) (*carry.Files, error) {
	seal, err := w.Overlay().BeginSeal(share(n))
	if err != nil {
		return nil, err
	}
	defer seal.Close()
	frozen, err := w.Freeze(w.t.Context(), "", FreezeOptions{Seal: seal})
	if err != nil {
		return nil, err
	}
	frozen.Release()
	return seal.Take(left, takeAll)
}

// forkOf returns a tree in dir, which is not open yet, whose base tree has those files of w that are not left out. It
// will have the files that were carried from w.
func (w *faultTree) forkOf(dir string, left []string, c *carry.Files) *faultTree {
	base := map[string]worktreetest.File{}
	for name, data := range w.files {
		if !slices.Contains(left, name) {
			base[name] = worktreetest.File{Data: data}
		}
	}
	for _, d := range faultDirs[1:] {
		base[d] = worktreetest.File{Mode: 0o40000}
	}
	f := &faultTree{t: w.t, dir: dir, src: worktreetest.New(base), files: maps.Clone(w.files), serial: w.serial,
		durable: map[string]string{}, doubted: map[Node]bool{}}
	f.options = w.options
	f.options.Root, f.options.Segments = f.src.Root, c.Segments
	f.options.Overlay, f.options.Journal = filepath.Join(dir, "overlay"), filepath.Join(dir, "journal")
	return f
}

// adopt opens the tree, and adds the carried files.
func (w *faultTree) adopt(c *carry.Files) error {
	err := w.open()
	if err == nil {
		if err = w.Overlay().Adopt(w.t.Context(), c); err != nil {
			err = errors.Join(err, w.Close())
		}
	}
	for _, l := range c.Left { // a file of the base tree was moved without being read
		delete(w.files, l.Path)
	}
	return err
}

// TestCarryFaults makes the n-th disk operation fail, as TestEveryFault does, while files are carried to forks. Either
// the caller gets the error, or the fork has all files. The parent has all files in any case.
func TestCarryFaults(t *testing.T) {
	disktest.EveryFault(t, 7, 13, func(t *testing.T, f *disktest.Faults, errno error) {
		r := rand.New(rand.NewPCG(3, 4))
		top := t.TempDir()
		mkdir := func(name string) string {
			dir := filepath.Join(top, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		w := newFaultTree(t, mkdir("parent"), disktest.Faulty(disktest.Unsynced(disk.OS), f.Fail))
		w.options.Shares = mkdir("shares")
		if err := w.open(); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if err := w.step(r); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
		attempt := func(what string, do func() error) bool {
			err := f.During(do)
			if err != nil && !errors.Is(err, errno) {
				t.Errorf("%s failed with %v, want the injected error", what, err)
			}
			return err == nil
		}
		for round := range 3 {
			left := w.leftOut()
			var c *carry.Files
			took := attempt("take", func() (err error) { c, err = w.take(round+1, left); return err })
			w.compare()
			if !took {
				continue
			}
			fork := w.forkOf(mkdir(fmt.Sprint("fork", round)), left, c)
			if attempt("adopt", func() error { return fork.adopt(c) }) {
				fork.compare()
				for range 3 {
					attempt("step", func() error { return w.step(r) })
					attempt("step of the fork", func() error { return fork.step(r) })
				}
				fork.compare()
				attempt("close the fork", fork.Close)
				if err := fork.open(); err != nil {
					t.Fatalf("open the fork again: %v", err)
				}
				fork.compare()
				if err := fork.Close(); err != nil {
					t.Error(err)
				}
			}
			w.compare()
		}
		// The log cannot be synced any more if a sync of it has failed.
		if err := w.Close(); err != nil && !errors.Is(err, errno) {
			t.Error(err)
		}
		if err := w.open(); err != nil {
			t.Fatalf("open again: %v", err)
		}
		w.compare()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestPowerCutOfForks cuts the power at a random disk operation while files are carried. Afterwards both trees have the
// files that were fsynced in the parent before, and a fork that was made completely has all names.
func TestPowerCutOfForks(t *testing.T) {
	runs := uint64(60)
	if testing.Short() {
		runs = 30
	}
	whole := 0
	for seed := range runs {
		if forkPowerRun(t, seed) {
			whole++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if whole == 0 || whole == int(runs) {
		t.Errorf("got %d of %d runs in which the fork was complete before the cut", whole, runs)
	}
}

// forkPowerRun makes one run of TestPowerCutOfForks, and returns whether the fork was complete before the cut.
func forkPowerRun(t *testing.T, seed uint64) (whole bool) {
	top := t.TempDir()
	before, after := filepath.Join(top, "before"), filepath.Join(top, "after")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	crash, err := disktest.NewCrashFS(before)
	if err != nil {
		t.Fatal(err)
	}
	defer crash.Close()
	for _, name := range []string{"parent", "fork", "shares"} {
		if err := crash.Mkdir(filepath.Join(before, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := crash.SyncDir(before); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 9))
	var once sync.Once
	dark := false
	power := func() {
		once.Do(func() {
			dark = true
			if err := crash.Crash(after, seed); err != nil {
				t.Error(err)
			}
		})
	}
	at, armed, n := 1+r.IntN(90), false, 0
	on := disktest.Faulty(crash, func(disktest.Op) error {
		if armed {
			if n++; n >= at {
				power()
				return syscall.EIO
			}
		}
		return nil
	})
	w := newFaultTree(t, filepath.Join(before, "parent"), on)
	w.options.Shares = filepath.Join(before, "shares")
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if err := w.step(r); err != nil {
			t.Fatal(err)
		}
	}
	durable, left := maps.Clone(w.durable), w.leftOut()
	armed = true
	var fork *faultTree
	c, err := w.take(1, left)
	if err == nil {
		fork = w.forkOf(filepath.Join(before, "fork"), left, c)
		if err = fork.adopt(c); err == nil {
			whole = !dark
			defer fork.Close()
		}
	}
	if err != nil && !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	power()
	defer w.Close()

	check := func(what string, tree *faultTree, dir string) map[string]string {
		tree.dir = filepath.Join(after, dir)
		tree.options.FS, tree.options.Segments = disktest.Booted(disk.OS, faultBoot2), nil
		tree.options.Shares = filepath.Join(after, "shares")
		tree.options.Overlay = filepath.Join(tree.dir, "overlay")
		tree.options.Journal = filepath.Join(tree.dir, "journal")
		if err := tree.open(); err != nil {
			t.Errorf("open the %s after the cut: %v", what, err)
			return nil
		}
		defer func() {
			if err := tree.Close(); err != nil {
				t.Error(err)
			}
		}()
		got := tree.contents()
		for name, want := range durable {
			_, there := tree.files[name]
			if data, ok := got[name]; there && (!ok || data != want) {
				t.Errorf("%s after the cut: %s: got %d bytes (present: %v), want the %d that were fsynced", what, name,
					len(data), ok, len(want))
			}
		}
		return got
	}
	parent := *w
	check("parent", &parent, "parent")
	if whole {
		again := *fork
		got := check("fork", &again, "fork")
		if want, have := slices.Sorted(maps.Keys(fork.files)), slices.Sorted(maps.Keys(got)); !slices.Equal(have, want) {
			t.Errorf("files of the fork after the cut: got %q, want %q", have, want)
		}
	}
	return whole
}

// A changed file of the base tree is carried with contents that are on disk: the fork must not have, in place of a file
// of the base tree, bytes that a power cut has lost.
func TestPowerCutAfterAChangedFileWasCarried(t *testing.T) {
	for seed := range uint64(20) {
		top := t.TempDir()
		before, after := filepath.Join(top, "before"), filepath.Join(top, "after")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.Mkdir(before, 0o700))
		crash, err := disktest.NewCrashFS(before)
		must(err)
		defer crash.Close()
		for _, name := range []string{"parent", "fork", "shares"} {
			must(crash.Mkdir(filepath.Join(before, name), 0o700))
		}
		must(crash.SyncDir(before))
		w := newFaultTree(t, filepath.Join(before, "parent"), crash)
		w.options.Shares = filepath.Join(before, "shares")
		must(w.open())
		defer w.Close()
		name := slices.Sorted(maps.Keys(w.files))[0]
		must(w.write(name, 0, strings.Repeat("changed ", 1000)))
		c, err := w.take(1, []string{name})
		must(err)
		fork := w.forkOf(filepath.Join(before, "fork"), []string{name}, c)
		must(fork.adopt(c))
		defer fork.Close()
		must(crash.Crash(after, seed))
		cut := *fork
		cut.dir = filepath.Join(after, "fork")
		cut.options.FS, cut.options.Segments = disktest.Booted(disk.OS, faultBoot2), nil
		cut.options.Shares = filepath.Join(after, "shares")
		cut.options.Overlay, cut.options.Journal = filepath.Join(cut.dir, "overlay"), filepath.Join(cut.dir, "journal")
		must(cut.open())
		if got := cut.contents()[name]; got != w.files[name] {
			t.Errorf("seed %d: carried file %s after the cut: got %d bytes %.20q, want %d", seed, name, len(got), got,
				len(w.files[name]))
		}
		must(cut.Close())
	}
}
