package worktree

import (
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
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

// walkBase is WalkBase for the node at a path.
func (t *Tree) walkBase(ctx context.Context, n Node, path string, emit func(e BaseEntry) error) error {
	r := t.table.rec(n)
	if err := emit(t.baseEntry(n, r, path)); err != nil || r.kind != kindDir {
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
	order := t.table.treeOrder(b)
	for i := range b.count {
		child := b.first + Node(i)
		if order != nil {
			child = order[i]
		}
		at := t.table.name(t.table.rec(child))
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

// baseEntry returns the entry of a base node. It asks the Source only for a size that it knows.
func (t *Tree) baseEntry(n Node, r *record, path string) BaseEntry {
	e := BaseEntry{Path: path, ID: r.objectID(), Mode: r.kind.mode()}
	in := t.baseInode(n, r)
	if r.kind.isDir() {
		e.Attr = t.describe(in)
		return e
	}
	size, ok := r.size()
	if !ok {
		size, ok = t.src.KnownSize(Blob{ID: e.ID, Path: path, Link: r.kind == kindSymlink, Tree: t.options.Root})
	}
	in.Size = max(size, 0)
	if e.Attr = t.describe(in); !ok {
		e.Attr.Size = -1
	}
	return e
}

// treeOrder returns the nodes of a block in the order of a git tree, in which the name of a directory ends in a slash. It
// returns nil if that is the order of the block, which is the normal case.
func (t *table) treeOrder(b block) []Node {
	misplaced := false
	for i := 0; i+1 < b.count && !misplaced; i++ {
		r := t.rec(b.first + Node(i))
		if r.kind != kindDir {
			continue
		}
		name, next := t.name(r), t.name(t.rec(b.first+Node(i)+1))
		misplaced = len(next) > len(name) && next[len(name)] < '/' && strings.HasPrefix(next, name)
	}
	if !misplaced {
		return nil
	}
	nodes := make([]Node, b.count)
	for i := range nodes {
		nodes[i] = b.first + Node(i)
	}
	slices.SortFunc(nodes, func(x, y Node) int { return compareInTree(t.rec(x), t.rec(y), t) })
	return nodes
}

// compareInTree compares two records in the order of a git tree.
func compareInTree(x, y *record, t *table) int {
	a, b := t.name(x), t.name(y)
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	end := func(name string, r *record) byte {
		switch {
		case len(name) > n:
			return name[n]
		case r.kind == kindDir:
			return '/'
		}
		return 0
	}
	return int(end(a, x)) - int(end(b, y))
}
