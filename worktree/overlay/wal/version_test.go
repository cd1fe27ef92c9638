package wal

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// aged converts a log to the previous version.
func aged(log []byte, former uint32) []byte {
	old := bytes.Clone(log)
	h := (*header)(unsafe.Pointer(&old[0]))
	h.version = former
	h.crc = h.sum()
	return old
}

// A log of the previous version can be opened, and is converted to the present version before a record is appended, also if a process
// is killed during the conversion. A reader does not change the log.
func TestFormerVersion(t *testing.T) {
	log, _ := written(t, 3, 1)
	half := aged(log, oldest)
	binary.NativeEndian.PutUint32(half[8:], version)
	last := aged(log, version-1)
	binary.NativeEndian.PutUint32(last[8:], version)
	for what, image := range map[string][]byte{"oldest": aged(log, oldest), "last": aged(log, version-1), "half raised": half, "last half raised": last} {
		for _, boot := range []string{"first", "second"} {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, image, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, rec, err := Open(path, Options{BootID: boot, Salvage: true}); err != nil || rec.Records != 3 || rec.Damage != nil {
				t.Fatalf("%s: read: %+v, %v", what, rec, err)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, image) {
				t.Errorf("%s: reading changed the log, %v", what, err)
			}
			l, _, have := open(t, path, Options{BootID: boot})
			if have != 3 {
				t.Fatalf("%s: got %d records", what, have)
			}
			now, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if h := (*header)(unsafe.Pointer(&now[0])); h.version != version || h.crc != h.sum() {
				t.Errorf("%s: got version %d and checksum %x, want %x", what, h.version, h.crc, h.sum())
			}
			add(t, l, 3, 4)
			l.Abandon()
			if l, _, have = open(t, path, Options{BootID: boot}); have != 4 {
				t.Errorf("%s: got %d records in the end", what, have)
			}
			l.Abandon()
		}
	}
}
