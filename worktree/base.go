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
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// baseTree is the committed tree of a mount and the trees of grafts: the table of their nodes, the attributes of unchanged nodes,
// and the Source that supplies trees, sizes and contents. It does not know the overlay, which may hide or replace any of these
// nodes. All fields are constant after Open; the table has its own locks.
type baseTree struct {
	src      Source
	table    *inode.Table
	root     object.ID // the zero ID is an empty directory
	time     time.Time // modification time of every unchanged path
	uid, gid uint32    // owner and group of every unchanged path
}

// inode returns the inode of an unchanged base node.
func (base *baseTree) inode(n Node, r *inode.Record) overlay.Inode {
	at := base.time.UnixNano()
	in := overlay.Inode{
		Node: n, Mode: r.Kind().StatMode(), Nlink: 1, UID: base.uid, GID: base.gid, Atime: at, Mtime: at, Ctime: at,
		Parent: r.Dir(),
	}
	if !r.Kind().IsDir() {
		in.Size = overlay.SizeOfBase
	}
	return in
}

// block returns the block of a directory of the base tree. The first call waits for the directory's tree and adds the block to
// the table. A submodule has no block.
func (base *baseTree) block(ctx context.Context, dir Node) (inode.Block, error) {
	r, ok := base.table.Record(dir)
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
		if entries, err = base.src.Tree(ctx, id); err != nil {
			return inode.Block{}, fmt.Errorf("read directory %q: %w", base.table.Path(dir), err)
		}
	}
	// git sorts a directory as if its name ended in a slash; the table searches in plain byte order.
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b object.TreeEntry) int { return cmp.Compare(a.Name, b.Name) })
	b, err := base.table.Add(dir, sorted)
	if err != nil {
		return inode.Block{}, fmt.Errorf("read directory %q: %w", base.table.Path(dir), err)
	}
	return b, nil
}

// describe returns the attributes of an inode without waiting.
func (base *baseTree) describe(in overlay.Inode) Attr { return base.describeBy(in, base.knownSize) }

// describeBy returns the attributes of an inode. baseSize returns the size of a base node's contents, or -1 if it is not
// known.
func (base *baseTree) describeBy(in overlay.Inode, baseSize func(Node) int64) Attr {
	a := Attr{
		Node: in.Node, Mode: in.Mode, Nlink: in.Nlink, UID: in.UID, GID: in.GID, Rdev: in.Rdev, Size: in.Size,
		Atime: in.Atime, Mtime: in.Mtime, Ctime: in.Ctime,
	}
	if in.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		a.Size = dirSize
		return a
	}
	if in.Size == overlay.SizeOfBase {
		a.Size = baseSize(in.Node)
	}
	if a.Size > 0 {
		a.Blocks = (a.Size + 511) / 512 // a lower number would make tar and cp search for holes
	}
	return a
}

// knownSize returns the size of a base node's contents without waiting, -1 if it is not known. It reports the lookup to the
// Source, and stores a size that the Source knows in the table.
func (base *baseTree) knownSize(n Node) int64 {
	r, ok := base.table.Record(n)
	if !ok {
		return -1
	}
	if size, ok := r.Size(); ok {
		return size
	}
	b := base.blob(n, r)
	base.src.Looked(b)
	size, ok := base.src.KnownSize(b)
	if !ok {
		return -1
	}
	r.SetSize(size)
	return size
}

// sizeHere returns the same size as knownSize, but neither reports the lookup to the Source nor stores the size.
func (base *baseTree) sizeHere(n Node) int64 {
	r, ok := base.table.Record(n)
	if !ok {
		return -1
	}
	size, ok := r.Size()
	if !ok {
		size, ok = base.src.KnownSize(base.blob(n, r))
	}
	if !ok {
		return -1
	}
	return size
}

// blob returns the blob of a base node, as the Source expects it.
func (base *baseTree) blob(n Node, r *inode.Record) Blob {
	tree := base.table.At(base.table.TreeOf(n)).ObjectID()
	return Blob{ID: r.ObjectID(), Path: base.table.Path(n), Link: r.Kind() == inode.KindSymlink, Tree: tree}
}

// open returns the contents of a base node's blob. It waits until the blob is fetched, and corrects a wrong size in the
// table.
func (base *baseTree) open(ctx context.Context, n Node) (Content, error) {
	r, ok := base.table.Record(n)
	if !ok {
		return nil, ErrNoNode
	}
	c, err := base.src.Open(ctx, base.blob(n, r))
	if err != nil {
		return nil, err
	}
	told, ok := r.Size()
	if !ok || told != c.Size() {
		r.SetSize(c.Size())
	}
	if ok && told != c.Size() {
		defer c.Release()
		return nil, fmt.Errorf("open %q: announced %d bytes, got %d: %w", base.table.Path(n), told, c.Size(), ErrResized)
	}
	return c, nil
}

// read reads from the contents of a base node's blob. It waits until the blob is fetched.
func (base *baseTree) read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	c, err := base.open(ctx, n)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	want := int(min(int64(len(p)), max(0, c.Size()-off)))
	got, err := c.ReadAt(p[:want], off)
	if got < want {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return got, fmt.Errorf("read %d bytes at %d: %w", want, off, err)
	}
	return got, nil
}

// BaseEntry is a path of the base tree.
type BaseEntry struct {
	Path string // path relative to the root; "" for the root itself
	ID   object.ID
	Mode object.Mode
	Attr Attr // attributes of the unchanged path; an unknown size is negative
}

// Base shows the base tree without the changes that the overlay stores. The daemon calls it to fill git's index. It has no state
// of its own.
type Base struct {
	gate *gate
	view *view
}

// Walk calls emit for every path of the base tree, including paths that were changed or removed since. The order is
// that of git's index: the order of the entries of trees, with everything below a directory behind it. All of these paths
// have nodes afterwards. WalkBase waits for trees, not for sizes. It stops at the first error, also one that emit returns.
func (b *Base) Walk(ctx context.Context, emit func(e BaseEntry) error) error {
	if !b.gate.enter() {
		return ErrClosed
	}
	defer b.gate.leave()
	return b.view.base.walk(ctx, Root, "", emit)
}

// walk calls emit for the base node n, whose path is path, and for everything below n.
func (base *baseTree) walk(ctx context.Context, n Node, path string, emit func(e BaseEntry) error) error {
	r := base.table.At(n)
	if err := emit(base.entry(n, r, path)); err != nil || r.Kind() != inode.KindDir {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := base.block(ctx, n)
	if err != nil {
		return err
	}
	prefix := path + "/"
	order := base.table.TreeOrder(b)
	for i := range b.Count {
		child := b.First + Node(i)
		if order != nil {
			child = order[i]
		}
		at := base.table.Name(base.table.At(child))
		if n == Root {
			at = strings.Clone(at) // the name is memory of the table's mapping
		} else {
			at = prefix + at
		}
		if err := base.walk(ctx, child, at, emit); err != nil {
			return err
		}
	}
	return nil
}

// entry returns the entry of a base node. It does not wait: the size is negative if neither the table nor the Source knows
// it.
func (base *baseTree) entry(n Node, r *inode.Record, path string) BaseEntry {
	e := BaseEntry{Path: path, ID: r.ObjectID(), Mode: r.Kind().GitMode()}
	in := base.inode(n, r)
	if r.Kind().IsDir() {
		e.Attr = base.describe(in)
		return e
	}
	size, ok := r.Size()
	if !ok {
		size, ok = base.src.KnownSize(Blob{ID: e.ID, Path: path, Link: r.Kind() == inode.KindSymlink, Tree: base.root})
	}
	in.Size = max(size, 0)
	if e.Attr = base.describe(in); !ok {
		e.Attr.Size = -1
	}
	return e
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
	if r, ok := b.view.base.table.Record(n); !ok || r.ObjectID() != blob {
		return Attr{}, false
	}
	a := b.view.base.describeBy(in, b.view.base.sizeHere)
	return a, a.Size >= 0
}

// Counts returns how much of the base tree the table contains.
func (b *Base) Counts() inode.Counts { return b.view.base.table.Counts() }
