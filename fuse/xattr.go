package fuse

import (
	"strings"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/acl"
)

// GetXAttr returns an extended attribute.
func (f *writable) GetXAttr(_ <-chan struct{}, h *raw.InHeader, name string, dest []byte) (uint32, raw.Status) {
	if acl.IsName(name) && !f.acl {
		return 0, raw.Status(syscall.EOPNOTSUPP)
	}
	value, err := f.tree.Xattrs().Get(worktree.Node(h.NodeId), name)
	if err != nil {
		return 0, f.fail(opGetXattr, h, err)
	}
	return copyValue(dest, string(value))
}

// ListXAttr returns the names of the extended attributes, each followed by a zero byte. It leaves out the names of
// access control lists if the mount does not support such lists.
func (f *writable) ListXAttr(_ <-chan struct{}, h *raw.InHeader, dest []byte) (uint32, raw.Status) {
	names, err := f.tree.Xattrs().List(worktree.Node(h.NodeId))
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

// copyValue copies value to dest and returns its length. If dest is too small, the status is ERANGE. A caller that
// requests only the length passes an empty dest; go-fuse converts ERANGE into success for this caller.
func copyValue(dest []byte, value string) (uint32, raw.Status) {
	if len(value) > len(dest) {
		return uint32(len(value)), raw.ERANGE
	}
	return uint32(copy(dest, value)), raw.OK
}

// SetXAttr sets an extended attribute. For access control lists it returns EOPNOTSUPP if the mount does not support
// such lists.
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
	return f.fail(opSetXattr, &in.InHeader, f.tree.Xattrs().Set(w, worktree.Node(in.NodeId), name, value, flags))
}

// RemoveXAttr removes an extended attribute. For access control lists it returns EOPNOTSUPP if the mount does not
// support such lists.
func (f *writable) RemoveXAttr(cancel <-chan struct{}, h *raw.InHeader, name string) raw.Status {
	if acl.IsName(name) && !f.acl {
		return raw.Status(syscall.EOPNOTSUPP)
	}
	w := f.wait(cancel, h)
	defer w.finish()
	return f.fail(opRemoveXattr, h, f.tree.Xattrs().Remove(w, worktree.Node(h.NodeId), name))
}
