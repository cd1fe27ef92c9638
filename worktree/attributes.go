package worktree

import (
	"context"
	"errors"
	"syscall"

	"github.com/artifactfs/artifactfs/overlay"
)

// Field is a set of attributes, as bits.
type Field uint32

const (
	SetMode Field = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetCtime // without it, any change sets ctime to the present time
	KillPriv // clear set-user-ID, and set-group-ID where the group may execute
)

// Change is the argument of SetAttr.
type Change struct {
	Set                 Field  // attributes to set
	Mode                uint32 // permission bits, including set-user-ID, set-group-ID and sticky
	UID, GID            uint32
	Size                int64 // in bytes
	Atime, Mtime, Ctime int64 // nanoseconds since 1970, or NowTime
}

// NowTime is the value of a time field of a Change that stands for the time at which the change is made.
const NowTime = -1 << 63

// told implements Tree.Told.
func (cs *contents) told(ctx context.Context, n Node, tell func(size int64, last func() (byte, error)) error) (Attr, error) {
	a, err := cs.view.attr(ctx, n)
	if err != nil || n.Own() || a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return a, err
	}
	var byteOf struct {
		asked, here bool // whether last was called, and whether the byte is known
		last        byte
	}
	last := func() (byte, error) {
		byteOf.asked = true
		if !byteOf.here {
			return 0, errNotHere
		}
		return byteOf.last, nil
	}
	for {
		err = cs.view.ifBase(n, func() error { return tell(a.Size, last) })
		if err == nil || !byteOf.asked || byteOf.here {
			break
		}
		var b [1]byte
		if _, err := cs.base.Read(ctx, n, b[:], a.Size-1); err != nil {
			return Attr{}, err
		}
		byteOf.last, byteOf.here = b[0], true
	}
	if err != nil {
		return Attr{}, err
	}
	return cs.view.attr(ctx, n)
}

// errNotHere is returned by the last function of Told while the byte is not known.
var errNotHere = errors.New("the last byte is not here yet")

// setAttr implements Tree.SetAttr.
func (cs *contents) setAttr(ctx context.Context, n Node, c Change) (Attr, error) {
	if c.Set&SetSize != 0 {
		before := cs.view.sizeOf(n)
		if err := cs.truncate(ctx, n, c.Size); err != nil {
			return Attr{}, err
		}
		switch {
		case before == c.Size: // as on other file systems, times do not change if the size does not; the kernel relies on that
			c.Set &^= SetSize
		case c.Set&SetMtime == 0:
			c.Set, c.Mtime = c.Set|SetMtime, NowTime
		}
	}
	if err := cs.editor.setInode(n, c); err != nil {
		return Attr{}, err
	}
	in, err := cs.view.inode(n)
	if err != nil {
		return Attr{}, err
	}
	return cs.base.Describe(in), nil
}

// apply makes the changes of c in an inode, except that of the size. now is in nanoseconds since 1970.
func (c Change) apply(in *overlay.Inode, now int64) {
	if c.Set == 0 {
		return
	}
	time := func(t int64) int64 {
		if t == NowTime {
			return now
		}
		return t
	}
	// chown(2) must clear set-user-ID and set-group-ID for every caller (fs/open.c, chown_common). For FUSE the kernel leaves
	// that to the file system (fs/fuse/dir.c, fuse_setattr).
	if c.Set&(KillPriv|SetUID|SetGID) != 0 {
		in.Mode = withoutPriv(in.Mode)
	}
	if c.Set&SetMode != 0 {
		in.Mode = in.Mode&syscall.S_IFMT | c.Mode&0o7777
	}
	if c.Set&SetUID != 0 {
		in.UID = c.UID
	}
	if c.Set&SetGID != 0 {
		in.GID = c.GID
	}
	if c.Set&SetAtime != 0 {
		in.Atime = time(c.Atime)
	}
	if c.Set&SetMtime != 0 {
		in.Mtime = time(c.Mtime)
	}
	in.Ctime = now
	if c.Set&SetCtime != 0 {
		in.Ctime = time(c.Ctime)
	}
}

// withoutPriv returns mode without set-user-ID and, if the group may execute, without set-group-ID. If the group may not
// execute, set-group-ID used to mean mandatory locking and is kept. The mode of a directory does not change.
func withoutPriv(mode uint32) uint32 {
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		return mode
	}
	mode &^= syscall.S_ISUID
	if mode&syscall.S_IXGRP != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}
