package worktree

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// Cred is the credentials of the process that a request is made for: the owner and group of files that it creates, and its
// umask, which applies unless the directory has a default access control list.
type Cred struct{ UID, GID, Umask uint32 }

// maxLinks is the maximum number of names of a file, as on ext4.
const maxLinks = 65000

// Mknod creates a regular file, fifo, socket or device. mode includes the type; a mode without a type creates a regular file.
func (t *Tree) Mknod(ctx context.Context, dir Node, name string, mode, rdev uint32, c Cred) (Attr, error) {
	switch mode & syscall.S_IFMT {
	case 0:
		mode |= syscall.S_IFREG
	case syscall.S_IFREG, syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK:
	case syscall.S_IFDIR:
		return Attr{}, syscall.EPERM
	default:
		return Attr{}, syscall.EINVAL
	}
	return t.create(ctx, dir, name, overlay.Inode{Mode: mode, Rdev: rdev, Nlink: 1, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// Mkdir creates a directory.
func (t *Tree) Mkdir(ctx context.Context, dir Node, name string, mode uint32, c Cred) (Attr, error) {
	mode = syscall.S_IFDIR | mode&0o7777
	return t.create(ctx, dir, name, overlay.Inode{Mode: mode, Nlink: 2, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// Symlink creates a symbolic link. It returns ENAMETOOLONG for a target longer than maxTarget bytes.
func (t *Tree) Symlink(ctx context.Context, dir Node, name, target string, c Cred) (Attr, error) {
	switch {
	case target == "":
		return Attr{}, ErrNotExist
	case len(target) > maxTarget:
		return Attr{}, syscall.ENAMETOOLONG
	}
	in := overlay.Inode{Mode: syscall.S_IFLNK | 0o777, Nlink: 1, UID: c.UID, GID: c.GID, Size: int64(len(target))}
	return t.create(ctx, dir, name, in, target, 0)
}

// Tmpfile creates a file without a name. Link can add one.
func (t *Tree) Tmpfile(ctx context.Context, dir Node, mode uint32, c Cred) (Attr, error) {
	return t.create(ctx, dir, "", overlay.Inode{Mode: syscall.S_IFREG | mode&0o7777, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// create makes a new own node from in and, unless its link count is 0, gives it a name. It waits for the tree of the
// directory.
func (t *Tree) create(ctx context.Context, dir Node, name string, in overlay.Inode, target string, umask uint32) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	if made, done := t.isDone(ctx); done {
		return t.attrOf(made)
	}
	named := in.Nlink > 0
	var b inode.Block
	if named {
		var err error
		if b, err = t.place(ctx, dir, name); err != nil {
			return Attr{}, err
		}
	}
	err := t.update(func(e *edit) error {
		parent, err := e.directory(dir)
		if err != nil {
			return err
		}
		if _, ok := e.entry(dir, b, name); ok && named {
			return syscall.EEXIST
		}
		if in.Node, err = e.tx.NewNode(); err != nil {
			return err
		}
		e.answer(ctx, in.Node)
		in.Parent, in.Atime, in.Mtime, in.Ctime = dir, e.now, e.now, e.now
		inherit(&in, parent)
		if err := e.putNew(&in, dir, umask); err != nil {
			return err
		}
		if target != "" {
			e.tx.SetTarget(in.Node, target)
		}
		if named {
			e.place(dir, b, name, in.Node)
			e.touch(parent, subdirs(&in))
		}
		return nil
	})
	if err != nil {
		return Attr{}, err
	}
	return t.describe(in), nil
}

// inherit sets the group of a new node to that of a set-group-ID directory, and the bit itself on a new directory, as
// inode_init_owner in fs/inode.c of Linux does.
func inherit(in, parent *overlay.Inode) {
	if parent.Mode&syscall.S_ISGID == 0 {
		return
	}
	in.GID = parent.GID
	if isDir(in) {
		in.Mode |= syscall.S_ISGID
	}
}

// subdirs returns the number by which a node increases the link count of its directory: 1 for a directory, otherwise 0.
func subdirs(in *overlay.Inode) int {
	if isDir(in) {
		return 1
	}
	return 0
}

// place checks that a name is valid for a new entry of a directory, and returns the directory's block.
func (t *Tree) place(ctx context.Context, dir Node, name string) (inode.Block, error) {
	if len(name) > object.MaxNameLen {
		return inode.Block{}, syscall.ENAMETOOLONG
	}
	if err := inode.CheckName(name); err != nil {
		return inode.Block{}, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	return t.children(ctx, dir)
}

// Link adds a name to a node that is not a directory. The size in the result is negative if it is not known.
func (t *Tree) Link(ctx context.Context, n, dir Node, name string) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	if made, done := t.isDone(ctx); done {
		return t.attrOf(made)
	}
	b, err := t.place(ctx, dir, name)
	if err != nil {
		return Attr{}, err
	}
	var a Attr
	err = t.update(func(e *edit) error {
		e.answer(ctx, n)
		parent, err := e.directory(dir)
		if err != nil {
			return err
		}
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		if isDir(in) {
			return syscall.EPERM
		}
		if _, ok := e.entry(dir, b, name); ok {
			return syscall.EEXIST
		}
		if in.Nlink >= maxLinks {
			return syscall.EMLINK
		}
		in.Nlink, in.Ctime, in.Parent = in.Nlink+1, e.now, dir
		e.place(dir, b, name, n)
		e.touch(parent, 0)
		a = t.describe(*in)
		return nil
	})
	return a, err
}

// Unlink removes a name of a node that is not a directory.
func (t *Tree) Unlink(ctx context.Context, dir Node, name string) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if _, done := t.isDone(ctx); done {
		return nil
	}
	b, err := t.children(ctx, dir)
	if err != nil {
		return err
	}
	var gone Node
	err = t.update(func(e *edit) error {
		e.answer(ctx, 0)
		parent, err := e.directory(dir)
		if err != nil {
			return err
		}
		n, ok := e.entry(dir, b, name)
		if !ok {
			return ErrNotExist
		}
		in, err := e.inode(n)
		if err != nil {
			return err
		}
		if isDir(in) {
			return ErrIsDir
		}
		e.lose(in, dir, name, true)
		e.drop(in)
		e.remove(dir, b, name)
		e.touch(parent, 0)
		gone = n
		return nil
	})
	if err == nil {
		t.release(gone)
	}
	return err
}

// Rmdir removes an empty directory. It waits for the directory's tree, to see whether it is empty.
func (t *Tree) Rmdir(ctx context.Context, dir Node, name string) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	if _, done := t.isDone(ctx); done {
		return nil
	}
	b, err := t.children(ctx, dir)
	if err != nil {
		return err
	}
	return t.replacing(ctx, dir, b, name, func(v victim) error {
		return t.update(func(e *edit) error {
			e.answer(ctx, 0)
			parent, err := e.directory(dir)
			if err != nil {
				return err
			}
			if n, ok := e.entry(dir, b, name); n != v.node {
				return errReplaced
			} else if !ok {
				return ErrNotExist
			}
			in, err := e.inode(v.node)
			switch {
			case err != nil:
				return err
			case !isDir(in):
				return ErrNotDir
			case !e.empty(v.node, v.block):
				return syscall.ENOTEMPTY
			}
			e.loseDir(dir, name)
			e.drop(in)
			e.remove(dir, b, name)
			e.touch(parent, -1)
			return nil
		})
	})
}

// victim is the node that a change removes.
type victim struct {
	node  Node        // 0: the name does not exist
	block inode.Block // set for a directory
}

// errReplaced is returned by a change if the name of the victim has since been given to another node or removed.
var errReplaced = errors.New("another node has the name now")

// replacing calls f with the node behind a name, which f is to remove, and calls it again while f returns errReplaced. The
// block of a directory must be read before the change: only then is it known whether a base directory is empty, and no
// change may wait for a tree.
func (t *Tree) replacing(ctx context.Context, dir Node, b inode.Block, name string, f func(v victim) error) error {
	for {
		var v victim
		var in overlay.Inode
		t.view(func(m merged) {
			if n, ok := m.entry(dir, b, name); ok {
				v.node = n
				in, _ = m.inode(n)
			}
		})
		if isDir(&in) {
			var err error
			if v.block, err = t.children(ctx, v.node); err != nil {
				return err
			}
		}
		err := f(v)
		if errors.Is(err, errReplaced) {
			continue
		}
		if err == nil && v.node != 0 {
			t.release(v.node)
		}
		return err
	}
}
