package worktree

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// rename implements Tree.Rename: it moves a name to another name or directory. flags are those of renameat2(2).
func (ed *editor) rename(ctx context.Context, dir Node, name string, newDir Node, newName string, flags uint32) error {
	switch flags {
	case 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE:
	default:
		return syscall.EINVAL
	}
	if _, done := ed.isDone(ctx); done {
		return nil
	}
	from, err := ed.view.children(ctx, dir)
	if err != nil {
		return err
	}
	to, err := ed.place(ctx, newDir, newName)
	if err != nil {
		return err
	}
	if flags != 0 {
		return ed.update(func(e *edit) error {
			e.answer(ctx, 0)
			r, err := e.rename(dir, from, name, newDir, to, newName)
			switch {
			case err != nil:
				return err
			case flags == unix.RENAME_EXCHANGE:
				return r.exchange()
			case r.over != nil:
				return syscall.EEXIST
			}
			return r.move()
		})
	}
	return ed.replacing(ctx, newDir, to, newName, func(v victim) error {
		return ed.update(func(e *edit) error {
			e.answer(ctx, 0)
			r, err := e.rename(dir, from, name, newDir, to, newName)
			if err != nil {
				return err
			}
			if (r.over == nil) != (v.node == 0) || r.over != nil && r.over.Node != v.node {
				return errReplaced
			}
			r.overBlock = v.block
			return r.move()
		})
	})
}

// renaming is a rename in progress.
type renaming struct {
	*edit
	dir, newDir   *overlay.Inode // directories of the old name and of the new name
	from, to      inode.Block    // children that dir and newDir have in the base tree
	name, newName string
	moved         *overlay.Inode // inode with the old name
	over          *overlay.Inode // inode that had the new name before the rename; nil if the new name did not exist
	overBlock     inode.Block    // children of over in the base tree, if over is a directory
}

// rename looks up the directories and the inodes of both names, and returns the state of the rename. The parameters
// from and to are the children that the directories have in the base tree.
func (e *edit) rename(dir Node, from inode.Block, name string, newDir Node, to inode.Block,
	newName string) (*renaming, error) {
	r := &renaming{edit: e, from: from, to: to, name: name, newName: newName}
	var err error
	if r.dir, err = e.directory(dir); err != nil {
		return nil, err
	}
	if r.newDir, err = e.directory(newDir); err != nil {
		return nil, err
	}
	n, ok := e.entry(dir, from, name)
	if !ok {
		return nil, ErrNotExist
	}
	if r.moved, err = e.inode(n); err != nil {
		return nil, err
	}
	if n, ok := e.entry(newDir, to, newName); ok {
		if r.over, err = e.inode(n); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// move moves the name. If both names belong to the same node, it changes nothing, as rename(2) demands.
func (r *renaming) move() error {
	if isDir(r.moved) && r.within(r.newDir.Node, r.moved.Node) {
		return syscall.EINVAL
	}
	if r.over != nil {
		switch {
		case r.over == r.moved:
			return nil
		case isDir(r.moved) && !isDir(r.over):
			return ErrNotDir
		case !isDir(r.moved) && isDir(r.over):
			return ErrIsDir
		case isDir(r.over) && !r.empty(r.over.Node, r.overBlock):
			return syscall.ENOTEMPTY
		}
		r.lose(r.over, r.newDir.Node, r.newName, false)
		r.drop(r.over)
		r.clearParent(r.over, r.newDir.Node)
		r.touch(r.newDir, -subdirs(r.over))
	}
	r.remove(r.dir.Node, r.from, r.name)
	r.settle(r.moved, r.newDir, r.to, r.newName)
	r.touch(r.dir, -subdirs(r.moved))
	r.touch(r.newDir, subdirs(r.moved))
	return nil
}

// exchange exchanges the nodes of the two names.
func (r *renaming) exchange() error {
	switch {
	case r.over == nil:
		return ErrNotExist
	case r.over == r.moved:
		return nil
	case isDir(r.moved) && r.within(r.newDir.Node, r.moved.Node), isDir(r.over) && r.within(r.dir.Node, r.over.Node):
		return syscall.EINVAL
	}
	r.settle(r.moved, r.newDir, r.to, r.newName)
	r.settle(r.over, r.dir, r.from, r.name)
	r.touch(r.dir, subdirs(r.over)-subdirs(r.moved))
	r.touch(r.newDir, subdirs(r.moved)-subdirs(r.over))
	return nil
}

// settle adds an inode to a directory under the given name. b is the block of the directory: the children that the
// directory has in the base tree.
func (r *renaming) settle(in, dir *overlay.Inode, b inode.Block, name string) {
	r.place(dir.Node, b, name, in.Node)
	in.Parent, in.Ctime = dir.Node, r.now
}
