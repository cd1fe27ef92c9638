package fuse

import (
	"math"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// WithoutDevice runs f on a thread of its own that has none of the process's open files but standard input, output and
// error, and so not /dev/fuse.
//
// A thread that waits in the kernel for an answer of this very process cannot be killed once the request is read, and
// while it is not dead it holds the files of the process. With the device, the mount would hang for ever, alive without
// anybody to serve it (fs/fuse/dev.c, request_wait_answer); with a lock, a successor could not begin. With a table of
// its own it holds nothing that matters: the others close what is open when they die.
func WithoutDevice(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, nobody else may get these files
		if unix.Gettid() == os.Getpid() {
			// Go never ends the main thread. It would keep a copy of every open file, and be what /proc/self/fd shows. While
			// it is taken, another goroutine gets another thread.
			defer runtime.UnlockOSThread()
			done <- WithoutDevice(f)
			return
		}
		if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_UNSHARE); err != nil {
			done <- os.NewSyscallError("close_range", err)
			return
		}
		done <- f()
	}()
	return <-done
}
