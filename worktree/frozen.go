package worktree

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// errUnread says that a base directory has not been looked into, which the answer needs.
var errUnread = errors.New("a directory was not read yet")

// freezing is a Freeze being made.
type freezing struct {
	tree    *Tree
	o       FreezeOptions
	skipped map[string]bool // what Skip said
	entries []FrozenEntry
	pins    []*overlay.Pin
	dirty   map[Node]bool // base directories that are not as they were, or have such a one below; nil: not known yet
	unread  Node          // with errUnread
}

func (t *Tree) freeze(ctx context.Context, token string, o FreezeOptions) (*Frozen, error) {
	for {
		z := &freezing{tree: t, o: o, skipped: make(map[string]bool)}
		f, err := z.run(token)
		if !errors.Is(err, errUnread) {
			return f, err
		}
		if _, err := t.children(ctx, z.unread); err != nil {
			return nil, err
		}
	}
}

func (z *freezing) run(token string) (*Frozen, error) {
	f := &Frozen{}
	var err error
	moment := func(m merged) {
		if !z.o.DryRun {
			select {
			case <-z.tree.noticed:
			default:
			}
		}
		var paths []string
		var known bool
		f.Token, paths, known = z.tree.journal.Since(token)
		f.Whole = !known
		if !known {
			paths = m.differing()
		}
		err = z.tell(m, paths)
	}
	switch {
	case z.tree.layer == nil, z.o.DryRun:
		z.tree.view(moment)
	default:
		f.Paused = z.tree.layer.Freeze(func(r overlay.Reader) { moment(merged{r, z.tree}) })
	}
	for _, p := range z.pins {
		f.release = append(f.release, p.Release)
	}
	if err != nil {
		f.Release()
		return nil, err
	}
	f.Entries = z.entries
	return f, nil
}

// differing lists the paths that are not what the base tree has: what is below a directory of the overlay's own is not
// listed.
func (m merged) differing() (paths []string) {
	var dirs []Node
	m.EachDir(func(dir Node) bool {
		if !dir.Own() {
			dirs = append(dirs, dir)
		}
		return true
	})
	for _, dir := range dirs {
		at, ok := m.path(dir)
		if !ok {
			continue // it was removed, and is open still
		}
		m.ReadDir(dir, 0, func(_ uint64, name string, _ Node, _ overlay.Presence) bool {
			paths = append(paths, joined(at, strings.Clone(name)))
			return true
		})
	}
	m.EachInode(func(in overlay.Inode) bool {
		r, ok := m.tree.table.record(in.Node)
		if !ok || r.kind.isDir() || m.unchanged(in, r) {
			return true
		}
		dir, name := Node(r.parent), m.tree.table.name(r)
		if _, p := m.Entry(dir, name); p != overlay.Unknown {
			return true
		}
		if at, ok := m.path(dir); ok {
			paths = append(paths, joined(at, strings.Clone(name)))
		}
		return true
	})
	return paths
}

// unchanged says whether a base file is, to git, what its record says.
func (m merged) unchanged(in overlay.Inode, r *record) bool {
	if in.Size != overlay.SizeOfBase || in.Mode&syscall.S_IFMT != mode(r.kind)&syscall.S_IFMT {
		return false
	}
	return r.kind == kindSymlink || (r.kind == kindExec) == (in.Mode&0o100 != 0)
}

// tell makes entries of what is at paths, of which those that end in a slash stand for all below.
func (z *freezing) tell(m merged, paths []string) error {
	for i, path := range paths {
		paths[i] = strings.TrimSuffix(path, "/")
	}
	slices.SortFunc(paths, comparePaths)
	told := "" // wholly, with all below
	for _, path := range paths {
		if path == "" || path == gitFile || strings.HasPrefix(path, gitFile+"/") || told != "" && isWithin(path, told) {
			continue
		}
		at, err := z.path(m, path)
		if err != nil {
			return err
		}
		told = at
	}
	return nil
}

// comparePaths orders paths by their elements.
func comparePaths(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] == b[i] {
			continue
		}
		x, y := int(a[i]), int(b[i])
		if a[i] == '/' {
			x = -1
		}
		if b[i] == '/' {
			y = -1
		}
		return x - y
	}
	return len(a) - len(b)
}

func isWithin(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}

// path tells what is at a path, or at the one above it that says so too, and gives the one that it told.
func (z *freezing) path(m merged, path string) (told string, err error) {
	dir := Root
	for end := 0; ; end++ {
		begin := end
		if i := strings.IndexByte(path[begin:], '/'); i >= 0 {
			end = begin + i
		} else {
			end = len(path)
		}
		at := path[:end]
		n, ok, err := z.child(m, dir, path[begin:end])
		if err != nil {
			return "", err
		}
		in, there := m.inode(n)
		if !ok || !there {
			z.entries = append(z.entries, FrozenEntry{Path: at, Kind: FrozenGone})
			return at, nil
		}
		if end == len(path) || !isDir(&in) || z.skips(at) || z.isNested(m, n) {
			return at, z.node(m, at, in)
		}
		dir = n
	}
}

// child finds a name in a directory.
func (z *freezing) child(m merged, dir Node, name string) (Node, bool, error) {
	switch n, p := m.Entry(dir, name); p {
	case overlay.Present:
		return n, true, nil
	case overlay.Hidden:
		return 0, false, nil
	}
	b, err := z.block(m, dir)
	if err != nil {
		return 0, false, err
	}
	n, ok := m.tree.table.search(b, name)
	return n, ok, nil
}

// block gives a directory's block, which must be known.
func (z *freezing) block(m merged, dir Node) (block, error) {
	r, ok := m.tree.table.record(dir)
	if !ok || r.kind != kindDir {
		return block{}, nil
	}
	b, ok := r.block()
	if !ok {
		z.unread = dir
		return block{}, errUnread
	}
	return b, nil
}

func (z *freezing) skips(dir string) bool {
	if z.o.Skip == nil {
		return false
	}
	skip, ok := z.skipped[dir]
	if !ok {
		skip = z.o.Skip(dir)
		z.skipped[dir] = skip
	}
	return skip
}

// isNested says whether a directory is the root of a repository of its own, or a submodule's.
func (z *freezing) isNested(m merged, dir Node) bool {
	if r, ok := m.tree.table.record(dir); ok && r.kind == kindGitlink {
		return true
	}
	if _, p := m.Entry(dir, gitFile); p == overlay.Present {
		return true
	}
	return false
}

// node tells what a node is at a path, and all that is below it.
func (z *freezing) node(m merged, path string, in overlay.Inode) error {
	e := FrozenEntry{Path: path}
	r, base := m.tree.table.record(in.Node)
	switch in.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return z.directory(m, e, in, r)
	case syscall.S_IFREG:
		e.Mode = object.ModeFile
		if in.Mode&0o100 != 0 {
			e.Mode = object.ModeExec
		}
		if base && in.Size == overlay.SizeOfBase {
			z.blob(&e, in.Node, r)
			break
		}
		e.Kind, e.Size = FrozenContent, in.Size
		if !z.o.DryRun && (z.o.MaxPinned <= 0 || in.Size <= z.o.MaxPinned) {
			p := m.tree.layer.Pin(in)
			z.pins = append(z.pins, p)
			e.Content = p
		}
	case syscall.S_IFLNK:
		e.Mode = object.ModeSymlink
		if base && in.Size == overlay.SizeOfBase {
			z.blob(&e, in.Node, r)
			break
		}
		target, _ := m.Target(in.Node)
		e.Kind, e.Target, e.Size = FrozenLink, strings.Clone(target), int64(len(target))
	default:
		e.Kind = FrozenOther
	}
	z.entries = append(z.entries, e)
	return nil
}

// blob makes an entry that of a base node's blob.
func (z *freezing) blob(e *FrozenEntry, n Node, r *record) {
	e.Kind, e.ID = FrozenBlob, r.objectID()
	e.Tree = z.tree.table.rec(z.tree.table.treeOf(n)).objectID()
	if from := z.tree.table.path(n); from != e.Path {
		e.From = from
	}
}

func (z *freezing) directory(m merged, e FrozenEntry, in overlay.Inode, r *record) error {
	n := in.Node
	switch {
	case r != nil && r.kind == kindGitlink:
		e.Kind, e.ID, e.Mode = FrozenModule, r.objectID(), object.ModeGitlink
		if present, _ := m.Entries(n); present > 0 {
			e.Kind = FrozenOther
		}
	case r != nil && !z.isDirty(m, n):
		e.Kind, e.ID, e.Mode = FrozenTree, r.objectID(), object.ModeDir
		e.Tree = z.tree.table.rec(z.tree.table.treeOf(n)).objectID()
		if from := z.tree.table.path(n); from != e.Path {
			e.From = from
		}
	case z.isNested(m, n):
		e.Kind = FrozenOther
	case z.skips(e.Path):
		e.Kind = FrozenSkipped
	default:
		e.Kind, e.Mode = FrozenDir, object.ModeDir
		z.entries = append(z.entries, e)
		return z.below(m, e.Path, n)
	}
	z.entries = append(z.entries, e)
	return nil
}

// below tells what is in a directory.
func (z *freezing) below(m merged, path string, dir Node) error {
	b, err := z.block(m, dir)
	if err != nil {
		return err
	}
	type child struct {
		name string
		in   overlay.Inode
	}
	present, hidden := m.Entries(dir)
	children := make([]child, 0, b.count+present)
	for n := b.first; n < b.first+Node(b.count); n++ {
		name := m.tree.table.name(m.tree.table.rec(n))
		if present+hidden > 0 {
			if _, p := m.Entry(dir, name); p != overlay.Unknown {
				continue
			}
		}
		if in, ok := m.inode(n); ok {
			children = append(children, child{name, in})
		}
	}
	m.ReadDir(dir, 0, func(_ uint64, name string, n Node, p overlay.Presence) bool {
		if in, ok := m.inode(n); p == overlay.Present && ok {
			children = append(children, child{strings.Clone(name), in})
		}
		return true
	})
	slices.SortFunc(children, func(a, b child) int { return strings.Compare(a.name, b.name) })
	for _, c := range children {
		if err := z.node(m, joined(path, c.name), c.in); err != nil {
			return err
		}
	}
	return nil
}

// isDirty says whether a base directory, with all that is below it, is not what its tree says.
func (z *freezing) isDirty(m merged, n Node) bool {
	if z.dirty == nil {
		z.dirty = m.dirty()
	}
	return z.dirty[n]
}

func (m merged) dirty() map[Node]bool {
	dirty := make(map[Node]bool)
	mark := func(n Node) {
		for !dirty[n] {
			dirty[n] = true
			in, ok := m.inode(n)
			if !ok || n == Root || in.Parent == n {
				return
			}
			n = in.Parent
		}
	}
	m.EachDir(func(dir Node) bool {
		mark(dir)
		return true
	})
	m.EachInode(func(in overlay.Inode) bool {
		if r, ok := m.tree.table.record(in.Node); ok && !r.kind.isDir() && !m.unchanged(in, r) {
			mark(Node(r.parent))
		}
		return true
	})
	return dirty
}
