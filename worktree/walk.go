package worktree

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// BaseEntry is a path of the base tree.
type BaseEntry struct {
	Path string // path relative to the root; "" for the root itself
	ID   object.ID
	Mode object.Mode
	Attr Attr // attributes of the unchanged path; an unknown size is negative
}

// WalkBase calls emit for every path of the base tree, including paths that were changed or removed since. The order is
// that of git's index: the order of the entries of trees, with everything below a directory behind it. All of these paths
// have nodes afterwards. WalkBase waits for trees, not for sizes. It stops at the first error, also one that emit returns.
func (t *Tree) WalkBase(ctx context.Context, emit func(e BaseEntry) error) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	return t.walkBase(ctx, Root, "", emit)
}

// walkBase calls emit for the base node n, whose path is path, and for everything below n.
func (t *Tree) walkBase(ctx context.Context, n Node, path string, emit func(e BaseEntry) error) error {
	r := t.Table.At(n)
	if err := emit(t.baseEntry(n, r, path)); err != nil || r.Kind() != inode.KindDir {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := t.children(ctx, n)
	if err != nil {
		return err
	}
	prefix := path + "/"
	order := t.Table.TreeOrder(b)
	for i := range b.Count {
		child := b.First + Node(i)
		if order != nil {
			child = order[i]
		}
		at := t.Table.Name(t.Table.At(child))
		if n == Root {
			at = strings.Clone(at) // the name is memory of the table's mapping
		} else {
			at = prefix + at
		}
		if err := t.walkBase(ctx, child, at, emit); err != nil {
			return err
		}
	}
	return nil
}

// baseEntry returns the entry of a base node. It does not wait: the size is negative if neither the table nor the Source knows
// it.
func (t *Tree) baseEntry(n Node, r *inode.Record, path string) BaseEntry {
	e := BaseEntry{Path: path, ID: r.ObjectID(), Mode: r.Kind().GitMode()}
	in := t.baseInode(n, r)
	if r.Kind().IsDir() {
		e.Attr = t.describe(in)
		return e
	}
	size, ok := r.Size()
	if !ok {
		size, ok = t.src.KnownSize(Blob{ID: e.ID, Path: path, Link: r.Kind() == inode.KindSymlink, Tree: t.options.Root})
	}
	in.Size = max(size, 0)
	if e.Attr = t.describe(in); !ok {
		e.Attr.Size = -1
	}
	return e
}
