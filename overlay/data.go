package overlay

import (
	"errors"
	"io"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/overlay/state"
)

// ReadAt reads as pread(2) does: less than len(p) only at the end of the file, which is no error. ErrBase: the
// contents are the base's.
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

// WriteAt writes as pwrite(2) does; with an error too, n bytes have been written. ErrBase: CopyUp first. A write that
// covers all of a base file needs nothing of the base: CopyUp from its own bytes.
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

// lockForChange takes the shared lock of a File that has a content, and whose inode the log calls dirty: that must be
// there before the first byte is, or a kill would leave a size that nobody corrects.
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

// prepare makes a content if there is none, and marks the inode dirty. f.mu is held whole.
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
		return f.begin(0)
	case f.marked.Load():
		return nil
	}
	return f.note()
}

// begin creates an empty contents file for the file. f.mu is held whole.
func (f *File) begin(flags uint32) error {
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

// fresh is what an empty content is to be called that takes the place of others: where there is a base, power loss
// brings that back until the new one has reached the disk.
func (f *File) fresh() uint32 {
	if f.node.Own() {
		return 0
	}
	return state.FlagUnsettled
}

// adopt makes a content the inode's.
func (f *File) adopt(number uint64, size int64, flags uint32) error {
	return f.l.Update(func(tx *Tx) error { return f.adopted(tx, number, size, flags) })
}

// adopted is adopt within an update.
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

// changed notes what a write did, up to end: the size if it grew, and that the inode is dirty if that was taken back
// meanwhile. f.mu is held.
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

// note brings the content's size to the inode, and marks it dirty. Only what makes it dirty goes to the log: from then
// on the content file knows better. f.mu is held.
func (f *File) note() error { return f.l.withRoom(f.tryNote) }

func (f *File) tryNote() error {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	f.marked.Store(false) // and stays so if the log has no room: the next write tries again
	old, ok := l.state.Inode(f.node)
	if !ok {
		return errGone(f.node)
	}
	in := old
	in.Size = f.size.Load() // grows only, as long as mu is shared: who comes later brings what is true later
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

// Truncate cuts or grows. A base file cut to nothing begins an empty content, and the base is not read; other sizes
// of a base file are ErrBase.
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
		return f.begin(f.fresh()) // the content is missing, and nobody needs it any more
	case err != nil:
		return err
	case f.place == inBase && size > 0:
		return ErrBase
	case f.place == inBase:
		return f.begin(f.fresh())
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

// Fallocate is fallocate(2). ErrBase: CopyUp first.
func (f *File) Fallocate(mode uint32, off, n int64) error {
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.prepare(); err != nil {
		return err
	}
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		f.keep(off, math.MaxInt64) // a hole, zeros, or all that is behind gets another place
	}
	err := f.l.withRoom(func() error { return f.data.Allocate(mode, off, n) })
	f.writes.Store(f.l.clock())
	return errors.Join(err, f.restat())
}

// restat takes the size from the content. f.mu is held whole.
func (f *File) restat() error {
	info, err := f.data.Stat()
	if err != nil {
		return err
	}
	f.size.Store(info.Size())
	return f.note()
}

// Seek finds data or a hole (SEEK_DATA, SEEK_HOLE), ENXIO as in lseek(2). ErrBase: the contents are the base's.
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

// Size is the length of the contents. ErrBase: they are the base's.
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

// Blocks is how much disk the contents take, in units of 512 bytes. ErrBase: they are the base's.
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

// IfBase calls g if the contents are the base's; until g returns they stay so. g must not call the layer.
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

// clock is monotonic, in nanoseconds.
func (l *Layer) clock() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return ts.Nano()
}
