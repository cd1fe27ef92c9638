package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that another user has replaced costs neither time nor memory: a pipe is not waited for, and a sparse file is not read.
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
	for name, want := range map[string]error{plain + "x": os.ErrNotExist, pipe: unix.EINVAL, sparse: unix.EFBIG, dir: unix.EISDIR} {
		if text, err := ReadRegular(name, 4); !errors.Is(err, want) {
			t.Errorf("read %s: got %d bytes, %v, want %v", name, len(text), err, want)
		}
	}
	if _, err := ReadRegular(plain, 3); !errors.Is(err, unix.EFBIG) {
		t.Errorf("read 4 bytes with a limit of 3: got %v, want EFBIG", err)
	}
}
