package worktree

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// errTaken says that a node of the tree has another place already.
var errTaken = errors.New("its node is in use")

// prepare makes sure that there is a node for a path's blob: the base's own one if the base has the blob there, else
// one of the tree's. A node has one place; if somebody moved those that there are, a further root has another.
func (g *grafting) prepare(ctx context.Context, p Graft) error {
	if p.Mode == object.ModeGitlink {
		return nil
	}
	d, err := g.dir(ctx, parentOf(p.Path))
	if err != nil {
		return err
	}
	usable := func(n Node) (ok bool) {
		g.tree.view(func(m merged) { ok = g.shows(n, p) && m.free(n) })
		return ok
	}
	if n, ok := g.tree.table.search(d.block, path.Base(p.Path)); ok && usable(n) {
		return nil
	}
	for i := 0; ; i++ {
		if i == len(g.roots) {
			root, err := g.tree.table.addRoot(g.id)
			if err != nil {
				return err
			}
			g.roots = append(g.roots, graftRoot{root, map[string]block{}})
		}
		b, err := g.roots[i].block(ctx, g.tree, parentOf(p.Path))
		if err != nil {
			return err
		}
		n, ok := g.tree.table.search(b, path.Base(p.Path))
		if !ok || !g.shows(n, p) {
			return fmt.Errorf("%s: tree %s does not have %s there: %w", p.Path, g.id, p.ID, ErrNotExist)
		}
		if usable(n) {
			g.chosen[p.Path] = n
			return nil
		}
		var now Found
		g.tree.view(func(m merged) { now = m.found(d.node, d.block, path.Base(p.Path), p.Path) })
		if now.Node == n && now.Shows(p.Mode, p.ID) { // it is where it is to be
			return nil
		}
	}
}

// block returns a directory below a root.
func (r graftRoot) block(ctx context.Context, t *Tree, at string) (block, error) {
	if b, ok := r.blocks[at]; ok {
		return b, nil
	}
	n := r.node
	if at != "" {
		above, err := r.block(ctx, t, parentOf(at))
		if err != nil {
			return block{}, err
		}
		var ok bool
		if n, ok = t.table.search(above, path.Base(at)); !ok {
			return block{}, fmt.Errorf("read directory %q: %w", at, ErrNotExist)
		}
	}
	b, err := t.children(ctx, n)
	if err == nil {
		r.blocks[at] = b
	}
	return b, err
}

// choose returns the node for a path's blob in a directory.
func (g *grafting) choose(e *edit, p Graft, d graftDir) (Node, bool) {
	if n, ok := g.tree.table.search(d.block, path.Base(p.Path)); ok && g.shows(n, p) && e.unused(n) {
		return n, true
	}
	n, ok := g.chosen[p.Path]
	return n, ok && e.unused(n)
}

// shows reports whether a node is that of a path's blob in some tree.
func (g *grafting) shows(n Node, p Graft) bool {
	r := g.tree.table.rec(n)
	k, _ := kindOf(p.Mode)
	return r.kind == k && r.objectID() == p.ID && g.tree.table.path(n) == p.Path
}

// unused is free with what this update has done.
func (e *edit) unused(n Node) bool {
	for _, in := range e.inodes {
		if in.now.Node == n {
			return e.pristine(in.now)
		}
	}
	return e.free(n)
}

// free reports whether a node of some tree has no place in the mount, and is as it was: the overlay has forgotten it, or
// waits for the kernel to do so.
func (m merged) free(n Node) bool {
	if in, ok := m.Inode(n); ok {
		return m.pristine(in)
	}
	t := m.tree.table
	if t.treeOf(n) != Root {
		return true
	}
	r := t.rec(n)
	at, p := m.Entry(Node(r.parent), t.name(r))
	return p == overlay.Hidden || p == overlay.Present && at != n
}

func (m merged) pristine(in overlay.Inode) bool {
	return in.Nlink == 0 && (isDir(&in) || in.Size == overlay.SizeOfBase) && len(m.Xattrs(in.Node)) == 0
}

// younger counts base files that are all as they were but for their times, as a graft leaves them that brings them back.
func (m merged) younger() (n int64) {
	m.EachInode(func(in overlay.Inode) bool {
		r, ok := m.tree.table.record(in.Node)
		if !ok || r.kind.isDir() || m.tree.table.treeOf(in.Node) != Root {
			return true
		}
		was := m.tree.baseInode(in.Node, r)
		was.Atime, was.Mtime, was.Ctime = in.Atime, in.Mtime, in.Ctime
		if in == was && len(m.Xattrs(in.Node)) == 0 {
			if _, p := m.Entry(in.Parent, m.tree.table.name(r)); p == overlay.Unknown {
				n++
			}
		}
		return true
	})
	return n
}

// makeDirs makes a directory and those above it where there are none.
func (g *grafting) makeDirs(ctx context.Context, at string) error {
	_, err := g.dir(ctx, at)
	if !errors.Is(err, ErrNotExist) {
		return err
	}
	if err := g.makeDirs(ctx, parentOf(at)); err != nil {
		return err
	}
	parent, err := g.dir(ctx, parentOf(at))
	if err != nil {
		return err
	}
	name := path.Base(at)
	old, has := g.tree.table.search(parent.block, name)
	has = has && g.tree.table.rec(old).kind == kindDir
	var b block
	if has {
		if b, err = g.tree.children(ctx, old); err != nil {
			return err
		}
	}
	made := graftDir{node: old, block: b}
	err = g.tree.updateNoted(func(e *edit) error {
		in, err := e.directory(parent.node)
		if err != nil {
			return err
		}
		if _, ok := e.entry(parent.node, parent.block, name); ok {
			return syscall.EEXIST
		}
		dir := overlay.Inode{Mode: mode(kindDir), Nlink: 2}
		if has && e.unused(old) {
			dir = g.tree.baseInode(old, g.tree.table.rec(old))
			e.hideAll(old, b) // what is to be there comes on its own
		} else {
			if dir.Node, err = e.tx.NewNode(); err != nil {
				return err
			}
			made = graftDir{node: dir.Node}
		}
		dir.UID, dir.GID = g.tree.options.UID, g.tree.options.GID
		inherit(&dir, in)
		dir.Parent, dir.Atime, dir.Mtime, dir.Ctime = parent.node, e.now, e.now, e.now
		e.graftInode(dir)
		e.place(parent.node, parent.block, name, dir.Node)
		e.touch(in, 1)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	g.dirs[at] = made
	g.changed(parent.node, name)
	g.stale[made.node], g.listings[made.node] = true, true
	return nil
}

// putDir makes a directory that has nothing in it, unless there is one.
func (g *grafting) putDir(ctx context.Context, p Graft, done *Grafted) error {
	err := g.makeDirs(ctx, p.Path)
	if errors.Is(err, ErrNotDir) { // somebody has put a file there
		done.Kept = true
		return nil
	}
	if err != nil {
		return err
	}
	perm := p.Perm
	if perm == 0 {
		perm = mode(kindDir) & 0o7777
	}
	n := g.dirs[p.Path].node
	err = g.tree.updateNoted(func(e *edit) error {
		in, err := e.inode(n)
		if err == nil && in.Mode&0o7777 != perm {
			in.Mode, in.Ctime = in.Mode&^0o7777|perm, e.now
		}
		return err
	})
	g.stale[n], g.listings[n] = true, true
	return err
}

// hideAll leaves nothing of what a base directory had.
func (e *edit) hideAll(dir Node, b block) {
	for n := b.first; n < b.first+Node(b.count); n++ {
		e.tx.Hide(dir, e.tree.table.name(e.tree.table.rec(n)))
	}
}

// prune removes directories that a removal has left empty, and submodules that were to go, unless something comes
// into them. One that has anything in it stays.
func (g *grafting) prune(ctx context.Context, list []Graft, gone []int, used map[string]bool) error {
	var dirs []string
	for _, i := range gone {
		if list[i].Over.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			dirs = append(dirs, list[i].Path)
		} else {
			dirs = append(dirs, parentOf(list[i].Path))
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	for i := len(dirs) - 1; i >= 0; i-- { // what is below a directory comes behind it
		for at := dirs[i]; at != "" && !used[at]; at = parentOf(at) {
			done, err := g.removeDir(ctx, at)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			if !done {
				break
			}
		}
	}
	return nil
}

// removeDir removes a directory and says whether there is none now.
func (g *grafting) removeDir(ctx context.Context, at string) (bool, error) {
	name := path.Base(at)
	parent, err := g.dir(ctx, parentOf(at))
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDir) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	done := false
	err = g.tree.replacing(ctx, parent.node, parent.block, name, func(v victim) error {
		if v.node == 0 {
			done = true
			return nil
		}
		return g.tree.updateNoted(func(e *edit) error {
			in, err := e.directory(parent.node)
			if err != nil {
				return err
			}
			if n, _ := e.entry(parent.node, parent.block, name); n != v.node {
				return errReplaced
			}
			dir, err := e.inode(v.node)
			if err != nil {
				return err
			}
			if done = isDir(dir) && e.empty(v.node, v.block); done {
				e.drop(dir)
				e.remove(parent.node, parent.block, name)
				e.touch(in, -1)
			}
			return nil
		})
	})
	if done && err == nil {
		delete(g.dirs, at)
		g.changed(parent.node, name)
	}
	return done, err
}
