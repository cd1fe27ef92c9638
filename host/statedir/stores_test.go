package statedir_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/host/statedir"
)

func TestAStoreIsRemovedWhenNobodyHasIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stores", "s")
	one, err := statedir.HoldStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := statedir.HoldStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	one()
	if err := statedir.RemoveStore(dir); !errors.Is(err, statedir.ErrStoreUsed) {
		t.Errorf("remove a store in use: got %v", err)
	}
	two()
	if err := statedir.RemoveStore(dir); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) > 0 {
		t.Errorf("stores after the removal: got %v", left)
	}
	if err := statedir.RemoveStore(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second removal: got %v", err)
	}
}

// TestAStoreThatIsHeldIsThere checks that a process that has locked a store finds it under its name, even if another
// process repeatedly removes it at the same time.
func TestAStoreThatIsHeldIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stores", "s")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				release, err := statedir.HoldStore(dir)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
					t.Error(err)
				}
				release()
			}
		})
	}
	for range 200 {
		if err := statedir.RemoveStore(dir); err != nil && !errors.Is(err, statedir.ErrStoreUsed) &&
			!errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	all.Wait()
}
