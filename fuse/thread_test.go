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
