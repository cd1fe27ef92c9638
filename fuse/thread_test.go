package fuse

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A thread with files of its own must not be the main one: that never ends, and is the one that /proc/self shows.
func TestWithoutDeviceSparesTheMainThread(t *testing.T) {
	var all sync.WaitGroup
	for range 20 * runtime.GOMAXPROCS(0) {
		for range 10 {
			all.Go(func() {
				if err := WithoutDevice(func() error { runtime.Gosched(); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		var shown, open unix.Stat_t
		err = unix.Stat(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), &shown)
		if statErr := unix.Fstat(int(f.Fd()), &open); err != nil || statErr != nil || shown.Rdev != open.Rdev {
			t.Fatalf("the main thread has other files: %v", err)
		}
		f.Close()
	}
}

// The runtime polls from whatever thread it comes to.
func TestWithoutDeviceLeavesTheRuntimeAlone(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 20 {
		err := WithoutDevice(func() error {
			runtime.GC()
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != unix.EBADF {
				return fmt.Errorf("a file of the process: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
