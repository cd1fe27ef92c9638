package worktree

import (
	"context"
	"errors"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// Field is a set of attributes.
type Field uint32

const (
	SetMode Field = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetCtime // else it becomes now, as with any change
	KillPriv // set-user-ID goes, and set-group-ID where the group may execute
)

// Change is an argument of SetAttr: the attributes to set.
type Change struct {
	Set                 Field
	Mode                uint32 // permission bits
	UID, GID            uint32
	Size                int64
	Atime, Mtime, Ctime int64 // nanoseconds since 1970; NowTime: the time of the change
}

// NowTime as a time of a Change is the time of the change.
const NowTime = -1 << 63

// Attr returns a node's attributes, waiting for a size that is not known yet.
func (t *Tree) Attr(ctx context.Context, n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	return t.attr(ctx, n)
}

// KnownAttr is Attr where that needs no waiting.
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

// Glance is KnownAttr for who is no reader, so that the Source does not hear of it, and knows a node by a number that may
// have lost its upper half: it tells of a file or link whose contents are still those that a blob of the base tree has, and
// of nothing else.
func (t *Tree) Glance(n Node, blob object.ID) (Attr, bool) {
	if !t.gate.enter() {
		return Attr{}, false
	}
	defer t.gate.leave()
	in, err := t.inode(n)
	if err != nil || in.Size != overlay.SizeOfBase {
		return Attr{}, false
	}
	if r, ok := t.table.record(n); !ok || r.objectID() != blob {
		return Attr{}, false
	}
	a := t.describeBy(in, t.sizeHere)
	return a, a.Size >= 0
}

func (t *Tree) attr(ctx context.Context, n Node) (Attr, error) {
	for {
		in, err := t.inode(n)
		if err != nil {
			return Attr{}, err
		}
		if a := t.describe(in); a.Size >= 0 {
			return a, t.countBlocks(&a, in)
		}
		r, _ := t.table.record(n)
		size, err := t.src.Size(ctx, t.blob(n, r))
		if err != nil {
			return Attr{}, err
		}
		r.setSize(size) // and look again: while this waited, the contents may have become others
	}
}

// countBlocks asks the content file, whose holes take no blocks.
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

// Told returns a node's attributes, like Attr. If its contents are the base's, it calls tell before, with their size,
// while nothing can change them; last gives their last byte. tell must not come back to the Tree. It is called once
// more if it asked for the last byte and got an error, since that byte may have to come from far: no lock is held
// while it does.
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
		asked, here bool
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

var errNotHere = errors.New("the last byte is not here yet")

// ifBase calls f while a base node's contents are the base's and cannot become others.
func (t *Tree) ifBase(n Node, f func() error) error {
	if t.layer == nil {
		return f()
	}
	file := t.layer.File(n)
	defer file.Done()
	return file.IfBase(f)
}

// describe returns what is known of a node without waiting.
func (t *Tree) describe(in overlay.Inode) Attr { return t.describeBy(in, t.knownSize) }

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
		a.Blocks = (a.Size + 511) / 512 // fewer would make tar and cp look for holes
	}
	return a
}

// knownSize returns the size of a base node's contents without waiting, -1 if it is not known, and notes what the
// source knew.
func (t *Tree) knownSize(n Node) int64 {
	r, ok := t.table.record(n)
	if !ok {
		return -1
	}
	if size, ok := r.size(); ok {
		return size
	}
	b := t.blob(n, r)
	t.src.Looked(b)
	size, ok := t.src.KnownSize(b)
	if !ok {
		return -1
	}
	r.setSize(size)
	return size
}

// sizeHere is knownSize without a trace.
func (t *Tree) sizeHere(n Node) int64 {
	r, ok := t.table.record(n)
	if !ok {
		return -1
	}
	size, ok := r.size()
	if !ok {
		size, ok = t.src.KnownSize(t.blob(n, r))
	}
	if !ok {
		return -1
	}
	return size
}

func (t *Tree) blob(n Node, r *record) Blob {
	tree := t.table.rec(t.table.treeOf(n)).objectID()
	return Blob{ID: r.objectID(), Path: t.table.path(n), Link: r.kind == kindSymlink, Tree: tree}
}

// SetAttr changes attributes. What it gives may lack a size: to change others it is not asked for.
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
		case before == c.Size: // as on other file systems times stay if the size does: the kernel relies on that
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

// sizeOf returns the length of a node's contents, -1 if it is not known.
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

// setInode makes a change but for the size.
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
	// chown(2) takes the bits away whoever calls it (fs/open.c, chown_common), and leaves that to us
	// (fs/fuse/dir.c, fuse_setattr).
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

// withoutPriv drops set-user-ID, and set-group-ID where the group may execute (without, the bit once meant
// mandatory locks).
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
