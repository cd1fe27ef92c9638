package fuse

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// WithoutDevice runs f on a thread of its own whose table of open files lacks /dev/fuse.
//
// A thread that waits in the kernel for an answer of this very process cannot be killed once the request is read, and
// while it is not dead it holds the files of the process: the device would stay open, and the mount hang for ever, alive
// without anybody to serve it (fs/fuse/dev.c, request_wait_answer). With a table of its own it holds nothing that
// matters: the others close the device when they die, the kernel ends the connection, and the thread with it.
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
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			done <- os.NewSyscallError("unshare", err)
			return
		}
		closeDevices()
		done <- f()
	}()
	return <-done
}

func closeDevices() {
	devices(func(fd int) { unix.Close(fd) })
}

// keepDevices keeps the device from programs that this process runs, which go-fuse does not: whoever has it open when we
// are killed keeps the mount hanging, for ever if it looks there itself.
func keepDevices() {
	devices(func(fd int) { unix.CloseOnExec(fd) })
}

// devices calls f for every open /dev/fuse of the thread.
func devices(f func(fd int)) {
	const table = "/proc/thread-self/fd"
	entries, err := os.ReadDir(table)
	if err != nil {
		return
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(table, e.Name()))
		if fd, numberErr := strconv.Atoi(e.Name()); err == nil && numberErr == nil && target == "/dev/fuse" {
			f(fd)
		}
	}
}
