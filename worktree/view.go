package worktree

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// view reads the present working tree: the overlay, and the base tree for everything that the overlay does not store.
// All other parts of a Tree use a view to read the working tree. The methods that have a context as a parameter wait
// until trees or sizes are fetched, without holding a lock; the other methods do not wait. The method look holds the
// overlay's lock for reading, and passes the working tree at that moment as a merged.
type view struct {
	base  *basetree.Tree
	layer *overlay.Layer // nil if the mount has no overlay
}

// look calls the function f with the present working tree, while it holds the overlay's lock for reading. f must not
// change anything, must not wait, and must not call exported methods of the Tree.
func (v *view) look(f func(m merged)) {
	if v.layer == nil {
		f(merged{nothing{}, v.base})
		return
	}
	v.layer.View(func(r overlay.Reader) { f(merged{r, v.base}) })
}

// lookups implements Kernel.Lookups.
func (v *view) lookups(n Node) (count uint64) {
	if r, ok := v.base.Table.Record(n); ok && !n.Own() {
		return r.Lookups()
	}
	if v.layer != nil {
		v.layer.View(func(r overlay.Reader) { count = r.Lookups(n) })
	}
	return count
}

// reach implements Tree.Reach: it returns the attributes of a node whose number the caller has read from a file handle.
func (v *view) reach(n Node) (Attr, error) {
	var in overlay.Inode
	var ok bool
	v.look(func(m merged) {
		if in, ok = m.Inode(n); ok {
			ok = in.Nlink > 0
			return
		}
		// The overlay may have no inode for a base node that was removed and released, but it still hides the node's
		// name.
		if in, ok = m.inode(n); ok {
			_, ok = m.path(n)
		}
	})
	if !ok {
		return Attr{}, ErrNoNode
	}
	return v.base.Describe(in), nil
}

// resolve implements Tree.Resolve: it returns the node at a path.
func (v *view) resolve(ctx context.Context, path string) (Node, error) {
	n := Root
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		in, err := v.find(ctx, n, name)
		if err != nil {
			return 0, fmt.Errorf("resolve %q: %w", path, err)
		}
		n = in.Node
	}
	return n, nil
}

// path implements Tree.Path: it returns the present path of a node.
func (v *view) path(n Node) (path string, err error) {
	if _, err := v.inode(n); err != nil {
		return "", err
	}
	v.look(func(m merged) {
		var ok bool
		if path, ok = m.path(n); !ok {
			err = ErrNotExist
		}
	})
	return path, err
}

// target returns the target of a symbolic link that is stored in the overlay.
func (v *view) target(n Node) (target []byte, err error) {
	v.look(func(m merged) {
		s, ok := m.Target(n)
		if target = []byte(s); !ok {
			err = ErrNoNode
		}
	})
	return target, err
}

// inode returns the present inode of a node.
func (v *view) inode(n Node) (in overlay.Inode, err error) {
	var ok bool
	v.look(func(m merged) { in, ok = m.inode(n) })
	if !ok {
		return in, ErrNoNode
	}
	return in, nil
}

// find returns the inode with the given name in the directory dir. It waits until the directory's tree is fetched.
func (v *view) find(ctx context.Context, dir Node, name string) (in overlay.Inode, err error) {
	if len(name) > object.MaxNameLen {
		return in, syscall.ENAMETOOLONG
	}
	b, err := v.children(ctx, dir)
	if err != nil {
		return in, err
	}
	var ok bool
	v.look(func(m merged) {
		var n Node
		if n, ok = m.entry(dir, b, name); ok {
			in, ok = m.inode(n)
		}
	})
	if !ok {
		return in, ErrNotExist
	}
	return in, nil
}

// children returns the block of a directory: the consecutive nodes of the children that the directory has in the base
// tree. The first call for a directory waits until its tree is fetched, and adds the block to the inode table. A
// directory that was created in the mount, and the directory of a submodule, have an empty block.
func (v *view) children(ctx context.Context, dir Node) (inode.Block, error) {
	if dir.Own() {
		in, err := v.inode(dir)
		if err == nil && in.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			err = ErrNotDir
		}
		return inode.Block{}, err
	}
	return v.base.Block(ctx, dir)
}

// stateOf implements Tree.Find: it returns the state of a path.
func (v *view) stateOf(ctx context.Context, path string) (Found, error) {
	dir, name, err := v.above(ctx, path)
	var b inode.Block
	if err == nil {
		b, err = v.children(ctx, dir)
	}
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDir) {
		return Found{}, nil
	} else if err != nil {
		return Found{}, err
	}
	var f Found
	v.look(func(m merged) { f = m.found(dir, b, name, path) })
	return f, nil
}

// above returns the directory that contains the path in the parameter at, and the last element of this path.
func (v *view) above(ctx context.Context, at string) (dir Node, name string, err error) {
	dir, name = Root, at
	for {
		first, rest, more := strings.Cut(name, "/")
		if !more {
			return dir, name, nil
		}
		in, err := v.find(ctx, dir, first)
		if err != nil {
			return 0, "", err
		}
		dir, name = in.Node, rest
	}
}

// attr implements Tree.Attr: it returns the attributes of a node. If the size is not known, attr waits until the Source
// has determined the size.
func (v *view) attr(ctx context.Context, n Node) (Attr, error) {
	for {
		in, err := v.inode(n)
		if err != nil {
			return Attr{}, err
		}
		if a := v.base.Describe(in); a.Size >= 0 {
			err := v.countBlocks(&a, in)
			if now, gone := v.inode(n); err != nil && gone != nil {
				return Attr{}, gone // the node was removed after in was read
			} else if err != nil && now.Content != in.Content {
				continue
			}
			return a, err
		}
		if err := v.base.LoadSize(ctx, n); err != nil {
			return Attr{}, err
		}
		// Repeat with the inode as it is now, because the contents may have been replaced during the wait.
	}
}

// countBlocks sets a.Blocks to the number of blocks that the contents file of the overlay occupies. If the file has
// holes, this number is lower than the number that follows from the size.
func (v *view) countBlocks(a *Attr, in overlay.Inode) error {
	if in.Content == 0 {
		return nil
	}
	f := v.layer.File(in.Node)
	defer f.Done()
	blocks, err := f.Blocks()
	if err == nil {
		a.Blocks = blocks
	}
	return err
}

// attrOf returns the attributes of a node. It does not wait. If the size is not known, it is negative in the result.
func (v *view) attrOf(n Node) (Attr, error) {
	in, err := v.inode(n)
	if err != nil {
		return Attr{}, err
	}
	return v.base.Describe(in), nil
}

// sizeOf returns the size of a node's contents in bytes, or -1 if the size is not known.
func (v *view) sizeOf(n Node) int64 {
	in, err := v.inode(n)
	switch {
	case err != nil:
		return -1
	case in.Size != overlay.SizeOfBase:
		return in.Size
	}
	return v.base.SizeHere(n)
}

// regular returns the inode of a regular file. For a node of another type, it returns the error that read(2) and
// write(2) return for a file of this type.
func (v *view) regular(n Node) (overlay.Inode, error) {
	in, err := v.inode(n)
	if err != nil {
		return in, err
	}
	switch in.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return in, nil
	case syscall.S_IFDIR:
		return in, ErrIsDir
	case syscall.S_IFLNK:
		return in, syscall.ELOOP
	}
	return in, syscall.EINVAL
}
