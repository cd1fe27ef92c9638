package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// isFile reports whether a mode is that of a regular file, whose size the kernel relies on.
func isFile(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFREG }

// GetAttr returns the attributes of a node. It may return a file without its size, which is then
// not cached.
func (f *writable) GetAttr(cancel <-chan struct{}, in *raw.GetAttrIn, out *raw.AttrOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	a, err := f.attr(w, in)
	if err != nil {
		return f.fail(opGetAttr, &in.InHeader, err)
	}
	f.fillAttr(out, a)
	return raw.OK
}

// attr waits for a size only if the kernel does not have it and the caller may see it.
func (f *writable) attr(w *waiter, in *raw.GetAttrIn) (worktree.Attr, error) {
	n := worktree.Node(in.NodeId)
	unknown := f.sizes.state(n) == sizeUnknown
	if a, known := f.tree.KnownAttr(n); a.Node == n && (unknown || !known) && !needsSize(in.Pid, a.Mode) {
		return a, nil
	}
	if unknown {
		return f.sendSize(w, n)
	}
	return f.tree.Attr(w, n)
}

// SetAttr changes the requested attributes. The kernel sends times itself: with a writeback cache
// only it knows when a file was last written (fs/fuse/dir.c, fuse_flush_times).
func (f *writable) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n, c := worktree.Node(in.NodeId), change(in)
	resize := c.Set&worktree.SetSize != 0
	if resize && c.Size != 0 && f.sizes.state(n) == sizeUnknown {
		// The contents are needed anyway. If the kernel still had size 0, a stat between our change
		// and the kernel's update would return it.
		if _, err := f.sendSize(w, n); err != nil {
			return f.fail(opSetAttr, &in.InHeader, err)
		}
	}
	a, err := f.tree.SetAttr(w, n, c)
	if err != nil {
		return f.fail(opSetAttr, &in.InHeader, err)
	}
	if resize {
		f.sizes.markKnown(n)
	}
	f.fillAttr(out, a)
	return raw.OK
}

// change converts a SETATTR request.
func change(in *raw.SetAttrIn) worktree.Change {
	c := worktree.Change{
		Mode: in.Mode, UID: in.Uid, GID: in.Gid, Size: int64(in.Size),
		Atime: join(in.Atime, in.Atimensec), Mtime: join(in.Mtime, in.Mtimensec), Ctime: join(in.Ctime, in.Ctimensec),
	}
	for _, field := range []struct {
		bit uint32
		set worktree.Field
	}{
		{raw.FATTR_MODE, worktree.SetMode},
		{raw.FATTR_UID, worktree.SetUID},
		{raw.FATTR_GID, worktree.SetGID},
		{raw.FATTR_SIZE, worktree.SetSize},
		{raw.FATTR_ATIME, worktree.SetAtime},
		{raw.FATTR_MTIME, worktree.SetMtime},
		{raw.FATTR_CTIME, worktree.SetCtime},
		{raw.FATTR_KILL_SUIDGID, worktree.KillPriv},
	} {
		if in.Valid&field.bit != 0 {
			c.Set |= field.set
		}
	}
	if in.Valid&raw.FATTR_ATIME_NOW != 0 {
		c.Atime = worktree.NowTime
	}
	if in.Valid&raw.FATTR_MTIME_NOW != 0 {
		c.Mtime = worktree.NowTime
	}
	if in.Valid&^(raw.FATTR_FH|raw.FATTR_LOCKOWNER) == 0 {
		// The kernel has found that a write, an allocation or a copy of this caller drops mode bits
		// (fs/inode.c, file_remove_privs), and leaves it to the file system which (fs/fuse/dir.c,
		// fuse_setattr). Of the three only WRITE says so itself.
		c.Set = worktree.KillPriv
	}
	return c
}
