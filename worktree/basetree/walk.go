package basetree

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// Entry describes one path of the base tree.
type Entry struct {
	Path string // path relative to the root; "" for the root itself
	ID   object.ID
	Mode object.Mode
	Attr Attr // attributes of the unchanged path; the size is negative if it is not known
}

// Walk calls the function emit for the base node n at the given path, and for everything below n. It returns the first
// error.
func (t *Tree) Walk(ctx context.Context, n Node, path string, emit func(e Entry) error) error {
	r := t.Table.At(n)
	if err := emit(t.entry(n, r, path)); err != nil || r.Kind() != inode.KindDir {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := t.Block(ctx, n)
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
		if n == inode.Root {
			at = strings.Clone(at) // emit gets a copy, because the string points into the mapped file of the table
		} else {
			at = prefix + at
		}
		if err := t.Walk(ctx, child, at, emit); err != nil {
			return err
		}
	}
	return nil
}

// entry returns the entry for base node n. It does not wait. If neither the table nor the Source knows the size, the
// size in the result is negative.
func (t *Tree) entry(n Node, r *inode.Record, path string) Entry {
	e := Entry{Path: path, ID: r.ObjectID(), Mode: r.Kind().GitMode()}
	in := t.Inode(n, r)
	if r.Kind().IsDir() {
		e.Attr = t.Describe(in)
		return e
	}
	size, ok := r.Size()
	if !ok {
		size, ok = t.src.KnownSize(Blob{ID: e.ID, Path: path, Link: r.Kind() == inode.KindSymlink, Tree: t.root})
	}
	in.Size = max(size, 0)
	if e.Attr = t.Describe(in); !ok {
		e.Attr.Size = -1
	}
	return e
}
