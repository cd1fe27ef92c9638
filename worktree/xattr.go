package worktree

import (
	"context"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxXattr is the most that an extended attribute's value may have, in bytes (XATTR_SIZE_MAX).
const maxXattr = 64 << 10

// keepsXattr says whether attributes of a name are kept. The others mean something to the kernel (access control
// lists) which it would not heed here.
func keepsXattr(name string) bool {
	for _, prefix := range []string{"user.", "trusted.", "security."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest != ""
		}
	}
	return false
}

// GetXattr gives an extended attribute; one that is not there is ENODATA.
func (t *Tree) GetXattr(n Node, name string) (value []byte, err error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	if !keepsXattr(name) {
		return nil, syscall.EOPNOTSUPP
	}
	t.view(func(m merged) {
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

// ListXattr gives the names of a node's extended attributes.
func (t *Tree) ListXattr(n Node) (names []string, err error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	t.view(func(m merged) {
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

// SetXattr sets an extended attribute. Flags are XATTR_CREATE or XATTR_REPLACE of setxattr(2).
func (t *Tree) SetXattr(ctx context.Context, n Node, name string, value []byte, flags int) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	switch {
	case !keepsXattr(name):
		return syscall.EOPNOTSUPP
	case len(name) > maxName:
		return syscall.ERANGE
	case len(value) > maxXattr:
		return syscall.E2BIG
	}
	if _, done := t.isDone(ctx); done {
		return nil
	}
	return t.update(func(e *edit) error {
		e.answer(ctx, 0)
		in, err := e.inode(n)
		if err != nil {
			return err
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

// RemoveXattr removes an extended attribute; one that is not there is ENODATA.
func (t *Tree) RemoveXattr(ctx context.Context, n Node, name string) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if !keepsXattr(name) {
		return syscall.EOPNOTSUPP
	}
	if _, done := t.isDone(ctx); done {
		return nil
	}
	return t.update(func(e *edit) error {
		e.answer(ctx, 0)
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		if _, exists := e.Xattr(n, name); !exists {
			return syscall.ENODATA
		}
		in.Ctime = e.now
		e.tx.RemoveXattr(n, name)
		return nil
	})
}
