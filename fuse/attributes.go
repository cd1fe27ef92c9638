package fuse

import (
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/fuse/caller"
	"github.com/artifactfs/artifactfs/worktree"
)

// isFile reports whether mode describes a regular file. The kernel relies only on the sizes of regular files.
func isFile(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFREG }

// GetAttr returns the attributes of a node. If the system call that caused the request does not need the size of a
// file, the reply may contain size 0 instead; the kernel then does not cache the attributes.
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

// attr returns the attributes of a node. It waits for a size only if the system call that caused the request may use
// the size. If attr does not wait, the returned size may be negative, which means that the size is unknown.
func (f *writable) attr(w *waiter, in *raw.GetAttrIn) (worktree.Attr, error) {
	n := worktree.Node(in.NodeId)
	if a, known := f.tree.KnownAttr(n); a.Node == n && !known && !caller.NeedsSize(in.Pid, a.Mode) {
		return a, nil
	}
	return f.tree.Attr(w, n)
}

// SetAttr changes the attributes that the request selects. A system call such as chmod(2) causes the request.
func (f *writable) SetAttr(cancel <-chan struct{}, in *raw.SetAttrIn, out *raw.AttrOut) raw.Status {
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	n, c := worktree.Node(in.NodeId), change(in)
	resize := c.Set&worktree.SetSize != 0
	if a, known := f.tree.KnownAttr(n); resize && known && a.Size == c.Size && c.Set&worktree.SetMtime == 0 {
		// ftruncate(2) and an open with O_TRUNC set the times even if the size stays the same, and truncate(2) does not. The
		// kernel does not state the times. Only ftruncate(2) sends a file handle.
		if in.Valid&raw.FATTR_FH != 0 || c.Size == 0 && !caller.Truncates(in.Pid) {
			c.Set, c.Mtime = c.Set|worktree.SetMtime, worktree.NowTime
		}
	}
	a, err := f.tree.SetAttr(w, n, c)
	if err != nil {
		return f.fail(opSetAttr, &in.InHeader, err)
	}
	f.fillAttr(out, a)
	return raw.OK
}

// change converts a SETATTR request to the worktree.Change that it requests.
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
		// A request that selects no attributes means that a write, a fallocate(2) or a copy by this caller must drop mode
		// bits (fs/inode.c, file_remove_privs), and that the file system has to find out which bits these are (fs/fuse/dir.c,
		// fuse_setattr). A WRITE request has a flag for this purpose, but the requests for fallocate(2) and copies have none.
		c.Set = worktree.KillPriv
	}
	return c
}
