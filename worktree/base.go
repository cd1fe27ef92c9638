package worktree

import (
	"context"
	"time"

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
// returns the first error, which may be an error of emit. The attributes are those of the base tree, except that an
// unchanged file has its present times if its last change is older than young.
func (b *Base) Walk(ctx context.Context, emit func(e BaseEntry) error) error {
	if !b.gate.enter() {
		return ErrClosed
	}
	defer b.gate.exit()
	before := time.Now().Add(-young).UnixNano()
	return b.view.base.Walk(ctx, Root, "", func(e BaseEntry) error {
		b.view.setPresentTimes(&e.Attr, before)
		return emit(e)
	})
}

// young is the age up to which Walk does not report the times of a file. Git compares times in whole seconds. If its
// index had the times of a file that is written again in the same second, git could consider the file unchanged.
const young = 2 * time.Second

// setPresentTimes sets the times in the attributes of a file of the base tree to its present times, if the file is
// unchanged and its mtime and ctime are earlier than before, in nanoseconds since 1970.
func (v *view) setPresentTimes(a *Attr, before int64) {
	if v.layer == nil {
		return
	}
	in, ok := v.layer.Inode(a.Node)
	if !ok || max(in.Mtime, in.Ctime) >= before {
		return
	}
	if r, ok := v.base.Table.Record(a.Node); ok && (merged{base: v.base}).unchanged(in, r) {
		a.Atime, a.Mtime, a.Ctime = in.Atime, in.Mtime, in.Ctime
	}
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
