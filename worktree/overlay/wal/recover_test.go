package wal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// written returns the bytes of a log of n records, the first of which are synced, and the end of each record.
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

// A process may be killed at any byte of an append: complete records exist, an incomplete one does not, and the log can
// be used.
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
				want++ // the last bytes of the record are zeros
			}
			l, rec, have := open(t, path, Options{BootID: boot, LostFound: filepath.Join(dir, "lost+found")})
			if have != want || rec.PowerLost != (boot != "first") {
				t.Fatalf("log cut at byte %d: got %d records, want %d, recovery %+v", at, have, want, rec)
			}
			if rec.Cut > 0 && rec.PowerLost {
				end := int64(headerSize)
				if have > 0 {
					end = ends[have-1]
				}
				if kept, err := os.ReadFile(rec.SavedTo); err != nil || !bytes.Equal(kept, torn[end:end+rec.Cut]) {
					t.Fatalf("log cut at byte %d: got a tail of %d bytes, %d stored, %v", at, rec.Cut, len(kept), err)
				}
			}
			if now, err := os.ReadFile(path); err != nil || len(bytes.Trim(now[l.Size():], "\x00")) > 0 {
				t.Fatalf("log cut at byte %d: the end of the log is not zeros, %v", at, err)
			}
			add(t, l, have, have+2)
			l.Abandon()
			if l, rec, again := open(t, path, Options{BootID: boot}); again != have+2 || rec.Cut != 0 {
				t.Fatalf("log cut at byte %d: got %d records after two more, recovery %+v", at, again, rec)
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
		record  int // number of the damaged record
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
				t.Errorf("salvage: got %d records, recovery %+v", have, rec)
			} else if err := l.Append([]byte("x"), 0); err == nil {
				t.Error("a salvaged log was written")
			}
			o.Salvage = false
			if c.damaged {
				var damage *DamageError
				_, _, err := Open(path, o)
				if !errors.As(err, &damage) || damage.Offset != ends[c.record-1] || damage.Records != int64(9-c.record) {
					t.Errorf("open a damaged log: got %v", err)
				}
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
					t.Errorf("a damaged log was changed, %v", err)
				}
				return
			}
			l, _, have := open(t, path, o)
			if have != c.record {
				t.Errorf("open: got %d records", have)
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
			t.Errorf("recovery: got %+v, want a cut of %d bytes", rec, ends[9]-ends[7])
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
		if damage := (*DamageError)(nil); !errors.Is(err, c.want) && c.want != nil ||
			c.want == nil && !errors.As(err, &damage) {
			t.Errorf("open a log with a flipped bit in its %s: got %v", name, err)
		}
	}
}

// For arbitrary bytes after a valid header, replay returns only records with the right checksums, tail returns bytes of
// the file, and after a cut the log can be used.
func FuzzReplay(f *testing.F) {
	seed := (&header{epoch: 7}).seed()
	encode := func(log []byte, sequence uint64, record string) []byte {
		var h head
		h.set(seed, sequence, 3, []byte(record))
		log = append(append(log, h[:]...), record...)
		return append(log, make([]byte, (8-len(log)%8)%8)...)
	}
	var log []byte
	for i := range uint64(4) {
		log = encode(log, i+1, "record")
	}
	f.Add(log)
	f.Add(append(log[:64:64], log[96:]...))
	f.Add(append(append(log[:64:64], make([]byte, 3*pageSize)...), log[96:]...))
	f.Fuzz(func(t *testing.T, log []byte) {
		read := func(file []byte) (records []string, at replayed, behind, end int64) {
			at, err := replay(bytes.NewReader(file), int64(len(file)), seed, func(b []byte, _ int64) error {
				records = append(records, string(b))
				return nil
			})
			if err != nil || int(at.last) != len(records) || at.end > int64(len(file)) {
				t.Fatalf("replay: got %d records, end %+v, %v", len(records), at, err)
			}
			behind, end, err = tail(bytes.NewReader(file), at, int64(len(file)), seed)
			if err != nil || end < at.end || end > int64(len(file))+7 {
				t.Fatalf("tail: got bytes %d to %d of %d, %v", at.end, end, len(file), err)
			}
			if rest := file[min(end, int64(len(file))):]; bytes.Count(rest, []byte{0}) != len(rest) {
				t.Fatalf("the file has data after the end %d of the tail", end)
			}
			return records, at, behind, end
		}
		file := append(make([]byte, headerSize), log...)
		first, at, _, _ := read(file)
		again := make([]byte, 0, len(file))
		for i, record := range first {
			again = encode(again, uint64(i+1), record)
		}
		file = append(file[:headerSize:headerSize], again...)
		if int64(len(file)) != at.end {
			t.Fatalf("the records up to byte %d have %d bytes", at.end, len(file))
		}
		file = append(encode(file, at.last+1, "more"), make([]byte, 2*pageSize)...)
		second, _, behind, end := read(file)
		if len(second) != len(first)+1 || second[len(first)] != "more" || behind != 0 || end != int64(len(file)-2*pageSize) {
			t.Fatalf("records %q became %q, %d bytes follow, end %d", first, second, behind, end)
		}
	})
}
