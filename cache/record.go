package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/git/object"
)

// A record consists of a header and contents. In a segment the header precedes the contents. In a big file the header
// follows the contents, so that a file to which the contents were already written can be kept as it is.
//
//	bytes  0-3   "AFSb"
//	       4     length of the id: 20 or 32
//	       5-7   zero
//	       8-15  size of the contents in bytes
//	       16-47 id, padded with zeros
//	       48-51 CRC-32C of the contents
//	       52-55 CRC-32C of bytes 0-51
//
// Integers are little-endian.
const (
	headerSize  = 56
	headerMagic = "AFSb"

	// maxSmall is the maximum size in bytes of contents that are stored in a segment.
	maxSmall = 1 << 20
)

// castagnoli is the table for the checksums of this package (CRC-32C).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the decoded header of a record.
type header struct {
	id   object.ID
	size int64  // size of the contents in bytes
	crc  uint32 // CRC-32C of the contents
}

// encode returns the headerSize bytes of the header as they are stored.
func (h header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, headerMagic)
	b[4] = byte(len(h.id.Bytes()))
	binary.LittleEndian.PutUint64(b[8:], uint64(h.size))
	copy(b[16:48], h.id.Bytes())
	binary.LittleEndian.PutUint32(b[48:], h.crc)
	binary.LittleEndian.PutUint32(b[52:], crc32.Checksum(b[:52], castagnoli))
	return b
}

// parseHeader decodes the header at the beginning of b. It returns false if these bytes are not a header or are
// damaged.
func parseHeader(b []byte) (header, bool) {
	var h header
	if len(b) < headerSize || string(b[:4]) != headerMagic ||
		binary.LittleEndian.Uint32(b[52:]) != crc32.Checksum(b[:52], castagnoli) {
		return h, false
	}
	n, size := int(b[4]), binary.LittleEndian.Uint64(b[8:])
	if n != object.SHA1.Size() && n != object.SHA256.Size() || size > 1<<62 {
		return h, false
	}
	h.id, _ = object.FromBytes(b[16 : 16+n])
	h.size = int64(size)
	h.crc = binary.LittleEndian.Uint32(b[48:])
	return h, true
}

// entry is the index entry of small contents. It takes 40 bytes of memory, and many entries exist.
type entry struct {
	sum  [32]byte // id, padded with zeros
	off  uint32   // offset of the record in its segment, in bytes
	meta uint32   // size of the contents and flags; read and changed atomically
}

const (
	metaSize     = 1<<21 - 1 // bits of entry.meta that hold the size
	metaGone     = 1 << 29   // the contents were found damaged, so they are not returned any more
	metaSHA256   = 1 << 30   // the id has 32 bytes
	metaVerified = 1 << 31   // this process has verified the contents
)

// makeEntry returns the index entry of a record. The parameter h is the header of the record, and off its offset in the
// segment.
func makeEntry(h header, off int64) entry {
	e := entry{off: uint32(off), meta: uint32(h.size)}
	if copy(e.sum[:], h.id.Bytes()) == object.SHA256.Size() {
		e.meta |= metaSHA256
	}
	return e
}

// idBytes returns the 20 or 32 bytes of the id. The result shares memory with e.
func (e *entry) idBytes() []byte {
	if atomic.LoadUint32(&e.meta)&metaSHA256 != 0 {
		return e.sum[:]
	}
	return e.sum[:20]
}

// end returns the offset of the first byte after the record, in its segment.
func (e *entry) end() int64 { return int64(e.off) + headerSize + int64(e.meta&metaSize) }

// segmentEnd states how a segment ends.
type segmentEnd uint8

const (
	whole  segmentEnd = iota // the segment ends with a complete record
	torn                     // the segment ends with an incomplete record, whose writer has died or is still writing
	broken                   // the segment ends with bytes that are not a record
)

// scanRecords reads the headers of the complete records among the first size bytes of r, starting at the offset in the
// parameter from. It passes each header and the record's offset to the function emit, which returns false to stop. The
// result end is the offset after the last complete record; the result how states which bytes follow there. scanRecords
// reads about one disk block for each record.
//
// The caller must have read the size of the file before the call. A record that is within that size was complete at
// that time, because its bytes are written in order.
func scanRecords(r io.ReaderAt, from, size int64,
	emit func(header, int64) bool) (end int64, how segmentEnd, err error) {
	const window = 4096
	buf := make([]byte, window)
	var have []byte // bytes of r, beginning at the offset off
	for off := from; ; {
		if off == size {
			return off, whole, nil
		}
		if size-off < headerSize {
			return off, torn, nil
		}
		if len(have) < headerSize {
			n, err := r.ReadAt(buf[:min(window, size-off)], off)
			if n < headerSize {
				if err == io.EOF {
					return off, torn, nil
				}
				return off, broken, fmt.Errorf("read cache record at offset %d: %w", off, err)
			}
			have = buf[:n]
		}
		h, ok := parseHeader(have)
		if !ok || h.size > maxSmall {
			return off, broken, nil
		}
		next := off + headerSize + h.size
		if next > size {
			return off, torn, nil
		}
		if !emit(h, off) {
			return off, whole, nil
		}
		have = have[min(next-off, int64(len(have))):]
		off = next
	}
}

// checkRecord reads the record at the offset off and reports whether the record is valid: it has the given id and size,
// and its contents match their checksum. The parameter buf is a buffer for the reading. An error means that the record
// could not be read.
func checkRecord(r io.ReaderAt, off int64, id object.ID, size int64, buf []byte) (bool, error) {
	n := min(int64(len(buf)), headerSize+size)
	if _, err := r.ReadAt(buf[:n], off); err != nil {
		return false, fmt.Errorf("read cache record: %w", err)
	}
	h, ok := parseHeader(buf[:n])
	if !ok || h.id != id || h.size != size {
		return false, nil
	}
	crc := crc32.Checksum(buf[headerSize:n], castagnoli)
	rest, err := checksum(r, off+n, headerSize+size-n, crc, buf)
	return rest == h.crc, err
}

// checksum returns the CRC-32C that results from adding n bytes of r, beginning at the offset off, to crc. The
// parameter buf is a buffer for the reading.
func checksum(r io.ReaderAt, off, n int64, crc uint32, buf []byte) (uint32, error) {
	for n > 0 {
		part := buf[:min(int64(len(buf)), n)]
		if _, err := r.ReadAt(part, off); err != nil {
			return 0, fmt.Errorf("read cached contents: %w", err)
		}
		crc = crc32.Update(crc, castagnoli, part)
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return crc, nil
}

// A sidecar lists the records in the first part of a segment, so that a process that opens the segment need not read
// all of their headers:
//
//	bytes 0-7    "AFSidx1\n"
//	      8-15   number of bytes of the segment that it covers
//	      16-19  number of records
//	      then for each record: id padded to 32 bytes, offset (4), size and flag as in entry.meta (4)
//	      last 4 CRC-32C of all before
//
// A sidecar is not trusted: each entry is compared with the record before its contents are returned.
const (
	sidecarMagic = "AFSidx1\n"
	sidecarHead  = 20
	sidecarEntry = 40
)

// encodeSidecar returns the bytes of a sidecar for entries, which are the records in the first covered bytes of a
// segment. Other goroutines may set flags of the entries during the call.
func encodeSidecar(covered int64, entries []entry) []byte {
	var b bytes.Buffer
	b.Grow(sidecarHead + sidecarEntry*len(entries) + 4)
	b.WriteString(sidecarMagic)
	var n [12]byte
	binary.LittleEndian.PutUint64(n[:8], uint64(covered))
	b.Write(n[:8])
	b.Write(n[8:12]) // a place for the number of records, four bytes, which is known only at the end
	count := uint32(0)
	for i := range entries {
		e := &entries[i]
		meta := atomic.LoadUint32(&e.meta)
		if meta&metaGone != 0 {
			continue
		}
		count++
		b.Write(e.sum[:])
		binary.LittleEndian.PutUint32(n[:4], e.off)
		binary.LittleEndian.PutUint32(n[4:8], meta&(metaSize|metaSHA256))
		b.Write(n[:8])
	}
	out := b.Bytes()
	binary.LittleEndian.PutUint32(out[16:], count)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// parseSidecar decodes the sidecar of a segment that is size bytes long. The result covered is the number of bytes of
// the segment that the entries cover. The result ok is false if the sidecar is damaged or cannot belong to this
// segment.
func parseSidecar(b []byte, size int64) (covered int64, entries []entry, ok bool) {
	if len(b) < sidecarHead+4 || string(b[:8]) != sidecarMagic {
		return 0, nil, false
	}
	body, crc := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	cover, count := binary.LittleEndian.Uint64(b[8:]), int64(binary.LittleEndian.Uint32(b[16:]))
	if crc32.Checksum(body, castagnoli) != crc || cover > uint64(size) || count > maxEntries ||
		int64(len(body)) != sidecarHead+sidecarEntry*count {
		return 0, nil, false
	}
	covered = int64(cover)
	entries = make([]entry, count)
	last := int64(0)
	for i := range entries {
		e, rec := &entries[i], body[sidecarHead+sidecarEntry*i:]
		copy(e.sum[:], rec)
		e.off, e.meta = binary.LittleEndian.Uint32(rec[32:]), binary.LittleEndian.Uint32(rec[36:])
		if e.meta&^(metaSize|metaSHA256) != 0 || e.meta&metaSize > maxSmall || int64(e.off) < last || e.end() > covered {
			return 0, nil, false
		}
		last = e.end()
	}
	return covered, entries, true
}
