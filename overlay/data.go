package overlay

import (
	"errors"
	"io"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// ReadAt reads as pread(2) does: it returns fewer than len(p) bytes only at the end of the file, without an error. It
// returns ErrBase if the file has the base tree's contents.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if err := f.rlock(); err != nil {
		return 0, err
	}
	defer f.mu.RUnlock()
	switch f.place {
	case inBase:
		return 0, ErrBase
	case inContent:
		n, err := f.data.ReadAt(p, off)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return n, err
	}
	return 0, nil
}

// WriteAt writes as pwrite(2) does. Even with an error, n bytes have been written. It returns ErrBase if the file has
// the base tree's contents: the caller must call CopyUp first, with p itself as the source if p covers the whole file.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	if err := f.lockForChange(); err != nil {
		return 0, err
	}
	defer f.mu.RUnlock()
	f.keep(off, off+int64(len(p)))
	n := 0
	err := f.l.withRoom(func() error {
		done, err := f.data.WriteAt(p[n:], off+int64(n))
		n += done
		return err
	})
	f.writes.Store(f.l.clock())
	if n > 0 {
		err = errors.Join(err, f.changed(off+int64(n)))
	}
	return n, err
}

// lockForChange takes the shared lock of a File that has a contents file and whose inode is dirty in the log. The dirty
// mark must be in the log before the first byte is written: otherwise a kill would leave a size that no recovery
// corrects.
func (f *File) lockForChange() error {
	for {
		f.mu.RLock()
		if f.place == inContent && f.marked.Load() {
			return nil
		}
		f.mu.RUnlock()
		f.mu.Lock()
		err := f.prepare()
		f.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// prepare creates a contents file if the file has no bytes yet, and marks the inode dirty. f.mu is held exclusively.
func (f *File) prepare() error {
	if f.l.o.ReadOnly {
		return syscall.EROFS
	}
	if err := f.load(); err != nil {
		return err
	}
	switch {
	case f.place == inBase:
		return ErrBase
	case f.place == nowhere:
		return f.createContents(0)
	case f.marked.Load():
		return nil
	}
	return f.note()
}

// createContents creates an empty contents file for the file. f.mu is held exclusively.
func (f *File) createContents(flags uint32) error {
	number, err := f.l.newNumber()
	if err != nil {
		return err
	}
	data, err := f.l.create(number)
	if err != nil {
		return err
	}
	if err := f.adopt(number, 0, flags|state.FlagDirty); err != nil {
		_ = data.Close()
		f.l.discard(number)
		return err
	}
	f.install(number, data, 0, true)
	return nil
}

// fresh returns the flags of an empty contents file that replaces existing contents. For a base node it is
// FlagUnsettled: after power loss the base tree's contents are used again unless the new file has reached the disk.
func (f *File) fresh() uint32 {
	if f.node.Own() {
		return 0
	}
	return state.FlagUnsettled
}

// adopt makes a contents file the inode's, in an update of its own.
func (f *File) adopt(number uint64, size int64, flags uint32) error {
	return f.l.Update(func(tx *Tx) error { return f.adopted(tx, number, size, flags) })
}

// adopted does the same as adopt within the update tx.
func (f *File) adopted(tx *Tx, number uint64, size int64, flags uint32) error {
	in, ok := tx.Inode(f.node)
	if !ok {
		return errGone(f.node)
	}
	in.Content, in.Size = number, size
	in.Flags = flags
	tx.put(in)
	f.l.settleLater(f.node)
	return nil
}

// changed records the effect of a write that ended at offset end: a larger size, and the dirty mark if it was cleared
// during the write. f.mu is held.
func (f *File) changed(end int64) error {
	grew := false
	for size := f.size.Load(); end > size && !grew; size = f.size.Load() {
		grew = f.size.CompareAndSwap(size, end)
	}
	if grew || !f.marked.Load() {
		return f.note()
	}
	return nil
}

// note copies the contents file's size to the inode and marks the inode dirty. Only the dirty mark is logged: from then
// on recovery reads the size from the contents file. f.mu is held.
func (f *File) note() error { return f.l.withRoom(f.tryNote) }

// tryNote does the work of note. It fails if the log has no space.
func (f *File) tryNote() error {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	f.marked.Store(false) // stays false if the log has no space: the next write tries again
	old, ok := l.state.Inode(f.node)
	if !ok {
		return errGone(f.node)
	}
	in := old
	in.Size = f.size.Load() // while mu is shared the size only grows, so a later caller stores the larger one
	in.Flags |= state.FlagDirty
	var err error
	switch {
	case in == old:
	case in.Flags == old.Flags:
		var b state.Batch
		b.PutInode(&in, &old)
		err = l.state.Apply(b.Bytes())
	default:
		err = l.update(func(tx *Tx) error { tx.put(in).logSize = true; return nil })
		l.settleLater(f.node)
	}
	if err == nil {
		f.marked.Store(true)
	}
	return err
}

// Truncate sets the size. Truncating a base file to zero creates an empty contents file without reading the base tree;
// for any other size of a base file it returns ErrBase.
func (f *File) Truncate(size int64) error {
	if f.l.o.ReadOnly {
		return syscall.EROFS
	}
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.load()
	switch {
	case size == 0 && errors.Is(err, ErrDamaged):
		return f.createContents(f.fresh()) // the contents file is missing, and its bytes are no longer needed
	case err != nil:
		return err
	case f.place == inBase && size > 0:
		return ErrBase
	case f.place == inBase:
		return f.createContents(f.fresh())
	case f.place == nowhere && size == 0:
		return nil
	}
	if err := f.prepare(); err != nil {
		return err
	}
	f.keep(size, math.MaxInt64)
	if err := f.data.Truncate(size); err != nil {
		return err
	}
	f.writes.Store(f.l.clock())
	f.size.Store(size)
	return f.note()
}

// Fallocate is fallocate(2). It returns ErrBase if a CopyUp is needed first.
func (f *File) Fallocate(mode uint32, off, n int64) error {
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.prepare(); err != nil {
		return err
	}
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		f.keep(off, math.MaxInt64) // these modes change or move all bytes from off on
	}
	err := f.l.withRoom(func() error { return f.data.Allocate(mode, off, n) })
	f.writes.Store(f.l.clock())
	return errors.Join(err, f.restat())
}

// restat takes the size from the contents file. f.mu is held exclusively.
func (f *File) restat() error {
	info, err := f.data.Stat()
	if err != nil {
		return err
	}
	f.size.Store(info.Size())
	return f.note()
}

// Seek finds data or a hole (SEEK_DATA, SEEK_HOLE) and returns ENXIO as lseek(2) does. It returns ErrBase if the file
// has the base tree's contents.
func (f *File) Seek(off int64, whence int) (int64, error) {
	if err := f.rlock(); err != nil {
		return 0, err
	}
	defer f.mu.RUnlock()
	switch f.place {
	case inBase:
		return 0, ErrBase
	case inContent:
		return f.data.Seek(off, whence)
	}
	return 0, syscall.ENXIO
}

// Size returns the length of the contents in bytes. It returns ErrBase if they are the base tree's.
func (f *File) Size() (int64, error) {
	if err := f.rlock(); err != nil {
		return 0, err
	}
	defer f.mu.RUnlock()
	switch f.place {
	case inBase:
		return 0, ErrBase
	case inContent:
		return f.size.Load(), nil
	}
	return 0, nil
}

// Blocks returns the disk space of the contents in units of 512 bytes. It returns ErrBase if they are the base tree's.
func (f *File) Blocks() (int64, error) {
	if err := f.rlock(); err != nil {
		return 0, err
	}
	defer f.mu.RUnlock()
	switch f.place {
	case inBase:
		return 0, ErrBase
	case inContent:
		info, err := f.data.Stat()
		if err != nil {
			return 0, err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return st.Blocks, nil
		}
		return (info.Size() + 511) / 512, nil
	}
	return 0, nil
}

// IfBase calls g if the file has the base tree's contents; they remain so until g returns. g must not call the layer.
func (f *File) IfBase(g func() error) error {
	if err := f.rlock(); err != nil {
		return err
	}
	defer f.mu.RUnlock()
	if f.place != inBase {
		return nil
	}
	return g()
}

// clock returns the coarse monotonic time in nanoseconds.
func (l *Layer) clock() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return ts.Nano()
}
