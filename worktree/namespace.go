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

// create implements Tree.create.
func (ed *editor) create(ctx context.Context, dir Node, name string, in overlay.Inode, target string, umask uint32) (Attr, error) {
	if made, done := ed.isDone(ctx); done {
		return ed.view.attrOf(made)
	}
	named := in.Nlink > 0
	var b inode.Block
	if named {
		var err error
		if b, err = ed.place(ctx, dir, name); err != nil {
			return Attr{}, err
		}
	}
	err := ed.update(func(e *edit) error {
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
	return ed.base.Describe(in), nil
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
func (ed *editor) place(ctx context.Context, dir Node, name string) (inode.Block, error) {
	if len(name) > object.MaxNameLen {
		return inode.Block{}, syscall.ENAMETOOLONG
	}
	if err := inode.CheckName(name); err != nil {
		return inode.Block{}, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	return ed.view.children(ctx, dir)
}

// link implements Tree.Link.
func (ed *editor) link(ctx context.Context, n, dir Node, name string) (Attr, error) {
	if made, done := ed.isDone(ctx); done {
		return ed.view.attrOf(made)
	}
	b, err := ed.place(ctx, dir, name)
	if err != nil {
		return Attr{}, err
	}
	var a Attr
	err = ed.update(func(e *edit) error {
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
		a = ed.base.Describe(*in)
		return nil
	})
	return a, err
}

// unlink implements Tree.Unlink.
func (ed *editor) unlink(ctx context.Context, dir Node, name string) error {
	if _, done := ed.isDone(ctx); done {
		return nil
	}
	b, err := ed.view.children(ctx, dir)
	if err != nil {
		return err
	}
	var gone Node
	err = ed.update(func(e *edit) error {
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
		ed.release(gone)
	}
	return err
}

// rmdir implements Tree.Rmdir.
func (ed *editor) rmdir(ctx context.Context, dir Node, name string) error {
	if _, done := ed.isDone(ctx); done {
		return nil
	}
	b, err := ed.view.children(ctx, dir)
	if err != nil {
		return err
	}
	return ed.replacing(ctx, dir, b, name, func(v victim) error {
		return ed.update(func(e *edit) error {
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
func (ed *editor) replacing(ctx context.Context, dir Node, b inode.Block, name string, f func(v victim) error) error {
	for {
		var v victim
		var in overlay.Inode
		ed.view.look(func(m merged) {
			if n, ok := m.entry(dir, b, name); ok {
				v.node = n
				in, _ = m.inode(n)
			}
		})
		if isDir(&in) {
			var err error
			if v.block, err = ed.view.children(ctx, v.node); err != nil {
				return err
			}
		}
		err := f(v)
		if errors.Is(err, errReplaced) {
			continue
		}
		if err == nil && v.node != 0 {
			ed.release(v.node)
		}
		return err
	}
}
