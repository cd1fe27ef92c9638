package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay/state"
)

// Section is what a base's contents may know of themselves: the bytes of an open file that they are. Their blocks are
// then shared where the file system can.
type Section interface {
	Section() (f *os.File, off, n int64)
}

// CopyUp creates the contents file of a promoted base file from the base's bytes, size of them. The copy is made
// without locks; if meanwhile the file got a content in another way, the copy is thrown away, which is no error.
func (f *File) CopyUp(base io.ReaderAt, size int64) error {
	l := f.l
	if l.o.ReadOnly {
		return syscall.EROFS
	}
	number, err := l.newNumber()
	if err != nil {
		return err
	}
	data, err := l.create(number)
	if err != nil {
		return err
	}
	err = l.withRoom(func() error { return fill(data, base, size) })
	won := false
	if err == nil {
		won, err = f.take(number, data, size)
	}
	if !won {
		// No record names it. If the process dies before it is removed, it ends up in lost+found.
		_ = data.Close()
		l.discard(number)
	}
	return err
}

// take makes a filled content the file's if the base still has its bytes.
func (f *File) take(number uint64, data disk.File, size int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		return false, err
	}
	if f.place != inBase {
		return false, nil
	}
	// Not dirty: its mtime is not the file's, nothing has been written yet.
	if err := f.adopt(number, size, state.FlagUnsettled); err != nil {
		return false, err
	}
	f.writes.Store(f.l.clock())
	f.install(number, data, size, false)
	return true, nil
}

var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// fill writes the base's bytes to a new content.
func fill(to disk.File, base io.ReaderAt, size int64) error {
	done := int64(0)
	if s, ok := base.(Section); ok {
		if file, off, n := s.Section(); file != nil {
			var err error
			if done, err = to.CopyFrom(0, file, off, min(n, size)); err != nil {
				return err
			}
		}
	}
	buf := buffers.Get().(*[256 << 10]byte)
	defer buffers.Put(buf)
	for done < size {
		n, err := base.ReadAt(buf[:min(int64(len(buf)), size-done)], done)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("copy up %d of %d bytes: %w", done, size, err)
		}
		if _, err := to.WriteAt(buf[:n], done); err != nil {
			return err
		}
		done += int64(n)
	}
	return nil
}

// CopyRange copies from another file's content, or within this one, and says how much: less than n at the end of the
// source. ErrBase: CopyUp first; ErrSourceBase: the source is for the caller to read.
func (f *File) CopyRange(from *File, fromOff, off, n int64) (int64, error) {
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	unlock, err := f.lockWith(from)
	if err != nil {
		return 0, err
	}
	defer unlock()
	switch from.place {
	case inBase:
		return 0, ErrSourceBase
	case nowhere:
		return 0, nil
	}
	n = min(n, max(0, from.size.Load()-fromOff))
	f.keep(off, off+n)
	done, err := f.data.CopyFrom(off, from.data.Own(), fromOff, n)
	f.writes.Store(f.l.clock())
	if done > 0 {
		err = errors.Join(err, f.changed(off+done))
	}
	return done, err
}

// lockWith takes the lock for a change of f and the shared lock of its source, the lower node's first.
func (f *File) lockWith(from *File) (unlock func(), err error) {
	if f == from {
		return f.mu.RUnlock, f.lockForChange()
	}
	first, second := f.lockForChange, from.rlock
	one, two := f, from
	if from.node < f.node {
		first, second = second, first
		one, two = from, f
	}
	if err := first(); err != nil {
		return nil, err
	}
	if err := second(); err != nil {
		one.mu.RUnlock()
		return nil, err
	}
	return func() { two.mu.RUnlock(); one.mu.RUnlock() }, nil
}
