package odb

import (
	"os"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// live is a pack that is being received. Its verified objects can be read like those of a finished pack.
type live struct {
	tail
	table  *table // the entries received so far
	number uint64 // serial number of the pack; see source.serial
}

// Reads of a live pack never open a file, because its file stays open until no view contains the pack any more.
var _ source = (*live)(nil)

// open does nothing, because a live pack is always open.
func (l *live) open() error { return nil }

// find returns the offset of the entry of id. It returns false if the object was not received and verified yet.
func (l *live) find(id object.ID) (int64, bool) { return l.table.findOffset(id) }

// serial returns the number that identifies the pack in the cache of bases.
func (l *live) serial() uint64 { return l.number }

// close closes the file of the pack.
func (l *live) close() { l.file.Close() }

// tail is a file to which one goroutine appends, in large pieces, while other goroutines read all bytes appended so
// far.
type tail struct {
	file *os.File // the file that append and flush write

	mu      sync.RWMutex // protects the fields below; the appending goroutine may read them without mu
	flushed int64        // number of bytes in file
	buf     []byte       // bytes that were appended but not written to file yet
}

// tailBuffer is the number of bytes that are collected before they are written to the file.
const tailBuffer = 256 << 10

// append appends a copy of p to the tail. Only one goroutine may call the methods append and flush.
func (t *tail) append(p []byte) error {
	if len(t.buf)+len(p) > tailBuffer {
		if err := t.flush(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.buf = append(t.buf, p...)
	t.mu.Unlock()
	return nil
}

// flush writes buf to the file. It does not hold mu during the write, because the other goroutines only read buf.
func (t *tail) flush() error {
	if _, err := t.file.Write(t.buf); err != nil {
		return err
	}
	t.mu.Lock()
	t.flushed += int64(len(t.buf))
	t.buf = t.buf[:0]
	t.mu.Unlock()
	return nil
}

// end returns the number of bytes that were appended, including those that are not in the file yet.
func (t *tail) end() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.flushed + int64(len(t.buf))
}

// ReadAt reads bytes that were appended. It may return fewer bytes than requested without an error.
func (t *tail) ReadAt(p []byte, off int64) (int, error) {
	t.mu.RLock()
	flushed, n := t.flushed, 0
	if off >= flushed && off-flushed < int64(len(t.buf)) {
		n = copy(p, t.buf[off-flushed:])
	}
	t.mu.RUnlock()
	if off >= flushed {
		return n, nil
	}
	return t.file.ReadAt(p[:min(int64(len(p)), flushed-off)], off)
}
