package worktree

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/artifactfs/artifactfs/overlay"
)

// Cred is whose request it is: who owns what it makes, and which permissions it withholds where no default access control
// list says otherwise.
type Cred struct{ UID, GID, Umask uint32 }

// maxLinks is how many names a file may have, as on ext4.
const maxLinks = 65000

// Mknod makes a file, fifo, socket or device; mode carries the type.
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

// Mkdir makes a directory.
func (t *Tree) Mkdir(ctx context.Context, dir Node, name string, mode uint32, c Cred) (Attr, error) {
	mode = syscall.S_IFDIR | mode&0o7777
	return t.create(ctx, dir, name, overlay.Inode{Mode: mode, Nlink: 2, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// Symlink makes a symbolic link.
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

// Tmpfile makes a file without a name, which Link may give it.
func (t *Tree) Tmpfile(ctx context.Context, dir Node, mode uint32, c Cred) (Attr, error) {
	return t.create(ctx, dir, "", overlay.Inode{Mode: syscall.S_IFREG | mode&0o7777, UID: c.UID, GID: c.GID}, "", c.Umask)
}

// create makes a node, and names it if there is a name.
func (t *Tree) create(ctx context.Context, dir Node, name string, in overlay.Inode, target string, umask uint32) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	if made, done := t.isDone(ctx); done {
		return t.attrOf(made)
	}
	named := in.Nlink > 0
	var b block
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

// inherit returns a new node the group of a set-group-ID directory, and a directory the bit too (fs/inode.c,
// inode_init_owner).
func inherit(in, parent *overlay.Inode) {
	if parent.Mode&syscall.S_ISGID == 0 {
		return
	}
	in.GID = parent.GID
	if isDir(in) {
		in.Mode |= syscall.S_ISGID
	}
}

// subdirs is by how much a node adds to the subdirectories of its directory.
func subdirs(in *overlay.Inode) int {
	if isDir(in) {
		return 1
	}
	return 0
}

// place makes sure that a name can be given to something in a directory, and gives the directory's block.
func (t *Tree) place(ctx context.Context, dir Node, name string) (block, error) {
	if len(name) > maxName {
		return block{}, syscall.ENAMETOOLONG
	}
	if err := checkName(name); err != nil {
		return block{}, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	return t.children(ctx, dir)
}

// Link returns a node another name. The attributes may lack a size.
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

// Unlink takes a name from what is no directory.
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

// Rmdir removes an empty directory.
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

// victim is what a change is to remove.
type victim struct {
	node  Node  // 0: there is nothing
	block block // of a directory
}

var errReplaced = errors.New("another node has the name now")

// replacing calls f with what a name is, as far as f needs it to remove that, and again while f says errReplaced:
// whether a base directory is empty is known only when its tree has come, for which nobody can wait inside a change.
func (t *Tree) replacing(ctx context.Context, dir Node, b block, name string, f func(v victim) error) error {
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
