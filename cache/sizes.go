package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/signal"
)

// A table of sizes is a file with a header of 16 bytes ("AFSsize1", the length of an id, seven zeros), followed by
// records. All records have the same length, so that a damaged record does not affect the others:
//
//	id    20 or 32 bytes
//	size  6 bytes, little-endian
//	crc   CRC-32C of the above, 4 bytes, little-endian
//
// If several records have the same id, the last one counts. A process that appends holds the file's flock. If the file
// ends with an incomplete record, whose writer has died, the process first truncates it; no process can have read such
// a record.
const (
	sizesMagic = "AFSsize1"
	sizesHead  = 16
	sizeBytes  = 6
	maxSize    = 1<<(8*sizeBytes) - 1

	// flushAfter is how long a new size waits in memory, so that later sizes can be written together with it.
	flushAfter = 500 * time.Millisecond
	// sizesLookEvery is the minimum interval at which a Get that misses reads the records that other processes have
	// appended.
	sizesLookEvery = 10 * time.Millisecond
	// rowsPerChunk is the number of rows for which memory is allocated at once.
	rowsPerChunk = 4096
)

// Sizes is a persistent table of the sizes of blobs, in bytes, by id. All mounts of one remote use the same table, also
// from several processes. An entry takes 31 to 34 bytes of memory with SHA-1 ids, and 43 to 46 with SHA-256. The
// methods may be called from any goroutine.
//
// Lock order: io before mu. A Get that finds its id acquires only mu.
type Sizes struct {
	format   object.Format
	started  time.Time
	nextLook atomic.Int64 // earliest time at which a miss may read the file again, in nanoseconds since started

	dirty chan struct{} // contains an element while sizes wait to be written; has capacity 1
	stop  chan struct{}
	wg    sync.WaitGroup

	io struct { // this lock is held while the file is read or written
		sync.Mutex
		file *os.File
		// read is the number of bytes at the beginning of the field file that are already in memory.
		read int64
	}

	mu     sync.RWMutex
	closed bool
	rows   [][]byte // chunks of rowsPerChunk rows; a row is an id and a size
	// n is the number of rows in use.
	n     int
	index refs // references are row numbers plus one
	// pending holds references to the rows that are not in the file yet.
	pending []uint32
}

// OpenSizes opens the table in the file path, for ids in the format f, and creates the file if needed. It replaces a
// file with another header. The caller must call Close.
func OpenSizes(path string, f object.Format) (*Sizes, error) {
	s := &Sizes{format: f, started: time.Now(), dirty: make(chan struct{}, 1), stop: make(chan struct{})}
	file, err := openSizesFile(path, f)
	if err != nil {
		return nil, fmt.Errorf("open table of sizes: %w", err)
	}
	s.init(file)
	// Read the whole table now; later calls of readNew read only the appended records.
	if err := s.readNew(); err != nil {
		file.Close()
		return nil, fmt.Errorf("open table of sizes: %w", err)
	}
	s.wg.Go(s.flushLoop)
	return s, nil
}

// init makes the table in memory empty, with the records of file still to be read.
func (s *Sizes) init(file *os.File) {
	s.index.hash = func(ref uint32) uint64 { return hashSum(s.row(ref)[:s.format.Size()]) }
	s.io.file, s.io.read = file, sizesHead
}

// sizesHeader returns the header of the file, its first 16 bytes.
func sizesHeader(f object.Format) []byte {
	head := make([]byte, sizesHead)
	copy(head, sizesMagic)
	head[8] = byte(f.Size())
	return head
}

// openSizesFile opens or creates the file. It writes the header of a new file, and replaces a file that has another
// header.
func openSizesFile(path string, f object.Format) (*os.File, error) {
	for try := 0; ; try++ {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		ours, err := checkSizesHead(file, f)
		if err == nil && ours {
			return file, nil
		}
		file.Close()
		if err == nil && try < 3 {
			err = os.Remove(path) // no data is lost, because the sizes can be requested from the remote again
		}
		if err != nil {
			return nil, err
		}
		if try == 3 {
			return nil, fmt.Errorf("file %s is not a table of sizes", path)
		}
	}
}

// checkSizesHead reports whether file is a table for ids in the format f. It writes the header of a new file. It holds
// the flock, because several processes may create the file at the same time.
func checkSizesHead(file *os.File, f object.Format) (bool, error) {
	if err := lockWait(file); err != nil {
		return false, err
	}
	defer unlock(file)
	var head [sizesHead]byte
	n, err := file.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return false, err
	}
	want := sizesHeader(f)
	// The file is new, or the process that created it died while it wrote the header.
	if n < sizesHead && string(head[:n]) == string(want[:n]) {
		if _, err := file.WriteAt(want, 0); err != nil {
			return false, err
		}
		return true, nil
	}
	return string(head[:]) == string(want), nil
}

// lockWait acquires the flock of a file. If another process holds the lock, lockWait waits. The wait is short, because
// a process holds the lock only while it appends a few records.
func lockWait(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock file %s: %w", f.Name(), err)
		}
	}
}

// rowSize returns the length of a row in memory, in bytes: an id and a size.
func (s *Sizes) rowSize() int { return s.format.Size() + sizeBytes }

// recordSize returns the length of a record in the file, in bytes: a row and its checksum.
func (s *Sizes) recordSize() int { return s.rowSize() + 4 }

// row returns the row, an id and a size, to which a reference refers. The caller holds mu.
func (s *Sizes) row(ref uint32) []byte {
	i, n := int(ref-1), s.rowSize()
	return s.rows[i/rowsPerChunk][i%rowsPerChunk*n:][:n:n]
}

// getSize decodes a size of six bytes, little-endian.
func getSize(b []byte) int64 {
	return int64(binary.LittleEndian.Uint32(b)) | int64(binary.LittleEndian.Uint16(b[4:]))<<32
}

// putSize encodes a size of six bytes, little-endian.
func putSize(b []byte, size int64) {
	binary.LittleEndian.PutUint32(b, uint32(size))
	binary.LittleEndian.PutUint16(b[4:], uint16(size>>32))
}

// Get returns the size of a blob in bytes, and false if it is not in the table. Before it returns false, it may read
// the records that other processes have appended.
func (s *Sizes) Get(id object.ID) (int64, bool) {
	if size, ok := s.find(id); ok {
		return size, true
	}
	now, next := int64(time.Since(s.started)), s.nextLook.Load()
	// If several goroutines miss an id within sizesLookEvery, only one of them reads the file. The other goroutines return
	// a miss at once. A goroutine that would have to wait for the lock also returns a miss.
	if now < next || !s.nextLook.CompareAndSwap(next, now+int64(sizesLookEvery)) || !s.io.TryLock() {
		return 0, false
	}
	err := s.readNew()
	s.io.Unlock()
	if err != nil {
		return 0, false // the failure counts as a miss, because the caller can find the size in other ways
	}
	return s.find(id)
}

// find returns the size of an id, and false if the size is not in memory.
func (s *Sizes) find(id object.ID) (int64, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.placeLocked(id.Bytes())
	if !ok {
		return 0, false
	}
	return getSize(s.row(s.index.slots[at])[s.format.Size():]), true
}

// placeLocked returns the slot of an id in the hash table index, and reports whether the table contains the id. The
// caller holds mu, at least for reading.
func (s *Sizes) placeLocked(sum []byte) (int, bool) {
	n := s.format.Size()
	return s.index.find(hashSum(sum), func(ref uint32) bool { return string(s.row(ref)[:n]) == string(sum) })
}

// setLocked adds a row for an id, or changes the size in the existing row. The result changed is false if the row
// already had this size. The caller holds mu.
func (s *Sizes) setLocked(sum []byte, size int64) (ref uint32, changed bool) {
	n := s.format.Size()
	if at, ok := s.placeLocked(sum); ok {
		ref = s.index.slots[at]
		row := s.row(ref)
		changed = getSize(row[n:]) != size
		putSize(row[n:], size)
		return ref, changed
	}
	if s.n%rowsPerChunk == 0 {
		s.rows = append(s.rows, make([]byte, rowsPerChunk*s.rowSize()))
	}
	s.n++
	ref = uint32(s.n)
	row := s.row(ref)
	copy(row, sum)
	putSize(row[n:], size)
	s.index.add(hashSum(sum), ref)
	return ref, true
}

// Put records the size of a blob in bytes. The size is written to the file within about a second. Put ignores an id
// whose format is not that of the table, and a size that does not fit into six bytes.
func (s *Sizes) Put(id object.ID, size int64) {
	if len(id.Bytes()) != s.format.Size() || size < 0 || size > maxSize {
		return
	}
	s.mu.Lock()
	ref, changed := s.setLocked(id.Bytes(), size)
	if changed {
		s.pending = append(s.pending, ref)
	}
	s.mu.Unlock()
	if changed {
		// If the channel dirty already has an element, a flush will follow that also writes this size.
		signal.Send(s.dirty)
	}
}

// Close writes the pending records and closes the table.
func (s *Sizes) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	// Sizes that other goroutines pass to Put after the flush below are not written.
	close(s.stop)
	s.wg.Wait()
	err := s.flush()
	s.io.Lock()
	defer s.io.Unlock()
	if err = errors.Join(err, s.io.file.Close()); err != nil {
		return fmt.Errorf("close table of sizes: %w", err)
	}
	return nil
}

// flushLoop writes the pending sizes to the file, flushAfter after the first of them was passed to Put. It returns when
// stop is closed.
func (s *Sizes) flushLoop() {
	timer := time.NewTimer(flushAfter)
	defer timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.dirty:
		}
		timer.Reset(flushAfter)
		select {
		case <-s.stop:
			return
		case <-timer.C:
		}
		// If flush returns an error, for example because the disk is full, the sizes remain pending and the next flush writes
		// them.
		_ = s.flush()
	}
}

// flush appends the records of all pending sizes to the file, with one write.
func (s *Sizes) flush() error {
	s.mu.RLock()
	pending := s.pending
	buf := make([]byte, 0, len(pending)*s.recordSize())
	for _, ref := range pending {
		at := len(buf)
		buf = append(buf, s.row(ref)...)
		buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(buf[at:], castagnoli))
	}
	s.mu.RUnlock()
	if len(buf) == 0 {
		return nil
	}
	if err := s.appendRecords(buf); err != nil {
		return fmt.Errorf("append to table of sizes: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Sizes that were passed to Put during the write remain pending.
	if s.pending = s.pending[len(pending):]; len(s.pending) == 0 {
		s.pending = nil
	}
	return nil
}

// appendRecords appends complete records to the file, under the file's flock. If writing fails, it truncates the file
// to its previous size. The caller must not hold io.
func (s *Sizes) appendRecords(buf []byte) error {
	s.io.Lock()
	defer s.io.Unlock()
	f := s.io.file
	if err := lockWait(f); err != nil {
		return err
	}
	defer unlock(f)
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end := info.Size()
	if end < sizesHead {
		return fmt.Errorf("another process has truncated file %s to %d bytes", f.Name(), end)
	}
	// If a process died while it wrote, the file may end with an incomplete record.
	if rest := (end - sizesHead) % int64(s.recordSize()); rest != 0 {
		end -= rest
		if err := f.Truncate(end); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(buf, end); err != nil {
		return errors.Join(err, f.Truncate(end))
	}
	// If other processes have appended records that are not in memory yet, readNew reads these records together with the
	// records in buf.
	if s.io.read == end {
		s.io.read += int64(len(buf)) // the records in buf are in memory already, so they need not be read again
	}
	return nil
}

// readNew reads the records that were appended to the file since the last call into memory. The caller holds io,
// unless no other goroutine uses the table yet.
func (s *Sizes) readNew() error {
	info, err := s.io.file.Stat()
	if err != nil {
		return err
	}
	rec := int64(s.recordSize())
	left := max(0, info.Size()-s.io.read) / rec * rec
	// Read the file in parts, so that the bytes of the whole file are never in memory in addition to the rows.
	buf := make([]byte, min(left, rowsPerChunk*rec))
	for left > 0 {
		part := buf[:min(left, int64(len(buf)))]
		if _, err := s.io.file.ReadAt(part, s.io.read); err != nil {
			return err
		}
		s.takeIn(part)
		s.io.read += int64(len(part))
		left -= int64(len(part))
	}
	return nil
}

// takeIn adds records from the file to the rows in memory. It skips records whose checksum is wrong.
func (s *Sizes) takeIn(records []byte) {
	row, rec := s.rowSize(), s.recordSize()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; len(records) >= rec; records = records[rec:] {
		if crc32.Checksum(records[:row], castagnoli) == binary.LittleEndian.Uint32(records[row:]) {
			n := s.format.Size()
			s.setLocked(records[:n], getSize(records[n:]))
		}
	}
}
