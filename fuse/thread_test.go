package fuse

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutDevice must not run on the main thread, which would keep its own file table: the thread never ends, and
// /proc/self shows it.
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
			t.Fatalf("the main thread has another file table: %v", err)
		}
		f.Close()
	}
}

// The Go runtime may poll from the thread of WithoutDevice, so the runtime's own descriptors must stay open there.
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
				return fmt.Errorf("fstat of a file of the process: got %v, want EBADF", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// On a thread without the device, a number may mean another file than in the process. WithAllFiles must use the files
// of the process, and must leave files open for it.
func TestWithAllFiles(t *testing.T) {
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var want unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &want); err != nil {
		t.Fatal(err)
	}
	var left *os.File
	err = WithoutDevice(func() error {
		// Other files get the lowest numbers of this thread, so that f's number means one of them.
		for {
			fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if fd >= int(f.Fd()) {
				break
			}
		}
		return WithAllFiles(func() (err error) {
			var got unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &got); err != nil || got.Rdev != want.Rdev {
				return fmt.Errorf("file of the process: device %x, %v; want device %x", got.Rdev, err, want.Rdev)
			}
			left, err = os.Open("/dev/zero")
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	if n, err := left.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("read file that was opened: %d bytes, %v", n, err)
	}
}
