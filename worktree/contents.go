package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
	"github.com/artifactfs/artifactfs/worktree/removed"
)

// contents reads and changes the contents of files. Unchanged contents are read from the Source, which fetches blobs of
// the base tree. The first change of a file copies the file's contents to the overlay. The lock in overlay.File
// protects the contents of a file. No goroutine holds a lock while it calls the Source.
type contents struct {
	base    *basetree.Tree
	view    *view
	editor  *editor
	removed *removed.Set
}

// read implements Tree.Read: it reads the contents of a file, from the offset off on, into p. n must be a regular file.
func (cs *contents) read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	if cs.view.layer != nil {
		f := cs.view.layer.File(n)
		defer f.Done()
		if k, err := f.ReadAt(p, off); !errors.Is(err, overlay.ErrBase) {
			return k, err
		}
	}
	return cs.base.Read(ctx, n, p, off)
}

// write implements Tree.Write: it writes p at the offset off. done is the number of bytes that were written.
func (cs *contents) write(ctx context.Context, n Node, p []byte, off int64, killPriv bool) (done int, err error) {
	err = cs.change(ctx, n, killPriv, math.MaxInt64, func(f *overlay.File) error {
		cs.removed.BeforeWrite(n, f, p, off)
		done, err = f.WriteAt(p, off)
		return err
	}, func() (Content, error) {
		if r, ok := cs.base.Table.Record(n); ok && off == 0 {
			if size, ok := r.Size(); ok && size <= int64(len(p)) {
				return whole{bytes.NewReader(p)}, nil
			}
		}
		return cs.base.Open(ctx, n)
	})
	return done, err
}

// whole is the Content of an unchanged file that one Write replaces completely. It contains the new bytes, which the
// overlay stores, so the blob need not be fetched.
type whole struct{ *bytes.Reader }

// Release does nothing, because the bytes belong to the caller of Write.
func (whole) Release() {}

// change calls the function do, which changes the contents of a regular file. If the file still has the contents of the
// base tree, change first copies these contents, which the function base returns, to the overlay. base may wait for a
// fetch, because no lock is held while base runs. If the contents are sealed, change first copies them: at most as many
// bytes as the parameter most states. Both copies are made before the journal notes the change, because they can take
// long.
func (cs *contents) change(ctx context.Context, n Node, killPriv bool, most int64, do func(f *overlay.File) error,
	base func() (Content, error)) error {
	if cs.editor.readOnly {
		return syscall.EROFS
	}
	in, err := cs.view.regular(n)
	if err != nil {
		return err
	}
	if killPriv && withoutPriv(in.Mode) != in.Mode {
		c := Change{Set: KillPriv}
		if err := cs.editor.setInode(n, c); err != nil {
			return err
		}
	}
	f := cs.view.layer.File(n)
	defer f.Done()
	noting := func(change func() error) error { return cs.editor.changes.noting(n, change) }
	for {
		err := noting(func() error { return do(f) })
		switch {
		case errors.Is(err, overlay.ErrBase):
			err = cs.copyUp(n, f, base)
		case errors.Is(err, overlay.ErrSealed):
			err = f.Separate(most, noting)
		default:
			return err
		}
		if err != nil {
			return err
		}
	}
}

// copyUp stores the inode of an unchanged file in the overlay, with the contents that the function base returns.
func (cs *contents) copyUp(n Node, f *overlay.File, base func() (Content, error)) error {
	c, err := base()
	if err != nil {
		return err
	}
	defer c.Release()
	if err := cs.editor.promote(n); err != nil {
		return err
	}
	return f.CopyUp(c, c.Size())
}

// truncate sets the length of a file to size bytes. If size is 0, truncate does not fetch the blob of the file.
func (cs *contents) truncate(ctx context.Context, n Node, size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	if in, err := cs.view.regular(n); err == nil && size == 0 && in.Size == overlay.SizeOfBase {
		if err := cs.editor.promote(n); err != nil {
			return err
		}
	}
	return cs.change(ctx, n, false, size, func(f *overlay.File) error {
		if size == 0 {
			cs.removed.BeforeEmpty(n, f)
		} else if has, err := f.Size(); err == nil && size < has {
			cs.removed.BeforeChange(n, f)
		}
		return f.Truncate(size)
	},
		func() (Content, error) { return cs.base.Open(ctx, n) })
}

// fallocate implements Tree.Fallocate: it allocates or removes space of a file. mode is the argument mode of
// fallocate(2).
func (cs *contents) fallocate(ctx context.Context, n Node, mode uint32, off, length int64) error {
	if off < 0 || length <= 0 {
		return syscall.EINVAL
	}
	return cs.change(ctx, n, false, math.MaxInt64, func(f *overlay.File) error {
		if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
			cs.removed.BeforeChange(n, f)
		}
		return f.Fallocate(mode, off, length)
	},
		func() (Content, error) { return cs.base.Open(ctx, n) })
}

// seek implements Tree.Seek: it returns the offset of the next data or hole. An unchanged file has no holes.
func (cs *contents) seek(ctx context.Context, n Node, off int64, whence int) (int64, error) {
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return 0, syscall.EINVAL
	}
	if _, err := cs.view.regular(n); err != nil {
		return 0, err
	}
	if cs.view.layer != nil {
		f := cs.view.layer.File(n)
		defer f.Done()
		if at, err := f.Seek(off, whence); !errors.Is(err, overlay.ErrBase) {
			return at, err
		}
	}
	a, err := cs.view.attr(ctx, n)
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

// copied is the maximum number of bytes that one call of CopyRange copies from an unchanged file.
const copied = 1 << 20

// copyRange implements Tree.CopyRange: it copies at most length bytes between two files, and returns the number of
// bytes that it has copied.
func (cs *contents) copyRange(ctx context.Context, from Node, fromOff int64, to Node,
	toOff, length int64) (int64, error) {
	if fromOff < 0 || toOff < 0 || length < 0 {
		return 0, syscall.EINVAL
	}
	if _, err := cs.view.regular(from); err != nil {
		return 0, err
	}
	var done int64
	err := cs.change(ctx, to, false, math.MaxInt64, func(f *overlay.File) (err error) {
		source := cs.view.layer.File(from)
		defer source.Done()
		if has, err := f.Size(); err == nil && toOff < has {
			cs.removed.BeforeChange(to, f)
		}
		done, err = f.CopyRange(source, fromOff, toOff, length)
		return err
	}, func() (Content, error) { return cs.base.Open(ctx, to) })
	if !errors.Is(err, overlay.ErrSourceBase) {
		return done, err
	}
	p := make([]byte, min(length, copied))
	k, err := cs.read(ctx, from, p, fromOff)
	if err != nil || k == 0 {
		return 0, err
	}
	k, err = cs.write(ctx, to, p[:k], toOff, false)
	return int64(k), err
}

// sync implements Tree.Fsync: it returns when the contents, attributes and names of a file are on disk.
func (cs *contents) sync(n Node) error {
	if cs.view.layer == nil {
		return nil
	}
	if _, err := cs.view.inode(n); err != nil {
		return err
	}
	f := cs.view.layer.File(n)
	defer f.Done()
	return f.Sync()
}

// readlink implements Tree.Readlink: it returns the target of a symbolic link. If the link is unchanged, readlink waits
// until the blob of the link is fetched.
func (cs *contents) readlink(ctx context.Context, n Node) ([]byte, error) {
	in, err := cs.view.inode(n)
	switch {
	case err != nil:
		return nil, err
	case in.Mode&syscall.S_IFMT != syscall.S_IFLNK:
		return nil, ErrNotLink
	case in.Size != overlay.SizeOfBase:
		return cs.view.target(n)
	}
	c, err := cs.base.Open(ctx, n)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	if c.Size() > maxTarget {
		return nil, fmt.Errorf("read link: target has %d bytes: %w", c.Size(), syscall.ENAMETOOLONG)
	}
	target := make([]byte, c.Size())
	if _, err := c.ReadAt(target, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read link: %w", err)
	}
	return target, nil
}

// maxTarget is the maximum length of a link target that Linux can follow, in bytes (PATH_MAX without the final NUL).
const maxTarget = 4095
