package cache

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// segmentOf returns the bytes of a segment with contents of the given sizes.
func segmentOf(sizes ...int) []byte {
	var b []byte
	for n, size := range sizes {
		id, data := numbered(uint64(n), size)
		b = append(b, header{id, int64(size), crc32.Checksum(data, castagnoli)}.encode()...)
		b = append(b, data...)
	}
	return b
}

func FuzzScanRecords(f *testing.F) {
	good := segmentOf(0, 10, 5000, 60)
	f.Add(good, uint16(0), uint16(len(good)))
	f.Add(good, uint16(headerSize), uint16(len(good)))
	f.Add(good[:len(good)-1], uint16(0), uint16(len(good)))
	f.Add(append(good[:200:200], good...), uint16(0), uint16(1<<15))
	f.Add([]byte(headerMagic), uint16(0), uint16(4))
	f.Fuzz(func(t *testing.T, b []byte, from, size uint16) {
		start, limit := int64(from), int64(size)
		if start > limit {
			return
		}
		last := start
		buf := make([]byte, 4096)
		end, how, _ := scanRecords(bytes.NewReader(b), start, limit, func(h header, off int64) bool {
			if off != last || h.size < 0 || h.size > maxSmall || h.id.IsZero() || off+headerSize+h.size > limit {
				t.Fatalf("got a record of %d bytes at %d, want one at %d below %d", h.size, off, last, limit)
			}
			last = off + headerSize + h.size
			if last > int64(len(b)) {
				return true // the size in the header is wrong
			}
			want := crc32.Checksum(b[off+headerSize:last], castagnoli) == h.crc
			if ok, err := checkRecord(bytes.NewReader(b), off, h.id, h.size, buf); ok != want || err != nil {
				t.Fatalf("record at %d: got whole %v, %v, want %v", off, ok, err, want)
			}
			if again, ok := parseHeader(h.encode()); !ok || again != h {
				t.Fatalf("header %+v was read back as %+v", h, again)
			}
			return true
		})
		if end != last || how == whole && end != limit {
			t.Fatalf("scan ended at %d (%d), but the last record is at %d, limit %d", end, how, last, limit)
		}
	})
}

func FuzzSidecar(f *testing.F) {
	var entries []entry
	seg := segmentOf(0, 10, 5000, 60)
	scanRecords(bytes.NewReader(seg), 0, int64(len(seg)), func(h header, off int64) bool {
		entries = append(entries, makeEntry(h, off))
		return true
	})
	long, _ := object.FromBytes(bytes.Repeat([]byte{7}, 32))
	mixed := append(entries[:2:2], makeEntry(header{id: long, size: 5}, 200))
	for _, e := range [][]entry{nil, entries, mixed} {
		f.Add(encodeSidecar(int64(len(seg)), e), int64(len(seg)))
	}
	f.Add(encodeSidecar(5, entries), int64(len(seg)))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		if size < 0 {
			return
		}
		for range 2 { // as it is, and with a corrected checksum
			covered, entries, ok := parseSidecar(b, size)
			if ok {
				last := int64(0)
				for i := range entries {
					if e := &entries[i]; int64(e.off) < last || e.end() > covered {
						t.Fatalf("entry %d at %d ends at %d, beyond the covered %d", i, e.off, e.end(), covered)
					}
					last = entries[i].end()
				}
				if covered > size || !bytes.Equal(encodeSidecar(covered, entries), b) {
					t.Fatal("the sidecar differs after it was written and read back")
				}
			}
			if len(b) < 4 {
				return
			}
			b = append([]byte(nil), b...)
			crc := crc32.Checksum(b[:len(b)-4], castagnoli)
			b[len(b)-4], b[len(b)-3], b[len(b)-2], b[len(b)-1] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		}
	})
}
