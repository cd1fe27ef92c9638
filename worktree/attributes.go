package worktree

import (
	"context"
	"errors"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
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

// Attr returns the attributes of a node. It waits for a size that is not known yet.
func (t *Tree) Attr(ctx context.Context, n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	return t.attr(ctx, n)
}

// KnownAttr returns the attributes of a node, and false if the size is not known.
func (t *Tree) KnownAttr(n Node) (Attr, bool) {
	if !t.gate.enter() {
		return Attr{}, false
	}
	defer t.gate.leave()
	in, err := t.inode(n)
	if err != nil {
		return Attr{}, false
	}
	a := t.describe(in)
	return a, a.Size >= 0
}

// Glance returns the attributes of a file or link that still shows a certain blob of the base tree, and false for any other
// node or if the size is not known. n may be an inode number from git's index, which stores only the lower 32 bits; the
// comparison with blob detects that such a number denotes another file. The Source does not count the call as a lookup by a
// reader.
func (t *Tree) Glance(n Node, blob object.ID) (Attr, bool) {
	if !t.gate.enter() {
		return Attr{}, false
	}
	defer t.gate.leave()
	in, err := t.inode(n)
	if err != nil || in.Size != overlay.SizeOfBase {
		return Attr{}, false
	}
	if r, ok := t.Table.Record(n); !ok || r.ObjectID() != blob {
		return Attr{}, false
	}
	a := t.describeBy(in, t.sizeHere)
	return a, a.Size >= 0
}

// attr returns the attributes of a node as Attr does. The caller has entered t.gate.
func (t *Tree) attr(ctx context.Context, n Node) (Attr, error) {
	for {
		in, err := t.inode(n)
		if err != nil {
			return Attr{}, err
		}
		if a := t.describe(in); a.Size >= 0 {
			return a, t.countBlocks(&a, in)
		}
		r, _ := t.Table.Record(n)
		size, err := t.src.Size(ctx, t.blob(n, r))
		if err != nil {
			return Attr{}, err
		}
		r.SetSize(size) // then check again: the contents may have been replaced meanwhile
	}
}

// countBlocks sets a.Blocks to the number of blocks that the contents file occupies, which is lower if the file has holes.
func (t *Tree) countBlocks(a *Attr, in overlay.Inode) error {
	if in.Content == 0 {
		return nil
	}
	f := t.layer.File(in.Node)
	defer f.Done()
	blocks, err := f.Blocks()
	if err == nil {
		a.Blocks = blocks
	}
	return err
}

// Told returns the attributes of a node, as Attr does. If the contents are those of the base tree, Told first calls tell with
// the size of the contents, while no other call can change them. last returns the last byte of the contents, or an error if
// the blob must be fetched first; Told then reads the byte without holding a lock and calls tell again. tell must not call the
// Tree.
func (t *Tree) Told(ctx context.Context, n Node, tell func(size int64, last func() (byte, error)) error) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	a, err := t.attr(ctx, n)
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
		err = t.ifBase(n, func() error { return tell(a.Size, last) })
		if err == nil || !byteOf.asked || byteOf.here {
			break
		}
		var b [1]byte
		if _, err := t.readBase(ctx, n, b[:], a.Size-1); err != nil {
			return Attr{}, err
		}
		byteOf.last, byteOf.here = b[0], true
	}
	if err != nil {
		return Attr{}, err
	}
	return t.attr(ctx, n)
}

// errNotHere is returned by the last function of Told while the byte is not known.
var errNotHere = errors.New("the last byte is not here yet")

// ifBase calls f if the contents of a base node are those of the base tree, and prevents changes to the contents until f
// returns.
func (t *Tree) ifBase(n Node, f func() error) error {
	if t.layer == nil {
		return f()
	}
	file := t.layer.File(n)
	defer file.Done()
	return file.IfBase(f)
}

// describe returns the attributes of an inode without waiting.
func (t *Tree) describe(in overlay.Inode) Attr { return t.describeBy(in, t.knownSize) }

// describeBy returns the attributes of an inode. baseSize returns the size of a base node's contents, or -1 if it is not
// known.
func (t *Tree) describeBy(in overlay.Inode, baseSize func(Node) int64) Attr {
	a := Attr{
		Node: in.Node, Mode: in.Mode, Nlink: in.Nlink, UID: in.UID, GID: in.GID, Rdev: in.Rdev, Size: in.Size,
		Atime: in.Atime, Mtime: in.Mtime, Ctime: in.Ctime,
	}
	if in.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		a.Size = dirSize
		return a
	}
	if in.Size == overlay.SizeOfBase {
		a.Size = baseSize(in.Node)
	}
	if a.Size > 0 {
		a.Blocks = (a.Size + 511) / 512 // a lower number would make tar and cp search for holes
	}
	return a
}

// knownSize returns the size of a base node's contents without waiting, -1 if it is not known. It reports the lookup to the
// Source, and stores a size that the Source knows in the table.
func (t *Tree) knownSize(n Node) int64 {
	r, ok := t.Table.Record(n)
	if !ok {
		return -1
	}
	if size, ok := r.Size(); ok {
		return size
	}
	b := t.blob(n, r)
	t.src.Looked(b)
	size, ok := t.src.KnownSize(b)
	if !ok {
		return -1
	}
	r.SetSize(size)
	return size
}

// sizeHere returns the same size as knownSize, but neither reports the lookup to the Source nor stores the size.
func (t *Tree) sizeHere(n Node) int64 {
	r, ok := t.Table.Record(n)
	if !ok {
		return -1
	}
	size, ok := r.Size()
	if !ok {
		size, ok = t.src.KnownSize(t.blob(n, r))
	}
	if !ok {
		return -1
	}
	return size
}

// blob returns the blob of a base node, as the Source expects it.
func (t *Tree) blob(n Node, r *inode.Record) Blob {
	tree := t.Table.At(t.Table.TreeOf(n)).ObjectID()
	return Blob{ID: r.ObjectID(), Path: t.Table.Path(n), Link: r.Kind() == inode.KindSymlink, Tree: tree}
}

// SetAttr changes attributes and returns the new ones. The size in the result is negative if it is not known and not set.
func (t *Tree) SetAttr(ctx context.Context, n Node, c Change) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	if c.Set&SetSize != 0 {
		before := t.sizeOf(n)
		if err := t.truncate(ctx, n, c.Size); err != nil {
			return Attr{}, err
		}
		switch {
		case before == c.Size: // as on other file systems, times do not change if the size does not; the kernel relies on that
			c.Set &^= SetSize
		case c.Set&SetMtime == 0:
			c.Set, c.Mtime = c.Set|SetMtime, NowTime
		}
	}
	if err := t.setInode(n, c); err != nil {
		return Attr{}, err
	}
	in, err := t.inode(n)
	if err != nil {
		return Attr{}, err
	}
	return t.describe(in), nil
}

// sizeOf returns the length of a node's contents in bytes, -1 if it is not known.
func (t *Tree) sizeOf(n Node) int64 {
	in, err := t.inode(n)
	switch {
	case err != nil:
		return -1
	case in.Size != overlay.SizeOfBase:
		return in.Size
	}
	return t.sizeHere(n)
}

// setInode makes all changes of c except that of the size.
func (t *Tree) setInode(n Node, c Change) error {
	return t.update(func(e *edit) error {
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		c.apply(in, e.now)
		if c.Set&SetMode != 0 {
			return e.chmodACL(in)
		}
		return nil
	})
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
