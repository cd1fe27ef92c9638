package capture

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// treeReader gives trees by their ids.
type treeReader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// child is what a directory has under a name.
type child struct {
	mode object.Mode
	id   object.ID // of a directory that is in memory: what it was read from, or zero
	dir  *directory
}

// directory is a tree in memory.
type directory struct {
	was    []object.TreeEntry // that was read, in git's order
	now    map[string]child   // what was looked into or is to be there instead; mode 0: nothing
	edited bool
}

func (d *directory) get(name string) child {
	if c, ok := d.now[name]; ok {
		return c
	}
	e, _ := find(d.was, name)
	return child{mode: e.Mode, id: e.ID}
}

func (d *directory) set(name string, c child) {
	if d.now == nil {
		d.now = map[string]child{}
	}
	d.now[name] = c
}

// find gives the entry of a name: files and directories have places of their own in git's order.
func find(list []object.TreeEntry, name string) (object.TreeEntry, bool) {
	for _, mode := range []object.Mode{object.ModeFile, object.ModeDir} {
		i, ok := slices.BinarySearchFunc(list, object.TreeEntry{Name: name, Mode: mode}, object.CompareEntries)
		if ok {
			return list[i], true
		}
	}
	return object.TreeEntry{}, false
}

// trees is a tree that is being changed: only directories that are looked into are read.
type trees struct {
	read   treeReader
	format object.Format
	root   child
}

func newTrees(read treeReader, f object.Format, root object.ID) *trees {
	return &trees{read: read, format: f, root: child{mode: object.ModeDir, id: root}}
}

// open reads a directory.
func (t *trees) open(ctx context.Context, c *child) (*directory, error) {
	if c.dir != nil {
		return c.dir, nil
	}
	d := &directory{}
	if !c.id.IsZero() {
		var err error
		if d.was, err = t.read(ctx, c.id); err != nil {
			return nil, err
		}
	}
	c.dir = d
	return d, nil
}

// within gives the directory at a path and keeps those on the way. Make: those that are not there are made, in the place of
// what else is; else it is nil.
func (t *trees) within(ctx context.Context, path string, make bool) (*directory, error) {
	d, err := t.open(ctx, &t.root)
	if err != nil {
		return nil, err
	}
	for path != "" {
		var name string
		name, path, _ = strings.Cut(path, "/")
		c := d.get(name)
		if c.mode != object.ModeDir {
			if !make {
				return nil, nil
			}
			c = child{mode: object.ModeDir, dir: &directory{}}
		}
		d.edited = d.edited || make
		next, err := t.open(ctx, &c)
		if err != nil {
			return nil, err
		}
		d.set(name, c)
		d = next
	}
	d.edited = d.edited || make
	return d, nil
}

func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(0, i)], path[i+1:]
}

// get tells what is at a path; mode 0: nothing.
func (t *trees) get(ctx context.Context, path string) (object.Mode, object.ID, error) {
	dir, name := split(path)
	d, err := t.within(ctx, dir, false)
	if err != nil || d == nil {
		return 0, object.ID{}, err
	}
	c := d.get(name)
	return c.mode, c.id, nil
}

// set puts something at a path, in the place of all that was there.
func (t *trees) set(ctx context.Context, path string, mode object.Mode, id object.ID) error {
	dir, name := split(path)
	d, err := t.within(ctx, dir, true)
	if err != nil {
		return err
	}
	d.set(name, child{mode: mode, id: id})
	return nil
}

// clear makes an empty directory at a path.
func (t *trees) clear(ctx context.Context, path string) error {
	if path == "" {
		t.root = child{mode: object.ModeDir, dir: &directory{edited: true}}
		return nil
	}
	return t.set(ctx, path, object.ModeDir, object.ID{})
}

// remove takes away what is at a path. The directory that it was in is there, though the tree may not have it: it may be new,
// and have lost all that was in it.
func (t *trees) remove(ctx context.Context, path string) error {
	dir, name := split(path)
	d, err := t.within(ctx, dir, false)
	if err == nil && (d == nil || d.get(name).mode != 0) {
		d, err = t.within(ctx, dir, true)
	}
	if err == nil && d.get(name).mode != 0 {
		d.set(name, child{})
	}
	return err
}

// write gives the root's id, and each tree that has changed to emit.
func (t *trees) write(emit func(id object.ID, content []byte) error) (object.ID, error) {
	return t.writeChild(t.root, emit)
}

// writeChild returns the id of a directory. One that has nothing in it is the empty tree, which git reads, though it makes
// no such entry itself.
func (t *trees) writeChild(c child, emit func(id object.ID, content []byte) error) (object.ID, error) {
	if !c.id.IsZero() && (c.dir == nil || !c.dir.edited) {
		return c.id, nil
	}
	d := c.dir
	if d == nil {
		d = &directory{}
	}
	entries := make([]object.TreeEntry, 0, len(d.was)+len(d.now))
	for _, e := range d.was {
		if _, ok := d.now[e.Name]; !ok {
			entries = append(entries, e)
		}
	}
	for name, e := range d.now {
		if e.mode == object.ModeDir {
			var err error
			if e.id, err = t.writeChild(e, emit); err != nil {
				return object.ID{}, err
			}
		}
		if e.mode != 0 {
			entries = append(entries, object.TreeEntry{Name: name, Mode: e.mode, ID: e.id})
		}
	}
	content := session.EncodeTree(entries)
	id, err := object.Hash(t.format, object.Tree, content)
	if err != nil {
		return object.ID{}, err
	}
	if id == c.id {
		return id, nil
	}
	return id, emit(id, content)
}

// isEmptyTree says whether an entry is a directory that has nothing in it.
func isEmptyTree(e object.TreeEntry) bool {
	return e.Mode == object.ModeDir && e.ID == object.EmptyTree(e.ID.Format())
}

// difference is a path that two trees do not have alike; a mode of 0: nothing is there. Of directories only empty ones are
// told, with object.ModeDir.
type difference struct {
	path     string
	from, to object.TreeEntry
}

// compare calls emit for every path that two trees do not have alike, in git's order of entries; zero ids are empty trees.
func compare(ctx context.Context, read treeReader, from, to object.ID, dir string, emit func(difference) error) error {
	if from == to {
		return nil
	}
	var a, b []object.TreeEntry
	var err error
	if !from.IsZero() {
		if a, err = read(ctx, from); err != nil {
			return fmt.Errorf("compare trees: %w", err)
		}
	}
	if !to.IsZero() {
		if b, err = read(ctx, to); err != nil {
			return fmt.Errorf("compare trees: %w", err)
		}
	}
	for len(a) > 0 || len(b) > 0 {
		var x, y object.TreeEntry
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = object.CompareEntries(a[0], b[0])
		}
		if order <= 0 {
			x, a = a[0], a[1:]
		}
		if order >= 0 {
			y, b = b[0], b[1:]
		}
		if x == y {
			continue
		}
		path := join(dir, max(x.Name, y.Name))
		switch {
		case x.Mode != object.ModeDir && y.Mode != object.ModeDir: // in git's order a directory never meets what is none
			err = emit(difference{path, x, y})
		case isEmptyTree(y) || isEmptyTree(x) && y.Mode == 0:
			if err = compare(ctx, read, x.ID, y.ID, path, emit); err == nil {
				err = emit(difference{path, x, y})
			}
		default:
			err = compare(ctx, read, x.ID, y.ID, path, emit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed counts the paths that differ from the checkpoint before, or what was mounted.
func (c *Capturer) changed(ctx context.Context, s *shot, before object.ID) (int64, error) {
	if before.IsZero() {
		before = c.o.BaseTree
	}
	var n int64
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
		if content, ok := s.out.trees[id]; ok { // it is not in the Repo yet
			return object.ParseTree(c.format, content)
		}
		return c.readTree(ctx, id)
	}
	err := compare(ctx, read, before, s.shown, "", func(difference) error { n++; return nil })
	return n, err
}
