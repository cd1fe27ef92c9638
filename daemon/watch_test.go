package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// told says whether a sign comes, or has come.
func told(wake <-chan struct{}) bool {
	select {
	case <-wake:
		return true
	case <-time.After(takeoverTime):
		return false
	}
}

func TestADirectoryThatIsMadeAnewIsWatchedAgain(t *testing.T) {
	w := newWatcher(nil, nil)
	defer w.close()
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
		if _, fresh, err := w.watch(dir, wake); !fresh || err != nil {
			t.Fatalf("watched before: %v, %v", fresh, err)
		}
		if _, fresh, err := w.watch(dir, wake); fresh || err != nil {
			t.Fatalf("not watched: %v, %v", fresh, err)
		}
		made("f")
		if !told(wake) {
			t.Fatal("nothing is told of a file")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if !told(wake) {
			t.Fatal("nothing is told of the end")
		}
	}
	t.Logf("%d of 50 had the inode number of one before", again)
	eventually(t, "forgotten", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.wakes) == 0
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other := make(chan struct{}, 1)
	stop, _, err := w.watch(dir, wake)
	if err != nil {
		t.Fatal(err)
	}
	if _, fresh, err := w.watch(dir, other); !fresh || err != nil {
		t.Fatalf("somebody else's watch: %v, %v", fresh, err)
	}
	drain(wake)
	stop()
	made("g")
	if !told(other) || drain(wake) {
		t.Error("who has stopped is told, or the other is not")
	}
}

// keepOne keeps what it was last given.
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

// A process that has the descriptor open alone takes long to die.
func TestTheWatchOutlivesItsProcess(t *testing.T) {
	keep := new(keepOne)
	dir, wake := t.TempDir(), make(chan struct{}, 1)
	first := newWatcher(keep, nil)
	if _, _, err := first.watch(dir, make(chan struct{})); err != nil {
		t.Fatal(err)
	}
	passed, err := unix.FcntlInt(keep.file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.file.Close(); err != nil { // the end of its process
		t.Fatal(err)
	}
	first.done.Wait()
	next := newWatcher(keep, os.NewFile(uintptr(passed), keptWatch))
	if _, fresh, err := next.watch(dir, wake); !fresh || err != nil {
		t.Fatalf("watched before: %v, %v", fresh, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if !told(wake) {
		t.Error("nothing is told of a file")
	}
	next.close()
	if keep.file != nil {
		t.Error("it is kept when it is not needed any more")
	}
}
