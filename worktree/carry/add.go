package carry

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Tree is a working tree to which files are added.
type Tree interface {
	// Find returns the inode with the given name in a directory. It waits until the tree of the directory is fetched.
	Find(ctx context.Context, dir Node, name string) (overlay.Inode, error)
	// Note records in the change journal that paths are about to change. The path of a directory ends in a slash. The
	// caller calls land when it has changed them.
	Note(paths []string) (land func())
}

// Add adds the files to a new working tree, whose overlay is layer, and of which the kernel knows no path yet. The
// overlay must have been created with c.Segments. A directory that exists in the base tree stays, and gets the carried
// names; any other name of the base tree is replaced. Paths that cannot be added are appended to c.Left. When Add
// returns, the names are on disk; contents are if they were synced in the other tree.
func (c *Files) Add(ctx context.Context, to Tree, layer *overlay.Layer) error {
	a := adding{to: to, c: c, places: make([]place, len(c.names)), nodes: make([]Node, len(c.nodes)),
		dirs: map[string]Node{"": inode.Root}}
	if err := a.find(ctx); err != nil {
		return err
	}
	a.count()
	defer to.Note(a.paths)()
	for first := 0; first < len(c.names); first += some {
		last := min(first+some, len(c.names))
		a.made = a.made[:0]
		err := layer.Update(func(tx *overlay.Tx) error {
			for _, n := range a.made { // nodes of an attempt that has failed
				a.nodes[n] = 0
			}
			a.made = a.made[:0]
			for i := first; i < last; i++ {
				if err := a.put(tx, i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i := range a.places {
		if over := a.places[i].over; over != 0 {
			layer.Release(over)
		}
	}
	return layer.Sync()
}

// some is the number of names that Add adds in one update of the overlay.
const some = 128

// adding is a call of Add in progress.
type adding struct {
	to     Tree
	c      *Files
	dirs   map[string]Node // directories of the tree that were found, by path
	places []place         // by index in c.names
	nodes  []Node          // new nodes, by index in c.nodes; 0 if the node was not created yet
	made   []int           // indexes in nodes of the nodes that the update in progress creates
	paths  []string        // paths that are added, without those below other ones
}

// place is the place of a carried name in the new tree.
type place struct {
	dir  Node // directory, if it is not a new one
	node Node // node that the name stands for, or, in a directory that exists already, a directory that stays
	// whether nothing is to be added: the name is left out, or it is a directory that stays
	done bool
	// whether the name and everything below it is left out
	left bool
	over Node // node of the base tree that the name has now; 0 if there is none
}

// find finds the places of all names.
func (a *adding) find(ctx context.Context) error {
	for i := range a.c.names {
		name, p := &a.c.names[i], &a.places[i]
		var err error
		switch {
		case name.dir < 0:
			p.dir, err = a.dir(ctx, above(name.path))
		case a.places[name.dir].left:
			p.left, p.done = true, true
			continue
		case a.places[name.dir].done:
			p.dir = a.places[name.dir].node
		case name.node < 0:
			a.leave(i, NotFetched)
			continue
		default: // the directory is a new one
			continue
		}
		if err == nil {
			err = a.meet(ctx, i)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, basetree.ErrNotDir), errors.Is(err, errNoPlace):
			a.leave(i, NoPlace)
		case err != nil:
			return err
		}
	}
	return nil
}

// errNoPlace means that a carried path cannot replace the file or directory that the new tree has there.
var errNoPlace = errors.New("path has another type")

// meet looks up a name in a directory that the new tree has already.
func (a *adding) meet(ctx context.Context, i int) error {
	name, p := &a.c.names[i], &a.places[i]
	in, err := a.to.Find(ctx, p.dir, path.Base(name.path))
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if name.node < 0 { // if the new Tree has the unchanged file as well, nothing is missing
		if p.done = there; !there {
			a.leave(i, NotFetched)
		}
		return nil
	}
	dir := isDir(&a.c.nodes[name.node].in)
	switch {
	case !there:
	case dir && isDir(&in):
		p.node, p.done = in.Node, true
		return nil
	case dir || isDir(&in):
		return errNoPlace
	default:
		p.over = in.Node
	}
	a.paths = append(a.paths, recorded(name.path, dir))
	return nil
}

// leave leaves out a name and everything below it.
func (a *adding) leave(i int, why Why) {
	name := &a.c.names[i]
	a.places[i].done, a.places[i].left = true, true
	dir := name.node >= 0 && isDir(&a.c.nodes[name.node].in)
	a.c.Left = append(a.c.Left, Left{recorded(name.path, dir), why})
}

// count sets the link counts of the nodes to the numbers of names that are added, and the totals of c.
func (a *adding) count() {
	for i, name := range a.c.names {
		if a.places[i].done {
			continue
		}
		in := &a.c.nodes[name.node].in
		if !isDir(in) {
			if in.Nlink++; in.Nlink > 1 {
				continue
			}
			if a.c.Files++; in.Mode&syscall.S_IFMT == syscall.S_IFREG {
				a.c.Bytes += in.Size
			}
			continue
		}
		in.Nlink += 2
		a.c.Dirs++
		if name.dir >= 0 {
			a.c.nodes[a.c.names[name.dir].node].in.Nlink++
		}
	}
}

// put adds a name, and its node if the node is new. It may be called again after an update that has failed.
func (a *adding) put(tx *overlay.Tx, i int) error {
	name, p := &a.c.names[i], &a.places[i]
	if p.done {
		return nil
	}
	dir := p.dir
	if dir == 0 {
		dir = a.places[name.dir].node
	}
	c := &a.c.nodes[name.node]
	n := a.nodes[name.node]
	if n == 0 {
		var err error
		if n, err = tx.NewNode(); err != nil {
			return err
		}
		in := c.in
		in.Node, in.Parent = n, dir
		if err := tx.Adopt(in); err != nil {
			return err
		}
		if c.target != "" {
			tx.SetTarget(n, c.target)
		}
		for _, x := range c.xattrs {
			tx.SetXattr(n, x.name, x.value)
		}
		a.nodes[name.node] = n
		a.made = append(a.made, name.node)
	}
	if in, ok := tx.Inode(p.over); ok && p.over != 0 {
		in.Nlink = 0
		tx.PutInode(in)
	}
	p.node = n
	tx.SetEntry(dir, path.Base(name.path), n)
	return nil
}

// dir returns the directory at a path.
func (a *adding) dir(ctx context.Context, at string) (Node, error) {
	if n, ok := a.dirs[at]; ok {
		return n, nil
	}
	n, err := a.dir(ctx, above(at))
	if err != nil {
		return 0, err
	}
	in, err := a.to.Find(ctx, n, path.Base(at))
	if err == nil {
		a.dirs[at] = in.Node
	}
	return in.Node, err
}

// above returns the path of the directory that contains a path; "" is the root.
func above(at string) string { return at[:max(0, strings.LastIndexByte(at, '/'))] }
