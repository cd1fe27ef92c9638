package transcript

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestNotesDoNotWaitForOtherDirectories checks that a note is written in one git directory while git waits for a pipe
// in another one.
func TestNotesDoNotWaitForOtherDirectories(t *testing.T) {
	repo := func() string {
		dir := t.TempDir()
		for _, args := range [][]string{{"init", "-q"},
			{"-c", "user.name=u", "-c", "user.email=u@x", "commit", "-q", "--allow-empty", "-m", "x"}} {
			if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("git %v: %v: %s", args, err, out)
			}
		}
		return filepath.Join(dir, ".git")
	}
	stuck, free := repo(), repo()
	lock, _ := noting.LoadOrStore(stuck, new(sync.Mutex))
	lock.(*sync.Mutex).Lock() // as a call of Note does while its git command waits
	defer lock.(*sync.Mutex).Unlock()
	written := make(chan error, 1)
	go func() {
		_, err := Note(t.Context(), NoteRequest{GitDir: free, Ref: "agent", JSON: []byte(`{"a":1}`)})
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a note waits for git in another directory")
	}
}
