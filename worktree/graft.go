package worktree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// A graft gives paths the blobs of another tree without reading any: the overlay gets an entry and an inode for each,
// whose node is one of a further root of that tree (roots.go), so that it is to everybody what an untouched file of
// the base is. Where the base has the same blob at the same path, that node gets its place back, and the overlay no
// longer has an entry.
//
// What changes gets the present time, a file that comes back too: what a build made of the other contents is older.
//
// Nothing of a graft is atomic but each path. Every path is on record in the change journal before the first is
// changed, so that whoever is interrupted has a tree of which git says the truth, and doing the same again ends it.

// Graft returns what a path is to be.
type Graft struct {
	Path string      // relative to the root
	Mode object.Mode // of a blob, of a submodule, which is an empty directory, or ModeDir, of an empty directory; 0: nothing is to be there
	Perm uint32      // permissions of a ModeDir; 0: 0755
	ID   object.ID
	// Over is what the caller found there and may be replaced. If it is something else by now, the path is left as it is.
	Over Found
}

// Found is what is at a path. The zero Found is nothing.
type Found struct {
	Node Node
	Mode uint32 // as in Attr
	// Blob is what an unchanged file or link of some tree shows: what checkout has made of this blob at this very path.
	// The zero ID: it has contents of its own, or was made for another path. Exec is the mode that it was made with.
	Blob object.ID
	Exec bool

	ctime, size int64
	content     uint64
}

// Grafted is what became of a Graft.
type Grafted struct {
	Attr Attr // of what is at the path now; Node 0: nothing. The size may be unknown
	Kept bool // something else was there: it is left as it was
}

// Place is a name in a directory.
type Place struct {
	Dir  Node
	Name string
}

// Stale is what a kernel may know wrong after a graft.
type Stale struct {
	Places []Place
	Nodes  []Node        // whose attributes changed
	Dirs   map[Node]bool // of these, directories
}

// grafts is how many paths are changed at a time: readers wait for that long.
const grafts = 256

// Find tells what is at a path, waiting for directories only.
func (t *Tree) Find(ctx context.Context, path string) (Found, error) {
	if !t.gate.enter() {
		return Found{}, ErrClosed
	}
	defer t.gate.leave()
	dir, name, err := t.above(ctx, path)
	var b block
	if err == nil {
		b, err = t.children(ctx, dir)
	}
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDir) {
		return Found{}, nil
	} else if err != nil {
		return Found{}, err
	}
	var f Found
	t.view(func(m merged) { f = m.found(dir, b, name, path) })
	return f, nil
}

// above returns the directory that a path is in, and its name there.
func (t *Tree) above(ctx context.Context, at string) (dir Node, name string, err error) {
	dir, name = Root, at
	for {
		first, rest, more := strings.Cut(name, "/")
		if !more {
			return dir, name, nil
		}
		in, err := t.find(ctx, dir, first)
		if err != nil {
			return 0, "", err
		}
		dir, name = in.Node, rest
	}
}

func (m merged) found(dir Node, b block, name, path string) (f Found) {
	n, ok := m.entry(dir, b, name)
	if !ok {
		return f
	}
	in, ok := m.inode(n)
	if !ok {
		return f
	}
	f = Found{Node: n, Mode: in.Mode, ctime: in.Ctime, size: in.Size, content: in.Content}
	r, base := m.tree.table.record(n)
	if base && !r.kind.isDir() && in.Size == overlay.SizeOfBase && m.tree.table.path(n) == path {
		f.Blob, f.Exec = r.objectID(), r.kind == kindExec
	}
	return f
}

// GraftResult is what became of grafts. After an error it holds what was done.
type GraftResult struct {
	Done []Grafted // one for each Graft
	// Since is what differs since the token that was given, up to a moment at which all paths were noted and none was
	// changed: whoever asks with its token hears of a path again only if somebody else changed it.
	Since Changes
	Stale Stale
}

// Graft makes paths show blobs of the tree with this root. It waits for the trees of that root that have one of the
// paths, and for no content. A path must not have what is not to be there above it, and nothing may lie below one that is
// to become a file but what the same call removes. Directories that a removal leaves empty go with it. With an error,
// some of it may be done.
func (t *Tree) Graft(ctx context.Context, tree object.ID, list []Graft, token string) (r GraftResult, err error) {
	if !t.gate.enter() {
		return r, ErrClosed
	}
	defer t.gate.leave()
	if t.sealed() {
		return r, syscall.EROFS
	}
	paths := make([]string, len(list))
	for i, p := range list {
		paths[i] = p.Path
	}
	t.notePaths(paths)()
	if r.Since, err = t.Changes(token); err != nil {
		return r, err
	}
	g := &grafting{
		tree: t, id: tree, done: make([]Grafted, len(list)), dirs: map[string]graftDir{}, chosen: map[string]Node{},
		stale: map[Node]bool{}, listings: map[Node]bool{}, dropped: map[Node]int64{},
	}
	for _, n := range t.table.rootsOf(tree) {
		if n != Root {
			g.roots = append(g.roots, graftRoot{n, map[string]block{}})
		}
	}
	if err = g.run(ctx, list); err != nil {
		err = fmt.Errorf("graft %s: %w", tree, err)
	}
	r.Done, r.Stale = g.done, Stale{g.places, slices.Sorted(maps.Keys(g.stale)), g.listings}
	return r, err
}

// grafting is a Graft being made.
type grafting struct {
	tree *Tree
	id   object.ID // of the tree that the blobs are of

	done   []Grafted
	roots  []graftRoot
	chosen map[string]Node     // that of its tree, for the paths that the base's own nodes do not serve
	dirs   map[string]graftDir // of the mount, by path
	places []Place
	stale  map[Node]bool // nodes whose attributes changed

	listings map[Node]bool // of them, directories

	dropped map[Node]int64 // nodes that lost one of their names, and when: nanoseconds since 1970
}

// graftRoot is a root of the tree, and blocks below it by the path of their directory.
type graftRoot struct {
	node   Node
	blocks map[string]block
}

type graftDir struct {
	node  Node
	block block
}

func (g *grafting) run(ctx context.Context, list []Graft) error {
	var gone, come, dirs []int
	used := map[string]bool{} // directories that something comes into
	for i, p := range list {
		if p.Mode == 0 {
			gone = append(gone, i)
			continue
		}
		if p.Mode == object.ModeDir {
			dirs = append(dirs, i)
			used[p.Path] = true
		} else {
			come = append(come, i)
		}
		for dir := parentOf(p.Path); dir != "" && !used[dir]; dir = parentOf(dir) {
			used[dir] = true
		}
	}
	if err := g.inBatches(ctx, list, gone, g.remove); err != nil {
		return err
	}
	if err := g.prune(ctx, list, gone, used); err != nil {
		return err
	}
	for _, i := range come {
		if err := g.makeDirs(ctx, parentOf(list[i].Path)); err != nil {
			return err
		}
		if err := g.prepare(ctx, list[i]); err != nil {
			return err
		}
	}
	if err := g.inBatches(ctx, list, come, g.put); err != nil {
		return err
	}
	for _, i := range dirs {
		if err := g.putDir(ctx, list[i], &g.done[i]); err != nil {
			return err
		}
	}
	return nil
}

// inBatches calls do for the paths, many of them within one update.
func (g *grafting) inBatches(ctx context.Context, list []Graft, which []int, do func(e *edit, p Graft, d graftDir) (Grafted, error)) error {
	for some := range slices.Chunk(which, grafts) {
		dirs := make([]graftDir, len(some))
		for i, at := range some {
			var err error
			dirs[i], err = g.dir(ctx, parentOf(list[at].Path))
			if err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrNotDir) {
				return err
			}
		}
		err := g.tree.updateNoted(func(e *edit) error {
			for i, at := range some {
				var err error
				if dirs[i].node == 0 { // what is to be removed from there is gone
					continue
				}
				if g.done[at], err = do(e, list[at], dirs[i]); err != nil {
					return fmt.Errorf("%s: %w", list[at].Path, err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i, at := range some {
			if old := list[at].Over.Node; old != 0 {
				g.tree.release(old)
			}
			g.changed(dirs[i].node, path.Base(list[at].Path))
		}
	}
	return nil
}

// changed notes what the kernel may know of a name that was changed.
func (g *grafting) changed(dir Node, name string) {
	g.places = append(g.places, Place{dir, name})
	g.stale[dir], g.listings[dir] = true, true
}

// dir returns a directory of the mount.
func (g *grafting) dir(ctx context.Context, at string) (graftDir, error) {
	if d, ok := g.dirs[at]; ok {
		return d, nil
	}
	d := graftDir{node: Root}
	if at != "" {
		parent, err := g.dir(ctx, parentOf(at))
		if err != nil {
			return d, err
		}
		in, err := g.tree.find(ctx, parent.node, path.Base(at))
		if err != nil {
			return d, err
		}
		d.node = in.Node
	}
	var err error
	if d.block, err = g.tree.children(ctx, d.node); err != nil {
		return d, err
	}
	g.dirs[at] = d
	return d, nil
}

// remove takes a path away.
func (g *grafting) remove(e *edit, p Graft, d graftDir) (Grafted, error) {
	name := path.Base(p.Path)
	now := e.found(d.node, d.block, name, p.Path)
	if now.Node == 0 {
		return Grafted{}, nil
	}
	switch {
	case !g.as(now, p.Over):
		return g.kept(e, now)
	case now.Mode&syscall.S_IFMT == syscall.S_IFDIR: // prune removes it if it is empty
		return Grafted{}, nil
	}
	return Grafted{}, g.takeAway(e, d, name, now.Node)
}

func (g *grafting) kept(e *edit, f Found) (Grafted, error) {
	in, _ := e.merged.inode(f.Node)
	return Grafted{Attr: g.tree.describe(in), Kept: true}, nil
}

// as reports whether what is at a path is what was found there; one of its other names may be gone.
func (g *grafting) as(now, over Found) bool {
	if ctime, ok := g.dropped[now.Node]; ok && ctime == now.ctime {
		now.ctime = over.ctime
	}
	return now == over
}

// takeAway takes what is no directory from its place.
func (g *grafting) takeAway(e *edit, d graftDir, name string, n Node) error {
	parent, err := e.directory(d.node)
	if err != nil {
		return err
	}
	in, err := e.inode(n)
	if err != nil {
		return err
	}
	e.drop(in)
	e.remove(d.node, d.block, name)
	e.touch(parent, 0)
	if in.Nlink > 0 {
		g.dropped[n] = in.Ctime
	}
	return nil
}

// put returns a path its blob.
func (g *grafting) put(e *edit, p Graft, d graftDir) (Grafted, error) {
	name := path.Base(p.Path)
	now := e.found(d.node, d.block, name, p.Path)
	switch {
	case now.Shows(p.Mode, p.ID): // it has been done before
		in, _ := e.merged.inode(now.Node)
		return Grafted{Attr: g.tree.describe(in)}, nil
	case p.Mode == object.ModeGitlink && now.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		in, _ := e.merged.inode(now.Node)
		return Grafted{Attr: g.tree.describe(in)}, nil
	case !g.as(now, p.Over) || now.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return g.kept(e, now)
	}
	if now.Node != 0 {
		if err := g.takeAway(e, d, name, now.Node); err != nil {
			return Grafted{}, err
		}
	}
	parent, err := e.directory(d.node)
	if err != nil {
		return Grafted{}, err
	}
	var in overlay.Inode
	if p.Mode == object.ModeGitlink {
		if in.Node, err = e.tx.NewNode(); err != nil {
			return Grafted{}, err
		}
		in = overlay.Inode{Node: in.Node, Mode: mode(kindGitlink), Nlink: 2}
	} else {
		n, ok := g.choose(e, p, d)
		if !ok {
			return Grafted{}, errTaken
		}
		in = g.tree.baseInode(n, g.tree.table.rec(n))
		g.stale[n] = true
	}
	in.UID, in.GID = g.tree.options.UID, g.tree.options.GID
	in.Parent, in.Atime, in.Mtime, in.Ctime = d.node, e.now, e.now, e.now
	e.graftInode(in)
	e.place(d.node, d.block, name, in.Node)
	e.touch(parent, subdirs(&in))
	return Grafted{Attr: g.tree.describe(in)}, nil
}

// Shows reports whether a path shows an unchanged blob, as a checkout would leave it.
func (f Found) Shows(m object.Mode, id object.ID) bool {
	k, _ := kindOf(m)
	if f.Blob.IsZero() || f.Blob != id || f.Mode&syscall.S_IFMT != mode(k)&syscall.S_IFMT {
		return false
	}
	return k == kindSymlink || f.Exec == (k == kindExec) && f.Exec == (f.Mode&0o100 != 0)
}

// graftInode puts an inode as it is to be, whatever became of its node in this update.
func (e *edit) graftInode(in overlay.Inode) {
	for _, other := range e.inodes {
		if other.now.Node == in.Node {
			other.now = in
			return
		}
	}
	e.inodes = append(e.inodes, &edited{now: in})
}

func parentOf(at string) string {
	if i := strings.LastIndexByte(at, '/'); i >= 0 {
		return at[:i]
	}
	return ""
}
