package wal

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// header is the first page of a file, in the byte order of the host that wrote it.
type header struct {
	magic   [8]byte
	version uint32
	order   uint32 // byteOrder in the byte order of the host
	epoch   uint64 // random, part of every checksum: neither records of another log nor user data pass for records
	crc     uint32 // checksum of the fields above
	clean   uint32 // 1: the log was closed and everything is synced
	synced  uint64 // length in bytes of the part known to be on disk; updated after the sync, so it may be too low
	boot    bootID // ID of the boot whose kernel has the bytes that were not synced
}

// bootID is the text form of the kernel's random boot ID.
type bootID [36]byte

// Constants of the file format.
const (
	pageSize   = 4096
	version    = 3
	oldest     = 1 // oldest readable version; its records are a subset of those of version
	byteOrder  = 0x01020304
	headerSize = pageSize // offset of the first record
	recordHead = 24
	maxRecord  = 64 << 20
)

var magic = [8]byte{'A', 'F', 'S', 'o', 'v', 'l', 'o', 'g'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum of the fields before crc.
func (h *header) sum() uint32 {
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Offsetof(h.crc)), castagnoli)
}

// good reports whether the checksum is valid. It accepts the checksum of an older version: a process may have died in
// raise, between the two stores.
func (h *header) good() bool {
	if h.crc == h.sum() {
		return true
	}
	former := *h
	for former.version = oldest; former.version < version; former.version++ {
		if h.crc == former.sum() {
			return true
		}
	}
	return false
}

// raise changes the header to the current version, before the first record in this version is appended.
func (h *header) raise() {
	if h.version != version {
		atomic.StoreUint32(&h.version, version)
	}
	atomic.StoreUint32(&h.crc, h.sum())
}

// seed returns the initial value of the checksums of a file's records, derived from the epoch.
func (h *header) seed() uint32 {
	return crc32.Checksum(binary.NativeEndian.AppendUint64(nil, h.epoch), castagnoli)
}

// head is the header of a record: length u32, crc32c u32, sequence u64, time i64 (nanoseconds since 1970). The checksum
// covers the epoch, the head with crc 0, and the record's bytes. The length is written last.
type head [recordHead]byte

// set fills the head of a record.
func (h *head) set(seed uint32, sequence uint64, time int64, record []byte) {
	binary.NativeEndian.PutUint32(h[0:], uint32(len(record)))
	binary.NativeEndian.PutUint64(h[8:], sequence)
	binary.NativeEndian.PutUint64(h[16:], uint64(time))
	binary.NativeEndian.PutUint32(h[4:], h.sum(seed, record))
}

// sum returns the checksum of the head and the record.
func (h *head) sum(seed uint32, record []byte) uint32 {
	crc := crc32.Update(crc32.Update(seed, castagnoli, h[:4]), castagnoli, noCRC[:])
	return crc32.Update(crc32.Update(crc, castagnoli, h[8:]), castagnoli, record)
}

var noCRC [4]byte

// fits reports whether length and checksum match the record.
func (h *head) fits(seed uint32, record []byte) bool {
	return int(h.length()) == len(record) && binary.NativeEndian.Uint32(h[4:]) == h.sum(seed, record)
}

// length returns the length of the record in bytes; 0 where no record was written.
func (h *head) length() uint32 { return binary.NativeEndian.Uint32(h[0:]) }

// sequence returns the number of the record in its file, counted from 1.
func (h *head) sequence() uint64 { return binary.NativeEndian.Uint64(h[8:]) }

// time returns the time of the record in nanoseconds since 1970.
func (h *head) time() int64 { return int64(binary.NativeEndian.Uint64(h[16:])) }

// occupied returns the number of bytes that a record of this length uses in the file. Records begin at multiples of 8.
func occupied(length int) int64 { return (recordHead + int64(length) + 7) &^ 7 }
