package fuse

import (
	"math"
	"os"
	"runtime"
	"slices"
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// WithoutDevice runs f on a thread of its own that has none of the process's open files but standard input, output,
// error and what Go's runtime polls with, and so not /dev/fuse.
//
// A thread that waits in the kernel for an answer of this very process cannot be killed once the request is read, and
// while it is not dead it holds the files of the process. With the device, the mount would hang for ever, alive without
// anybody to serve it (fs/fuse/dev.c, request_wait_answer); with a lock, a successor could not begin. With a table of
// its own it holds nothing that matters: the others close what is open when they die.
func WithoutDevice(f func() error) error { return withFiles(nil, f) }

// tellKernel has the kernel told something for which it may wait for locks of the mount, whose holders may wait for us. The
// thread that does it has the device and nothing else, so that a successor can begin and answer them: the keeper has the
// device as well.
func (d *Device) tellKernel(tell func() raw.Status) (status raw.Status) {
	err := withFiles([]int{d.served}, func() error {
		status = tell()
		return nil
	})
	if err != nil { // there is no thread to be had
		status = tell()
	}
	return status
}

func withFiles(keep []int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, nobody else may get these files
		if unix.Gettid() == os.Getpid() {
			// Go never ends the main thread. It would keep a copy of every open file, and be what /proc/self/fd shows. While
			// it is taken, another goroutine gets another thread.
			defer runtime.UnlockOSThread()
			done <- withFiles(keep, f)
			return
		}
		if err := closeAllBut(slices.Sorted(slices.Values(slices.Concat(pollFiles(), keep)))); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// closeAllBut gives this thread a table of files of its own, with nothing in it from 3 on but these, in ascending order.
func closeAllBut(keep []int) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	first := 3
	for _, fd := range append(slices.Clip(keep), math.MaxInt32) {
		if last := fd - 1; first <= last {
			if err := unix.CloseRange(uint(first), uint(last), 0); err != nil {
				return os.NewSyscallError("close_range", err)
			}
		}
		first = fd + 1
	}
	return nil
}

// pollFiles are the descriptors that the runtime itself waits with. Every thread that allocates or returns from a system
// call may begin a garbage collection or look for work, and polls then; where it cannot, it ends the process ("netpoll
// failed").
var pollFiles = sync.OnceValue(func() []int {
	if r, w, err := os.Pipe(); err == nil { // the first file that can be polled has them made
		r.Close()
		w.Close()
	}
	fds, err := proc.Thread.Descriptors()
	if err != nil {
		return nil
	}
	var found []int
	for _, fd := range fds {
		target, _ := os.Readlink(proc.Thread.FDPath(fd))
		if fd > 2 && (target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]") {
			found = append(found, fd)
		}
	}
	slices.Sort(found)
	return found
})
