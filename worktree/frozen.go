package worktree

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// errUnread is returned if the tree of a base directory must be read first (freezing.unread).
var errUnread = errors.New("a directory was not read yet")

// freezing is a Freeze in progress. It first lists the changed paths while requests continue, one directory at a time.
// Then, at the moment of the freeze, it lists again the paths that changed meanwhile. The journal returns them: every path
// that was listed too early, or partly before and partly after a change, is on record behind the position that was returned
// first.
type freezing struct {
	view    *view
	changes *recorder
	o       FreezeOptions
	moment  *merged         // working tree at the moment of the freeze; nil before
	skipped map[string]bool // cached results of FreezeOptions.Skip
	dirty   map[Node]bool   // base directories that differ from their tree, or have such a directory below; nil: not computed
	unread  Node            // the directory to read after errUnread

	entries []FrozenEntry  // entries of this round
	pins    []*overlay.Pin // pins of the contents of these entries
	told    []string       // paths that the entries describe completely, sorted
}

// Limits of the work of a freeze.
const (
	// rounds is the maximum number of times that changed paths are listed before the moment of the freeze.
	rounds = 4
	// little is the number of paths that may be listed while requests wait. If more have changed, another round lists them
	// before the moment of the freeze.
	little = 100
	// glance is the number of names that are read in one view, so that changes need not wait long for it.
	glance = 2048
)

// freeze implements Tree.Freeze.
func freeze(ctx context.Context, changes *recorder, token string, o FreezeOptions) (*Frozen, error) {
	z := &freezing{view: changes.view, changes: changes, o: o, skipped: make(map[string]bool)}
	f := &Frozen{}
	err := z.run(ctx, token, f)
	if err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

// run sets the fields of f. Only the last round lists paths as of the moment of the freeze; a DryRun skips that round.
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
		if z.o.DryRun || z.view.layer == nil {
			return nil
		}
		if n == rounds || !z.changes.journal.Longer(f.Token, little) {
			break
		}
		// The paths must be listed now: since has advanced the position, so that no later query returns them.
		if paths, known = z.since(f.Token, f); !known {
			f.Token = "" // the last round then lists everything again
			break
		}
	}
	token = f.Token
	return z.round(ctx, f, func() (err error) {
		paused := z.view.layer.Freeze(func(r overlay.Reader) {
			select {
			case <-z.changes.noticed:
			default:
			}
			f.at = coarseNow()
			z.moment = &merged{r, z.view.base}
			paths, known := z.since(token, f)
			if !known { // more has changed than the journal holds, or there is no journal
				f.Whole, f.Entries, paths = true, nil, z.differing()
			}
			err = z.tell(f.Entries, paths)
		})
		z.moment, f.Paused = nil, max(f.Paused, paused)
		return err
	})
}

// since returns the paths that changed since a journal position, and sets f.Token to the next position.
func (z *freezing) since(token string, f *Frozen) (paths []string, known bool) {
	f.Token, paths, known = z.changes.since(token)
	return paths, known
}

// round calls tell and merges its entries into those of f. If tell returns errUnread, round waits for the directory's tree,
// without a lock, and calls tell again.
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
		if _, err := z.view.children(ctx, z.unread); err != nil {
			return err
		}
	}
}

// look calls f with the working tree as of the moment of the freeze or, before that moment, with the present working tree.
func (z *freezing) look(f func(m merged)) {
	if z.moment != nil {
		f(*z.moment)
		return
	}
	z.view.look(f)
}

// differing returns the paths that differ from the base tree. It does not list paths below an own directory, because the
// entry of that directory includes them.
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
			r, ok := m.base.Table.Record(in.Node)
			if !ok || r.Kind().IsDir() || m.unchanged(in, r) {
				return true
			}
			dir, name := r.Dir(), m.base.Table.Name(r)
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
				return // the directory was removed and is still open
			}
			m.ReadDir(dir, 0, func(_ uint64, name string, _ Node, _ overlay.Presence) bool {
				paths = append(paths, joined(at, strings.Clone(name)))
				return true
			})
		})
	}
	return paths
}

// unchanged reports whether a base file is unchanged for git, because its contents, type and executable bit are those of its
// record.
func (m merged) unchanged(in overlay.Inode, r *inode.Record) bool {
	if in.Size != overlay.SizeOfBase || in.Mode&syscall.S_IFMT != r.Kind().StatMode()&syscall.S_IFMT {
		return false
	}
	return r.Kind() == inode.KindSymlink || (r.Kind() == inode.KindExec) == (in.Mode&0o100 != 0)
}

// tell adds the entries of the paths to z.entries. before is the entries of the earlier rounds. A path that ends in a slash
// stands for everything below it. A path below a directory that an earlier entry describes completely is replaced by that
// directory. tell returns errUnread if a tree must be read first.
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

// seen is a copy of those fields of an inode that an entry needs. It stays valid after the view in which it was made.
type seen struct {
	name    string
	node    Node
	mode    uint32
	size    int64
	content uint64 // number of the contents in the overlay
	target  string // target of a symbolic link that the overlay stores
	nested  bool   // directory that contains a repository of its own
	filled  bool   // directory to which names were added
}

// sight returns a copy of the state of a node, which stays valid after the view. It returns false if the node does not exist.
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

// path adds the entry of a path. If an element above the path does not exist, is not a directory or is not listed (isClosed),
// path adds the entry of that element instead, because that entry determines the state of the path. It returns the path of the
// added entry.
func (z *freezing) path(path string) (told string, err error) {
	var s seen
	var there bool
	var perm uint32 // permissions of the last directory on the way
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

// isClosed reports whether a freeze does not list the contents of a directory: a submodule, a nested repository, or one
// that Skip selects.
func (z *freezing) isClosed(path string, s seen) bool {
	r, base := z.view.base.Table.Record(s.node)
	return base && r.Kind() == inode.KindGitlink || s.nested || z.skips(path)
}

// child looks up a name in a directory. It returns errUnread if the directory's tree was not read yet.
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
	n, ok := m.base.Table.Search(b, name)
	return n, ok, nil
}

// block returns the block of a directory, or errUnread if its tree was not read yet.
func (z *freezing) block(dir Node) (inode.Block, error) {
	r, ok := z.view.base.Table.Record(dir)
	if !ok || r.Kind() != inode.KindDir {
		return inode.Block{}, nil
	}
	b, ok := r.Block()
	if !ok {
		z.unread = dir
		return inode.Block{}, errUnread
	}
	return b, nil
}

// skips reports whether Skip selects a directory. Skip is called once for each directory, so that all rounds use the same
// answer.
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

// node adds the entry of a node at a path and, for a directory, the entries of everything below it. It pins contents that may
// be read later.
func (z *freezing) node(path string, s seen) error {
	e := FrozenEntry{Path: path}
	r, base := z.view.base.Table.Record(s.node)
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
			p := z.view.layer.Pin(overlay.Inode{Content: s.content, Size: s.size})
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

// ofTree makes e the entry of an object that a base node shows unchanged.
func (z *freezing) ofTree(e *FrozenEntry, kind FrozenKind, n Node, r *inode.Record) {
	e.Kind, e.ID = kind, r.ObjectID()
	e.Tree = z.view.base.Table.At(z.view.base.Table.TreeOf(n)).ObjectID()
	if from := z.view.base.Table.Path(n); from != e.Path {
		e.From = from
	}
}

// directory adds the entry of a directory. An unchanged base directory is one entry; a changed one is listed.
func (z *freezing) directory(e FrozenEntry, s seen, r *inode.Record) error {
	switch {
	case r != nil && r.Kind() == inode.KindGitlink:
		e.Kind, e.ID, e.Mode = FrozenModule, r.ObjectID(), object.ModeGitlink
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

// below adds the entries of everything in a directory.
func (z *freezing) below(path string, dir Node) error {
	b, err := z.block(dir)
	if err != nil {
		return err
	}
	var list []seen
	for n, end := b.First, b.First+Node(b.Count); n < end; {
		z.look(func(m merged) {
			present, hidden := m.Entries(dir)
			for last := min(n+glance, end); n < last; n++ {
				name := m.base.Table.Name(m.base.Table.At(n))
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
		// A name that was renamed between two views may be listed twice. The rename is in the change journal, so the next round
		// lists the name again.
		if i > 0 && list[i-1].name == s.name {
			continue
		}
		if err := z.node(joined(path, s.name), s); err != nil {
			return err
		}
	}
	return nil
}

// isDirty reports whether a base directory, or anything below it, differs from its tree.
func (z *freezing) isDirty(n Node) bool {
	if z.dirty == nil {
		z.look(func(m merged) { z.dirty = m.dirty() })
	}
	return z.dirty[n]
}

// dirty returns the directories that differ from the base tree, with all directories above them.
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
		if r, ok := m.base.Table.Record(in.Node); ok && !r.Kind().IsDir() && !m.unchanged(in, r) {
			mark(r.Dir())
		}
		return true
	})
	return dirty
}
