// Package basetree implements the committed tree of a mount: its nodes, their attributes and their contents. Package worktree
// merges it with the overlay, which may hide or replace any of these nodes. Package basetree does not read the overlay; it uses
// the type overlay.Inode for attributes.
package basetree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// Node is the number of a file, directory or symbolic link of the mount.
type Node = inode.Node

// Errors that the methods of a Tree return, besides those of the Source.
var (
	ErrNotDir  = errors.New("not a directory")
	ErrNoNode  = errors.New("no such node") // the table knows no such node
	ErrResized = errors.New("the content has another size than announced")
)

// Blob is a blob together with the place where the mount shows it. The place matters because git attributes, which are
// selected by path, may convert the contents.
type Blob struct {
	ID   object.ID
	Path string    // path relative to the mount's root, without a leading slash
	Link bool      // whether the blob is the target of a symbolic link
	Tree object.ID // root tree that contains the blob at Path; its .gitattributes files apply
}

// Content is the contents of a blob as the mount shows them. They can be read until Release.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// Source supplies the trees, sizes and contents of base nodes. All of its methods may be called concurrently.
type Source interface {
	// Tree returns the entries of a tree. It waits until the tree is fetched. The caller must not modify the slice.
	Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Size returns the exact length of the contents that the mount shows for a blob, in bytes. It waits for the objects
	// from which the length is computed.
	Size(ctx context.Context, b Blob) (int64, error)
	// KnownSize returns the same length as Size, but never waits: ok is false if the length is not known on this host.
	KnownSize(b Blob) (size int64, ok bool)
	// Looked records that a reader looked up a file whose size the Tree does not know yet. From the sequence of lookups the
	// Source detects a program that walks through a directory.
	Looked(b Blob)
	// Open returns the contents that the mount shows for a blob, verified. It waits until the blob is fetched.
	Open(ctx context.Context, b Blob) (Content, error)
}

// Attr is the attributes of a node, as stat(2) returns them.
type Attr struct {
	Node Node
	Mode uint32 // type and permissions as in st_mode
	// Nlink is 1 for a directory of the base tree. By that value programs such as find recognize that the link count does
	// not include subdirectories. Counting them would make a stat wait for the directory's tree.
	Nlink               uint32
	UID, GID            uint32
	Rdev                uint32
	Size                int64 // in bytes; negative: not known yet
	Blocks              int64 // allocated units of 512 bytes
	Atime, Mtime, Ctime int64 // nanoseconds since 1970
}

// dirSize is the st_size of every directory, in bytes. As on most file systems the value has no meaning.
const dirSize = 4096

// Tree is the base tree of a mount and the trees of its grafts (worktree.Graft): the table of their nodes, the attributes of
// unchanged nodes, and the Source that supplies trees, sizes and contents. All fields are constant. The table has its own locks;
// no lock is held while the Source is called. The methods may be called concurrently.
type Tree struct {
	Table    *inode.Table // nodes of the base tree and of grafts; a base node is a node of this table
	UID, GID uint32       // owner and group of every unchanged path
	src      Source
	root     object.ID // the zero ID is an empty directory
	time     time.Time // modification time of every unchanged path
}

// Options configure New.
type Options struct {
	Root     object.ID // tree of the root directory; the zero ID is an empty directory
	Time     time.Time // modification time of every unchanged path
	UID, GID uint32    // owner and group of every unchanged path
}

// New returns the base tree whose nodes are in a table. The Tree does not close the table.
func New(src Source, table *inode.Table, o Options) *Tree {
	return &Tree{Table: table, UID: o.UID, GID: o.GID, src: src, root: o.Root, time: o.Time}
}

// Inode returns the inode of an unchanged base node, whose record is r.
func (t *Tree) Inode(n Node, r *inode.Record) overlay.Inode {
	at := t.time.UnixNano()
	in := overlay.Inode{
		Node: n, Mode: r.Kind().StatMode(), Nlink: 1, UID: t.UID, GID: t.GID, Atime: at, Mtime: at, Ctime: at,
		Parent: r.Dir(),
	}
	if !r.Kind().IsDir() {
		in.Size = overlay.SizeOfBase
	}
	return in
}

// Block returns the nodes of the entries of a directory. The first call waits for the directory's tree and adds the block to
// the table. A submodule has no block.
func (t *Tree) Block(ctx context.Context, dir Node) (inode.Block, error) {
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

// Describe returns the attributes of an inode without waiting.
func (t *Tree) Describe(in overlay.Inode) Attr { return t.DescribeBy(in, t.KnownSize) }

// DescribeBy returns the attributes of an inode. baseSize returns the size of a base node's contents, or -1 if it is not
// known.
func (t *Tree) DescribeBy(in overlay.Inode, baseSize func(Node) int64) Attr {
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

// KnownSize returns the size of a base node's contents without waiting, -1 if it is not known. It reports the lookup to the
// Source, and stores a size that the Source knows in the table.
func (t *Tree) KnownSize(n Node) int64 {
	r, ok := t.Table.Record(n)
	if !ok {
		return -1
	}
	if size, ok := r.Size(); ok {
		return size
	}
	b := t.Blob(n, r)
	t.src.Looked(b)
	size, ok := t.src.KnownSize(b)
	if !ok {
		return -1
	}
	r.SetSize(size)
	return size
}

// LoadSize stores the size of a base node's contents in the table. It waits until the Source knows the size.
func (t *Tree) LoadSize(ctx context.Context, n Node) error {
	r, ok := t.Table.Record(n)
	if !ok {
		return ErrNoNode
	}
	size, err := t.src.Size(ctx, t.Blob(n, r))
	if err == nil {
		r.SetSize(size)
	}
	return err
}

// SizeHere returns the same size as KnownSize, but neither reports the lookup to the Source nor stores the size.
func (t *Tree) SizeHere(n Node) int64 {
	r, ok := t.Table.Record(n)
	if !ok {
		return -1
	}
	size, ok := r.Size()
	if !ok {
		size, ok = t.src.KnownSize(t.Blob(n, r))
	}
	if !ok {
		return -1
	}
	return size
}

// Blob returns the blob of a base node, as the Source expects it.
func (t *Tree) Blob(n Node, r *inode.Record) Blob {
	tree := t.Table.At(t.Table.TreeOf(n)).ObjectID()
	return Blob{ID: r.ObjectID(), Path: t.Table.Path(n), Link: r.Kind() == inode.KindSymlink, Tree: tree}
}

// Open returns the contents of a base node's blob. It waits until the blob is fetched, and corrects a wrong size in the
// table.
func (t *Tree) Open(ctx context.Context, n Node) (Content, error) {
	r, ok := t.Table.Record(n)
	if !ok {
		return nil, ErrNoNode
	}
	c, err := t.src.Open(ctx, t.Blob(n, r))
	if err != nil {
		return nil, err
	}
	told, ok := r.Size()
	if !ok || told != c.Size() {
		r.SetSize(c.Size())
	}
	if ok && told != c.Size() {
		defer c.Release()
		return nil, fmt.Errorf("open %q: announced %d bytes, got %d: %w", t.Table.Path(n), told, c.Size(), ErrResized)
	}
	return c, nil
}

// Read reads from the contents of a base node's blob. It waits until the blob is fetched.
func (t *Tree) Read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	c, err := t.Open(ctx, n)
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
