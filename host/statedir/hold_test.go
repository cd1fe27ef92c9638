package statedir

import (
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// TestALockedStoreIsAnError checks that a process that keeps the exclusive lock of a store, such as a hostile
// container, does not block mounts forever.
func TestALockedStoreIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	release, err := HoldStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
	lock, err := LockStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func(d time.Duration) { holdTime = d }(holdTime)
	holdTime = 50 * time.Millisecond
	if _, err := HoldStore(dir); !errors.Is(err, errStoreLocked) {
		t.Errorf("hold a locked store: got %v, want errStoreLocked", err)
	}
	lock.Close()
	if release, err = HoldStore(dir); err != nil {
		t.Fatalf("hold a store after its lock was released: %v", err)
	}
	release()
}
