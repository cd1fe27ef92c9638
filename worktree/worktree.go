// Package worktree is the namespace of a mount: paths to nodes, nodes to attributes and contents. It knows no
// FUSE; package fuse puts it before the kernel.
//
// What it promises:
//   - A node is stable for the life of the mount and is the inode number. Nodes are handed out from a table on
//     disk that survives the death of the process, so a successor gives every path the node it had.
//   - A size is right or the call waits for it; a directory is whole or the call waits for it.
//   - Nothing is read before it is asked for: a directory's tree when it is first looked into, a size when it is
//     first wanted, a content when it is opened.
//
// Terms: the base tree is the git tree that paths read from. A block is the run of consecutive nodes that are a
// directory's children, in byte order of their names.
//
// No lock is held while a Source is asked, so one slow object delays only who waits for it. Lock order:
// Tree.gate and table.append are leaves; neither is taken under the other.
package worktree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

// Node names a file, directory or link of the mount; it is also its inode number. Zero names nothing.
type Node uint64

// Root is the mount's root directory, whatever is mounted.
const Root Node = 1

// Blob is a blob where the mount shows it: how a file's content looks may depend on its path (attributes).
type Blob struct {
	ID   object.ID
	Path string // relative to the mount's root, without a leading slash
	Link bool   // it is a symbolic link's target
}

// Content is a blob's content, readable until Release.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// Source gives what the nodes are made of. Every method may be called at the same time from many goroutines.
type Source interface {
	// Tree gives a tree's entries, waiting for it to arrive. The caller does not change them.
	Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Size gives the exact length of what is shown of a blob, in bytes, waiting for whatever tells it.
	Size(ctx context.Context, b Blob) (int64, error)
	// KnownSize gives the length if it needs no waiting.
	KnownSize(b Blob) (size int64, ok bool)
	// Open gives what is shown of a blob, verified, waiting for it to arrive.
	Open(ctx context.Context, b Blob) (Content, error)
}

var (
	ErrNotExist = fs.ErrNotExist
	ErrNotDir   = errors.New("not a directory")
	ErrIsDir    = errors.New("is a directory")
	ErrNotLink  = errors.New("not a symbolic link")
	ErrNoNode   = errors.New("no such node")           // the node was never handed out
	ErrClosed   = errors.New("working tree is closed") // after Close
	ErrTable    = errors.New("bad inode table")        // the file read back is no table of this tree
	ErrResized  = errors.New("content is not of the size that was told")
)

// Options describe what is mounted.
type Options struct {
	Root     object.ID // the base tree; the zero ID is an empty directory
	Time     time.Time // modification time of every path
	UID, GID uint32    // owner of every path of the base tree

	// Overlay is the directory that keeps what is changed. "": nothing can be changed, every attempt is EROFS.
	Overlay         string
	OverlayReadOnly bool        // what was changed is shown, and nothing can be changed any more
	Log             *zap.Logger // nil: no log
}

// Attr is what stat says of a node.
type Attr struct {
	Node Node
	Mode uint32 // type and permissions as in st_mode
	// Nlink is 1 for a directory of the base tree, which tells find and its like that it does not count
	// subdirectories: to know their number would mean to wait for the directory's tree only to stat it.
	Nlink               uint32
	UID, GID            uint32
	Rdev                uint32
	Size                int64 // in bytes; negative: not known yet
	Blocks              int64 // of 512 bytes
	Atime, Mtime, Ctime int64 // nanoseconds since 1970
}

// Entry is one name in a directory.
type Entry struct {
	Name string // valid until the callback returns
	Node Node
	Mode uint32 // as in Attr
	Next uint64 // where ReadDir goes on behind this entry
}

// Counts says how much of the tree has been looked into. Directories that nobody read hide what is below them.
type Counts struct {
	Nodes int64 // paths that have a node, the root included
	Dirs  int64 // directories whose children are known
}

// dirSize is the size that directories report, in bytes; it means nothing, as on most file systems.
const dirSize = 4096

// Tree is the namespace. Its methods may be called from many goroutines.
type Tree struct {
	src     Source
	options Options
	table   *table
	gate    gate
}

// Open starts a namespace over the inode table at tablePath (a second file beside it, tablePath.names, holds
// names). An existing table is continued, with every node as it was; it must be of the same base tree, else the
// error is ErrTable. Open waits for no object. Only one Tree at a time can have a table open.
func Open(tablePath string, src Source, o Options) (*Tree, error) {
	table, err := openTable(tablePath, o.Root)
	if err != nil {
		return nil, fmt.Errorf("open inode table %s: %w", tablePath, err)
	}
	return &Tree{src: src, options: o, table: table}, nil
}

// Close waits for calls under way and gives up the table, which stays on disk. Calls after it fail with
// ErrClosed. Whoever lets calls wait for objects ends them first, by their contexts.
func (t *Tree) Close() error {
	if !t.gate.close() {
		return nil
	}
	return t.table.close()
}

// Lookup finds a name in a directory. It waits for directories, not for the size: that is negative if not known.
func (t *Tree) Lookup(ctx context.Context, parent Node, name string) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	n, err := t.find(ctx, parent, name)
	if err != nil {
		return Attr{}, err
	}
	r, _ := t.table.record(n)
	size, ok := t.knownSize(n, r)
	if !ok {
		size = -1
	}
	return t.describe(n, r, size), nil
}

// Attr gives a node's attributes, waiting for a size that is not known yet.
func (t *Tree) Attr(ctx context.Context, n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.leave()
	return t.attr(ctx, n)
}

// KnownAttr is Attr where that needs no waiting.
func (t *Tree) KnownAttr(n Node) (Attr, bool) {
	if !t.gate.enter() {
		return Attr{}, false
	}
	defer t.gate.leave()
	r, ok := t.table.record(n)
	if !ok {
		return Attr{}, false
	}
	size, ok := t.knownSize(n, r)
	return t.describe(n, r, size), ok
}

// ReadDir calls emit for a directory's entries from index from on, in byte order of names, until it says false.
// An index stays that of the same entry for the life of the mount.
func (t *Tree) ReadDir(ctx context.Context, dir Node, from uint64, emit func(Entry) bool) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.leave()
	b, err := t.children(ctx, dir)
	if err != nil {
		return err
	}
	for i := int(min(from, uint64(b.count))); i < b.count; i++ {
		n := b.first + Node(i)
		r, _ := t.table.record(n)
		if !emit(Entry{t.table.name(r), n, mode(r.kind), uint64(i) + 1}) {
			break
		}
	}
	return nil
}

// Parent gives the directory that a node is in; the root's parent is the root.
func (t *Tree) Parent(n Node) (Node, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.leave()
	r, ok := t.table.record(n)
	if !ok {
		return 0, ErrNoNode
	}
	return Node(r.parent), nil
}

// Readlink gives the target of a symbolic link.
func (t *Tree) Readlink(ctx context.Context, n Node) ([]byte, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	r, ok := t.table.record(n)
	switch {
	case !ok:
		return nil, ErrNoNode
	case r.kind != kindSymlink:
		return nil, ErrNotLink
	}
	c, err := t.open(ctx, n, r)
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

// Content opens a file's content. If a size that was told before turns out wrong, the right one is noted and the
// error is ErrResized: whoever keeps the old one has to forget it and ask again.
func (t *Tree) Content(ctx context.Context, n Node) (Content, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.leave()
	r, ok := t.table.record(n)
	switch {
	case !ok:
		return nil, ErrNoNode
	case r.kind.isDir():
		return nil, ErrIsDir
	case r.kind == kindSymlink:
		return nil, syscall.ELOOP
	}
	return t.open(ctx, n, r)
}

// Path gives a node's path relative to the root; the root's is "".
func (t *Tree) Path(n Node) (string, error) {
	if !t.gate.enter() {
		return "", ErrClosed
	}
	defer t.gate.leave()
	if _, ok := t.table.record(n); !ok {
		return "", ErrNoNode
	}
	return t.table.path(n), nil
}

// Resolve finds the node at a slash-separated path relative to the root, following no links and waiting for
// directories only. Empty and "." elements count for nothing.
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
		var err error
		if n, err = t.find(ctx, n, name); err != nil {
			return 0, fmt.Errorf("resolve %q: %w", path, err)
		}
	}
	return n, nil
}

// Counts says how much of the tree has been looked into.
func (t *Tree) Counts() Counts {
	return Counts{t.table.nodes.Load(), t.table.dirs.Load()}
}

func (t *Tree) find(ctx context.Context, dir Node, name string) (Node, error) {
	b, err := t.children(ctx, dir)
	if err != nil {
		return 0, err
	}
	n, ok := t.table.search(b, name)
	if !ok {
		return 0, ErrNotExist
	}
	return n, nil
}

// children gives a directory's block; the first to ask makes it.
func (t *Tree) children(ctx context.Context, dir Node) (block, error) {
	r, ok := t.table.record(dir)
	switch {
	case !ok:
		return block{}, ErrNoNode
	case !r.kind.isDir():
		return block{}, ErrNotDir
	case r.kind == kindGitlink:
		return block{}, nil
	}
	if b, ok := r.block(); ok {
		return b, nil
	}
	var entries []object.TreeEntry
	if id := r.objectID(); !id.IsZero() {
		var err error
		if entries, err = t.src.Tree(ctx, id); err != nil {
			return block{}, fmt.Errorf("read directory %q: %w", t.table.path(dir), err)
		}
	}
	// git sorts a directory as if its name ended in a slash; look-ups want plain byte order.
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b object.TreeEntry) int { return cmp.Compare(a.Name, b.Name) })
	b, err := t.table.add(dir, sorted)
	if err != nil {
		return block{}, fmt.Errorf("read directory %q: %w", t.table.path(dir), err)
	}
	return b, nil
}

func (t *Tree) attr(ctx context.Context, n Node) (Attr, error) {
	r, ok := t.table.record(n)
	if !ok {
		return Attr{}, ErrNoNode
	}
	size, ok := t.knownSize(n, r)
	if !ok {
		var err error
		if size, err = t.src.Size(ctx, t.blob(n, r)); err != nil {
			return Attr{}, err
		}
		r.setSize(size)
	}
	return t.describe(n, r, size), nil
}

// knownSize gives a node's size without waiting, and notes what the source knew.
func (t *Tree) knownSize(n Node, r *record) (int64, bool) {
	if r.kind.isDir() {
		return dirSize, true
	}
	if size, ok := r.size(); ok {
		return size, true
	}
	size, ok := t.src.KnownSize(t.blob(n, r))
	if ok {
		r.setSize(size)
	}
	return size, ok
}

func (t *Tree) describe(n Node, r *record, size int64) Attr {
	a := Attr{Node: n, Mode: mode(r.kind), Nlink: 1, UID: t.options.UID, GID: t.options.GID, Size: size}
	a.Atime = t.options.Time.UnixNano()
	a.Mtime, a.Ctime = a.Atime, a.Atime
	if !r.kind.isDir() && size > 0 {
		a.Blocks = (size + 511) / 512 // fewer would make tar and cp look for holes
	}
	return a
}

func (t *Tree) blob(n Node, r *record) Blob {
	return Blob{r.objectID(), t.table.path(n), r.kind == kindSymlink}
}

func (t *Tree) open(ctx context.Context, n Node, r *record) (Content, error) {
	c, err := t.src.Open(ctx, t.blob(n, r))
	if err != nil {
		return nil, err
	}
	told, ok := r.size()
	if !ok || told != c.Size() {
		r.setSize(c.Size())
	}
	if ok && told != c.Size() {
		defer c.Release()
		return nil, fmt.Errorf("open %q: %d bytes were told, it has %d: %w", t.table.path(n), told, c.Size(), ErrResized)
	}
	return c, nil
}

// mode is what stat says of a kind. Permissions are those of a checkout under umask 022.
func mode(k kind) uint32 {
	switch k {
	case kindFile:
		return syscall.S_IFREG | 0o644
	case kindExec:
		return syscall.S_IFREG | 0o755
	case kindSymlink:
		return syscall.S_IFLNK | 0o777
	case kindDir, kindGitlink: // a submodule that is not checked out is an empty directory
		return syscall.S_IFDIR | 0o755
	}
	panic(fmt.Sprintf("kind %d", k)) // check refuses a table with any other
}
