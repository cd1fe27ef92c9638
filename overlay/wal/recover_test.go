package wal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// written gives the bytes of a log of n records, of which the first synced are, and where each ends.
func written(t *testing.T, n, synced int) (log []byte, ends []int64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{BootID: "first"})
	for i := range n {
		if i == synced {
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		add(t, l, i, i+1)
		ends = append(ends, l.Size())
	}
	l.Abandon()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return log, ends
}

// A process may die at any byte of its copy: what was whole is there, the rest never was, and the log goes on.
func TestTornTailIsCut(t *testing.T) {
	log, ends := written(t, 6, 2)
	for at := ends[2]; at < ends[5]; at += 3 {
		for _, boot := range []string{"first", "second"} {
			dir := t.TempDir()
			path := filepath.Join(dir, "log")
			torn := bytes.Clone(log)
			clear(torn[at:])
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			want := 0
			for want < len(ends) && ends[want] <= at {
				want++
			}
			for want < len(ends) && bytes.Equal(torn[:ends[want]], log[:ends[want]]) {
				want++ // its last bytes are zeros anyhow
			}
			l, rec, have := open(t, path, Options{BootID: boot, LostFound: filepath.Join(dir, "lost+found")})
			if have != want || rec.PowerLost != (boot != "first") {
				t.Fatalf("cut at %d: %d records, want %d, %+v", at, have, want, rec)
			}
			if rec.Cut > 0 && rec.PowerLost {
				end := int64(headerSize)
				if have > 0 {
					end = ends[have-1]
				}
				if kept, err := os.ReadFile(rec.SavedTo); err != nil || !bytes.Equal(kept, torn[end:end+rec.Cut]) {
					t.Fatalf("cut at %d: tail of %d bytes, %d kept, %v", at, rec.Cut, len(kept), err)
				}
			}
			add(t, l, have, have+2)
			l.Abandon()
			if l, rec, again := open(t, path, Options{BootID: boot}); again != have+2 || rec.Cut != 0 {
				t.Fatalf("cut at %d: %d records after two more, %+v", at, again, rec)
			} else {
				l.Abandon()
			}
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	log, ends := written(t, 10, 5)
	for _, c := range []struct {
		name    string
		record  int // that is spoilt
		boot    string
		damaged bool
	}{
		{"synced, same boot", 2, "first", true},
		{"synced, after a power cut", 2, "second", true},
		{"not synced, same boot", 7, "first", true},
		{"not synced, after a power cut", 7, "second", false},
		{"the last, same boot", 9, "first", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "log")
			bad := bytes.Clone(log)
			bad[ends[c.record]-9] ^= 1
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			o := Options{BootID: c.boot}
			o.Salvage = true
			if l, rec, have := open(t, path, o); have != c.record || (rec.Damage != nil) != c.damaged {
				t.Errorf("salvage: %d records, %+v", have, rec)
			} else if err := l.Append([]byte("x"), 0); err == nil {
				t.Error("a salvaged log was written")
			}
			o.Salvage = false
			if c.damaged {
				var damage *DamageError
				_, _, err := Open(path, o)
				if !errors.As(err, &damage) || damage.Offset != ends[c.record-1] || damage.Records != int64(9-c.record) {
					t.Errorf("open: %v", err)
				}
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
					t.Errorf("a damaged log was changed, %v", err)
				}
				return
			}
			l, _, have := open(t, path, o)
			if have != c.record {
				t.Errorf("open: %d records", have)
			}
			l.Abandon()
		})
	}
}

func TestRefusedRecordEndsTheLog(t *testing.T) {
	log, ends := written(t, 10, 5)
	for boot, damaged := range map[string]bool{"first": true, "second": false} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		l, rec, err := Open(path, Options{BootID: boot, Replay: func([]byte, int64) error {
			if n == 8 {
				return ErrRefused
			}
			n++
			return nil
		}})
		if damage := (*DamageError)(nil); errors.As(err, &damage) != damaged || damaged && damage.Records != 1 {
			t.Fatalf("boot %s: %v", boot, err)
		}
		if damaged {
			continue
		}
		if rec.Records != 8 || rec.Cut != ends[9]-ends[7] {
			t.Errorf("%+v, want a cut of %d", rec, ends[9]-ends[7])
		}
		l.Abandon()
	}
}

func TestHeaderIsChecked(t *testing.T) {
	log, _ := written(t, 3, 1)
	for name, c := range map[string]struct {
		at   int
		want error
	}{
		"magic":      {0, nil},
		"version":    {8, ErrVersion},
		"byte order": {12, ErrVersion},
		"epoch":      {16, nil},
	} {
		path := filepath.Join(t.TempDir(), "log")
		bad := bytes.Clone(log)
		bad[c.at] ^= 0x40
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := Open(path, Options{})
		if damage := (*DamageError)(nil); !errors.Is(err, c.want) && c.want != nil || c.want == nil && !errors.As(err, &damage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bytes gives the page that begins with the header.
func (h *header) bytes() []byte {
	page := make([]byte, pageSize)
	copy(page, unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Sizeof(*h)))
	return page
}

// Whatever lies behind a good header, replay ends, gives only records whose sums are right, and the log can be gone
// on with.
func FuzzReplay(f *testing.F) {
	var log []byte
	for i := range 4 {
		var h head
		h.set((&header{epoch: 7}).seed(), uint64(i+1), 3, []byte("record"))
		log = append(append(append(log, h[:]...), "record"...), 0, 0)
	}
	f.Add(log, uint16(0), true)
	f.Add(append(log[:80:80], log[96:]...), uint16(64), false)
	f.Fuzz(func(t *testing.T, log []byte, synced uint16, sameBoot bool) {
		h := header{magic: magic, version: version, order: byteOrder, epoch: 7, synced: headerSize + uint64(synced)}
		h.crc = h.sum()
		copy(h.boot[:], "first")
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, append(h.bytes(), log...), 0o600); err != nil {
			t.Fatal(err)
		}
		boot := "second"
		if sameBoot {
			boot = "first"
		}
		var first, second []string
		salvaged, rec, err := Open(path, Options{Salvage: true, BootID: boot, Replay: func(b []byte, _ int64) error {
			first = append(first, string(b))
			return nil
		}})
		if err != nil || salvaged.Size() > int64(headerSize+len(log)) {
			t.Fatalf("salvage: %v", err)
		}
		l, _, err := Open(path, Options{BootID: boot})
		if damage := (*DamageError)(nil); errors.As(err, &damage) {
			if rec.Damage == nil || *rec.Damage != *damage {
				t.Fatalf("open says %v, salvage %v", damage, rec.Damage)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Append([]byte("more"), 0); err != nil {
			t.Fatal(err)
		}
		l.Abandon()
		l, rec, err = Open(path, Options{BootID: boot, Replay: func(b []byte, _ int64) error {
			second = append(second, string(b))
			return nil
		}})
		if err != nil || rec.Cut != 0 || len(second) != len(first)+1 || second[len(first)] != "more" {
			t.Fatalf("%q became %q, %+v, %v", first, second, rec, err)
		}
		l.Abandon()
	})
}
