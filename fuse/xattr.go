package fuse

import (
	"strings"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/acl"
)

// capability is the attribute whose length the kernel asks for before a write (security/commoncap.c,
// cap_inode_need_killpriv). execve(2) asks for its value, programs for both (asksForAttribute).
const capability = "security.capability"

// GetXAttr is asked for "security.capability" with the first write to a file and again whenever the kernel has asked
// for its attributes (fs/fuse/inode.c, fuse_change_attributes_common clears S_NOSEC). With a writeback cache that is all
// that tells us of the write before the file is closed.
func (f *writable) GetXAttr(_ <-chan struct{}, h *raw.InHeader, name string, dest []byte) (uint32, raw.Status) {
	if acl.IsName(name) && !f.acl {
		return 0, raw.Status(syscall.EOPNOTSUPP)
	}
	n := worktree.Node(h.NodeId)
	// Where a write is on record already it does not matter, and the file is most often one that was just made.
	if name == capability && len(dest) == 0 && (f.tree.OnRecord(n) || !asksForAttribute(h.Pid)) {
		f.tree.Written(n)
	}
	value, err := f.tree.GetXattr(n, name)
	if err != nil {
		return 0, f.fail(opGetXattr, h, err)
	}
	return give(dest, string(value))
}

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
	return give(dest, list.String())
}

// give copies a value into a buffer; ERANGE with its length says that it is too small, also if only the length was
// asked for (go-fuse knows).
func give(dest []byte, value string) (uint32, raw.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), raw.ERANGE
	}
	return uint32(copy(dest, value)), raw.OK
}

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

func (f *writable) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if acl.IsName(name) && !f.acl {
		return raw.Status(syscall.EOPNOTSUPP)
	}
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opRemoveXattr, h, f.tree.RemoveXattr(w, worktree.Node(h.NodeId), name))
}
