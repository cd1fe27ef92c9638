package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// header is the start of the file. Its numbers are in the byte order of the host, because only this host reads the
// file.
type header struct {
	magic   [8]byte
	version uint32
	clean   uint32   // 1 if the file was closed and is completely on disk
	epoch   uint64   // see Journal.epoch
	dropped uint64   // see Journal.dropped
	boot    [16]byte // boot ID that the host had when the file was last opened
	killed  uint64   // see Journal.killed
	_       [8]byte
}

// These constants belong to the file format, or limit the size of the file.
const (
	headerSize = 64 // in bytes
	// bytes before the path: eight with the length of the path | the checksum << 32, eight with the number of the record
	recordHeader = 16
	version      = 1

	fileLimit = 16 << 20  // maximum length of the file, in bytes; about 200,000 paths
	chunk     = 256 << 10 // unit in which the file grows, in bytes
	maxPath   = 1<<16 - 1 // maximum length of a recorded path, in bytes
	maxNumber = 1 << 62   // upper bound for the numbers of records in a valid file; no journal reaches this number
	marked    = 512       // number of records from one element of log.marks to the next
)

var (
	magic                  = [8]byte{'A', 'F', 'S', 'c', 'h', 'n', 'g', 's'}
	_     [headerSize]byte = [unsafe.Sizeof(header{})]byte{}
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errBad means that a file is not a journal, or cannot be continued.
var errBad = errors.New("change journal cannot be continued")

// record is one record of the file.
type record struct {
	number uint64
	path   []byte // points into the mapped file
}

// log is the mapped file of a journal. The caller of its methods holds Journal.mu.
type log struct {
	file   disk.File // nil if the journal has no open file, because it is read-only or closed
	memory []byte    // mapping of the maximum length; bytes after the end of the file must not be accessed
	size   int       // length of the file, in bytes
	end    int       // offset of the next record
	count  int       // number of records
	fixed  bool      // true if the journal is read-only, so that nothing may be written
	named  bool      // true if the directory entry of the file is certainly on disk
	// marks contains the positions of some records, at intervals of marked records, so that the method each need not start
	// at the first record.
	marks []mark
}

// mark is the position of a record: its number, and its offset in the file.
type mark struct {
	number uint64
	offset int
}

// Open opens the journal at path. It begins a new epoch if the file does not exist, if it is damaged, or if it was not
// closed before the host was restarted. A file must not be open in two Journals at the same time.
func Open(path string, o Options) (*Journal, error) {
	j := &Journal{fs: o.FS, path: path, boot: o.Boot, room: fileLimit, noted: make(map[uint64]uint64),
		flights: make(map[uint64]int)}
	if j.fs == nil {
		j.fs = disk.OS
	}
	if o.limit > 0 {
		j.room = o.limit
	}
	err := j.open(o)
	if err != nil {
		return nil, fmt.Errorf("open change journal %s: %w", path, err)
	}
	j.given = j.last
	j.used.Store(int64(j.log.end))
	j.rewriteAt.Store(j.threshold())
	return j, nil
}

// open maps the file, and continues its records or begins a new epoch.
func (j *Journal) open(o Options) error {
	flags := os.O_RDWR | os.O_CREATE
	if o.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := j.fs.OpenFile(j.path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) && o.ReadOnly {
		j.begin(o)
		return nil
	}
	if err != nil {
		return err
	}
	if err := j.log.open(f, j.room, o.ReadOnly); err != nil {
		return errors.Join(err, f.Close())
	}
	err = j.resume()
	if err == nil && o.Anew {
		err = errBad
	}
	switch {
	case err != nil && o.ReadOnly:
		err = j.log.unmap()
		j.begin(o)
	case err != nil:
		j.begin(o)
		err = j.startFile()
	case j.log.header().clean == 0:
		if j.last > 0 && !o.TakeOver {
			j.killed, j.last = j.last, j.last+1
		}
		if !o.ReadOnly {
			atomic.StoreUint64(&j.log.header().killed, j.killed)
		}
	case o.ReadOnly:
	default:
		// The clean mark must be removed on disk before anything is recorded. If the mark remained, a power loss could
		// destroy records of a file that is marked as clean.
		j.log.header().clean, j.log.header().boot = 0, j.boot
		j.log.named = true
		err = f.DataSync()
	}
	if err != nil {
		return errors.Join(err, j.log.unmap())
	}
	return nil
}

// begin starts a new epoch. Unless o.Unused reports that the working tree has no changes, begin treats record 1 as
// dropped. A query from the start of the epoch then reports that every path may have changed.
func (j *Journal) begin(o Options) {
	j.epoch, j.dropped, j.last = newEpoch(), 1, 1
	if o.Unused != nil && o.Unused() {
		j.dropped, j.last = 0, 0
	}
}

// startFile writes the header of an empty journal. It writes the magic number last, so that a process which is killed
// before leaves a file that the next process recognizes as invalid.
func (j *Journal) startFile() error {
	l := &j.log
	if l.size >= headerSize {
		l.header().magic = [8]byte{}
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	l.size = 0
	if err := l.grow(headerSize + 8); err != nil {
		return err
	}
	h := l.header()
	h.version, h.epoch, h.dropped, h.boot = version, j.epoch, j.dropped, j.boot
	l.end, l.count, l.marks = headerSize, 0, nil
	h.magic = magic
	return nil
}

// resume reads and checks the records of the file, so that it can be continued. It returns errBad if the file cannot be
// continued.
func (j *Journal) resume() error {
	l := &j.log
	if l.size < headerSize+8 {
		return errBad
	}
	h := l.header()
	if h.magic != magic || h.version != version || h.boot != j.boot && h.clean != 1 || h.dropped > maxNumber ||
		h.killed > maxNumber {
		return errBad
	}
	last := h.dropped
	l.end, l.count, l.marks = headerSize, 0, nil
	for {
		r, size, err := l.read(l.end)
		if err != nil {
			return err
		}
		if size == 0 {
			break
		}
		if r.number <= last || r.number > maxNumber {
			return fmt.Errorf("record %d follows record %d: %w", r.number, last, errBad)
		}
		last = r.number
		l.passed(last, size)
	}
	if h.killed > 0 {
		last = max(last, h.killed+1)
	}
	j.epoch, j.dropped, j.killed, j.last = h.epoch, h.dropped, h.killed, last
	return nil
}

// open maps the file f. room is the maximum length of a journal, in bytes. If the file is longer, open empties it.
func (l *log) open(f disk.File, room int, readOnly bool) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > int64(room) && !readOnly {
		if err := f.Truncate(0); err != nil { // the file is not a journal, or was written by a version with a higher limit
			return err
		}
	}
	mode := disk.MapMode(0)
	if readOnly {
		mode = disk.MapReadOnly
	}
	memory, err := f.Map(0, room, mode)
	if err != nil {
		return err
	}
	*l = log{file: f, memory: memory, fixed: readOnly, size: int(min(st.Size(), int64(room)))}
	if st.Size() > int64(room) {
		l.size = 0
	}
	return nil
}

// unmap removes the mapping and closes the file. Afterwards the log is the zero value.
func (l *log) unmap() error {
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.file.Unmap(l.memory), l.file.Close())
	*l = log{}
	return err
}

// close syncs the file, and also the directory, unless the file's directory entry is certainly on disk. Then close
// marks the file as clean, which means that all records are on disk and can be found at the path of the journal.
func (l *log) close(syncDir func() error) error {
	if l.file == nil || l.fixed {
		return l.unmap()
	}
	err := l.file.DataSync()
	if err == nil && !l.named {
		err = syncDir()
	}
	if err == nil && l.size >= headerSize {
		l.header().clean = 1
		err = l.file.DataSync()
	}
	return errors.Join(err, l.unmap())
}

// header returns the header in the mapped file.
func (l *log) header() *header { return (*header)(unsafe.Pointer(&l.memory[0])) }

// word returns the eight bytes at the offset off, which must be a multiple of eight.
func (l *log) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&l.memory[off])) }

// grow makes the file at least size bytes long. The disk space is allocated now, so that a full disk causes an error of
// this call, and not a SIGBUS when a page is written.
func (l *log) grow(size int) error {
	if size <= l.size {
		return nil
	}
	size = min((size+chunk-1)/chunk*chunk, len(l.memory))
	if err := l.file.Allocate(0, 0, int64(size)); err != nil {
		return err
	}
	l.size = size
	return nil
}

// read checks the record at the offset off, and returns the record and its size in the file. If off is after the last
// record, the size is 0.
func (l *log) read(off int) (r record, size int, err error) {
	if off+8 > l.size {
		return r, 0, nil
	}
	word := *l.word(off)
	length := int(word & maxPath)
	if word == 0 {
		return r, 0, nil
	}
	if length == 0 || off+recordSize(length) > l.size {
		return r, 0, fmt.Errorf("record at %d has an invalid length of %d bytes: %w", off, length, errBad)
	}
	r = record{*l.word(off + 8), l.memory[off+recordHeader : off+recordHeader+length : off+recordHeader+length]}
	if uint32(word>>32) != r.sum() {
		return r, 0, fmt.Errorf("record at %d: wrong checksum: %w", off, errBad)
	}
	return r, recordSize(length), nil
}

// recordSize returns the size of a record in the file, in bytes, which is a multiple of eight. length is the length of
// the path.
func recordSize(length int) int { return recordHeader + (length+7)&^7 }

// sum returns the checksum of a record: the crc32c of its number and its path.
func (r record) sum() uint32 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], r.number)
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, r.path)
}

// passed moves the end of the log behind a record of size bytes that begins at the present end. At intervals of marked
// records, it adds an element to l.marks.
func (l *log) passed(number uint64, size int) {
	if l.count%marked == 0 {
		l.marks = append(l.marks, mark{number, l.end})
	}
	l.count++
	l.end += size
}

// write appends a record. The caller must have made room in the file for the record and for the eight zero bytes that
// follow the record.
func (l *log) write(number uint64, path string) {
	size := recordSize(len(path))
	r := record{number, l.memory[l.end+recordHeader : l.end+recordHeader+len(path)]}
	copy(r.path, path)
	*l.word(l.end + 8) = number
	if l.end+size+8 <= l.size {
		atomic.StoreUint64(l.word(l.end+size), 0)
	}
	atomic.StoreUint64(l.word(l.end), uint64(len(path))|uint64(r.sum())<<32) // this store completes the record
	l.passed(number, size)
}

// each calls the function emit for the records whose number is greater than the number in the parameter behind, in
// order, until emit returns false.
func (l *log) each(behind uint64, emit func(record) bool) {
	if l.file == nil {
		return
	}
	off := headerSize
	for i := len(l.marks) - 1; i >= 0; i-- {
		if l.marks[i].number <= behind {
			off = l.marks[i].offset
			break
		}
	}
	for off < l.end {
		r := l.at(off)
		if r.number > behind && !emit(r) {
			return
		}
		off += recordSize(len(r.path))
	}
}

// at returns the record that begins at the offset off.
func (l *log) at(off int) record {
	length := int(*l.word(off) & maxPath)
	return record{*l.word(off + 8), l.memory[off+recordHeader : off+recordHeader+length]}
}

// copy appends a copy of a record of another file. The copy has the same number.
func (l *log) copy(r record) { l.write(r.number, unsafe.String(&r.path[0], len(r.path))) }

// append adds a record of path with the next number. If the path is too long, append records a directory above the path
// instead. The caller holds j.mu.
func (j *Journal) append(path string) {
	for len(path) > maxPath { // the path is longer than any path that a program can use
		path = path[:strings.LastIndexByte(strings.TrimSuffix(path, "/"), '/')+1]
	}
	if path == "" {
		path = "/"
	}
	need := recordSize(len(path)) + 8
	if j.log.end+need > j.room || j.log.grow(j.log.end+need) != nil {
		j.restart()
	}
	j.last++
	j.log.write(j.last, path)
	j.used.Store(int64(j.log.end))
}

// restart begins a new epoch in the existing file. restart needs no disk space, and its duration does not depend on the
// number of records. It is called if the disk is full, or if MakeRoom was not called in time. If the process is killed
// after the first store, the new epoch contains the old records, but no position that was returned refers to them. The
// caller holds j.mu.
func (j *Journal) restart() {
	l, h := &j.log, j.log.header()
	j.epoch, j.dropped, j.killed = newEpoch(), j.last, 0
	atomic.StoreUint64(&h.epoch, j.epoch)
	atomic.StoreUint64(l.word(headerSize), 0)
	h.dropped, h.killed = j.dropped, 0
	l.end, l.count, l.marks = headerSize, 0, nil
	clear(j.noted)
}
