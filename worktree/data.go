package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/overlay"
)

// Read reads a file's contents into p. It returns fewer than len(p) bytes only at the end of the contents, without an
// error. If the contents have another size than an earlier call returned, Read records the right size and returns
// ErrResized: the caller must then drop the old size from its caches and read again.
func (t *Tree) Read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	if _, err := t.regular(n); err != nil {
		return 0, err
	}
	return t.read(ctx, n, p, off)
}

// read reads contents as Read does. The caller has entered t.gate, and n is a regular file.
func (t *Tree) read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	if t.layer != nil {
		f := t.layer.File(n)
		defer f.Done()
		if k, err := f.ReadAt(p, off); !errors.Is(err, overlay.ErrBase) {
			return k, err
		}
	}
	return t.readBase(ctx, n, p, off)
}

// readBase reads from the contents of a base node's blob. It waits until the blob is fetched.
func (t *Tree) readBase(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	c, err := t.open(ctx, n)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	want := int(min(int64(len(p)), max(0, c.Size()-off)))
	got, err := c.ReadAt(p[:want], off)
	if got < want {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return got, fmt.Errorf("read %d bytes at %d: %w", want, off, err)
	}
	return got, nil
}

// open returns the contents of a base node's blob. It waits until the blob is fetched, and corrects a wrong size in the
// table.
func (t *Tree) open(ctx context.Context, n Node) (Content, error) {
	r, ok := t.Table.Record(n)
	if !ok {
		return nil, ErrNoNode
	}
	c, err := t.src.Open(ctx, t.blob(n, r))
	if err != nil {
		return nil, err
	}
	told, ok := r.Size()
	if !ok || told != c.Size() {
		r.SetSize(c.Size())
	}
	if ok && told != c.Size() {
		defer c.Release()
		return nil, fmt.Errorf("open %q: announced %d bytes, got %d: %w", t.Table.Path(n), told, c.Size(), ErrResized)
	}
	return c, nil
}

// regular returns the inode of a regular file. For any other node it returns the error of read(2) and write(2).
func (t *Tree) regular(n Node) (overlay.Inode, error) {
	in, err := t.inode(n)
	if err != nil {
		return in, err
	}
	switch in.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return in, nil
	case syscall.S_IFDIR:
		return in, ErrIsDir
	case syscall.S_IFLNK:
		return in, syscall.ELOOP
	}
	return in, syscall.EINVAL
}

// Write writes all of p. With an error it returns the number of bytes that were written. killPriv drops privileges as
// KillPriv does in a Change. Times do not change: the kernel, which may write back at any time, sets them by SetAttr.
func (t *Tree) Write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (int, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	return t.write(ctx, n, p, off, killPriv)
}

// write writes contents as Write does. The caller has entered t.gate.
func (t *Tree) write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (done int, err error) {
	err = t.change(ctx, n, killPriv, func(f *overlay.File) error {
		t.removed.BeforeWrite(n, f, p, off)
		done, err = f.WriteAt(p, off)
		return err
	}, func() (Content, error) {
		if r, ok := t.Table.Record(n); ok && off == 0 {
			if size, ok := r.Size(); ok && size <= int64(len(p)) {
				return whole{bytes.NewReader(p)}, nil
			}
		}
		return t.open(ctx, n)
	})
	return done, err
}

// whole is the new contents of a base file that a write replaces completely. The copy-up stores them in place of the blob,
// which then need not be fetched.
type whole struct{ *bytes.Reader }

// Release does nothing: the bytes belong to the caller of Write.
func (whole) Release() {}

// change calls do, which changes the contents of a regular file. If the contents are still those of the base tree, change
// first copies up the contents that base returns; base may wait for objects, because no lock is held.
func (t *Tree) change(ctx context.Context, n Node, killPriv bool, do func(f *overlay.File) error, base func() (Content, error)) error {
	if t.readOnly() {
		return syscall.EROFS
	}
	in, err := t.regular(n)
	if err != nil {
		return err
	}
	if killPriv && withoutPriv(in.Mode) != in.Mode {
		c := Change{Set: KillPriv}
		if err := t.setInode(n, c); err != nil {
			return err
		}
	}
	f := t.layer.File(n)
	defer f.Done()
	for {
		if err := t.noting(n, func() error { return do(f) }); !errors.Is(err, overlay.ErrBase) {
			return err
		}
		if err := t.copyUp(n, f, base); err != nil {
			return err
		}
	}
}

// copyUp promotes a base node and stores the contents that base returns in the overlay.
func (t *Tree) copyUp(n Node, f *overlay.File, base func() (Content, error)) error {
	c, err := base()
	if err != nil {
		return err
	}
	defer c.Release()
	if err := t.promote(n); err != nil {
		return err
	}
	return f.CopyUp(c, c.Size())
}

// promote stores the inode of a base node in the overlay, unchanged.
func (t *Tree) promote(n Node) error {
	return t.update(func(e *edit) error { return e.promote(n) })
}

// truncate sets the length of a file, in bytes. To truncate a file to nothing, its blob is not fetched.
func (t *Tree) truncate(ctx context.Context, n Node, size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	if in, err := t.regular(n); err == nil && size == 0 && in.Size == overlay.SizeOfBase {
		if err := t.promote(n); err != nil {
			return err
		}
	}
	return t.change(ctx, n, false, func(f *overlay.File) error {
		if size == 0 {
			t.removed.BeforeEmpty(n, f)
		} else if has, err := f.Size(); err == nil && size < has {
			t.removed.BeforeChange(n, f)
		}
		return f.Truncate(size)
	},
		func() (Content, error) { return t.open(ctx, n) })
}

// Fallocate implements fallocate(2). Times do not change, as in Write. The kernel drops the set-user-ID bit by a SetAttr
// before the call.
func (t *Tree) Fallocate(ctx context.Context, n Node, mode uint32, off, length int64) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if off < 0 || length <= 0 {
		return syscall.EINVAL
	}
	return t.change(ctx, n, false, func(f *overlay.File) error {
		if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
			t.removed.BeforeChange(n, f)
		}
		return f.Fallocate(mode, off, length)
	},
		func() (Content, error) { return t.open(ctx, n) })
}

// Seek returns the offset of the next data or hole (SEEK_DATA, SEEK_HOLE), or ENXIO if there is none. The contents of a
// base file have no holes.
func (t *Tree) Seek(ctx context.Context, n Node, off int64, whence int) (int64, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return 0, syscall.EINVAL
	}
	if _, err := t.regular(n); err != nil {
		return 0, err
	}
	if t.layer != nil {
		f := t.layer.File(n)
		defer f.Done()
		if at, err := f.Seek(off, whence); !errors.Is(err, overlay.ErrBase) {
			return at, err
		}
	}
	a, err := t.attr(ctx, n)
	switch {
	case err != nil:
		return 0, err
	case off < 0 || off >= a.Size:
		return 0, syscall.ENXIO
	case whence == unix.SEEK_HOLE:
		return a.Size, nil
	}
	return off, nil
}

// copied is the maximum number of bytes that one call of CopyRange copies from a base file.
const copied = 1 << 20

// CopyRange copies bytes between two files of the tree, or within one, and returns the number of copied bytes. It may be less
// than length, and is 0 at the end of the source. Times and the set-user-ID bit are treated as in Fallocate.
func (t *Tree) CopyRange(ctx context.Context, from Node, fromOff int64, to Node, toOff, length int64) (int64, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	if fromOff < 0 || toOff < 0 || length < 0 {
		return 0, syscall.EINVAL
	}
	if _, err := t.regular(from); err != nil {
		return 0, err
	}
	var done int64
	err := t.change(ctx, to, false, func(f *overlay.File) (err error) {
		source := t.layer.File(from)
		defer source.Done()
		if has, err := f.Size(); err == nil && toOff < has {
			t.removed.BeforeChange(to, f)
		}
		done, err = f.CopyRange(source, fromOff, toOff, length)
		return err
	}, func() (Content, error) { return t.open(ctx, to) })
	if !errors.Is(err, overlay.ErrSourceBase) {
		return done, err
	}
	p := make([]byte, min(length, copied))
	k, err := t.read(ctx, from, p, fromOff)
	if err != nil || k == 0 {
		return 0, err
	}
	k, err = t.write(ctx, to, p[:k], toOff, false)
	return int64(k), err
}

// Fsync returns when the contents, attributes and names of a file are on disk. All of them are synced together, so that a
// request to sync only the data (fdatasync) has the same effect.
func (t *Tree) Fsync(_ context.Context, n Node, _ bool) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if t.layer == nil {
		return nil
	}
	if _, err := t.inode(n); err != nil {
		return err
	}
	f := t.layer.File(n)
	defer f.Done()
	return f.Sync()
}

// FsyncDir returns when the entries of a directory are on disk.
func (t *Tree) FsyncDir(_ context.Context, _ Node) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if t.layer == nil {
		return nil
	}
	return t.layer.Sync()
}
