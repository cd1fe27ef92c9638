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

// freezing is a Freeze being made. What changed is told first without anybody waiting, a directory at a time, while
// others go on; then, at the moment of the freeze, what has changed meanwhile is told once more. The journal says what that
// is: whatever was told too early, or of two moments, is on record behind the token that was given before.
type freezing struct {
	tree    *Tree
	o       FreezeOptions
	moment  *merged         // nil before the moment
	skipped map[string]bool // what Skip said
	dirty   map[Node]bool   // base directories that are not as they were, or have such a one below; nil: not known yet
	unread  Node            // with errUnread

	entries []FrozenEntry // of this round
	pins    []*overlay.Pin
	told    []string // what they say wholly, sorted
}

const (
	// rounds is how often what changed meanwhile is told without anybody waiting, if it is much.
	rounds = 4
	// little is how many paths may be told while others wait.
	little = 100
	// glance is how many names are looked at before others have their turn.
	glance = 2048
)

func (t *Tree) freeze(ctx context.Context, token string, o FreezeOptions) (*Frozen, error) {
	z := &freezing{tree: t, o: o, skipped: make(map[string]bool)}
	f := &Frozen{}
	err := z.run(ctx, token, f)
	if err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

func (z *freezing) run(ctx context.Context, token string, f *Frozen) error {
	paths, known := z.since(token, f)
	f.Whole = !known
	if !known {
		paths = z.differing()
	}
	for n := 1; ; n++ {
		if err := z.round(ctx, f, func() error { return z.tell(f.Entries, paths) }); err != nil {
			return err
		}
		if z.o.DryRun || z.tree.layer == nil {
			return nil
		}
		if n == rounds || !z.tree.journal.Longer(f.Token, little) {
			break
		}
		// What is asked for here has to be told: nobody else will be.
		if paths, known = z.since(f.Token, f); !known {
			f.Token = "" // and so all is told once more
			break
		}
	}
	token = f.Token
	return z.round(ctx, f, func() (err error) {
		paused := z.tree.layer.Freeze(func(r overlay.Reader) {
			select {
			case <-z.tree.noticed:
			default:
			}
			f.at = coarseNow()
			z.moment = &merged{r, z.tree}
			paths, known := z.since(token, f)
			if !known { // more has changed than the journal holds, or there is none
				f.Whole, f.Entries, paths = true, nil, z.differing()
			}
			err = z.tell(f.Entries, paths)
		})
		z.moment, f.Paused = nil, max(f.Paused, paused)
		return err
	})
}

// since asks the journal, from now on with the token that f gets.
func (z *freezing) since(token string, f *Frozen) (paths []string, known bool) {
	f.Token, paths, known = z.tree.since(token)
	return paths, known
}

// round has something told, again if a directory must be read for it, and puts it in its place among the rest.
func (z *freezing) round(ctx context.Context, f *Frozen, tell func() error) error {
	for {
		z.entries, z.told, z.dirty = nil, nil, nil
		err := tell()
		for _, p := range z.pins {
			f.release = append(f.release, p.Release)
		}
		z.pins = z.pins[:0]
		if err == nil {
			f.Entries = merge(f.Entries, z.entries, z.told)
			return nil
		}
		if !errors.Is(err, errUnread) {
			return err
		}
		if _, err := z.tree.children(ctx, z.unread); err != nil {
			return err
		}
	}
}

// look calls f with the tree as it is at the moment, or before that as it is just then.
func (z *freezing) look(f func(m merged)) {
	if z.moment != nil {
		f(*z.moment)
		return
	}
	z.tree.view(f)
}

// differing lists the paths that are not what the base tree has: what is below a directory of the overlay's own is not
// listed.
func (z *freezing) differing() (paths []string) {
	var dirs []Node
	z.look(func(m merged) {
		m.EachDir(func(dir Node) bool {
			if !dir.Own() {
				dirs = append(dirs, dir)
			}
			return true
		})
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
	})
	for _, dir := range dirs {
		z.look(func(m merged) {
			at, ok := m.path(dir)
			if !ok {
				return // it was removed, and is open still
			}
			m.ReadDir(dir, 0, func(_ uint64, name string, _ Node, _ overlay.Presence) bool {
				paths = append(paths, joined(at, strings.Clone(name)))
				return true
			})
		})
	}
	return paths
}

// unchanged reports whether a base file is, to git, what its record says.
func (m merged) unchanged(in overlay.Inode, r *record) bool {
	if in.Size != overlay.SizeOfBase || in.Mode&syscall.S_IFMT != mode(r.kind)&syscall.S_IFMT {
		return false
	}
	return r.kind == kindSymlink || (r.kind == kindExec) == (in.Mode&0o100 != 0)
}

// tell makes entries of what is at paths, of which those that end in a slash stand for all below. Below what was told before
// as a whole, all of that is told again.
func (z *freezing) tell(before []FrozenEntry, paths []string) error {
	for i, path := range paths {
		paths[i] = outermost(before, strings.TrimSuffix(path, "/"))
	}
	slices.SortFunc(paths, comparePaths)
	for _, path := range paths {
		if path == "" || isWithin(path, gitFile) || len(z.told) > 0 && isWithin(path, z.told[len(z.told)-1]) {
			continue
		}
		at, err := z.path(path)
		if err != nil {
			return err
		}
		z.told = append(z.told, at)
	}
	return nil
}

// seen is what a name is, as far as an entry needs it.
type seen struct {
	name    string
	node    Node
	mode    uint32
	size    int64
	content uint64
	target  string // of a link of the overlay's
	nested  bool   // it is a directory with a repository of its own
	filled  bool   // something was put into a directory
}

// sight looks at a node.
func (m merged) sight(name string, n Node) (seen, bool) {
	in, ok := m.inode(n)
	if !ok {
		return seen{}, false
	}
	s := seen{name: name, node: n, mode: in.Mode, size: in.Size, content: in.Content}
	switch in.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		present, _ := m.Entries(n)
		s.filled = present > 0
		if s.filled {
			_, p := m.Entry(n, gitFile)
			s.nested = p == overlay.Present
		}
	case syscall.S_IFLNK:
		if in.Size != overlay.SizeOfBase {
			target, _ := m.Target(n)
			s.target = strings.Clone(target)
		}
	}
	return s, true
}

// path tells what is at a path, or at the one above it that says so too, and gives the one that it told.
func (z *freezing) path(path string) (told string, err error) {
	var s seen
	var there bool
	var perm uint32 // of the last directory on the way
	z.look(func(m merged) {
		dir := Root
		if in, ok := m.inode(dir); ok {
			perm = in.Mode & 0o7777
		}
		for end := 0; ; end++ {
			begin := end
			if i := strings.IndexByte(path[begin:], '/'); i >= 0 {
				end = begin + i
			} else {
				end = len(path)
			}
			told = path[:end]
			var n Node
			if n, there, err = z.child(m, dir, path[begin:end]); err != nil {
				return
			}
			if there {
				s, there = m.sight("", n)
			}
			if !there || end == len(path) || s.mode&syscall.S_IFMT != syscall.S_IFDIR || z.isClosed(told, s) {
				return
			}
			dir, perm = n, s.mode&0o7777
		}
	})
	if err != nil {
		return "", err
	}
	if !there {
		z.entries = append(z.entries, FrozenEntry{Path: told, Kind: FrozenGone, Perm: perm})
		return told, nil
	}
	return told, z.node(told, s)
}

// isClosed reports whether nobody wants to know what is in a directory.
func (z *freezing) isClosed(path string, s seen) bool {
	r, base := z.tree.table.record(s.node)
	return base && r.kind == kindGitlink || s.nested || z.skips(path)
}

// child finds a name in a directory.
func (z *freezing) child(m merged, dir Node, name string) (Node, bool, error) {
	switch n, p := m.Entry(dir, name); p {
	case overlay.Present:
		return n, true, nil
	case overlay.Hidden:
		return 0, false, nil
	}
	b, err := z.block(dir)
	if err != nil {
		return 0, false, err
	}
	n, ok := m.tree.table.search(b, name)
	return n, ok, nil
}

// block returns a directory's block, which must be known.
func (z *freezing) block(dir Node) (block, error) {
	r, ok := z.tree.table.record(dir)
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

// node tells what is at a path, and all that is below it.
func (z *freezing) node(path string, s seen) error {
	e := FrozenEntry{Path: path}
	r, base := z.tree.table.record(s.node)
	ofBase := base && s.size == overlay.SizeOfBase
	switch s.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return z.directory(e, s, r)
	case syscall.S_IFREG:
		e.Mode = object.ModeFile
		if s.mode&0o100 != 0 {
			e.Mode = object.ModeExec
		}
		if ofBase {
			z.ofTree(&e, FrozenBlob, s.node, r)
			break
		}
		e.Kind, e.Size = FrozenContent, s.size
		if !z.o.DryRun && (z.o.MaxPinned <= 0 || s.size <= z.o.MaxPinned) {
			p := z.tree.layer.Pin(overlay.Inode{Content: s.content, Size: s.size})
			z.pins = append(z.pins, p)
			e.Content = p
		}
	case syscall.S_IFLNK:
		e.Mode = object.ModeSymlink
		if ofBase {
			z.ofTree(&e, FrozenBlob, s.node, r)
			break
		}
		e.Kind, e.Target, e.Size = FrozenLink, s.target, int64(len(s.target))
	default:
		e.Kind = FrozenOther
	}
	z.entries = append(z.entries, e)
	return nil
}

// ofTree makes an entry that of what a base node is in its tree.
func (z *freezing) ofTree(e *FrozenEntry, kind FrozenKind, n Node, r *record) {
	e.Kind, e.ID = kind, r.objectID()
	e.Tree = z.tree.table.rec(z.tree.table.treeOf(n)).objectID()
	if from := z.tree.table.path(n); from != e.Path {
		e.From = from
	}
}

func (z *freezing) directory(e FrozenEntry, s seen, r *record) error {
	switch {
	case r != nil && r.kind == kindGitlink:
		e.Kind, e.ID, e.Mode = FrozenModule, r.objectID(), object.ModeGitlink
		if s.filled {
			e.Kind = FrozenOther
		}
	case r != nil && !z.isDirty(s.node):
		e.Mode, e.Perm = object.ModeDir, s.mode&0o7777
		z.ofTree(&e, FrozenTree, s.node, r)
	case s.nested:
		e.Kind = FrozenOther
	case z.skips(e.Path):
		e.Kind = FrozenSkipped
	default:
		e.Kind, e.Mode, e.Perm = FrozenDir, object.ModeDir, s.mode&0o7777
		z.entries = append(z.entries, e)
		return z.below(e.Path, s.node)
	}
	z.entries = append(z.entries, e)
	return nil
}

// below tells what is in a directory.
func (z *freezing) below(path string, dir Node) error {
	b, err := z.block(dir)
	if err != nil {
		return err
	}
	var list []seen
	for n, end := b.first, b.first+Node(b.count); n < end; {
		z.look(func(m merged) {
			present, hidden := m.Entries(dir)
			for last := min(n+glance, end); n < last; n++ {
				name := m.tree.table.name(m.tree.table.rec(n))
				if present+hidden > 0 {
					if _, p := m.Entry(dir, name); p != overlay.Unknown {
						continue
					}
				}
				if s, ok := m.sight(name, n); ok {
					list = append(list, s)
				}
			}
		})
	}
	for after, more := uint64(0), true; more; {
		z.look(func(m merged) {
			left := glance
			more = false
			m.ReadDir(dir, after, func(cookie uint64, name string, n Node, p overlay.Presence) bool {
				if more = left == 0; more {
					return false
				}
				left--
				after = cookie
				if p == overlay.Present {
					if s, ok := m.sight(strings.Clone(name), n); ok {
						list = append(list, s)
					}
				}
				return true
			})
		})
	}
	slices.SortFunc(list, func(a, b seen) int { return strings.Compare(a.name, b.name) })
	for i, s := range list {
		// What was renamed between two looks may be here twice; it is told again anyway.
		if i > 0 && list[i-1].name == s.name {
			continue
		}
		if err := z.node(joined(path, s.name), s); err != nil {
			return err
		}
	}
	return nil
}

// isDirty reports whether a base directory, with all that is below it, is not what its tree says.
func (z *freezing) isDirty(n Node) bool {
	if z.dirty == nil {
		z.look(func(m merged) { z.dirty = m.dirty() })
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
