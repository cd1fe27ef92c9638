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

// Read reads a file's contents; less than len(p) only at their end, which is no error. If a size that was told
// before turns out wrong, the right one is noted and the error is ErrResized: whoever keeps the old one has to
// forget it and ask again.
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

// readBase reads from the base's contents.
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

// open returns the base's contents of a node, waiting for them.
func (t *Tree) open(ctx context.Context, n Node) (Content, error) {
	r, ok := t.table.record(n)
	if !ok {
		return nil, ErrNoNode
	}
	c, err := t.src.Open(ctx, t.blob(n, r))
	if err != nil {
		return nil, err
	}
	told, ok := r.size()
	if !ok || told != c.Size() {
		r.setSize(c.Size())
	}
	if ok && told != c.Size() {
		defer c.Release()
		return nil, fmt.Errorf("open %q: announced %d bytes, got %d: %w", t.table.path(n), told, c.Size(), ErrResized)
	}
	return c, nil
}

// regular returns a regular file's inode, and of anything else the error of reading and writing it.
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

// Write writes all of p; with an error too, as many bytes as it says have been written. killPriv is KillPriv of a
// Change. Times stay: the kernel, which writes back when it likes, says them by SetAttr.
func (t *Tree) Write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (int, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	return t.write(ctx, n, p, off, killPriv)
}

func (t *Tree) write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (done int, err error) {
	err = t.change(ctx, n, killPriv, func(f *overlay.File) error {
		t.loseChanged(n, f, p, off)
		done, err = f.WriteAt(p, off)
		return err
	}, func() (Content, error) {
		if r, ok := t.table.record(n); ok && off == 0 {
			if size, ok := r.size(); ok && size <= int64(len(p)) {
				return whole{bytes.NewReader(p)}, nil
			}
		}
		return t.open(ctx, n)
	})
	return done, err
}

// whole is what takes the place of all of a base file: nothing of that is needed.
type whole struct{ *bytes.Reader }

func (whole) Release() {}

// change lets do change a regular file's contents. If those are the base's, what base gives is made the file's own
// first; that may be awaited here, where no lock is held.
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

// promote puts a node into the overlay, unchanged.
func (t *Tree) promote(n Node) error {
	return t.update(func(e *edit) error { return e.promote(n) })
}

// truncate cuts or grows a file. To nothing, the base's contents are not needed.
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
			t.loseAll(n, f)
		} else if has, err := f.Size(); err == nil && size < has {
			t.loseSome(n, f)
		}
		return f.Truncate(size)
	},
		func() (Content, error) { return t.open(ctx, n) })
}

// Fallocate is fallocate(2). Times stay, as in Write; set-user-ID is the kernel's to take away, by a SetAttr before it.
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
			t.loseSome(n, f)
		}
		return f.Fallocate(mode, off, length)
	},
		func() (Content, error) { return t.open(ctx, n) })
}

// Seek finds data or a hole (SEEK_DATA, SEEK_HOLE); where there is none it is ENXIO. The base's contents have none.
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

// copied is how much of a base file CopyRange copies at a time, in bytes.
const copied = 1 << 20

// CopyRange copies within the tree, also within a file, and says how much, which may be less than asked; 0 at the
// end of the source. Times and set-user-ID are as with Fallocate.
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
			t.loseSome(to, f)
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

// Fsync returns when a file's contents, attributes and names would survive a power cut. All of that is one log, so
// that there is nothing to leave out for who asks for less.
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

// FsyncDir returns when a directory's entries would survive a power cut.
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
