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
)

// chunkSize is the unit in bytes in which a file grows and is mapped.
const chunkSize = 256 << 10

// file is one log file open for writing. Its owner serializes append (by Log.mu) and sync (by Log.syncing).
type file struct {
	disk disk.File
	page []byte  // mapping of the header's page
	head *header // points into page
	seed uint32  // initial value of the records' checksums

	// spare is the next chunk, prepared in the background; nil: not ready.
	spare   atomic.Pointer[chunk]
	want    chan struct{} // wakes the goroutine that prepares spare; unmap closes it
	stopped chan struct{} // closed when that goroutine has ended
	// growing is held while a chunk is made.
	growing sync.Mutex
	made    int64 // guarded by growing: number of chunks that were mapped so far
	taken   int64 // guarded by growing: bytes of the file whose disk space is allocated

	// Guarded by the owner's lock for appending.
	chunks   []*chunk // mapped chunks from the one that contains end on, in order
	end      int64    // offset of the next record
	appended uint64   // sequence number of the last record
	scratch  head     // header of the record being appended; a field so that append does not allocate

	// Guarded by the owner's lock for syncing.
	synced uint64 // sequence number of the last synced record
	broken error  // error of a failed sync; all later syncs fail
}

// chunk is one mapped part of the file at offset off.
type chunk struct {
	off int64
	mem []byte
}

// create creates an empty log file. Header and data are synced, the directory entry is not.
func create(fs disk.FS, path string, boot bootID) (*file, error) {
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

// resume prepares a file for appending at offset end, behind which it contains only zeros; set writes the header. With
// sync it syncs the file. The first taken bytes have their disk space: continuing within them must not fail on a full
// disk. So resume maps the chunk of the last existing byte, not the chunk that the next record may need.
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

// grow returns the next chunk: the spare one, or else a new one, for which it waits for the file system.
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

// makeLocked allocates and maps the next chunk. l.growing is held.
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

// prepare is the goroutine that makes the next chunk before it is needed. It ignores errors: append meets the same error
// when it needs the chunk.
func (l *file) prepare() {
	defer close(l.stopped)
	for range l.want {
		l.growing.Lock()
		if l.spare.Load() == nil {
			if c, err := l.makeLocked(); err == nil {
				l.spare.Store(c) // under the lock, so that chunks are taken in the order of their offsets
			}
		}
		l.growing.Unlock()
	}
}

// append adds a record with a time in nanoseconds since 1970. If it fails, nothing has changed; EFBIG: the record is
// longer than maxRecord.
func (l *file) append(record []byte, time int64) (err error) {
	if len(record) > maxRecord {
		return fmt.Errorf("append %d bytes to %s: %w", len(record), l.disk.Name(), syscall.EFBIG)
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
		_ = l.disk.Unmap(l.chunks[0].mem) // the record is appended whether or not this succeeds
		l.chunks = l.chunks[1:]
	}
	// The next chunk is prepared when half of the last one is used.
	if last := l.chunks[len(l.chunks)-1]; l.end > last.off+chunkSize/2 && l.spare.Load() == nil {
		select {
		case l.want <- struct{}{}:
		default:
		}
	}
	return nil
}

// copy writes a record to the mapping, its length last. If the file system cannot store a page although it was allocated
// (a full copy-on-write file system, a failing disk), the kernel sends SIGBUS, which copy turns into an error.
func (l *file) copy(h *head, record []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			if _, ok := fault.(interface{ Addr() uintptr }); !ok {
				panic(fault)
			}
			err = fmt.Errorf("append to %s: page fault: %w", l.disk.Name(), syscall.EIO)
		}
	}()
	l.write(l.end+recordHead, record)
	l.write(l.end+4, h[4:])
	// The length is stored atomically and after all other bytes: a reader that finds the length finds the whole record.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&l.at(l.end)[0])), h.length())
	return nil
}

// write copies bytes to an offset of the mapped chunks.
func (l *file) write(off int64, b []byte) {
	for len(b) > 0 {
		n := copy(l.at(off), b)
		off, b = off+int64(n), b[n:]
	}
}

// at returns the memory from an offset to the end of its chunk.
func (l *file) at(off int64) []byte {
	c := l.chunks[(off-l.chunks[0].off)/chunkSize]
	return c.mem[off-c.off:]
}

// sync makes at least the first want records survive a power cut. Calls must not overlap; mu guards end and appended.
func (l *file) sync(mu *sync.Mutex, want uint64) error {
	if l.broken != nil {
		return fmt.Errorf("sync %s: %w: %w", l.disk.Name(), ErrUnsynced, l.broken)
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
	atomic.StoreUint64(&l.head.synced, uint64(end)) // reaches the disk with the next sync
	return nil
}

// markClean marks the file as closed. All records must be synced.
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
