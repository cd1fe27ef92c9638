package worktree

import (
	"context"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Base shows the base tree without the changes in the overlay. The daemon uses it to fill git's index.
type Base struct {
	gate *gate
	view *view
}

// Walk calls emit for every path of the base tree, including paths that were changed or removed in the mount. The order
// is that of git's index: the entries of a tree in their order, and everything below a directory after the directory.
// When Walk returns, all of these paths have nodes. Walk waits until trees are fetched, but does not wait for sizes. It
// returns the first error, which may be an error of emit.
func (b *Base) Walk(ctx context.Context, emit func(e BaseEntry) error) error {
	if !b.gate.enter() {
		return ErrClosed
	}
	defer b.gate.exit()
	return b.view.base.Walk(ctx, Root, "", emit)
}

// Glance returns the attributes of a file or symbolic link. ok is false if the node does not show the given blob of the
// base tree any more, or if its size is not known. n may be an inode number from git's index, which contains only the
// lower 32 bits; the comparison with blob detects a number that belongs to another file. Glance does not call
// Source.Looked, so the call does not count as a lookup.
func (b *Base) Glance(n Node, blob object.ID) (Attr, bool) {
	if !b.gate.enter() {
		return Attr{}, false
	}
	defer b.gate.exit()
	in, err := b.view.inode(n)
	if err != nil || in.Size != overlay.SizeOfBase {
		return Attr{}, false
	}
	if r, ok := b.view.base.Table.Record(n); !ok || r.ObjectID() != blob {
		return Attr{}, false
	}
	a := b.view.base.DescribeBy(in, b.view.base.SizeHere)
	return a, a.Size >= 0
}

// Counts returns the numbers of nodes and of directories of the base tree that the inode table contains.
func (b *Base) Counts() inode.Counts { return b.view.base.Table.Counts() }
