package mapped

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

func TestStoresBelongToTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	m, err := Open(disk.OS, path, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Grow(100_000); err != nil || m.Len() != 2<<16 {
		t.Fatalf("grow: %d bytes, %v, want %d", m.Len(), err, 2<<16)
	}
	first := m.At(10, 5)
	copy(m.At(1<<16, 6), "second")
	if err := m.Grow(3 << 16); err != nil {
		t.Fatal(err)
	}
	copy(first, "first") // the pointer must still be valid
	again, err := Open(disk.OS, path, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Load(true); err != nil || string(again.At(10, 5)) != "first" ||
		string(again.At(1<<16, 6)) != "second" {
		t.Errorf("read back %q and %q, %v", again.At(10, 5), again.At(1<<16, 6), err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(again.Rewrite(1<<16+6), again.Sync(), again.Close()); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text[10:15]) != "first" {
		t.Errorf("file after Rewrite: %q, %v", text[10:15], err)
	}
	fresh, err := Create(disk.OS, path, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fresh.Load(false), fresh.Close()); err != nil || fresh.Len() != 0 {
		t.Errorf("created file: %d bytes, %v, want 0", fresh.Len(), err)
	}
}

// TestGrowOnAFullDisk checks that Grow returns an error if the disk is full, and that chunks that were mapped before
// can still be used.
func TestGrowOnAFullDisk(t *testing.T) {
	full := false
	m, err := Open(disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full && op.Name == "Allocate" {
			return syscall.ENOSPC
		}
		return nil
	}), filepath.Join(t.TempDir(), "file"), 16)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Grow(1); err != nil {
		t.Fatal(err)
	}
	full = true
	if err := m.Grow(1<<16 + 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("grow on a full disk: got %v, want ENOSPC", err)
	}
	m.At(0, 1)[0] = 1
	full = false
	if err := m.Grow(1<<16 + 1); err != nil || m.At(0, 1)[0] != 1 {
		t.Errorf("grow when there is room again: %v, first byte %d", err, m.At(0, 1)[0])
	}
}
