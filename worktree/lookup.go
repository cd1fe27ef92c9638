package worktree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// Lookup returns the attributes of a name in a directory. It waits for the directory's tree, but not for the size, which is
// negative if it is not known.
func (t *Tree) Lookup(ctx context.Context, parent Node, name string) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	in, err := t.find(ctx, parent, name)
	if err != nil {
		return Attr{}, err
	}
	return t.describe(in), nil
}

// Reach returns the attributes of a node that the caller knows only by its number, from a file handle. It returns ErrNoNode
// if the node has no name any more. The size is negative if it is not known.
func (t *Tree) Reach(n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	var in overlay.Inode
	var ok bool
	t.view(func(m merged) {
		if in, ok = m.Inode(n); ok {
			ok = in.Nlink > 0
			return
		}
		// Of a base node that was removed and released, the overlay stores nothing but the hidden name.
		if in, ok = m.inode(n); ok {
			_, ok = m.path(n)
		}
	})
	if !ok {
		return Attr{}, ErrNoNode
	}
	return t.describe(in), nil
}

// Resolve returns the node at a slash-separated path relative to the root. It does not follow links, and waits for
// directories only. Empty and "." elements are ignored.
func (t *Tree) Resolve(ctx context.Context, path string) (Node, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	n := Root
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		in, err := t.find(ctx, n, name)
		if err != nil {
			return 0, fmt.Errorf("resolve %q: %w", path, err)
		}
		n = in.Node
	}
	return n, nil
}

// Parent returns the directory that contains a node; for a file with several names, one of its directories. The parent of
// the root is the root.
func (t *Tree) Parent(n Node) (Node, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	in, err := t.inode(n)
	return in.Parent, err
}

// Path returns the present path of a node relative to the root, "" for the root itself. For a file with several names it
// returns one of its paths, or ErrNotExist if that name was removed. It returns ErrNotExist for a node without a name.
func (t *Tree) Path(n Node) (path string, err error) {
	if !t.gate.enter() {
		return "", ErrClosed
	}
	defer t.gate.leave()
	if _, err := t.inode(n); err != nil {
		return "", err
	}
	t.view(func(m merged) {
		var ok bool
		if path, ok = m.path(n); !ok {
			err = ErrNotExist
		}
	})
	return path, err
}

// Readlink returns the target of a symbolic link. It waits until the blob of a base node is fetched.
func (t *Tree) Readlink(ctx context.Context, n Node) ([]byte, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	in, err := t.inode(n)
	switch {
	case err != nil:
		return nil, err
	case in.Mode&syscall.S_IFMT != syscall.S_IFLNK:
		return nil, ErrNotLink
	case in.Size != overlay.SizeOfBase:
		return t.ownTarget(n)
	}
	c, err := t.open(ctx, n)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	if c.Size() > maxTarget {
		return nil, fmt.Errorf("read link: target has %d bytes: %w", c.Size(), syscall.ENAMETOOLONG)
	}
	target := make([]byte, c.Size())
	if _, err := c.ReadAt(target, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read link: %w", err)
	}
	return target, nil
}

// maxTarget is the longest link target that Linux can follow, in bytes (PATH_MAX less its NUL).
const maxTarget = 4095

// ownTarget returns the target of a symbolic link that the overlay stores.
func (t *Tree) ownTarget(n Node) (target []byte, err error) {
	t.view(func(m merged) {
		s, ok := m.Target(n)
		if target = []byte(s); !ok {
			err = ErrNoNode
		}
	})
	return target, err
}

// inode returns the present inode of a node.
func (t *Tree) inode(n Node) (in overlay.Inode, err error) {
	var ok bool
	t.view(func(m merged) { in, ok = m.inode(n) })
	if !ok {
		return in, ErrNoNode
	}
	return in, nil
}

// find returns the inode behind a name in a directory.
func (t *Tree) find(ctx context.Context, dir Node, name string) (in overlay.Inode, err error) {
	if len(name) > object.MaxNameLen {
		return in, syscall.ENAMETOOLONG
	}
	b, err := t.children(ctx, dir)
	if err != nil {
		return in, err
	}
	var ok bool
	t.view(func(m merged) {
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

// children returns the block of a base directory. The first call waits for the directory's tree and adds the block to the
// table. An own directory has no block, and neither has a submodule.
func (t *Tree) children(ctx context.Context, dir Node) (inode.Block, error) {
	if dir.Own() {
		in, err := t.inode(dir)
		if err == nil && in.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			err = ErrNotDir
		}
		return inode.Block{}, err
	}
	r, ok := t.Table.Record(dir)
	switch {
	case !ok:
		return inode.Block{}, ErrNoNode
	case !r.Kind().IsDir():
		return inode.Block{}, ErrNotDir
	case r.Kind() == inode.KindGitlink:
		return inode.Block{}, nil
	}
	if b, ok := r.Block(); ok {
		return b, nil
	}
	var entries []object.TreeEntry
	if id := r.ObjectID(); !id.IsZero() {
		var err error
		if entries, err = t.src.Tree(ctx, id); err != nil {
			return inode.Block{}, fmt.Errorf("read directory %q: %w", t.Table.Path(dir), err)
		}
	}
	// git sorts a directory as if its name ended in a slash; the table searches in plain byte order.
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b object.TreeEntry) int { return cmp.Compare(a.Name, b.Name) })
	b, err := t.Table.Add(dir, sorted)
	if err != nil {
		return inode.Block{}, fmt.Errorf("read directory %q: %w", t.Table.Path(dir), err)
	}
	return b, nil
}
