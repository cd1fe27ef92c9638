// Package basetree implements the base tree of a mount: its nodes, with their attributes and contents, as they are
// without changes. Package worktree combines it with the overlay, which may hide or replace any of these nodes. Package
// basetree does not read the overlay, but uses the type overlay.Inode for attributes.
package basetree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Node is the number of a file, directory or symbolic link of the mount.
type Node = inode.Node

// These errors are returned by the methods of a Tree, in addition to the errors of the Source.
var (
	ErrNotDir  = errors.New("not a directory")
	ErrNoNode  = errors.New("no such node") // the inode table does not contain the node
	ErrResized = errors.New("contents have another size than was reported before")
)

// Blob is a blob together with the place at which the mount shows it. The place is needed because git attributes, which
// are selected by path, may convert the contents.
type Blob struct {
	ID   object.ID
	Path string    // path relative to the mount's root, without a leading slash
	Link bool      // true if the blob is the target of a symbolic link
	Tree object.ID // root tree that contains the blob at Path; the .gitattributes files of this tree apply
}

// Content is the contents of a blob as the mount shows them. It can be read until Release is called.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// Source supplies the trees, sizes and contents of the nodes of the base tree. Its methods may be called from any
// goroutine.
type Source interface {
	// Tree returns the entries of a tree. It waits until the tree is fetched. The caller must not modify the slice.
	Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Size returns the exact length of the contents that the mount shows for a blob, in bytes. It waits until the objects
	// that are needed to compute the length are fetched.
	Size(ctx context.Context, b Blob) (int64, error)
	// KnownSize returns the same length as Size, but never waits. If the length is not known on this host, ok is false.
	KnownSize(b Blob) (size int64, ok bool)
	// Looked records that a process looked up a file whose size is not known yet. From the sequence of these lookups, the
	// Source recognizes a program that walks through a directory.
	Looked(b Blob)
	// Here reports whether the contents of a blob are on this host, and Open returns them without a conversion. It never
	// waits.
	Here(b Blob) bool
	// Searched reports whether the process of the request ctx is a program that reads all files below some directories
	// (ok), and whether the directory at path ("" is the root) is one of these directories (target).
	Searched(ctx context.Context, path string) (target, ok bool)
	// Arriving reports whether a program that reads all files below a directory (see Searched) has caused requests for
	// the contents of all these files, and some contents have not arrived yet.
	Arriving() bool
	// Open returns the verified contents that the mount shows for a blob. It waits until the blob is fetched.
	Open(ctx context.Context, b Blob) (Content, error)
}

// Attr contains the attributes of a node, as stat(2) returns them.
type Attr struct {
	Node Node
	Mode uint32 // file type and permissions, as in st_mode
	// Nlink is 1 for a directory of the base tree. From this value, programs such as find recognize that the link count
	// does not include subdirectories. To count the subdirectories, stat(2) would have to wait for the directory's tree.
	Nlink               uint32
	UID, GID            uint32
	Rdev                uint32
	Size                int64 // in bytes; negative if the size is not known yet
	Blocks              int64 // number of allocated blocks of 512 bytes
	Atime, Mtime, Ctime int64 // in nanoseconds since 1970
}

// dirSize is the size of every directory, in bytes, as stat(2) returns it. As on most file systems, the value has no
// meaning.
const dirSize = 4096

// Tree contains the base tree of a mount and the trees of its grafts (worktree.Graft): the table of their nodes, the
// attributes of unchanged nodes, and the Source of trees, sizes and contents. The table has its own locks. No goroutine
// holds a lock while it calls the Source. The methods may be called from any goroutine.
type Tree struct {
	Table    *inode.Table // nodes of the base tree and of grafts; all of them are called base nodes
	UID, GID uint32       // owner and group of every unchanged path
	src      Source
	root     object.ID    // id of the root tree; zero for an empty directory
	time     atomic.Int64 // modification time of every unchanged path, in nanoseconds since 1970
	modes    Modes
}

// Modes state which file types and permissions unchanged paths have.
type Modes struct {
	// Umask contains the permissions that unchanged paths do not have, as in a checkout with this umask. Permissions of
	// the owner are never removed. nil stands for 022.
	Umask *uint32
	// GroupWrite gives the group of every unchanged path the permissions of its owner.
	GroupWrite bool
	// LinksAsFiles shows symbolic links as files that contain the target, as git does with core.symlinks=false.
	LinksAsFiles bool
}

// Of returns the st_mode of an unchanged node of the kind k.
func (m Modes) Of(k inode.Kind) uint32 {
	mode := k.StatMode()
	if k == inode.KindSymlink {
		if !m.LinksAsFiles {
			return mode
		}
		mode = inode.KindFile.StatMode()
	}
	umask := uint32(0o022)
	if m.Umask != nil {
		umask = *m.Umask & 0o077
	}
	if mode &^= umask; m.GroupWrite {
		mode |= mode & 0o700 >> 3
	}
	return mode
}

// Options configure New.
type Options struct {
	Root     object.ID // id of the root tree; zero for an empty directory
	Time     time.Time // modification time of every unchanged path
	UID, GID uint32    // owner and group of every unchanged path
	Modes
}

// New returns a Tree whose nodes are in table. The Tree does not close the table.
func New(src Source, table *inode.Table, o Options) *Tree {
	t := &Tree{Table: table, UID: o.UID, GID: o.GID, src: src, root: o.Root, modes: o.Modes}
	t.SetTime(o.Time)
	return t
}

// Mode returns the st_mode of an unchanged node of the kind k.
func (t *Tree) Mode(k inode.Kind) uint32 { return t.modes.Of(k) }

// Time returns the modification time of every unchanged path.
func (t *Tree) Time() time.Time { return time.Unix(0, t.time.Load()) }

// SetTime sets the modification time of every unchanged path. The kernel must not know any path yet.
func (t *Tree) SetTime(at time.Time) { t.time.Store(at.UnixNano()) }

// Inode returns the inode that base node n has as long as it is unchanged. r is the record of n.
func (t *Tree) Inode(n Node, r *inode.Record) overlay.Inode {
	at := t.time.Load()
	in := overlay.Inode{
		Node: n, Mode: t.Mode(r.Kind()), Nlink: 1, UID: t.UID, GID: t.GID, Atime: at, Mtime: at, Ctime: at,
		Parent: r.Dir(),
	}
	if !r.Kind().IsDir() {
		in.Size = overlay.SizeOfBase
	}
	return in
}

// Block returns the block of a directory: the consecutive nodes of its entries. The first call for a directory waits
// until its tree is fetched, and adds the block to the table. A submodule has an empty block.
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
	// In a git tree, a directory is sorted as if its name ended in a slash. The table needs the entries in the byte order
	// of their names. Entries with names that no directory can show are left out.
	sorted := slices.DeleteFunc(slices.Clone(entries), func(e object.TreeEntry) bool { return !object.CanShow(e.Name) })
	slices.SortFunc(sorted, func(a, b object.TreeEntry) int { return cmp.Compare(a.Name, b.Name) })
	b, err := t.Table.Add(dir, sorted)
	if err != nil {
		return inode.Block{}, fmt.Errorf("read directory %q: %w", t.Table.Path(dir), err)
	}
	return b, nil
}

// Describe returns the attributes of an inode. It does not wait. If the size is not known, it is negative in the
// result.
func (t *Tree) Describe(in overlay.Inode) Attr { return t.DescribeBy(in, t.KnownSize) }

// DescribeBy returns the attributes of an inode. For an unchanged file, DescribeBy calls the function baseSize, which
// returns the size of the contents, or -1 if the size is not known.
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
		a.Blocks = (a.Size + 511) / 512 // with a lower number of blocks, tar and cp would search for holes
	}
	return a
}

// KnownSize returns the size of a base node's contents in bytes, or -1 if the size is not known. It does not wait. If
// the table lacks the size, KnownSize reports the lookup to the Source, and if the Source knows the size, stores it in
// the table.
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

// Here reports whether the contents of a base node can be read without waiting.
func (t *Tree) Here(n Node) bool {
	r, ok := t.Table.Record(n)
	return ok && t.src.Here(t.Blob(n, r))
}

// Searched calls Source.Searched for a base directory.
func (t *Tree) Searched(ctx context.Context, dir Node) (target, ok bool) {
	return t.src.Searched(ctx, t.Table.Path(dir))
}

// Arriving calls Source.Arriving.
func (t *Tree) Arriving() bool { return t.src.Arriving() }

// LoadSize stores the size of a base node's contents in the table. It waits until the Source has determined the size.
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

// SizeHere returns the same size as KnownSize, but neither reports the call to the Source as a lookup nor stores the
// size in the table.
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

// Blob returns the blob of base node n in the form that the Source needs. r is the record of n.
func (t *Tree) Blob(n Node, r *inode.Record) Blob {
	tree := t.Table.At(t.Table.TreeOf(n)).ObjectID()
	return Blob{ID: r.ObjectID(), Path: t.Table.Path(n), Link: r.Kind() == inode.KindSymlink, Tree: tree}
}

// Open returns the contents of a base node. It waits until the blob is fetched. If the size in the table was wrong,
// Open corrects it.
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
		return nil, fmt.Errorf("open %q: file was reported to have %d bytes, but has %d: %w", t.Table.Path(n), told,
			c.Size(), ErrResized)
	}
	return c, nil
}

// Read reads the contents of a base node, from the offset off on, into p. It waits until the blob is fetched.
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
