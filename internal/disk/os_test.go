package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func openTest(t *testing.T, name string, data []byte) File {
	t.Helper()
	f, err := OS.OpenFile(filepath.Join(t.TempDir(), name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func contents(t *testing.T, f File) []byte {
	t.Helper()
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCopyFromCopiesRanges(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	from, to := openTest(t, "from", data), openTest(t, "to", []byte("start"))
	if n, err := to.CopyFrom(5, from.Own(), 3, 1000); n != 1000 || err != nil {
		t.Fatalf("CopyFrom copied %d bytes, %v, want 1000", n, err)
	}
	if n, err := to.CopyFrom(1005, from.Own(), int64(len(data))-10, 1000); n != 10 || err != nil {
		t.Fatalf("past the end of the source: %d, %v", n, err)
	}
	want := append(append([]byte("start"), data[3:1003]...), data[len(data)-10:]...)
	if !bytes.Equal(contents(t, to), want) {
		t.Error("copied something else")
	}
}

func TestMappingIsTheFile(t *testing.T) {
	f := openTest(t, "file", nil)
	if err := f.Allocate(0, 0, 8192); err != nil {
		t.Fatal(err)
	}
	m, err := f.Map(4096, 4096, MapPopulate)
	if err != nil {
		t.Fatal(err)
	}
	copy(m[10:], "mapped")
	if b := contents(t, f); len(b) != 8192 || string(b[4106:4112]) != "mapped" {
		t.Errorf("%d bytes, %q", len(b), b[4106:4112])
	}
	if err := errors.Join(f.DataSync(), f.Unmap(m), f.Sync(), OS.SyncDir(filepath.Dir(f.Name()))); err != nil {
		t.Error(err)
	}
}

func TestErrorsKeepTheirCause(t *testing.T) {
	f := openTest(t, "file", make([]byte, 10))
	if _, err := f.Seek(20, unix.SEEK_DATA); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("seek behind the end: %v", err)
	}
	if at, err := f.Seek(3, unix.SEEK_HOLE); at != 10 || err != nil {
		t.Errorf("hole at %d, %v", at, err)
	}
	if err := f.Allocate(0, -1, 1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("allocate: %v", err)
	}
}

func TestBootUUID(t *testing.T) {
	first, err := BootUUID(OS)
	if err != nil || first == [16]byte{} {
		t.Fatalf("boot ID of the host: got %x, %v", first, err)
	}
	if again, err := BootUUID(OS); err != nil || again != first {
		t.Errorf("boot ID read again: got %x, %v, want %x", again, err, first)
	}
}
