package fetch

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// file is a blob of a tree: a regular file or a symlink. path is relative to the root of the tree.
type file struct {
	id   object.ID
	path string
	mode object.Mode
}

// order is the order in which a walk visits the entries of each directory. Programs that keep the names of a directory on a
// stack, such as rg, read files in the order backward.
type order bool

const (
	forward  order = false
	backward order = true
)

// of returns the entries in this order.
func (o order) of(entries []object.TreeEntry) iter.Seq2[int, object.TreeEntry] {
	if o == backward {
		return slices.Backward(entries)
	}
	return slices.All(entries)
}

// after returns the entries that follow the entry with index i in this order.
func (o order) after(entries []object.TreeEntry, i int) []object.TreeEntry {
	if o == backward {
		return entries[:i]
	}
	return entries[i+1:]
}

// walk calls visit for every blob below the tree root, depth first and in the order of the entries, until visit returns false.
// dir is the path of the tree root; the paths that visit receives begin with dir. walk waits for missing trees. It returns false
// if visit returned false.
func (t *trees) walk(ctx context.Context, root object.ID, dir string, visit func(file) bool) (bool, error) {
	return t.walkIn(ctx, root, dir, forward, visit)
}

// walkIn calls visit for the blobs below the tree root, as walk does, in the given order.
func (t *trees) walkIn(ctx context.Context, root object.ID, dir string, o order, visit func(file) bool) (bool, error) {
	if root.IsZero() {
		return true, nil
	}
	entries, err := t.entries(ctx, root)
	if err != nil {
		return false, err
	}
	return t.walkEntries(ctx, entries, dir, o, visit)
}

// walkEntries calls visit for the blobs below the entries of directory dir, as walkIn does.
func (t *trees) walkEntries(ctx context.Context, entries []object.TreeEntry, dir string, o order, visit func(file) bool) (bool, error) {
	for _, e := range o.of(entries) {
		path := join(dir, e.Name)
		switch {
		case e.Mode == object.ModeDir:
			if on, err := t.walkIn(ctx, e.ID, path, o, visit); !on || err != nil {
				return false, err
			}
		case e.Mode.IsBlob():
			if !visit(file{e.ID, path, e.Mode}) {
				return false, nil
			}
		}
	}
	return true, nil
}

// walkLocal calls visit for blobs as walk does, but skips trees that are not on this host, so it never waits.
func (t *trees) walkLocal(root object.ID, dir string, visit func(file)) {
	if root.IsZero() {
		return
	}
	// If the tree is missing, all files below it are skipped.
	entries, ok := t.local(root)
	if !ok {
		return
	}
	for _, e := range entries {
		path := join(dir, e.Name)
		switch {
		case e.Mode == object.ModeDir:
			t.walkLocal(e.ID, path, visit)
		case e.Mode.IsBlob():
			visit(file{e.ID, path, e.Mode})
		}
	}
}

// walkFrom calls visit for the blobs that follow path in the order o, until visit returns false or the end of the tree is
// reached.
func (t *trees) walkFrom(ctx context.Context, root object.ID, path string, o order, visit func(file) bool) error {
	_, err := t.walkRest(ctx, root, "", path, o, visit)
	return err
}

// walkRest calls visit for the blobs that follow the path rest in a tree. dir is the path of the tree, and rest is relative to
// dir. If the tree has no entry whose name is the first component of rest, walkRest does not call visit. It returns false if
// visit returned false.
func (t *trees) walkRest(ctx context.Context, tree object.ID, dir, rest string, o order, visit func(file) bool) (bool, error) {
	name, below, deeper := strings.Cut(rest, "/")
	entries, err := t.entries(ctx, tree)
	if err != nil {
		return false, err
	}
	for i, e := range entries {
		if e.Name != name {
			continue
		}
		// The remaining files of the subdirectory are visited before the entries that follow the subdirectory.
		if deeper && e.Mode == object.ModeDir {
			if on, err := t.walkRest(ctx, e.ID, join(dir, name), below, o, visit); !on || err != nil {
				return false, err
			}
		}
		return t.walkEntries(ctx, o.after(entries, i), dir, o, visit)
	}
	return true, nil
}

// directory returns the entries of the directory at path; "" is the root. It returns nil if path is not a directory of the tree.
// It waits for missing trees.
func (t *trees) directory(ctx context.Context, root object.ID, path string) ([]object.TreeEntry, error) {
	id, err := t.find(ctx, root, path)
	if err != nil {
		return nil, err
	}
	return t.entries(ctx, id)
}

// find returns the tree of the directory at path; "" is the root. It returns the zero id if path is not a directory of the tree.
// It waits for missing trees.
func (t *trees) find(ctx context.Context, root object.ID, path string) (object.ID, error) {
	for path != "" && !root.IsZero() {
		entries, err := t.entries(ctx, root)
		if err != nil {
			return object.ID{}, err
		}
		var name string
		name, path, _ = strings.Cut(path, "/")
		root = object.ID{}
		for _, e := range entries {
			if e.Name == name && e.Mode == object.ModeDir {
				root = e.ID
			}
		}
	}
	return root, nil
}

// join returns the path of name in the directory dir; "" is the root.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// dirOf returns the directory of path; "" for a path in the root.
func dirOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return ""
}
