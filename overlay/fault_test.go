package overlay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// faults fails disk operations while it is armed.
type faults struct {
	mu          sync.Mutex
	armed       bool
	n           int // operations seen while armed
	first, last int // which fail
	err         error
	struck      []string
}

func (f *faults) fail(op disktest.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		return nil
	}
	f.n++
	if f.n < f.first || f.n > f.last {
		return nil
	}
	f.struck = append(f.struck, fmt.Sprint(op.Name, " ", filepath.Base(op.Path)))
	return f.err
}

func (f *faults) arm(armed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = armed
}

func (f *faults) hit() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.struck)
}

// TestEveryFault lets the n-th operation of the disk fail, and in a second round some more behind it, for every n
// until nothing is left to fail. Whatever fails: the caller hears of it, what failed did not happen, and what comes
// next works.
func TestEveryFault(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for _, more := range []int{0, 9} {
			t.Run(fmt.Sprintf("%s,%d", unix.ErrnoName(errno), 1+more), func(t *testing.T) {
				t.Parallel()
				step := 1 + more/2
				if testing.Short() {
					step = 13
				}
				for n := 1; ; n += step {
					f := &faults{first: n, last: n + more, err: errno}
					faultRun(t, filepath.Join(t.TempDir(), "overlay"), f, errno)
					if t.Failed() {
						t.Fatalf("operations %d to %d: %q", f.first, f.last, f.struck)
					}
					if f.hit() == 0 {
						t.Logf("%d operations", n-1)
						return
					}
				}
			})
		}
	}
}

func faultRun(t *testing.T, dir string, f *faults, errno error) {
	r := rand.New(rand.NewPCG(1, 2))
	w := newWorld(t, dir, Options{FS: disktest.Faulty(disktest.Unsynced(disk.OS), f.fail), idle: 3})
	w.o.pause, w.o.quiet = time.Hour, time.Hour // the janitor's work is done by the test, where it can see it
	open := func() {
		f.arm(true)
		rec, err := w.open()
		f.arm(false)
		if err != nil {
			if !errors.Is(err, errno) {
				t.Errorf("open: %v", err)
			}
			if rec, err = w.open(); err != nil {
				t.Fatalf("open once more: %v", err)
			}
		}
		if len(rec.Problems) > 0 {
			t.Errorf("problems: %q", rec.Problems)
		}
	}
	attempt := func(what string, do func() error) {
		before := f.hit()
		f.arm(true)
		err := do()
		f.arm(false)
		if err != nil && (!errors.Is(err, errno) || f.hit() == before) {
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
		attempt("tidy", func() error { return w.l.tidy(true) })
		attempt("compact", w.l.compact)
		attempt("step", func() error { return w.step(r) })
		w.kill()
	}
	w.o.TakeOver = false
	open()
	attempt("step", func() error { return w.step(r) })
	f.arm(true)
	err := w.l.Close()
	f.arm(false)
	if err != nil && !errors.Is(err, errno) {
		t.Errorf("close: %v", err)
	}
	w.mustOpen()
	w.compare()
	w.mustClose()
	w.sound()
}
