package fuse

import (
	"strings"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/acl"
)

// capability is the attribute whose length the kernel requests before a write
// (security/commoncap.c, cap_inode_need_killpriv). execve(2) requests its value, programs request
// both (asksForAttribute).
const capability = "security.capability"

// GetXAttr is sent for "security.capability" with the first write to a file, and again after each
// refresh of its attributes (fs/fuse/inode.c, fuse_change_attributes_common clears S_NOSEC). With a
// writeback cache it is the only sign of a write before the file is closed.
func (f *writable) GetXAttr(_ <-chan struct{}, h *raw.InHeader, name string, dest []byte) (uint32, raw.Status) {
	if acl.IsName(name) && !f.acl {
		return 0, raw.Status(syscall.EOPNOTSUPP)
	}
	n := worktree.Node(h.NodeId)
	// Without an effect if the write is recorded already; most such files were just created.
	if name == capability && len(dest) == 0 && (f.tree.OnRecord(n) || !asksForAttribute(h.Pid)) {
		f.tree.Written(n)
	}
	value, err := f.tree.GetXattr(n, name)
	if err != nil {
		return 0, f.fail(opGetXattr, h, err)
	}
	return copyValue(dest, string(value))
}

// ListXAttr returns the names of the extended attributes, each with a zero byte behind it. Access
// control lists are left out where they do not apply.
func (f *writable) ListXAttr(_ <-chan struct{}, h *raw.InHeader, dest []byte) (uint32, raw.Status) {
	names, err := f.tree.ListXattr(worktree.Node(h.NodeId))
	if err != nil {
		return 0, f.fail(opListXattr, h, err)
	}
	var list strings.Builder
	for _, name := range names {
		if acl.IsName(name) && !f.acl {
			continue
		}
		list.WriteString(name)
		list.WriteByte(0)
	}
	return copyValue(dest, list.String())
}

// copyValue copies a value into a buffer. It returns ERANGE with the length if the buffer is too small,
// also if only the length was requested (go-fuse handles that).
func copyValue(dest []byte, value string) (uint32, raw.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), raw.ERANGE
	}
	return uint32(copy(dest, value)), raw.OK
}

// SetXAttr sets an extended attribute. It returns EOPNOTSUPP for access control lists where they do
// not apply.
func (f *writable) SetXAttr(cancel <-chan struct{}, in *raw.SetXAttrIn, name string, value []byte) raw.Status {
	if acl.IsName(name) && !f.acl {
		return raw.Status(syscall.EOPNOTSUPP)
	}
	flags := int(in.Flags)
	if in.SetXAttrFlags&raw.SETXATTR_ACL_KILL_SGID != 0 {
		flags |= worktree.XattrKillSGID
	}
	w := f.wait(cancel, &in.InHeader)
	defer w.finish()
	return f.fail(opSetXattr, &in.InHeader, f.tree.SetXattr(w, worktree.Node(in.NodeId), name, value, flags))
}

// RemoveXAttr removes an extended attribute.
func (f *writable) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if acl.IsName(name) && !f.acl {
		return raw.Status(syscall.EOPNOTSUPP)
	}
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opRemoveXattr, h, f.tree.RemoveXattr(w, worktree.Node(h.NodeId), name))
}
