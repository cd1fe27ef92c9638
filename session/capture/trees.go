package capture

import (
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
)

// child is an entry of a directory. If its mode is zero, the entry was removed.
type child struct {
	mode object.Mode
	id   object.ID // id of the entry; for a directory in memory, id of the tree from which it was read, or zero
	// dir is the directory in memory; nil if the entry is not a directory, or was not read yet.
	dir *directory
}

// directory is a directory in memory: the entries of a tree object, with changes.
type directory struct {
	was []object.TreeEntry // entries that were read, in git's order
	now map[string]child   // entries that were read into memory or replaced, by name; mode 0 means removed
	// edited is set if an entry of the directory, or of a directory below it, may have changed.
	edited bool
}

// get returns the current entry called name. Its mode is 0 if there is no such entry.
func (d *directory) get(name string) child {
	if c, ok := d.now[name]; ok {
		return c
	}
	e, _ := find(d.was, name)
	return child{mode: e.Mode, id: e.ID}
}

// set replaces the entry called name by c.
func (d *directory) set(name string, c child) {
	if d.now == nil {
		d.now = map[string]child{}
	}
	d.now[name] = c
}

// find returns the entry called name in list, and reports whether it exists. Git sorts a directory as if its name ended
// in a slash, so find searches for a file first and then for a directory.
func find(list []object.TreeEntry, name string) (object.TreeEntry, bool) {
	for _, mode := range []object.Mode{object.ModeFile, object.ModeDir} {
		i, ok := slices.BinarySearchFunc(list, object.TreeEntry{Name: name, Mode: mode}, object.CompareEntries)
		if ok {
			return list[i], true
		}
	}
	return object.TreeEntry{}, false
}

// trees is a git tree under construction. It reads only the directories that are accessed.
type trees struct {
	read   treediff.Reader
	format object.Format
	root   child
}

// newTrees returns a tree that starts with the contents of the tree root; a zero root stands for the empty tree.
func newTrees(read treediff.Reader, f object.Format, root object.ID) *trees {
	return &trees{read: read, format: f, root: child{mode: object.ModeDir, id: root}}
}

// open returns the directory of the entry c. If the directory is not in memory, open reads it and stores it in c.dir.
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

// within returns the directory at path, and keeps this directory and its parents in memory. If make is set, it creates
// missing directories, which replace entries of other types. If make is not set, it returns nil if there is no
// directory at path.
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

// split splits path into its directory and its last element.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(0, i)], path[i+1:]
}

// get returns the mode and id of the entry at path. The mode is 0 if there is no such entry.
func (t *trees) get(ctx context.Context, path string) (object.Mode, object.ID, error) {
	dir, name := split(path)
	d, err := t.within(ctx, dir, false)
	if err != nil || d == nil {
		return 0, object.ID{}, err
	}
	c := d.get(name)
	return c.mode, c.id, nil
}

// set replaces the entry at path, or adds it. It creates missing parent directories.
func (t *trees) set(ctx context.Context, path string, mode object.Mode, id object.ID) error {
	dir, name := split(path)
	d, err := t.within(ctx, dir, true)
	if err != nil {
		return err
	}
	d.set(name, child{mode: mode, id: id})
	return nil
}

// clear replaces the entry at path by an empty directory.
func (t *trees) clear(ctx context.Context, path string) error {
	if path == "" {
		t.root = child{mode: object.ModeDir, dir: &directory{edited: true}}
		return nil
	}
	return t.set(ctx, path, object.ModeDir, object.ID{})
}

// remove removes the entry at path. If the tree lacks the parent directory, remove creates it: the parent exists in the
// working tree, and may be a new directory whose files were all removed again.
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

// write returns the id of the directory c, and calls emit for each tree in it that has changed, children before
// parents. A directory without entries becomes an entry of the empty tree: git accepts such an entry, although it never
// writes one.
func (t *trees) write(c child, emit func(id object.ID, content []byte) error) (object.ID, error) {
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
			if e.id, err = t.write(e, emit); err != nil {
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
	// The changes may cancel each other out. Then the tree exists already and need not be emitted.
	if id == c.id {
		return id, nil
	}
	return id, emit(id, content)
}

// changed returns the number of paths that differ between the tree of the checkpoint and the tree before. If before is
// zero, it compares with the base tree.
func (s *shot) changed(ctx context.Context, before object.ID) (int64, error) {
	c := s.edit.c
	if before.IsZero() {
		before = c.o.BaseTree
	}
	var n int64
	read := func(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
		if content, ok := s.out.trees[id]; ok { // the tree is not in the Repo yet
			entries, _, err := object.ReadTree(c.format, content)
			return entries, err
		}
		return c.readTree(ctx, id)
	}
	err := treediff.WithDirs(ctx, read, before, s.shown, func(string, object.TreeEntry, object.TreeEntry) error {
		n++
		return nil
	})
	return n, err
}
