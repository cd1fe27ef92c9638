package worktree

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/acl"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// maxXattr is the maximum size of the value of an extended attribute, in bytes (XATTR_SIZE_MAX in Linux).
const maxXattr = 64 << 10

// XattrKillSGID is a flag for Xattrs.Set. With it, setting an access control list removes the set-group-ID bit.
const XattrKillSGID = 1 << 16

// keepsXattr reports whether the mount stores extended attributes with the given name. All other attributes are
// refused, because the kernel would not act on them in this file system.
func keepsXattr(name string) bool {
	if acl.IsName(name) {
		return true
	}
	for _, prefix := range []string{"user.", "trusted.", "security."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest != ""
		}
	}
	return false
}

// Xattrs reads and changes the extended attributes of files, for package fuse. An access control list is an extended
// attribute that must agree with the mode of its file. Therefore a change of the list also changes the mode, and a
// change of the mode also changes the list. The overlay's lock protects the attributes.
type Xattrs struct {
	gate   *gate
	view   *view
	editor *editor
}

// Get returns the value of an extended attribute. It returns ENODATA if the node does not have the attribute.
func (x *Xattrs) Get(n Node, name string) (value []byte, err error) {
	if !x.gate.enter() {
		return nil, ErrClosed
	}
	defer x.gate.exit()
	if !keepsXattr(name) {
		return nil, syscall.EOPNOTSUPP
	}
	x.view.look(func(m merged) {
		v, ok := m.Xattr(n, name)
		if ok {
			value = append([]byte{}, v...)
			return
		}
		err = syscall.ENODATA
		if _, ok := m.inode(n); !ok {
			err = ErrNoNode
		}
	})
	return value, err
}

// List returns the names of a node's extended attributes.
func (x *Xattrs) List(n Node) (names []string, err error) {
	if !x.gate.enter() {
		return nil, ErrClosed
	}
	defer x.gate.exit()
	x.view.look(func(m merged) {
		if _, ok := m.inode(n); !ok {
			err = ErrNoNode
			return
		}
		for _, name := range m.Xattrs(n) {
			names = append(names, strings.Clone(name))
		}
	})
	return names, err
}

// Set sets an extended attribute. flags may contain XATTR_CREATE or XATTR_REPLACE of setxattr(2), and XattrKillSGID.
// Setting an access control list also changes the mode. If the mode expresses the list completely, the list is not
// stored.
func (x *Xattrs) Set(ctx context.Context, n Node, name string, value []byte, flags int) error {
	if !x.gate.enter() {
		return ErrClosed
	}
	defer x.gate.exit()
	switch {
	case !keepsXattr(name):
		return syscall.EOPNOTSUPP
	case len(name) > object.MaxNameLen:
		return syscall.ERANGE
	case len(value) > maxXattr:
		return syscall.E2BIG
	}
	var list acl.List
	if acl.IsName(name) {
		var err error
		if list, err = acl.Parse(value); err != nil {
			return fmt.Errorf("%w: %w", syscall.EINVAL, err)
		}
	}
	if _, done := x.editor.isDone(ctx); done {
		return nil
	}
	return x.editor.update(func(e *edit) error {
		e.answer(ctx, 0)
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		if acl.IsName(name) {
			return e.setACL(in, name, list, flags&XattrKillSGID != 0)
		}
		_, exists := e.Xattr(n, name)
		switch {
		case exists && flags&unix.XATTR_CREATE != 0:
			return syscall.EEXIST
		case !exists && flags&unix.XATTR_REPLACE != 0:
			return syscall.ENODATA
		}
		in.Ctime = e.now
		if err := e.promote(n); err != nil {
			return err
		}
		e.tx.SetXattr(n, name, value)
		return nil
	})
}

// setACL sets the access control list that is stored in the attribute name, and changes the mode so that the mode
// agrees with the list. If the list is empty, the attribute is removed.
func (e *edit) setACL(in *overlay.Inode, name string, list acl.List, killSGID bool) error {
	kept := len(list) > 0
	switch {
	case name == acl.Default && !isDir(in):
		if kept {
			return syscall.EACCES
		}
		return nil
	case name == acl.Access:
		kept = list.Extended()
		in.Mode = list.Mode(in.Mode)
		if killSGID {
			in.Mode &^= syscall.S_ISGID
		}
	}
	in.Ctime = e.now
	if err := e.promote(in.Node); err != nil {
		return err
	}
	if kept {
		e.tx.SetXattr(in.Node, name, list.Bytes())
	} else {
		e.tx.RemoveXattr(in.Node, name)
	}
	return nil
}

// chmodACL changes the access control list of a node, if the node has one, so that the list agrees with in.Mode.
func (e *edit) chmodACL(in *overlay.Inode) error {
	value, ok := e.Xattr(in.Node, acl.Access)
	if !ok {
		return nil
	}
	list, err := acl.Parse(value)
	if err == nil {
		e.tx.SetXattr(in.Node, acl.Access, list.WithMode(in.Mode).Bytes())
	}
	return err
}

// putNew stores the inode of a new node in the directory dir. If the directory has a default access control list, this
// list is applied instead of the umask.
func (e *edit) putNew(in *overlay.Inode, dir Node, umask uint32) error {
	value, ok := e.Xattr(dir, acl.Default)
	if !ok || in.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		in.Mode &^= umask & 0o777
		e.tx.PutInode(*in)
		return nil
	}
	list, err := acl.Parse(value)
	if err != nil {
		return err
	}
	list, in.Mode = list.Inherit(in.Mode)
	e.tx.PutInode(*in)
	if isDir(in) {
		e.tx.SetXattr(in.Node, acl.Default, value)
	}
	if list.Extended() {
		e.tx.SetXattr(in.Node, acl.Access, list.Bytes())
	}
	return nil
}

// Remove removes an extended attribute. If the node does not have the attribute, Remove returns ENODATA, except for an
// access control list, for which it returns nil.
func (x *Xattrs) Remove(ctx context.Context, n Node, name string) error {
	if !x.gate.enter() {
		return ErrClosed
	}
	defer x.gate.exit()
	if !keepsXattr(name) {
		return syscall.EOPNOTSUPP
	}
	if _, done := x.editor.isDone(ctx); done {
		return nil
	}
	return x.editor.update(func(e *edit) error {
		e.answer(ctx, 0)
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		if _, exists := e.Xattr(n, name); !exists {
			if acl.IsName(name) {
				return nil
			}
			return syscall.ENODATA
		}
		in.Ctime = e.now
		e.tx.RemoveXattr(n, name)
		return nil
	})
}
