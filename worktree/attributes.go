package worktree

import (
	"context"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Field is a set of file attributes, with one bit for each.
type Field uint32

const (
	SetMode Field = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetCtime // set ctime to Change.Ctime; without this bit, every change sets ctime to the current time
	KillPriv // clear the set-user-ID bit, and the set-group-ID bit if the group may execute the file
)

// Change is a change of file attributes, the argument of SetAttr.
type Change struct {
	Set                 Field  // the attributes to change; the fields below contain their new values
	Mode                uint32 // permission bits, including set-user-ID, set-group-ID and sticky
	UID, GID            uint32
	Size                int64 // in bytes
	Atime, Mtime, Ctime int64 // in nanoseconds since 1970, or NowTime
}

// NowTime is a special value for the time fields of a Change. It stands for the time at which the change is made.
const NowTime = -1 << 63

// setAttr implements Tree.SetAttr: it changes attributes of a node, and returns all attributes after the change.
func (cs *contents) setAttr(ctx context.Context, n Node, c Change) (Attr, error) {
	if c.Set&SetSize != 0 {
		before := cs.view.sizeOf(n)
		in, err := cs.view.regular(n)
		if err == nil && in.Size == overlay.SizeOfBase && before == c.Size && !cs.editor.readOnly {
			// An unchanged file that keeps its size needs no contents file of its own. The mtime of a new contents file
			// would be later, and a successor would read that mtime.
			c.Set &^= SetSize
		} else if err := cs.truncate(ctx, n, c.Size); err != nil {
			return Attr{}, err
		}
		switch {
		case before == c.Size:
			// if the size stays the same, do not change the times; other file systems do the same, and the kernel relies on it
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

// apply changes the fields of an inode that are selected by c.Set, except the size. now is the current time in
// nanoseconds since 1970.
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
	// chown(2) must clear set-user-ID and set-group-ID for every caller (chown_common in fs/open.c of Linux). For FUSE,
	// the kernel leaves this to the file system (fuse_setattr in fs/fuse/dir.c).
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

// withoutPriv returns mode without the set-user-ID bit. If the group may execute the file, withoutPriv also removes the
// set-group-ID bit. If the group may not, the bit is kept, because it used to mean mandatory locking. The mode of a
// directory is returned unchanged.
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
