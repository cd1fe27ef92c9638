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

// WithoutDevice runs f on a thread of its own that has none of the process's open files except
// standard input, output, error and the files with which Go's runtime polls; in particular not
// /dev/fuse.
//
// A thread that waits in the kernel for a reply of its own process cannot be killed once the
// request was read, and until it dies it keeps the files of the process open. With the device, the
// mount would hang forever, alive and without a process that serves it (fs/fuse/dev.c,
// request_wait_answer); with a lock, a successor could not start. With a table of its own the
// thread keeps only harmless files open.
func WithoutDevice(f func() error) error { return withFiles(nil, f) }

// tellKernel sends a notice to the kernel that may wait for locks of the mount, whose holders may
// wait for replies. The thread that sends it has only the device, so that a successor can start and
// answer them: the supervisor has the device as well.
func (d *Device) tellKernel(tell func() raw.Status) (status raw.Status) {
	err := withFiles([]int{d.served}, func() error {
		status = tell()
		return nil
	})
	if err != nil { // no thread can be created
		status = tell()
	}
	return status
}

// withFiles runs f on a new thread that has only the open files of keep, and those of Go's poller.
// It returns the error of f.
func withFiles(keep []int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and no other goroutine gets its files
		if unix.Gettid() == os.Getpid() {
			// Go never ends the main thread. It would keep a copy of every open file, and be the
			// one that /proc/self/fd shows. While this goroutine occupies it, the next one gets
			// another thread.
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

// closeAllBut creates a file table for this thread alone, in which only standard input, output and
// error and the files of keep, in ascending order, are open.
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

// pollFiles are the descriptors with which the runtime itself waits. Any thread that allocates or
// returns from a system call may start a garbage collection or look for work, and then polls; if it
// cannot, it ends the process ("netpoll failed").
var pollFiles = sync.OnceValue(func() []int {
	if r, w, err := os.Pipe(); err == nil { // the first file that can be polled makes the runtime create them
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
