package daemon

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
	w := newWatcher()
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
