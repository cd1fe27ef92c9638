package overlay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// TestEveryFault makes the n-th disk operation fail, and in a second round some more after it, for every n until a run
// has no fault. For each fault, the caller gets the error, the failed call has no effect, and the next calls work.
func TestEveryFault(t *testing.T) {
	disktest.EveryFault(t, 9, 13, func(t *testing.T, f *disktest.Faults, errno error) {
		faultRun(t, filepath.Join(t.TempDir(), "overlay"), f, errno)
	})
}

func faultRun(t *testing.T, dir string, f *disktest.Faults, errno error) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newWorld(t, dir, Options{FS: disktest.Faulty(disktest.Unsynced(disk.OS), f.Fail), idle: 3})
	w.o.pause, w.o.quiet = time.Hour, time.Hour // the test itself does the janitor's work
	open := func() {
		var rec Recovery
		err := f.During(func() (err error) { rec, err = w.open(); return err })
		if err != nil {
			if !errors.Is(err, errno) {
				t.Errorf("open: %v", err)
			}
			if rec, err = w.open(); err != nil {
				t.Fatalf("second open: %v", err)
			}
		}
		if len(rec.Problems) > 0 {
			t.Errorf("problems of the recovery: got %q", rec.Problems)
		}
	}
	attempt := func(what string, do func() error) {
		before := f.Struck()
		err := f.During(do)
		if err != nil && (!errors.Is(err, errno) || f.Struck() == before) {
			t.Errorf("%s failed with %v, want success or the injected error", what, err)
		}
		w.compare()
	}
	for life := range 4 {
		w.o.TakeOver = life%2 == 1
		open()
		for i := range 14 {
			attempt(fmt.Sprint("step ", i), func() error { return w.step(r) })
		}
		attempt("tidy", func() error { return w.l.janitor.tidy(true) })
		attempt("compact", w.l.janitor.compact)
		attempt("step", func() error { return w.step(r) })
		w.kill()
	}
	w.o.TakeOver = false
	open()
	attempt("step", func() error { return w.step(r) })
	if err := f.During(w.l.Close); err != nil && !errors.Is(err, errno) {
		t.Errorf("close: %v", err)
	}
	w.mustOpen()
	w.compare()
	w.mustClose()
	w.sound()
}
