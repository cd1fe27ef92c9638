package worktree

import (
	"context"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// Base shows the base tree without the changes in the overlay. The daemon uses it to fill git's index.
type Base struct {
	gate *gate
	view *view
}

// Walk calls emit for every path of the base tree, including paths that were changed or removed since. The order is
// that of git's index: the order of the entries of trees, with everything below a directory behind it. All of these paths
// have nodes afterwards. Walk waits for trees, not for sizes. It stops at the first error, also one that emit returns.
func (b *Base) Walk(ctx context.Context, emit func(e BaseEntry) error) error {
	if !b.gate.enter() {
		return ErrClosed
	}
	defer b.gate.leave()
	return b.view.base.Walk(ctx, Root, "", emit)
}

// Glance returns the attributes of a file or link that still shows a certain blob of the base tree, and false for any other
// node or if the size is not known. n may be an inode number from git's index, which stores only the lower 32 bits; the
// comparison with blob detects that such a number denotes another file. The Source does not count the call as a lookup by a
// reader.
func (b *Base) Glance(n Node, blob object.ID) (Attr, bool) {
	if !b.gate.enter() {
		return Attr{}, false
	}
	defer b.gate.leave()
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

// Counts returns how much of the base tree the table contains.
func (b *Base) Counts() inode.Counts { return b.view.base.Table.Counts() }
