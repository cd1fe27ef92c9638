package overlay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// Section is an optional interface of the reader that is passed to CopyUp. Its method returns the open file that stores
// the contents, and the offset and the length of the contents in this file, in bytes, so that file systems with
// reflinks can share the blocks. A nil file means that the contents are not stored in a file.
type Section interface {
	Section() (f *os.File, off, n int64)
}

// CopyUp creates the contents file of a promoted base node from the first size bytes of base. It copies without holding
// a lock. If the node received another contents file during the copy, CopyUp discards the copy and returns nil.
func (f *File) CopyUp(base io.ReaderAt, size int64) error {
	if f.l.o.ReadOnly {
		return syscall.EROFS
	}
	for {
		if err := f.copyUp(base, size); !errors.Is(err, ErrSealed) {
			return err
		}
	}
}

// copyUp does the work of CopyUp, and returns ErrSealed if Seal was called during the copy.
func (f *File) copyUp(base io.ReaderAt, size int64) error {
	l := f.l
	number, data, err := l.create(true)
	if err != nil {
		return err
	}
	err = l.withRoom(func() error { return fill(data, base, size) })
	won := false
	if err == nil {
		won, err = f.take(number, data, size)
	}
	if !won {
		// No log record names the copy. If the process dies before the copy is removed, the next Open moves it to lost+found.
		_ = data.Close()
		l.discard(number)
	}
	return err
}

// take makes the contents file with the given number, which CopyUp has filled, the contents of the file f, and returns
// true. If f has received other contents than those of the base tree since the copy began, take changes nothing and
// returns false.
func (f *File) take(number uint64, data disk.File, size int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		return false, err
	}
	if f.place != inBase {
		return false, nil
	}
	// Do not mark the inode dirty: nothing was written after the copy, and the mtime of the contents file is the time of
	// the copy instead of the mtime of the file.
	if err := f.adopt(number, size, state.FlagUnsettled); err != nil {
		return false, err
	}
	f.writes.Store(f.l.clock())
	f.install(number, data, size, false)
	return true, nil
}

// buffers holds copy buffers of 256 KiB each.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// fill copies size bytes of base to a new contents file. If base implements Section, the file system copies as many
// bytes as it can.
func fill(to disk.File, base io.ReaderAt, size int64) error {
	// The loop below copies all bytes that CopyFrom did not copy.
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
			return fmt.Errorf("copy file of the base tree: only %d of %d bytes copied: %w", done, size, err)
		}
		if _, err := to.WriteAt(buf[:n], done); err != nil {
			return err
		}
		done += int64(n)
	}
	return nil
}

// CopyRange copies up to n bytes from another file, or within this file, and returns the number of bytes copied, which
// is less than n at the end of the source. It returns ErrBase if CopyUp must be called for f first, and ErrSealed if
// Separate must be called for f first. It returns ErrSourceBase if the contents of the source are in the base tree,
// where the caller must then read them.
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
	done := int64(0)
	err = f.l.withRoom(func() error {
		more, err := f.data.CopyFrom(off+done, from.data.Own(), fromOff+done, n-done)
		done += more
		return err
	})
	f.writes.Store(f.l.clock())
	if done > 0 {
		err = errors.Join(err, f.changed(off+done))
	}
	return done, err
}

// lockWith takes the lock of f for a change (lockForChange) and the shared lock of the other file, which is in the
// parameter from. It locks the file with the lower node number first, which prevents deadlocks. The caller must call
// unlock unless err is set.
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
