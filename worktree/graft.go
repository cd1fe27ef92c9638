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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// A graft makes paths show the blobs of another tree without fetching any of them. For each path, an entry and an inode
// are added to the overlay. The inode's node is below a further root for the other tree (inode.Table.AddRoot), so that
// the file behaves in every respect like an unchanged file of the base tree. If the base tree has the same blob at the
// same path, the original node is used again, and the overlay's entry is removed.
//
// Every path that a graft changes gets the present time as its mtime, even if its blob is again that of the base tree.
// Otherwise a build tool would not rebuild the files that were made from the previous contents of the path.
//
// A graft reads everything that it needs, and allocates the disk space, before it changes the first path. If it fails
// after that, it takes its changes back. A kill leaves some paths changed. All paths are recorded in the change journal
// before the first path is changed, so that git sees the true state after an interrupted graft. An interrupted graft
// can be completed by repeating it.

// Graft describes the new state of one path, as an argument of Tree.Graft.
type Graft struct {
	Path string // path relative to the root
	// Mode is the mode of the blob. The mode is ModeGitlink for a submodule, for which Tree.Graft creates an empty
	// directory; ModeDir for an empty directory; and 0 if the path is to be removed.
	Mode object.Mode
	Perm uint32 // permission bits for ModeDir; 0 stands for those that git would set
	ID   object.ID
	// Over is the state of the path that the caller has seen before, and that Graft may replace. If the path is in
	// another state now, Graft does not change the path.
	Over Found
}

// Found is the state of a path. The zero Found means that the path does not exist.
type Found struct {
	Node Node   // zero if the path does not exist
	Mode uint32 // as in Attr
	// Blob is the blob of a file or symbolic link that is unchanged, and so has the contents that a checkout writes to
	// this path. Blob is zero if the file was changed, or if the file shows a blob of another path. Exec is true if the
	// file is executable in the blob's tree.
	Blob object.ID
	Exec bool
	Link bool // the blob is that of a symbolic link, which Mode may show as a file (Modes.LinksAsFiles)

	ctime, size int64  // ctime is in nanoseconds since 1970; size is in bytes, or overlay.SizeOfBase
	content     uint64 // number by which the overlay identifies the contents
}

// Grafted is the result of a Graft for one path.
type Grafted struct {
	// attributes of the path after the call; Node is 0 if the path does not exist; Size is negative if it is not known
	Attr Attr
	Kept bool // true if the path was not in the state Graft.Over, and therefore was not changed
}

// Place is a name in a directory.
type Place struct {
	Dir  Node
	Name string
}

// ChangedName is a name that a graft has changed.
type ChangedName struct {
	Place
	Path     string    // path of the name, relative to the root
	Old, New NameState // states before and after the change
	Lookups  uint64    // as Kernel.Lookups returned it for the new node immediately after the change
}

// NameState is what a name stands for. It is the zero value if the name does not exist.
type NameState struct {
	Node Node
	Dir  bool // whether Node is a directory
}

// stateOf returns the NameState of a name that has a node with this mode.
func stateOf(n Node, mode uint32) NameState {
	return NameState{n, n != 0 && mode&syscall.S_IFMT == syscall.S_IFDIR}
}

// Stale contains the names and the attributes that a graft has changed and that the kernel may have in its caches.
type Stale struct {
	Places []Place
	Nodes  []Node        // nodes whose attributes were changed
	Dirs   map[Node]bool // the elements of Nodes that are directories
}

// grafts is the maximum number of paths that a graft changes in one update of the overlay. The number is limited
// because readers have to wait during an update.
const grafts = 256

// found returns the state of a name in the directory dir. b is the block of the directory: the children that the
// directory has in the base tree. path is the full path of the name.
func (m merged) found(dir Node, b inode.Block, name, path string) (f Found) {
	n, ok := m.entry(dir, b, name)
	if !ok {
		return f
	}
	in, ok := m.inode(n)
	if !ok {
		return f
	}
	f = Found{Node: n, Mode: in.Mode, ctime: in.Ctime, size: in.Size, content: in.Content}
	r, base := m.base.Table.Record(n)
	if base && !r.Kind().IsDir() && in.Size == overlay.SizeOfBase && m.base.Table.Path(n) == path {
		f.Blob, f.Exec, f.Link = r.ObjectID(), r.Kind() == inode.KindExec, r.Kind() == inode.KindSymlink
	}
	return f
}

// GraftResult is the result of Tree.Graft. If Tree.Graft returns an error, Stale describes the changes that were made
// before the error, and that were taken back unless the error wraps ErrPartial.
type GraftResult struct {
	Done []Grafted // one element for each Graft
	// Since contains the changes since the journal position that was passed to Graft. These changes end at a moment at
	// which all paths of the graft were recorded in the journal, and no path of the graft was changed yet. A later query
	// from Since.Token returns a path of the graft only if the path was also changed in another way.
	Since Changes
	Stale Stale
	// Changed contains the names in Stale in the order of the changes. A name occurs twice if a file was removed to create
	// a directory with its name.
	Changed []ChangedName

	// TakeBack reverses the graft: each path gets its previous contents, attributes and times. Afterwards Stale must be
	// invalidated again. If TakeBack returns an error, which wraps ErrPartial, some paths are reversed. Keep ends the time
	// in which TakeBack can be called. The caller must call one of the two. Both are nil if Graft returns an error.
	TakeBack func() error
	Keep     func()
}

// graft implements Tree.Graft: it makes the paths in list show blobs of the given tree.
func graft(ctx context.Context, ed *editor, tree object.ID, list []Graft, token string) (r GraftResult, err error) {
	if ed.sealed {
		return r, syscall.EROFS
	}
	g := &grafting{
		editor: ed, view: ed.view, base: ed.base, id: tree, done: make([]Grafted, len(list)),
		dirs: map[string]graftDir{}, chosen: map[string]Node{},
		stale: map[Node]bool{}, listings: map[Node]bool{}, dropped: map[Node]int64{},
	}
	for _, n := range ed.base.Table.RootsOf(tree) {
		if n != Root {
			g.roots = append(g.roots, graftRoot{n, map[string]inode.Block{}})
		}
	}
	if err := g.prepareAll(ctx, list); err != nil {
		return r, fmt.Errorf("graft %s: %w", tree, err)
	}
	paths := make([]string, len(list))
	for i, p := range list {
		paths[i] = p.Path
		g.room += roomOfPath + roomOfName*int64(len(path.Base(p.Path)))
	}
	release, err := ed.view.layer.Hold(g.room)
	if err != nil {
		return r, fmt.Errorf("graft %s: %w", tree, err)
	}
	ed.changes.notePaths(paths)()
	r.Since = ed.changes.changed(token)
	if err = g.run(ctx, list); err != nil {
		err = errors.Join(fmt.Errorf("graft %s: %w", tree, err), g.takeBack())
		release()
	} else {
		r.Keep = release
		r.TakeBack = func() error {
			defer release()
			return g.takeBack()
		}
	}
	places := make([]Place, len(g.changed))
	for i, c := range g.changed {
		places[i] = c.Place
	}
	r.Done, r.Stale, r.Changed = g.done, Stale{places, slices.Sorted(maps.Keys(g.stale)), g.listings}, g.changed
	return r, err
}

// Estimates of the space that a graft and its reversal need in the overlay's log, in bytes.
const (
	roomOfPath   = 256 // for a path, besides its name
	roomOfName   = 4   // number of times for which the name of a path is logged
	roomOfHidden = 64  // for a name of the base tree that makeDirs hides
)

// grafting is a Graft in progress.
type grafting struct {
	editor *editor
	view   *view
	base   *basetree.Tree
	id     object.ID // id of the root tree that contains the blobs

	done   []Grafted           // results, with the same index as the Graft in the list
	room   int64               // space that is needed in the overlay's log, in bytes
	undo   []undo              // reversals of the updates, in the order of the updates
	roots  []graftRoot         // roots in the inode table, besides the base tree, that stand for the same tree
	chosen map[string]Node     // nodes below these roots, by path, for the paths that cannot use a node of the base tree
	dirs   map[string]graftDir // directories of the mount, by path
	stale  map[Node]bool       // nodes whose names or contents the kernel may still have from before the move; see Stale

	changed []ChangedName // for the result

	listings map[Node]bool // nodes in stale that are directories

	// dropped maps the nodes that have lost one of several names to their new ctime, in nanoseconds since 1970.
	dropped map[Node]int64
}

// graftRoot is a further root of the grafted tree in the inode table. blocks caches the children of the directories
// below this root, by the path of the directory.
type graftRoot struct {
	node   Node
	blocks map[string]inode.Block
}

// graftDir is a directory of the mount, with the block of its children in the base tree.
type graftDir struct {
	node  Node
	block inode.Block
}

// run changes all paths: first it removes files, then it creates files and submodules, then empty directories.
func (g *grafting) run(ctx context.Context, list []Graft) error {
	// These slices contain indexes in list. gone is for the paths to remove, come for the files and submodules to create,
	// dirs for the empty directories to create.
	var gone, come, dirs []int
	used := map[string]bool{} // directories in which the graft creates something
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
		for dir := ParentOf(p.Path); dir != "" && !used[dir]; dir = ParentOf(dir) {
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
		if err := g.makeDirs(ctx, ParentOf(list[i].Path)); err != nil {
			return err
		}
		d, err := g.dir(ctx, ParentOf(list[i].Path))
		if err == nil {
			err = g.prepare(ctx, list[i], d.block)
		}
		if err != nil {
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

// inBatches calls the function do for the elements of list whose indexes are in the slice which. One update of the
// overlay changes at most grafts paths.
func (g *grafting) inBatches(ctx context.Context, list []Graft, which []int,
	do func(e *edit, p Graft, d graftDir) (Grafted, error)) error {
	for some := range slices.Chunk(which, grafts) {
		dirs := make([]graftDir, len(some))
		for i, at := range some {
			var err error
			dirs[i], err = g.dir(ctx, ParentOf(list[at].Path))
			if err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrNotDir) {
				return err
			}
		}
		err := g.update(func(e *edit) error {
			for i, at := range some {
				var err error
				// the directory does not exist, so the path that would be removed does not exist either
				if dirs[i].node == 0 {
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
			old := list[at].Over
			if old.Node != 0 {
				g.editor.release(old.Node)
			}
			c := ChangedName{Old: stateOf(old.Node, old.Mode), New: stateOf(g.done[at].Attr.Node, g.done[at].Attr.Mode)}
			if c.Old.Dir && c.New.Node == 0 || g.done[at].Kept {
				// the name still exists: prune will remove the directory, or a program has changed the path
				c.New = c.Old
			}
			g.note(dirs[i].node, list[at].Path, c)
		}
	}
	return nil
}

// note records the change c of the path in the parameter at, whose directory is dir, for the results Stale and Changed.
func (g *grafting) note(dir Node, at string, c ChangedName) {
	c.Place, c.Path, c.Lookups = Place{dir, path.Base(at)}, at, g.view.lookups(c.New.Node)
	g.changed = append(g.changed, c)
	g.stale[dir], g.listings[dir] = true, true
}

// dir returns the directory of the mount whose path is the parameter at. It waits until the trees on the way to the
// directory are fetched.
func (g *grafting) dir(ctx context.Context, at string) (graftDir, error) {
	if d, ok := g.dirs[at]; ok {
		return d, nil
	}
	d := graftDir{node: Root}
	if at != "" {
		parent, err := g.dir(ctx, ParentOf(at))
		if err != nil {
			return d, err
		}
		in, err := g.view.find(ctx, parent.node, path.Base(at))
		if err != nil {
			return d, err
		}
		d.node = in.Node
	}
	var err error
	if d.block, err = g.view.children(ctx, d.node); err != nil {
		return d, err
	}
	g.dirs[at] = d
	return d, nil
}

// remove removes the path of p if the path is still in the state p.Over.
func (g *grafting) remove(e *edit, p Graft, d graftDir) (Grafted, error) {
	name := path.Base(p.Path)
	now := e.found(d.node, d.block, name, p.Path)
	if now.Node == 0 {
		return Grafted{}, nil
	}
	switch {
	case !g.as(now, p.Over):
		return g.kept(e, now)
	case now.Mode&syscall.S_IFMT == syscall.S_IFDIR: // prune removes a directory later, if it is empty then
		return Grafted{}, nil
	}
	return Grafted{}, g.takeAway(e, d, name, now.Node)
}

// kept returns the result for a path that the graft has not changed.
func (g *grafting) kept(e *edit, f Found) (Grafted, error) {
	in, _ := e.merged.inode(f.Node)
	return Grafted{Attr: g.base.Describe(in), Kept: true}, nil
}

// as reports whether the present state of a path, now, equals the state over, which the caller has seen. The ctime may
// differ if this graft has removed another name of the same file.
func (g *grafting) as(now, over Found) bool {
	if ctime, ok := g.dropped[now.Node]; ok && ctime == now.ctime {
		now.ctime = over.ctime
	}
	return now == over
}

// takeAway removes a name of a node that is not a directory.
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

// put makes the path of p show the blob of p. For a submodule, put creates an empty directory.
func (g *grafting) put(e *edit, p Graft, d graftDir) (Grafted, error) {
	name := path.Base(p.Path)
	now := e.found(d.node, d.block, name, p.Path)
	switch {
	case now.Shows(p.Mode, p.ID): // an interrupted earlier graft has changed this path already
		in, _ := e.merged.inode(now.Node)
		return Grafted{Attr: g.base.Describe(in)}, nil
	case p.Mode == object.ModeGitlink && now.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		in, _ := e.merged.inode(now.Node)
		return Grafted{Attr: g.base.Describe(in)}, nil
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
		in = overlay.Inode{Node: in.Node, Mode: g.base.Mode(inode.KindGitlink), Nlink: 2}
	} else {
		n, ok := g.choose(e, p, d)
		if !ok {
			return Grafted{}, errTaken
		}
		in = g.base.Inode(n, g.base.Table.At(n))
		g.stale[n] = true
	}
	in.UID, in.GID = g.base.UID, g.base.GID
	in.Parent, in.Atime, in.Mtime, in.Ctime = d.node, e.now, e.now, e.now
	e.graftInode(in)
	e.place(d.node, d.block, name, in.Node)
	e.touch(parent, subdirs(&in))
	return Grafted{Attr: g.base.Describe(in)}, nil
}

// Shows reports whether the path shows the blob id unchanged, with the type and the executable bit that a checkout sets
// for the mode m.
func (f Found) Shows(m object.Mode, id object.ID) bool {
	k, _ := inode.KindOf(m)
	if f.Blob.IsZero() || f.Blob != id || f.Link != (k == inode.KindSymlink) {
		return false
	}
	return f.Link || f.Exec == (k == inode.KindExec) && f.Exec == (f.Mode&0o100 != 0)
}

// graftInode sets the inode that is stored at the end of the update. It replaces an inode of the same node that this
// update has modified.
func (e *edit) graftInode(in overlay.Inode) {
	for _, other := range e.inodes {
		if other.now.Node == in.Node {
			other.now = in
			return
		}
	}
	e.inodes = append(e.inodes, &edited{now: in})
}

// ParentOf returns the path of the directory that contains a path. The path of the root is "".
func ParentOf(at string) string { return at[:max(strings.LastIndexByte(at, '/'), 0)] }
