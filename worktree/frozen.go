package worktree

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// errUnread means that the git tree of a directory must be fetched before the directory can be listed. freezing.unread
// is the directory.
var errUnread = errors.New("git tree of a directory was not fetched yet")

// freezing is a Freeze in progress. It first lists the changed paths, one directory at a time, while requests continue.
// At the moment of the freeze, it lists those paths again that have changed in the meantime. The change journal returns
// these paths, because every path that changes during or after its listing is recorded behind the journal position at
// which the first listing began.
type freezing struct {
	view    *view
	changes *recorder
	o       FreezeOptions
	moment  *merged         // working tree at the moment of the freeze; nil before
	skipped map[string]bool // cached results of FreezeOptions.Skip
	// dirty is the set of base directories in which something differs from the base tree, at any depth; nil until
	// computed.
	dirty  map[Node]bool
	unread Node // directory whose tree must be fetched after errUnread was returned

	entries []FrozenEntry  // entries found in the current round; round merges them into Frozen.Entries
	pins    []*overlay.Pin // pins of the contents of these entries
	told    []string       // sorted paths that are completely described by the entries of the current round
}

// These constants limit how much is listed while requests wait for a freeze.
const (
	// rounds is the maximum number of times that changed paths are listed before the moment of the freeze.
	rounds = 4
	// little is the number of changed paths that may be listed at the moment of the freeze, while requests wait. If more
	// paths have changed, another round lists them first, while requests continue.
	little = 100
	// glance is the maximum number of names that are read at a time under the overlay's lock, so that changes do not wait
	// long for the lock.
	glance = 2048
)

// freeze implements Tree.Freeze: it returns the differences since the journal position token.
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

// run sets the fields of f. The last round lists paths at the moment of the freeze; a DryRun has no such round.
func (z *freezing) run(ctx context.Context, token string, f *Frozen) error {
	paths, known := z.since(token, f)
	f.Whole = !known
	if !known {
		paths = z.differing()
	}
	for n := 1; ; n++ {
		if err := z.round(ctx, f, func() error { return z.addEntries(f.Entries, paths) }); err != nil {
			return err
		}
		if z.o.DryRun || z.view.layer == nil {
			return nil
		}
		if n == rounds || !z.changes.journal.Longer(f.Token, little) {
			break
		}
		// These paths must be listed now: z.since has advanced the journal position, so a later query does not return them
		// again.
		if paths, known = z.since(f.Token, f); !known {
			f.Token = "" // an invalid position makes the last round list everything again
			break
		}
	}
	token = f.Token
	return z.round(ctx, f, func() (err error) {
		paused := z.atMoment(func(r overlay.Reader) bool {
			select {
			case <-z.changes.noticed:
			default:
			}
			f.at = overlay.Now()
			z.moment = &merged{r, z.view.base}
			paths, known := z.since(token, f)
			if !known { // the journal no longer contains all changes since the position, or there is no journal
				f.Whole, f.Entries, paths = true, nil, z.differing()
			}
			err = z.addEntries(f.Entries, paths)
			return err == nil
		})
		z.moment, f.Paused = nil, max(f.Paused, paused)
		return err
	})
}

// since returns the paths that have changed since the journal position token, and sets f.Token to the next position.
// known is false if the journal does not contain all changes since this position.
func (z *freezing) since(token string, f *Frozen) (paths []string, known bool) {
	f.Token, paths, known = z.changes.since(token)
	return paths, known
}

// round calls the function tell, which lists entries, and merges the new entries into f.Entries. If tell returns
// errUnread, round waits until the missing tree is fetched, without holding a lock, and calls tell again.
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

// look calls f with the working tree: at the moment of the freeze with the frozen state, before that moment with the
// present state.
func (z *freezing) look(f func(m merged)) {
	if z.moment != nil {
		f(*z.moment)
		return
	}
	z.view.look(f)
}

// differing returns the paths that differ from the base tree. A directory that was created in the mount is listed
// without the paths below it.
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
				return // the directory was removed, but a program still has it open
			}
			m.ReadDir(dir, 0, func(_ uint64, name string, _ Node, _ overlay.Presence) bool {
				paths = append(paths, joined(at, strings.Clone(name)))
				return true
			})
		})
	}
	return paths
}

// unchanged reports whether git would consider a file of the base tree unchanged, because its contents, type and
// executable bit are those of r, the file's record in the inode table.
func (m merged) unchanged(in overlay.Inode, r *inode.Record) bool {
	if in.Size != overlay.SizeOfBase || in.Mode&syscall.S_IFMT != m.base.Mode(r.Kind())&syscall.S_IFMT {
		return false
	}
	return r.Kind() == inode.KindSymlink || (r.Kind() == inode.KindExec) == (in.Mode&0o100 != 0)
}

// addEntries adds the entries for the given paths to z.entries. The slice before contains the entries of earlier
// rounds. A path that ends in a slash stands for everything below it. If an earlier entry describes a directory
// completely, paths below that directory are replaced by the directory. addEntries returns errUnread if a tree must be
// fetched first.
func (z *freezing) addEntries(before []FrozenEntry, paths []string) error {
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

// seen is a copy of the fields of an inode that are needed for an entry. It stays valid after the overlay's lock is
// released.
type seen struct {
	name    string
	node    Node
	mode    uint32
	size    int64
	content uint64 // the overlay's number for the contents
	target  string // target of a symbolic link that the overlay stores
	nested  bool   // true if the directory contains a git repository
	filled  bool   // true if the overlay has added names to the directory
}

// sight returns a copy of the state of node n, which can be used after the overlay's lock is released. name is copied
// to the result. sight returns false if the node does not exist.
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

// path adds the entry for a path. If a directory above the path does not exist, is not a directory, or is not listed
// (see isClosed), path adds the entry for that directory instead, because it determines the state of the path. path
// returns the path of the added entry.
func (z *freezing) path(path string) (told string, err error) {
	var s seen
	var there bool
	var perm uint32 // permissions of the last directory that exists above the path
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

// child returns the node with the given name in a directory, and false if the name does not exist. It returns errUnread
// if the directory's tree must be fetched first.
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

// block returns the children that a directory has in the base tree. It returns errUnread if the directory's tree must
// be fetched first.
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

// node adds the entry for a node at a path. For a directory, it also adds the entries for everything below it. It pins
// contents that are stored in the overlay, so that they can be read later.
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

// ofTree sets the fields of e for an unchanged object of a git tree, which the node n shows. kind is the kind of the
// entry.
func (z *freezing) ofTree(e *FrozenEntry, kind FrozenKind, n Node, r *inode.Record) {
	e.Kind, e.ID = kind, r.ObjectID()
	e.Tree = z.view.base.Table.At(z.view.base.Table.TreeOf(n)).ObjectID()
	if from := z.view.base.Table.Path(n); from != e.Path {
		e.From = from
	}
}

// directory adds the entries for a directory. An unchanged base directory is one entry; of a changed directory, all
// contents are listed.
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
	case z.isNested(e.Path, s):
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

// below adds the entries for all files and directories in the directory dir.
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
		// The lock is released between two reads, so a name that was renamed may be listed twice. The change journal contains
		// the rename, so the next round lists the name again.
		if i > 0 && list[i-1].name == s.name {
			continue
		}
		if err := z.node(joined(path, s.name), s); err != nil {
			return err
		}
	}
	return nil
}

// isDirty reports whether a directory of the base tree, or anything below it, differs from the base tree.
func (z *freezing) isDirty(n Node) bool {
	if z.dirty == nil {
		z.look(func(m merged) { z.dirty = m.dirty() })
	}
	return z.dirty[n]
}

// dirty returns the directories in which something differs from the base tree, and all directories above them.
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
