package wal

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
	"unsafe"
)

// header is the first page of a file, as the host's memory has it.
type header struct {
	magic   [8]byte
	version uint32
	order   uint32 // byteOrder, as the host that wrote it spells it
	epoch   uint64 // random: part of every checksum, so that no other log's record, nor a user's bytes, can pass for one
	crc     uint32 // of the fields above
	clean   uint32 // 1: closed, everything is synced
	synced  uint64 // bytes of the file that are known to be on disk; written afterwards, so it may be too low
	boot    bootID // of the kernel that has what is not synced
}

type bootID [36]byte

const (
	pageSize   = 4096
	version    = 3
	oldest     = 1 // version whose files can be read; records of a version are a subset of those of the next
	byteOrder  = 0x01020304
	headerSize = pageSize // where records begin
	recordHead = 24
	maxRecord  = 64 << 20
)

var magic = [8]byte{'A', 'F', 'S', 'o', 'v', 'l', 'o', 'g'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h *header) sum() uint32 {
	return crc32.Checksum(unsafe.Slice((*byte)(unsafe.Pointer(h)), unsafe.Offsetof(h.crc)), castagnoli)
}

// good reports whether the checksum is right. A process that died while it raised the version has left the checksum of a
// former one.
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

// raise makes the file one of the present version, before it gets the first record of it.
func (h *header) raise() {
	if h.version != version {
		atomic.StoreUint32(&h.version, version)
	}
	atomic.StoreUint32(&h.crc, h.sum())
}

// seed is where the checksums of a file's records begin.
func (h *header) seed() uint32 {
	return crc32.Checksum(binary.NativeEndian.AppendUint64(nil, h.epoch), castagnoli)
}

// head stands before a record's bytes: length u32, crc32c u32, sequence u64, time i64. The checksum is of the epoch,
// of the head with 0 in its place, and of the bytes. The length comes last to the file.
type head [recordHead]byte

func (h *head) set(seed uint32, sequence uint64, time int64, record []byte) {
	binary.NativeEndian.PutUint32(h[0:], uint32(len(record)))
	binary.NativeEndian.PutUint64(h[8:], sequence)
	binary.NativeEndian.PutUint64(h[16:], uint64(time))
	binary.NativeEndian.PutUint32(h[4:], h.sum(seed, record))
}

func (h *head) sum(seed uint32, record []byte) uint32 {
	crc := crc32.Update(crc32.Update(seed, castagnoli, h[:4]), castagnoli, noCRC[:])
	return crc32.Update(crc32.Update(crc, castagnoli, h[8:]), castagnoli, record)
}

var noCRC [4]byte

// fits reports whether the checksum is that of the head and the record.
func (h *head) fits(seed uint32, record []byte) bool {
	return int(h.length()) == len(record) && binary.NativeEndian.Uint32(h[4:]) == h.sum(seed, record)
}

func (h *head) length() uint32   { return binary.NativeEndian.Uint32(h[0:]) }
func (h *head) sequence() uint64 { return binary.NativeEndian.Uint64(h[8:]) }
func (h *head) time() int64      { return int64(binary.NativeEndian.Uint64(h[16:])) }

// occupied is what a record takes in the file; all of them begin at multiples of 8.
func occupied(length int) int64 { return (recordHead + int64(length) + 7) &^ 7 }
