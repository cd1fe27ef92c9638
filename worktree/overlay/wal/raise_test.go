package wal

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"
)

// headerOf reads the header of the log file at path.
func headerOf(t *testing.T, path string) (h header, text []byte) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h)), text)
	return h, text
}

// olderCheck is the check of a header in programs that know version 3 alone.
func olderCheck(h *header) error {
	switch {
	case h.magic != magic:
		return errors.New("damage")
	case h.version != 3:
		return ErrVersion
	case h.crc != h.sum():
		return errors.New("damage")
	}
	return nil
}

// A raised log is refused by older programs as one of another version, stays raised, and keeps its records.
func TestRaise(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{})
	add(t, l, 0, 5)
	if h, _ := headerOf(t, path); olderCheck(&h) != nil {
		t.Errorf("a log that was not raised is refused by older programs: %v", olderCheck(&h))
	}
	during, err := l.Begin()
	if err == nil {
		err = errors.Join(l.Raise(), l.Raise())
	}
	if err != nil {
		t.Fatal(err)
	}
	if h, _ := headerOf(t, path); !errors.Is(olderCheck(&h), ErrVersion) || !h.isIntact() {
		t.Errorf("older programs return %v for a raised log, want ErrVersion", olderCheck(&h))
	}
	for i, r := range []*Rotation{during, nil} {
		if r == nil {
			if r, err = l.Begin(); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 5 + i {
			if err := r.Append(record(n), int64(n)-5); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		add(t, l, 5+i, 6+i)
		if h, _ := headerOf(t, path); h.version != raised || h.crc != h.sum() {
			t.Errorf("rotation %d: header has version %d, want %d", i, h.version, raised)
		}
	}
	l.Abandon()
	l, _, have := open(t, path, Options{})
	if have != 7 {
		t.Errorf("records of the raised log: got %d, want 7", have)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Raise(); !errors.Is(err, syscall.EROFS) {
		t.Errorf("raise a closed log: got %v, want EROFS", err)
	}
}

// A process may be killed between the two stores of raise.
func TestRaiseIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{})
	add(t, l, 0, 5)
	l.Abandon()
	_, text := headerOf(t, path)
	binary.NativeEndian.PutUint32(text[8:], raised)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, salvage := range []bool{true, false} {
		l, rec, have := open(t, path, Options{Salvage: salvage})
		if have != 5 || rec.Damage != nil {
			t.Errorf("records of a log that was just raised: got %d and %v, want 5", have, rec.Damage)
		}
		l.Abandon()
	}
	if h, _ := headerOf(t, path); h.version != raised || h.crc != h.sum() {
		t.Errorf("header after the next start: got version %d, checksum %08x, want %d, %08x", h.version, h.crc, raised,
			h.sum())
	}
	binary.NativeEndian.PutUint32(text[8:], raised+1)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(path, Options{}); !errors.Is(err, ErrVersion) {
		t.Errorf("open a log of a later version: got %v, want ErrVersion", err)
	}
}
