package odb

import (
	"os"
	"sync"

	"github.com/artifactfs/artifactfs/object"
)

// live is a pack that is being received. Its verified objects can be read as those of any pack.
type live struct {
	tail
	table  *table
	number uint64
}

// A live pack is always open; its file is closed with the last view that holds it.
var _ source = (*live)(nil)

func (l *live) open() error                     { return nil }
func (l *live) find(id object.ID) (int64, bool) { return l.table.findOffset(id) }
func (l *live) serial() uint64                  { return l.number }
func (l *live) close()                          { l.file.Close() }

// tail is a file that one goroutine appends to in large pieces while others read it up to the last
// byte appended.
type tail struct {
	file *os.File

	mu      sync.RWMutex // guards the fields below; the appender may read them without it
	flushed int64        // bytes in file
	buf     []byte       // the bytes after flushed
}

// tailBuffer is the number of bytes that are collected before they are written to the file.
const tailBuffer = 256 << 10

// append appends a copy of p. Only one goroutine may call it.
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

// flush writes buf to the file. Readers use buf meanwhile: only the appender changes it.
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

// end returns the number of bytes appended, written or not.
func (t *tail) end() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.flushed + int64(len(t.buf))
}

// ReadAt reads appended bytes. It may return fewer bytes than requested without an error.
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
