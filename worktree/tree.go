package worktree

import (
	"context"
)

// Lookup returns the attributes of a name in the directory parent. It waits until the directory's tree is fetched. It
// does not wait for the size of the file: if the size is not known, Attr.Size is negative.
func (t *Tree) Lookup(ctx context.Context, parent Node, name string) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	in, err := t.view.find(ctx, parent, name)
	if err != nil {
		return Attr{}, err
	}
	return t.base.Describe(in), nil
}

// Reach returns the attributes of a node whose number the caller has read from a file handle. It returns ErrNoNode if
// the node has no name any more. If the size is not known, Attr.Size is negative.
func (t *Tree) Reach(n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	return t.view.reach(n)
}

// Resolve returns the node at a path relative to the root, whose elements are separated by slashes. It does not follow
// symbolic links. It waits until the trees on the way are fetched, and for nothing else. Empty elements and "." are
// ignored.
func (t *Tree) Resolve(ctx context.Context, path string) (Node, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	return t.view.resolve(ctx, path)
}

// Parent returns the directory that contains a node. If a file has several names, Parent returns the directory of one
// of the names. The parent of the root is the root.
func (t *Tree) Parent(n Node) (Node, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	in, err := t.view.inode(n)
	return in.Parent, err
}

// Path returns the present path of a node, relative to the root; the path of the root is "". If a file has several
// names, Path returns the path of one of the names, or ErrNotExist if this name was removed. For a node without a name,
// it returns ErrNotExist.
func (t *Tree) Path(n Node) (path string, err error) {
	if !t.gate.enter() {
		return "", ErrClosed
	}
	defer t.gate.exit()
	return t.view.path(n)
}

// Readlink returns the target of a symbolic link. If the link is unchanged, Readlink waits until the blob of the link
// is fetched.
func (t *Tree) Readlink(ctx context.Context, n Node) ([]byte, error) {
	if !t.gate.enter() {
		return nil, ErrClosed
	}
	defer t.gate.exit()
	return t.contents.readlink(ctx, n)
}

// ReadDir calls the function emit for the entries of a directory that follow the position in the parameter from, until
// emit returns false. Positions stay valid while names are added, removed or replaced: an entry that exists during the
// whole listing is emitted exactly once.
func (t *Tree) ReadDir(ctx context.Context, dir Node, from uint64, emit func(Entry) bool) error {
	if !t.gate.enter() {
		return ErrClosed
	}
	defer t.gate.exit()
	return t.view.readDir(ctx, dir, from, emit)
}

// Find returns the state of a path, for a later call of Graft. It waits until the trees on the way are fetched, and for
// nothing else.
func (t *Tree) Find(ctx context.Context, path string) (Found, error) {
	if !t.gate.enter() {
		return Found{}, ErrClosed
	}
	defer t.gate.exit()
	return t.view.stateOf(ctx, path)
}

// Attr returns the attributes of a node. If the size of the contents is not known, Attr waits until the Source has
// determined it.
func (t *Tree) Attr(ctx context.Context, n Node) (Attr, error) {
	if !t.gate.enter() {
		return Attr{}, ErrClosed
	}
	defer t.gate.exit()
	return t.view.attr(ctx, n)
}

// KnownAttr returns the attributes of a node. It does not wait, and returns false if the size is not known.
func (t *Tree) KnownAttr(n Node) (Attr, bool) {
	if !t.gate.enter() {
		return Attr{}, false
	}
	defer t.gate.exit()
	in, err := t.view.inode(n)
	if err != nil {
		return Attr{}, false
	}
	a := t.base.Describe(in)
	return a, a.Size >= 0
}

// Read reads the contents of a file, from the offset off on, into p. At the end of the contents, it returns fewer than
// len(p) bytes and no error. If the contents have another size than an earlier call has returned, Read records the
// correct size and returns ErrResized. In this case, the caller must drop the old size from its caches and call Read
// again.
func (t *Tree) Read(ctx context.Context, n Node, p []byte, off int64) (int, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	if _, err := t.view.regular(n); err != nil {
		return 0, err
	}
	return t.contents.read(ctx, n, p, off)
}

// Seek returns the offset of the next data or hole, depending on whence (SEEK_DATA or SEEK_HOLE). It returns ENXIO if
// no data or no hole follows. An unchanged file has no holes.
func (t *Tree) Seek(ctx context.Context, n Node, off int64, whence int) (int64, error) {
	if !t.gate.enter() {
		return 0, ErrClosed
	}
	defer t.gate.exit()
	return t.contents.seek(ctx, n, off, whence)
}
