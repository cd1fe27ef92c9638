package overlay

import (
	"errors"
	"io"
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// ReadAt reads like pread(2): at the end of the file it returns fewer than len(p) bytes and no error. It returns
// ErrBase if the file has the base tree's contents.
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

// WriteAt writes like pwrite(2). If it returns an error, it also returns the number of bytes that were written. It
// returns ErrBase if the file has the base tree's contents: the caller must then call CopyUp first. If p covers the
// whole file, the caller can pass p as the source of the copy. It returns ErrSealed if the contents are sealed: the
// caller must then call Separate first.
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

// lockForChange takes f.mu shared. When it returns nil, the file has a contents file that is not sealed, and its inode
// is marked dirty in the log. The mark must be logged before the first byte is written: recovery after a kill reads the
// sizes of dirty inodes only from their contents files, and would keep a wrong size of an inode without the mark. After
// an error f.mu is not held.
func (f *File) lockForChange() error {
	for {
		f.mu.RLock()
		if f.place == inContent && f.marked.Load() && !f.l.contents.isSealed(f.number) {
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

// prepare creates a contents file if the file has none and is empty, and marks the inode dirty in the log. It returns
// ErrSealed if the contents file is sealed. The caller holds l.cut shared, and f.mu exclusively.
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
	case f.l.contents.isSealed(f.number):
		return ErrSealed
	case f.marked.Load():
		return nil
	}
	return f.note(false)
}

// createContents creates an empty contents file for the file and stores its number in the inode, with flags and the
// dirty mark. The caller holds l.cut shared, and f.mu exclusively.
func (f *File) createContents(flags uint32) error {
	number, data, err := f.l.create(true)
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

// fresh returns the flags of an empty contents file that replaces existing contents. For a base node it returns
// FlagUnsettled: after power loss the file has the base tree's contents again unless the new contents file has reached
// the disk.
func (f *File) fresh() uint32 {
	if f.node.Own() {
		return 0
	}
	return state.FlagUnsettled
}

// isSettledBase reports whether a base node has contents that are known to be on disk. Unsettled contents must not
// replace them: after power loss the file would have the base tree's contents, which it had before. The caller holds
// f.mu.
func (f *File) isSettledBase() bool {
	in, ok := f.l.Inode(f.node)
	return ok && !f.node.Own() && in.Flags&state.FlagUnsettled == 0
}

// adopt stores a contents file in the node's inode, in a separate update.
func (f *File) adopt(number uint64, size int64, flags uint32) error {
	return f.l.Update(func(tx *Tx) error { return f.adopted(tx, number, size, flags) })
}

// adopted stores a contents file in the node's inode, as a part of the update tx. It returns ErrSealed if the number
// was sealed while the contents file was written.
func (f *File) adopted(tx *Tx, number uint64, size int64, flags uint32) error {
	if f.l.contents.isSealed(number) {
		return ErrSealed
	}
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

// changed records the effect of a write that ended at the offset end: it stores a larger size and the times, and sets
// the dirty mark again if the janitor cleared the mark during the write. The caller holds f.mu.
func (f *File) changed(end int64) error {
	for size := f.size.Load(); end > size && !f.size.CompareAndSwap(size, end); size = f.size.Load() {
	}
	return f.note(true)
}

// note copies the size of the contents file to the inode and marks the inode dirty. If written is true, it also sets
// the mtime and the ctime of the inode to the mtime of the contents file. It logs the dirty mark, but not each later
// size and time: recovery reads both of a dirty file from its contents file. If the log has no space, note frees some
// and tries once more. The caller holds f.mu.
func (f *File) note(written bool) error {
	return f.l.withRoom(func() error { return f.tryNote(written) })
}

// tryNote does the work of note, without a second attempt if the log has no space.
func (f *File) tryNote(written bool) error {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	f.marked.Store(false) // marked stays false if the log has no space, so that the next write tries again
	old, ok := l.state.Inode(f.node)
	if !ok {
		return errGone(f.node)
	}
	in := old
	// With f.mu held shared the size only grows, so of several callers the last one stores the largest size.
	in.Size = f.size.Load()
	in.Flags |= state.FlagDirty
	if written {
		// The time is read from the contents file, so that a successor that reads it there finds the same time. It is read
		// while l.mu is held, because of several writes the last one must store the latest time. An error must not keep the
		// size from the inode.
		in.Mtime = time.Now().UnixNano()
		if info, err := f.data.Stat(); err == nil {
			in.Mtime = info.ModTime().UnixNano()
		}
		in.Flags |= state.FlagWritten
		in.Ctime = max(in.Ctime, in.Mtime)
	}
	var err error
	switch {
	case in == old:
	case in.Flags == old.Flags:
		var b state.Batch
		b.PutInode(&in, &old)
		if err = l.state.Apply(b.Bytes()); err == nil {
			l.contents.copying.follow(b.Bytes())
		}
	default:
		err = l.update(func(tx *Tx) error { tx.put(in).logSize = true; return nil })
		l.settleLater(f.node)
	}
	if err == nil {
		f.marked.Store(true)
	}
	return err
}

// Truncate sets the size in bytes. A file of the base tree that is truncated to zero receives an empty contents file,
// and its contents are not read; for any other size of such a file Truncate returns ErrBase. It returns ErrSealed if
// the contents are sealed, and size bytes of them are needed or the empty contents must be synced first.
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
		// createContents also replaces a contents file that is missing on disk, because the truncation would remove its
		// bytes anyway
		return f.createContents(f.fresh())
	case err != nil:
		return err
	case f.place == inBase && size > 0:
		return ErrBase
	case f.place == inBase:
		return f.createContents(f.fresh())
	case f.place == inContent && size == 0 && f.size.Load() > 0 && f.l.contents.isSealed(f.number) && !f.isSettledBase():
		return f.createContents(f.fresh())
	case f.place == nowhere && size == 0:
		return nil
	}
	if size == f.size.Load() && f.place == inContent {
		// an ftruncate(2) to the same size would change the mtime of the contents file, and recovery would take that
		// mtime for the time of a write
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
	// The caller sets the times of the file. ftruncate(2) may have set a later time on the contents file, because the
	// clock of file systems is finer than CLOCK_REALTIME_COARSE from Linux 6.13 on. note stores this time in the inode,
	// so that PutInode detects the difference.
	return f.note(true)
}

// Fallocate works like fallocate(2). It returns ErrBase if the file has the base tree's contents: the caller must call
// CopyUp first, and ErrSealed if the contents are sealed: the caller must then call Separate first.
func (f *File) Fallocate(mode uint32, off, n int64) error {
	f.l.cut.RLock()
	defer f.l.cut.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.prepare(); err != nil {
		return err
	}
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		f.keep(off, math.MaxInt64) // these modes change or move all bytes from off to the end of the file
	}
	err := f.l.withRoom(func() error { return f.data.Allocate(mode, off, n) })
	f.writes.Store(f.l.clock())
	return errors.Join(err, f.restat())
}

// restat sets the file's size to the size of the contents file on disk. The caller holds f.mu exclusively.
func (f *File) restat() error {
	info, err := f.data.Stat()
	if err != nil {
		return err
	}
	f.size.Store(info.Size())
	return f.note(true)
}

// Seek returns the offset of the next data or hole (SEEK_DATA, SEEK_HOLE), and ENXIO in the same cases as lseek(2). It
// returns ErrBase if the file has the base tree's contents.
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

// Size returns the length of the contents in bytes, or ErrBase if the contents are the base tree's.
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

// Blocks returns the disk space that the contents use, in units of 512 bytes, or ErrBase if the contents are the base
// tree's.
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

// clock returns the time of the kernel's coarse monotonic clock in nanoseconds.
func (l *Layer) clock() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts)
	return ts.Nano()
}
