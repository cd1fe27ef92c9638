package worktree

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// errTaken means that the node that prepare has chosen for a path has since been used for another name in the mount.
var errTaken = errors.New("node of the path is in use for another path")

// prepareAll reads all trees that the graft needs, and adds the roots that it needs to the inode table. It changes no
// path.
func (g *grafting) prepareAll(ctx context.Context, list []Graft) error {
	future := map[string]inode.Block{}
	for _, p := range list {
		// the directory of a removed path may become empty; removeDir needs its tree
		at := ParentOf(p.Path)
		if p.Mode == object.ModeDir || p.Mode == 0 && p.Over.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			at = p.Path
		}
		if _, err := g.dir(ctx, at); err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrNotDir) {
			return err
		}
		if p.Mode == 0 {
			continue
		}
		b, err := g.futureBlock(ctx, at, future)
		if err == nil && p.Mode != object.ModeDir {
			err = g.prepare(ctx, p, b)
		}
		if err != nil {
			return err
		}
	}
	// The directories are looked up again later, because programs can move them until the first path is changed.
	clear(g.dirs)
	return nil
}

// futureBlock returns the block that the directory whose path is the parameter at has, or will have once makeDirs has
// created it. known holds the blocks that were found before, by path.
func (g *grafting) futureBlock(ctx context.Context, at string,
	known map[string]inode.Block) (b inode.Block, err error) {
	if b, ok := known[at]; ok {
		return b, nil
	}
	d, err := g.dir(ctx, at)
	switch {
	case err == nil:
		b = d.block
	// at present the path may be a file, which the graft will remove
	case errors.Is(err, ErrNotExist), errors.Is(err, ErrNotDir):
		var above inode.Block
		if above, err = g.futureBlock(ctx, ParentOf(at), known); err != nil {
			return b, err
		}
		if n, ok := g.base.Table.Search(above, path.Base(at)); ok && g.base.Table.At(n).Kind() == inode.KindDir {
			b, err = g.view.children(ctx, n)
			g.room += roomOfHidden * int64(b.Count)
		}
	}
	if err == nil {
		known[at] = b
	}
	return b, err
}

// prepare makes sure that the inode table has a node for the blob of p. This is the node of the base tree if the base
// tree has the same blob at the same path, otherwise a node below a further root of the inode table. A node that is in
// use, for example because its file was renamed, cannot be used for p. If all existing nodes are in use, prepare adds
// another root for the same tree. in is the block of the directory that contains the path.
func (g *grafting) prepare(ctx context.Context, p Graft, in inode.Block) error {
	if p.Mode == object.ModeGitlink {
		return nil
	}
	usable := func(n Node) (ok bool) {
		g.view.look(func(m merged) { ok = g.shows(n, p) && m.free(n) })
		return ok
	}
	if n, ok := g.base.Table.Search(in, path.Base(p.Path)); ok && usable(n) {
		return nil
	}
	for i := 0; ; i++ {
		if i == len(g.roots) {
			root, err := g.base.Table.AddRoot(g.id)
			if err != nil {
				return err
			}
			g.roots = append(g.roots, graftRoot{root, map[string]inode.Block{}})
		}
		b, err := g.roots[i].block(ctx, g.view, ParentOf(p.Path))
		if err != nil {
			return err
		}
		n, ok := g.base.Table.Search(b, path.Base(p.Path))
		if !ok || !g.shows(n, p) {
			return fmt.Errorf("%s: tree %s does not have %s there: %w", p.Path, g.id, p.ID, ErrNotExist)
		}
		if usable(n) {
			g.chosen[p.Path] = n
			return nil
		}
		if p.Over.Node == n && p.Over.Shows(p.Mode, p.ID) { // no node is needed, because the path shows the blob already
			return nil
		}
	}
}

// block returns the block of children of the directory whose path, relative to the root r, is the parameter at. It
// waits until the trees on the way to the directory are fetched.
func (r graftRoot) block(ctx context.Context, v *view, at string) (inode.Block, error) {
	if b, ok := r.blocks[at]; ok {
		return b, nil
	}
	n := r.node
	if at != "" {
		above, err := r.block(ctx, v, ParentOf(at))
		if err != nil {
			return inode.Block{}, err
		}
		var ok bool
		if n, ok = v.base.Table.Search(above, path.Base(at)); !ok {
			return inode.Block{}, fmt.Errorf("read directory %q: %w", at, ErrNotExist)
		}
	}
	b, err := v.children(ctx, n)
	if err == nil {
		r.blocks[at] = b
	}
	return b, err
}

// choose returns the node for the blob of p. It returns false if the node was used for another name since prepare was
// called.
func (g *grafting) choose(e *edit, p Graft, d graftDir) (Node, bool) {
	if n, ok := g.base.Table.Search(d.block, path.Base(p.Path)); ok && g.shows(n, p) && e.unused(n) {
		return n, true
	}
	n, ok := g.chosen[p.Path]
	return n, ok && e.unused(n)
}

// shows reports whether a node has the path, the type and the blob of p in its tree.
func (g *grafting) shows(n Node, p Graft) bool {
	r := g.base.Table.At(n)
	k, _ := inode.KindOf(p.Mode)
	return r.Kind() == k && r.ObjectID() == p.ID && g.base.Table.Path(n) == p.Path
}

// unused reports the same as free, but also considers the changes that this update has made so far.
func (e *edit) unused(n Node) bool {
	for _, in := range e.inodes {
		if in.now.Node == n {
			return e.pristine(in.now)
		}
	}
	return e.free(n)
}

// free reports whether a node of a git tree has no name in the mount and was not changed. This is the case if the
// overlay has no inode for the node, or keeps the inode for the sole reason that the kernel still refers to it.
func (m merged) free(n Node) bool {
	if in, ok := m.Inode(n); ok {
		return m.pristine(in)
	}
	t := m.base.Table
	if t.TreeOf(n) != Root {
		return true
	}
	r := t.At(n)
	at, p := m.Entry(r.Dir(), t.Name(r))
	return p == overlay.Hidden || p == overlay.Present && at != n
}

// pristine reports whether an inode has no name, has the contents of its tree, and has no extended attributes.
func (m merged) pristine(in overlay.Inode) bool {
	return in.Nlink == 0 && (isDir(&in) || in.Size == overlay.SizeOfBase) && len(m.Xattrs(in.Node)) == 0
}

// younger counts the files at their original paths in the base tree that differ from the base tree in their times and
// in nothing else. A graft that restores the blob of a file leaves the file in this state.
func (m merged) younger() (n int64) {
	m.EachInode(func(in overlay.Inode) bool {
		r, ok := m.base.Table.Record(in.Node)
		if !ok || r.Kind().IsDir() || m.base.Table.TreeOf(in.Node) != Root || overlay.IsOnlyTimes(m, in) {
			return true
		}
		was := m.base.Inode(in.Node, r)
		was.Atime, was.Mtime, was.Ctime, was.Flags = in.Atime, in.Mtime, in.Ctime, in.Flags
		if in == was && len(m.Xattrs(in.Node)) == 0 {
			if _, p := m.Entry(in.Parent, m.base.Table.Name(r)); p == overlay.Unknown {
				n++
			}
		}
		return true
	})
	return n
}

// makeDirs creates the directory whose path is the parameter at, and the directories above this path, unless they
// exist.
func (g *grafting) makeDirs(ctx context.Context, at string) error {
	_, err := g.dir(ctx, at)
	if !errors.Is(err, ErrNotExist) {
		return err
	}
	if err := g.makeDirs(ctx, ParentOf(at)); err != nil {
		return err
	}
	parent, err := g.dir(ctx, ParentOf(at))
	if err != nil {
		return err
	}
	name := path.Base(at)
	old, has := g.base.Table.Search(parent.block, name)
	has = has && g.base.Table.At(old).Kind() == inode.KindDir
	var b inode.Block
	if has {
		if b, err = g.view.children(ctx, old); err != nil {
			return err
		}
	}
	made := graftDir{node: old, block: b}
	err = g.update(func(e *edit) error {
		in, err := e.directory(parent.node)
		if err != nil {
			return err
		}
		if _, ok := e.entry(parent.node, parent.block, name); ok {
			return syscall.EEXIST
		}
		dir := overlay.Inode{Mode: g.base.Mode(inode.KindDir), Nlink: 2}
		if has && e.unused(old) {
			dir = g.base.Inode(old, g.base.Table.At(old))
			// all names of the base tree are hidden first; then the graft adds those that should exist
			e.hideAll(old, b)
		} else {
			if dir.Node, err = e.tx.NewNode(); err != nil {
				return err
			}
			made = graftDir{node: dir.Node}
		}
		dir.UID, dir.GID = g.base.UID, g.base.GID
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
	g.note(parent.node, at, ChangedName{New: NameState{made.node, true}})
	g.stale[made.node], g.listings[made.node] = true, true
	return nil
}

// putDir creates an empty directory at the path of p, unless a directory exists there, and sets its permissions.
func (g *grafting) putDir(ctx context.Context, p Graft, done *Grafted) error {
	err := g.makeDirs(ctx, p.Path)
	if errors.Is(err, ErrNotDir) { // a file was created at the path in the meantime
		done.Kept = true
		return nil
	}
	if err != nil {
		return err
	}
	perm := p.Perm
	if perm == 0 {
		perm = g.base.Mode(inode.KindDir) & 0o7777
	}
	n := g.dirs[p.Path].node
	err = g.update(func(e *edit) error {
		in, err := e.inode(n)
		if err == nil && in.Mode&0o7777 != perm {
			in.Mode, in.Ctime = in.Mode&^0o7777|perm, e.now
		}
		return err
	})
	g.stale[n], g.listings[n] = true, true
	return err
}

// hideAll hides all names that the directory dir has in the base tree. b is the block of the children with these names.
func (e *edit) hideAll(dir Node, b inode.Block) {
	for n := b.First; n < b.First+Node(b.Count); n++ {
		name := e.base.Table.Name(e.base.Table.At(n))
		e.note(dir, name, 0, overlay.Hidden)
		e.tx.Hide(dir, name)
	}
}

// prune removes directories that are empty after files were removed from them, and directories of removed submodules.
// It keeps directories that are not empty, and directories in which the graft creates something.
func (g *grafting) prune(ctx context.Context, list []Graft, gone []int, used map[string]bool) error {
	var dirs []string
	for _, i := range gone {
		if list[i].Over.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			dirs = append(dirs, list[i].Path)
		} else {
			dirs = append(dirs, ParentOf(list[i].Path))
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	for i := len(dirs) - 1; i >= 0; i-- { // in the sorted list, a subdirectory follows its parent, so it is removed first
		for at := dirs[i]; at != "" && !used[at]; at = ParentOf(at) {
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

// removeDir removes the directory whose path is the parameter at, if the directory is empty. It returns true if
// afterwards no directory exists at this path.
func (g *grafting) removeDir(ctx context.Context, at string) (bool, error) {
	name := path.Base(at)
	parent, err := g.dir(ctx, ParentOf(at))
	if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDir) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	done, old := false, Node(0)
	err = g.editor.replacing(ctx, parent.node, parent.block, name, func(v victim) error {
		if v.node == 0 {
			done = true
			return nil
		}
		return g.update(func(e *edit) error {
			in, err := e.directory(parent.node)
			if err != nil {
				return err
			}
			if n, _ := e.entry(parent.node, parent.block, name); n != v.node {
				return errReplaced
			}
			old = v.node
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
		g.note(parent.node, at, ChangedName{Old: NameState{old, old != 0}})
	}
	return done, err
}
