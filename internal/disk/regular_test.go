package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadRegular checks that a file that another user has replaced costs neither time nor memory: a pipe is not waited
// for, and a large sparse file is not read.
func TestReadRegular(t *testing.T) {
	dir := t.TempDir()
	plain, pipe, sparse := filepath.Join(dir, "plain"), filepath.Join(dir, "pipe"), filepath.Join(dir, "sparse")
	if err := errors.Join(os.WriteFile(plain, []byte("text"), 0o644), os.WriteFile(sparse, nil, 0o644),
		os.Truncate(sparse, 1<<40), unix.Mkfifo(pipe, 0o644)); err != nil {
		t.Fatal(err)
	}
	if text, err := ReadRegular(plain, 4); err != nil || string(text) != "text" {
		t.Errorf("read a regular file: got %q, %v, want text", text, err)
	}
	for name, want := range map[string]error{plain + "x": os.ErrNotExist, pipe: unix.EINVAL, sparse: unix.EFBIG,
		dir: unix.EISDIR} {
		if text, err := ReadRegular(name, 4); !errors.Is(err, want) {
			t.Errorf("read %s: got %d bytes, %v, want %v", name, len(text), err, want)
		}
	}
	if _, err := ReadRegular(plain, 3); !errors.Is(err, unix.EFBIG) {
		t.Errorf("read 4 bytes with a limit of 3: got %v, want EFBIG", err)
	}
}

// TestCopyRegular checks that a copy keeps the bytes of a file that becomes shorter, and that the copy of an empty file
// is empty.
func TestCopyRegular(t *testing.T) {
	name, empty := filepath.Join(t.TempDir(), "f"), filepath.Join(t.TempDir(), "e")
	if err := errors.Join(os.WriteFile(name, []byte("text"), 0o644), os.WriteFile(empty, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	copied, err := CopyRegular(name, 4)
	if err == nil {
		err = os.Truncate(name, 0)
	}
	if err != nil || string(copied) != "text" {
		t.Errorf("copy: got %q, %v, want text", copied, err)
	}
	if data, err := MapRegular(empty); err != nil || len(data) != 0 {
		t.Errorf("map an empty file: got %q, %v, want nothing", data, err)
	}
	if err := os.Truncate(name, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := CopyRegular(name, 4); !errors.Is(err, unix.EFBIG) {
		t.Errorf("copy 5 bytes with a limit of 4: got %v, want EFBIG", err)
	}
}
