package wal

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// header is the first page of a log file. Its numbers are in the byte order of the host that wrote it.
type header struct {
	magic   [8]byte
	version uint32
	order   uint32 // the constant byteOrder, in the byte order of the host
	// epoch is a random number that is part of every checksum, so that neither records of another log nor data of users
	// can be mistaken for records.
	epoch  uint64
	crc    uint32 // checksum of the fields above
	clean  uint32 // 1 if the log was closed with all records synced
	synced uint64 // length in bytes of the part known to be on disk; updated after a sync, so it may be too low
	boot   bootID // ID of the boot in which the file was written; the kernel of this boot has the unsynced bytes
}

// bootID is the text form of the kernel's random boot ID.
type bootID [36]byte

// Constants of the file format.
const (
	pageSize   = 4096
	version    = 3
	raised     = 4 // version of a log that Log.Raise was called for
	byteOrder  = 0x01020304
	headerSize = pageSize // offset of the first record
	recordHead = 24
	maxRecord  = 64 << 20
)

var magic = [8]byte{'A', 'F', 'S', 'o', 'v', 'l', 'o', 'g'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum of the header's fields before crc.
func (h *header) sum() uint32 {
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Offsetof(h.crc)), castagnoli)
}

// raise sets the version to raised. If the process dies between the two stores, crc is that of the lower version, which
// checkHeader accepts.
func (h *header) raise() {
	atomic.StoreUint32(&h.version, raised)
	atomic.StoreUint32(&h.crc, h.sum())
}

// isIntact reports whether crc is the checksum of the header, or of the header before raise has changed the version.
func (h *header) isIntact() bool {
	before := *h
	before.version = version
	return h.crc == h.sum() || h.version == raised && h.crc == before.sum()
}

// seed returns the initial value of the checksums of a file's records, which is derived from the epoch.
func (h *header) seed() uint32 {
	return crc32.Checksum(binary.NativeEndian.AppendUint64(nil, h.epoch), castagnoli)
}

// head is the header of a record: its length as u32, CRC-32C as u32, sequence number as u64 and time as i64 in
// nanoseconds since 1970. The checksum covers the file's epoch, the head with 0 as checksum, and the bytes of the
// record. The length is written last.
type head [recordHead]byte

// set fills the head of a record, including the checksum.
func (h *head) set(seed uint32, sequence uint64, time int64, record []byte) {
	binary.NativeEndian.PutUint32(h[0:], uint32(len(record)))
	binary.NativeEndian.PutUint64(h[8:], sequence)
	binary.NativeEndian.PutUint64(h[16:], uint64(time))
	binary.NativeEndian.PutUint32(h[4:], h.sum(seed, record))
}

// sum returns the checksum of the head and the record, with 0 in place of the checksum.
func (h *head) sum(seed uint32, record []byte) uint32 {
	crc := crc32.Update(crc32.Update(seed, castagnoli, h[:4]), castagnoli, noCRC[:])
	return crc32.Update(crc32.Update(crc, castagnoli, h[8:]), castagnoli, record)
}

var noCRC [4]byte

// fits reports whether the length and the checksum in the head match the record.
func (h *head) fits(seed uint32, record []byte) bool {
	return int(h.length()) == len(record) && binary.NativeEndian.Uint32(h[4:]) == h.sum(seed, record)
}

// length returns the length of the record in bytes, or 0 if no record was written at this place.
func (h *head) length() uint32 { return binary.NativeEndian.Uint32(h[0:]) }

// sequence returns the number of the record in its file, counted from 1.
func (h *head) sequence() uint64 { return binary.NativeEndian.Uint64(h[8:]) }

// time returns the time of the record in nanoseconds since 1970.
func (h *head) time() int64 { return int64(binary.NativeEndian.Uint64(h[16:])) }

// occupied returns the number of bytes that a record of this length occupies in the file, with its head. Records begin
// at multiples of 8.
func occupied(length int) int64 { return (recordHead + int64(length) + 7) &^ 7 }
