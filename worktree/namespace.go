package worktree

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Cred contains the credentials of the process that has sent a request: the owner and the group of files that it
// creates, and its umask. If a directory has a default access control list, the umask is not applied to files that are
// created in the directory.
type Cred struct{ UID, GID, Umask uint32 }

// maxLinks is the maximum number of names of a file, the same as on ext4.
const maxLinks = 65000

// create creates a node with the attributes in the parameter in. If in.Nlink is not 0, the node gets the given name in
// the directory dir. If the node is a symbolic link, target is the target of the link.
func (ed *editor) create(ctx context.Context, dir Node, name string, in overlay.Inode, target string,
	umask uint32) (Attr, error) {
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

// inherit gives a new node the group of its directory, parent, if the directory has the set-group-ID bit. A new
// directory also gets this bit. The function inode_init_owner in fs/inode.c of Linux does the same.
func inherit(in, parent *overlay.Inode) {
	if parent.Mode&syscall.S_ISGID == 0 {
		return
	}
	in.GID = parent.GID
	if isDir(in) {
		in.Mode |= syscall.S_ISGID
	}
}

// subdirs returns by how much a node increases the link count of its directory: 1 if the node is a directory, otherwise
// 0.
func subdirs(in *overlay.Inode) int {
	if isDir(in) {
		return 1
	}
	return 0
}

// place returns the children that the directory dir has in the base tree, or an error if name is not valid for a new
// entry.
func (ed *editor) place(ctx context.Context, dir Node, name string) (inode.Block, error) {
	if len(name) > object.MaxNameLen {
		return inode.Block{}, syscall.ENAMETOOLONG
	}
	if err := inode.CheckName(name); err != nil {
		return inode.Block{}, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	return ed.view.children(ctx, dir)
}

// link implements Tree.Link: it gives the node n another name in the directory dir.
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

// unlink implements Tree.Unlink: it removes a name of a node that is not a directory.
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

// rmdir implements Tree.Rmdir: it removes an empty directory.
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

// victim is a node that a change is about to remove or replace.
type victim struct {
	node  Node        // zero if the name does not exist
	block inode.Block // the children that the node has in the base tree, if the node is a directory
}

// errReplaced means that the name of a victim was removed or given to another node after the victim was looked up.
var errReplaced = errors.New("name has another node now")

// replacing looks up the node with the given name and calls the function f, which removes or replaces the node. It
// repeats both steps while f returns errReplaced. If the node is a directory, its children in the base tree are read
// before f is called, because they show whether the directory is empty, and a change must not wait until a tree is
// fetched.
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
