package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/signal"
)

// chunkSize is the unit in bytes in which a file grows and is mapped.
const chunkSize = 256 << 10

// file is one log file that is open for writing. Its owner must serialize append (by Log.mu) and sync (by Log.syncing).
type file struct {
	disk disk.File
	page []byte  // mapping of the page with the header
	head *header // points into page
	seed uint32  // initial value of the records' checksums, derived from the header's epoch

	// spare is the next chunk, prepared in the background; nil while it is not ready.
	spare   atomic.Pointer[chunk]
	want    chan struct{} // wakes the goroutine that prepares spare; unmap closes it
	stopped chan struct{} // closed when that goroutine has ended
	// growing is held while a chunk is made. A goroutine that holds the owner's locks may take growing. A goroutine that
	// holds growing must not take the owner's locks.
	growing sync.Mutex
	made    int64 // index of the next chunk to map, counted from the beginning of the file; protected by growing
	taken   int64 // number of bytes of the file whose disk space is allocated; protected by growing

	// The owner's lock for appending protects the fields below.
	chunks   []*chunk // mapped chunks in order, beginning with the one that contains end
	end      int64    // offset of the next record
	appended uint64   // sequence number of the last record
	scratch  head     // header of the record that is being appended; a field, so that append does not allocate memory

	// The owner's lock for syncing protects the fields below.
	synced uint64 // sequence number of the last synced record
	broken error  // error of a failed sync; all later syncs fail
}

// chunk is one mapped part of the file at offset off.
type chunk struct {
	off int64
	mem []byte
}

// create creates an empty log file with a version of the format. It syncs the file, but not the directory entry.
func create(fs disk.FS, path string, version uint32, boot bootID) (*file, error) {
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	h := header{magic: magic, version: version, order: byteOrder, synced: headerSize, boot: boot}
	var epoch [8]byte
	rand.Read(epoch[:])
	h.epoch = binary.NativeEndian.Uint64(epoch[:])
	h.crc = h.sum()
	l, err := resume(f, headerSize, 0, 0, func(to *header) { *to = h }, true)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// resume prepares a file for appending at the offset end, behind which the file contains only zeros; the parameter last
// is the sequence number of the last record. The function set writes the header. If the parameter sync is true, the
// file is synced.
//
// The parameter taken is the length in bytes of the part of the file whose disk space is already allocated. A takeover
// that needs no more than this part must not fail on a full disk. So resume maps the chunk of the last existing byte,
// and not the chunk that the next record may need.
func resume(f disk.File, end int64, last uint64, taken int64, set func(*header), sync bool) (*file, error) {
	l := &file{disk: f, want: make(chan struct{}, 1), stopped: make(chan struct{}), end: end, appended: last, taken: taken}
	l.made = (end - 1) / chunkSize
	if size := (l.made + 1) * chunkSize; size > taken {
		if err := f.Allocate(0, 0, size); err != nil {
			return nil, err
		}
		l.taken = size
	}
	var err error
	if l.page, err = f.Map(0, pageSize, disk.MapPopulate); err != nil {
		return nil, err
	}
	l.head = (*header)(unsafe.Pointer(&l.page[0]))
	c, err := l.grow()
	if err == nil {
		l.chunks = append(l.chunks, c)
		set(l.head)
		l.seed = l.head.seed()
	}
	if err == nil && sync {
		err = f.DataSync()
		l.synced = last
	}
	go l.prepare()
	if err != nil {
		return nil, errors.Join(err, l.unmap())
	}
	return l, nil
}

// grow returns the next chunk. If the background goroutine has not prepared it, grow makes the chunk and waits for the
// file system.
func (l *file) grow() (*chunk, error) {
	if c := l.spare.Swap(nil); c != nil {
		return c, nil
	}
	l.growing.Lock()
	defer l.growing.Unlock()
	if c := l.spare.Swap(nil); c != nil {
		return c, nil
	}
	return l.makeLocked()
}

// makeLocked allocates and maps the next chunk. The caller holds l.growing.
func (l *file) makeLocked() (*chunk, error) {
	off := l.made * chunkSize
	if off+chunkSize > l.taken {
		if err := l.disk.Allocate(0, off, chunkSize); err != nil {
			return nil, err
		}
		l.taken = off + chunkSize
	}
	mem, err := l.disk.Map(off, chunkSize, disk.MapPopulate)
	if err != nil {
		return nil, err
	}
	l.made++
	return &chunk{off, mem}, nil
}

// reserve allocates the disk space of the chunks that the next n bytes of records need, and of the chunk that prepare
// makes ahead.
func (l *file) reserve(n int64) error {
	l.growing.Lock()
	defer l.growing.Unlock()
	end := ((l.end+n)/chunkSize + 2) * chunkSize
	if end <= l.taken {
		return nil
	}
	if err := l.disk.Allocate(0, l.taken, end-l.taken); err != nil {
		return err
	}
	l.taken = end
	return nil
}

// prepare is the goroutine that makes the next chunk before it is needed. It ignores errors, because append meets the
// same error when it needs the chunk.
func (l *file) prepare() {
	defer close(l.stopped)
	for range l.want {
		l.growing.Lock()
		if l.spare.Load() == nil {
			if c, err := l.makeLocked(); err == nil {
				// stored while l.growing is held, so that chunks are used in the order of their offsets
				l.spare.Store(c)
			}
		}
		l.growing.Unlock()
	}
}

// append adds a record with a time in nanoseconds since 1970. If append fails, the file is unchanged. It returns EFBIG
// if the record is longer than maxRecord.
func (l *file) append(record []byte, time int64) (err error) {
	if len(record) > maxRecord {
		return fmt.Errorf("append %d bytes to log %s: %w", len(record), l.disk.Name(), syscall.EFBIG)
	}
	end := l.end + occupied(len(record))
	for last := l.chunks[len(l.chunks)-1]; end > last.off+chunkSize; last = l.chunks[len(l.chunks)-1] {
		c, err := l.grow()
		if err != nil {
			return err
		}
		l.chunks = append(l.chunks, c)
	}
	l.scratch.set(l.seed, l.appended+1, time, record)
	if err := l.copy(&l.scratch, record); err != nil {
		return err
	}
	l.end, l.appended = end, l.appended+1
	// Full chunks are never written again, so their mappings are released.
	for l.end >= l.chunks[0].off+chunkSize && len(l.chunks) > 1 {
		// the error is ignored, because the record was appended even if the mapping is not released
		_ = l.disk.Unmap(l.chunks[0].mem)
		l.chunks = l.chunks[1:]
	}
	// Prepare the next chunk when half of the last chunk is used.
	if last := l.chunks[len(l.chunks)-1]; l.end > last.off+chunkSize/2 && l.spare.Load() == nil {
		signal.Send(l.want)
	}
	return nil
}

// copy writes a record to the mapping, with the length of the record last. If the file system cannot store a page
// although its space was allocated (on a full copy-on-write file system or a failing disk), the kernel sends SIGBUS.
// copy converts the signal into an error that wraps EIO.
func (l *file) copy(h *head, record []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			if _, ok := fault.(interface{ Addr() uintptr }); !ok {
				panic(fault)
			}
			err = fmt.Errorf("append to log %s: page fault: %w", l.disk.Name(), syscall.EIO)
		}
	}()
	l.write(l.end+recordHead, record)
	l.write(l.end+4, h[4:])
	// The length is stored atomically and after all other bytes, so a reader that finds the length finds the whole record.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&l.at(l.end)[0])), h.length())
	return nil
}

// write copies b to the file at the offset off in bytes, through the mapped chunks.
func (l *file) write(off int64, b []byte) {
	for len(b) > 0 {
		n := copy(l.at(off), b)
		off, b = off+int64(n), b[n:]
	}
}

// The method at returns the mapped memory from the offset off to the end of the chunk that contains off.
func (l *file) at(off int64) []byte {
	c := l.chunks[(off-l.chunks[0].off)/chunkSize]
	return c.mem[off-c.off:]
}

// sync writes at least the records with sequence numbers up to the number want to disk, so that they survive a power
// cut. The caller must not call sync concurrently. The lock mu protects the fields end and appended.
func (l *file) sync(mu *sync.Mutex, want uint64) error {
	if l.broken != nil {
		return fmt.Errorf("sync log %s: %w: %w", l.disk.Name(), ErrUnsynced, l.broken)
	}
	if l.synced >= want {
		return nil
	}
	mu.Lock()
	end, appended := l.end, l.appended
	mu.Unlock()
	if err := l.disk.DataSync(); err != nil {
		l.broken = err
		return err
	}
	l.synced = appended
	atomic.StoreUint64(&l.head.synced, uint64(end)) // the new value reaches the disk with the next sync
	return nil
}

// markClean marks the file as closed and syncs it. All records must be synced before.
func (l *file) markClean() error {
	atomic.StoreUint32(&l.head.clean, 1)
	return l.disk.DataSync()
}

// unmap stops the background goroutine and unmaps the file.
func (l *file) unmap() error {
	close(l.want)
	<-l.stopped
	if c := l.spare.Swap(nil); c != nil {
		l.chunks = append(l.chunks, c)
	}
	errs := []error{l.disk.Unmap(l.page)}
	for _, c := range l.chunks {
		errs = append(errs, l.disk.Unmap(c.mem))
	}
	l.chunks, l.head = nil, nil
	return errors.Join(errs...)
}

// close unmaps and closes the file without a sync.
func (l *file) close() error { return errors.Join(l.unmap(), l.disk.Close()) }
