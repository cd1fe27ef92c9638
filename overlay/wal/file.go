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

// chunkSize is by how much a file grows and how much of it is mapped at a time.
const chunkSize = 256 << 10

// file is one log file that is being written. Its owner guards what is appended (mu of Log) and who syncs.
type file struct {
	disk disk.File
	page []byte  // the header's mapping
	head *header // in it
	seed uint32

	spare   atomic.Pointer[chunk]
	want    chan struct{} // wakes the goroutine that keeps spare filled; closed by close
	stopped chan struct{}
	growing sync.Mutex
	made    int64 // guarded by growing: chunks that are mapped, or were
	taken   int64 // bytes of the file that have their disk space

	// Guarded by the owner.
	chunks   []*chunk // the ones that end and what is behind it lie in, in order
	end      int64    // where the next record goes
	appended uint64   // sequence of the last record
	scratch  head     // of the record that is being appended: here it costs no allocation

	// Guarded by the owner's lock for syncing.
	synced uint64 // sequence
	broken error
}

type chunk struct {
	off int64
	mem []byte
}

// create makes an empty log file, synced but for its name.
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

// resume makes a file ready to be appended to at end, behind which it has nothing but zeros, and syncs it if asked to.
// The first taken bytes are known to have their disk space: to go on within them must not fail on a full disk. So what
// is mapped is the chunk with the last byte there is, and not the one that the next record may need.
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

// grow returns the next chunk: the one that lies ready, or else it waits for the file system.
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

// prepare has the next chunk ready before it is needed. Its errors are found again by who needs the chunk.
func (l *file) prepare() {
	defer close(l.stopped)
	for range l.want {
		l.growing.Lock()
		if l.spare.Load() == nil {
			if c, err := l.makeLocked(); err == nil {
				l.spare.Store(c) // under the lock: chunks are taken in the order in which they are made
			}
		}
		l.growing.Unlock()
	}
}

// append adds a record. Where it fails nothing has changed.
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
	for l.end >= l.chunks[0].off+chunkSize && len(l.chunks) > 1 {
		_ = l.disk.Unmap(l.chunks[0].mem) // the record is appended whether this works or not
		l.chunks = l.chunks[1:]
	}
	if last := l.chunks[len(l.chunks)-1]; l.end > last.off+chunkSize/2 && l.spare.Load() == nil {
		select {
		case l.want <- struct{}{}:
		default:
		}
	}
	return nil
}

// copy brings a record to the file, its length last. A file system that cannot take a page although it is allocated
// (one that copies on write and is full, a failing disk) answers with SIGBUS, which becomes an error here.
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
	// Stored at once and after all the rest: whoever finds the length finds the record.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&l.at(l.end)[0])), h.length())
	return nil
}

// write copies bytes to an offset in the mapped chunks.
func (l *file) write(off int64, b []byte) {
	for len(b) > 0 {
		n := copy(l.at(off), b)
		off, b = off+int64(n), b[n:]
	}
}

// at returns the rest of the chunk from an offset on.
func (l *file) at(off int64) []byte {
	c := l.chunks[(off-l.chunks[0].off)/chunkSize]
	return c.mem[off-c.off:]
}

// sync makes at least the first want records survive a power cut. Calls do not overlap; mu guards what is appended.
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
	atomic.StoreUint64(&l.head.synced, uint64(end)) // goes to disk with the next sync
	return nil
}

// markClean says that nothing is missing; everything has been synced.
func (l *file) markClean() error {
	atomic.StoreUint32(&l.head.clean, 1)
	return l.disk.DataSync()
}

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

func (l *file) close() error { return errors.Join(l.unmap(), l.disk.Close()) }
