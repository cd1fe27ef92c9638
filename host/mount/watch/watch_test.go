package watch

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// reported reports whether wake has a value or receives one within await.Patience.
func reported(wake <-chan struct{}) bool {
	select {
	case <-wake:
		return true
	case <-time.After(await.Patience):
		return false
	}
}

func TestADirectoryThatIsMadeAnewIsWatchedAgain(t *testing.T) {
	w := New(nil, nil)
	defer w.Close()
	top := t.TempDir()
	dir, wake := filepath.Join(top, "d"), make(chan struct{}, 1)
	made := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	number := func() uint64 {
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t).Ino
	}
	numbers := map[uint64]bool{}
	again := 0
	for range 50 {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if n := number(); numbers[n] {
			again++
		} else {
			numbers[n] = true
		}
		if _, fresh, err := w.Add(dir, wake); !fresh || err != nil {
			t.Fatalf("first watch of a directory: fresh is %v, error %v; want a fresh watch", fresh, err)
		}
		if _, fresh, err := w.Add(dir, wake); fresh || err != nil {
			t.Fatalf("second watch by the same channel: fresh is %v, error %v; want no fresh watch", fresh, err)
		}
		made("f")
		if !reported(wake) {
			t.Fatal("the watch does not report a new file")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if !reported(wake) {
			t.Fatal("the watch does not report that the directory was removed")
		}
	}
	t.Logf("%d of 50 had the inode number of one before", again)
	await.Until(t, "the removed directory has no watch", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.wakes) == 0
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other := make(chan struct{}, 1)
	stop, _, err := w.Add(dir, wake)
	if err != nil {
		t.Fatal(err)
	}
	if _, fresh, err := w.Add(dir, other); !fresh || err != nil {
		t.Fatalf("watch by a second channel: fresh is %v, error %v; want a fresh watch", fresh, err)
	}
	select {
	case <-wake:
	default:
	}
	stop()
	made("g")
	if !reported(other) || len(wake) > 0 {
		t.Error("a new file must be reported to the remaining channel alone")
	}
	if _, _, err := w.Add(dir, wake, "index"); err != nil {
		t.Fatal(err)
	}
	made("index.lock")
	if !reported(other) || len(wake) > 0 {
		t.Error("a file whose name is excepted must be reported to the other channel alone")
	}
	made("HEAD")
	if !reported(wake) {
		t.Error("the watch does not report a file whose name is not excepted")
	}
}

// keepOne is a Keeper that holds only the last descriptor that it received.
type keepOne struct{ file *os.File }

func (k *keepOne) Keep(name string, f *os.File) (err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		n, dupErr := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		k.file, err = os.NewFile(uintptr(n), name), dupErr
	})
	return errors.Join(controlErr, err)
}

func (k *keepOne) Drop(string) error {
	err := k.file.Close()
	k.file = nil
	return err
}

// TestTheWatchOutlivesItsProcess checks a watch whose descriptor is held by a Keeper. If the ended process were the
// only holder, its end would take longer.
func TestTheWatchOutlivesItsProcess(t *testing.T) {
	keep := new(keepOne)
	dir, wake := t.TempDir(), make(chan struct{}, 1)
	first := New(keep, nil)
	if _, _, err := first.Add(dir, make(chan struct{})); err != nil {
		t.Fatal(err)
	}
	passed, err := unix.FcntlInt(keep.file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.file.Close(); err != nil { // simulates the end of the process
		t.Fatal(err)
	}
	first.done.Wait()
	next := New(keep, os.NewFile(uintptr(passed), Kept))
	if _, fresh, err := next.Add(dir, wake); !fresh || err != nil {
		t.Fatalf("first watch of a directory: fresh is %v, error %v; want a fresh watch", fresh, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !reported(wake) {
		t.Error("the watch does not report a new file")
	}
	next.Close()
	if keep.file != nil {
		t.Error("the keeper still holds the descriptor after Close")
	}
}
