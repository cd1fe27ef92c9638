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

// WithoutDevice runs f on a new thread and returns the error of f. The thread has a separate file descriptor table, in
// which only standard input, output and error are open, and the files with which Go's runtime polls. In particular,
// /dev/fuse is not open in it. Use WithoutDevice for every system call that may wait for a mount of this process.
//
// A thread that waits in the kernel for a reply of its own process cannot be killed once the request was read, and
// until that thread ends it keeps the files of its descriptor table open. If one of these files were the device, the
// kernel would keep the mount alive with no process to serve it, and the thread would hang forever (fs/fuse/dev.c,
// request_wait_answer). If one of these files were a lock file, a successor could not start. With a separate table the
// thread keeps only harmless files open.
//
// The descriptors of other threads are closed on this thread, and their numbers may stand for other files here. So f
// must call WithAllFiles for every action that uses a file of the process, opens a file for other threads, or starts a
// program.
func WithoutDevice(f func() error) error { return withFiles(nil, f) }

// WithAllFiles runs f on a thread that has all files of the process open, and returns the error of f. It is meant for
// functions that run under WithoutDevice and need those files, for example to read the working tree.
//
// f must not wait for a mount of this process. Starting a program also needs this function, because os/exec reads
// the program's output from a pipe in another goroutine, which runs on a thread with other descriptors.
func WithAllFiles(f func() error) error {
	done := make(chan error, 1)
	// The function runs on another thread, because Go runs no new goroutine on a locked thread, and starts no thread
	// from a locked one.
	go func() { done <- f() }()
	return <-done
}

// notifyKernel calls the function tell, which sends a notice to the kernel, and returns the status of the notice. Some
// notices wait for locks of the mount, and the holders of these locks may wait for replies of this process. So tell
// runs on a thread that has no open file except the device: if this process is killed, a successor can still start and
// send those replies. The supervisor holds the device open anyway, so the thread's copy does no harm.
func (d *Device) notifyKernel(tell func() raw.Status) (status raw.Status) {
	err := withFiles([]int{d.served}, func() error {
		status = tell()
		return nil
	})
	if err != nil { // the function tell was not called, because the thread could not be prepared
		status = tell()
	}
	return status
}

// withFiles runs f on a new thread and returns its error. The thread's descriptor table has only standard input, output
// and error, the descriptors in keep, and the descriptors of Go's poller.
func withFiles(keep []int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// never unlocked, so that the thread ends with the goroutine; no other goroutine may use its descriptors
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// This is the main thread, which Go never ends. It would keep a copy of every open file, and /proc/self/fd shows
			// the descriptors of the main thread. While this goroutine occupies the main thread, the next goroutine gets
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

// closeAllBut gives the calling thread a separate descriptor table, in which it closes everything except standard
// input, output and error and the descriptors in keep. keep must be in ascending order.
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

// pollFiles returns the descriptors with which Go's runtime itself waits for events. They must stay open in every
// thread: any thread that allocates memory or returns from a system call may start a garbage collection or look for
// goroutines to run, and polls these descriptors while it does so. If polling fails, the runtime ends the process
// ("netpoll failed").
var pollFiles = sync.OnceValue(func() []int {
	if r, w, err := os.Pipe(); err == nil { // opening the first pollable file makes the runtime create its descriptors
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
