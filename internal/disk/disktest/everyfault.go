package disktest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Faults makes a range of disk operations fail. It only counts operations that happen during a call of During;
// operations outside such a call succeed. Its method Fail is passed to Faulty. The methods may be called concurrently.
type Faults struct {
	first, last int // numbers of the first and the last operation that fail, counted from 1
	err         syscall.Errno

	mu     sync.Mutex
	armed  bool
	n      int      // operations counted so far
	struck []string // descriptions of the operations that have failed
}

// Fail returns an error if the operation op must fail, and nil otherwise.
func (f *Faults) Fail(op Op) error {
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

// During calls the function do and returns its error. Operations during the call are counted and may fail.
func (f *Faults) During(do func() error) error {
	f.arm(true)
	defer f.arm(false)
	return do()
}

// arm sets whether operations are counted and may fail.
func (f *Faults) arm(armed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = armed
}

// Struck returns the number of operations that have failed until now.
func (f *Faults) Struck() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.struck)
}

// EveryFault calls run for n = 1, 2, ... with Faults that fail the n-th disk operation, until a run has no failed
// operation. It does so in four parallel subtests: with the errors ENOSPC and EIO, each with one failing operation and
// with 1+more consecutive failing operations. With one failing operation, the odd ones fail with ENOSPC and the even ones
// with EIO; AFS_EVERY_FAULT=1 in the environment makes each fail with both. With several failing operations, n grows by
// half of their number. In short mode of the tests, n grows by the parameter short.
func EveryFault(t *testing.T, more, short int, run func(t *testing.T, f *Faults, errno error)) {
	both := os.Getenv("AFS_EVERY_FAULT") != ""
	for i, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for _, more := range []int{0, more} {
			t.Run(fmt.Sprintf("%s,%d", unix.ErrnoName(errno), 1+more), func(t *testing.T) {
				t.Parallel()
				first, step := 1, 1+more/2
				if testing.Short() {
					step = short
				} else if more == 0 && !both {
					first, step = 1+i, 2
				}
				for n := first; ; n += step {
					f := &Faults{first: n, last: n + more, err: errno}
					// A test of its own removes its directories at once: those of all runs would fill a disk.
					if !t.Run(fmt.Sprint(n), func(t *testing.T) { run(t, f, errno) }) {
						t.Fatalf("operations %d to %d: %q", f.first, f.last, f.struck)
					}
					if f.Struck() == 0 {
						t.Logf("%d operations", n-1)
						return
					}
				}
			})
		}
	}
}
