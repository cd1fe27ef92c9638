// Package treewalk visits the files of git trees: of a whole tree, of what follows a path, or of one directory, forward
// or backward.
package treewalk

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// File is a blob of a tree: a regular file or a symlink. Path is relative to the root of the tree.
type File struct {
	ID   object.ID
	Path string
	Mode object.Mode
}

// Trees is a source of trees.
type Trees interface {
	// Entries returns the entries of a tree. It waits for a missing tree. The zero id stands for the empty tree.
	Entries(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// Local returns the entries of a tree that is on this host, and false if the tree is missing. It does not wait.
	Local(id object.ID) ([]object.TreeEntry, bool)
}

// Local returns only the trees of Trees that are on this host.
type Local struct{ Trees }

// ErrMissing means that a tree is not on this host.
var ErrMissing = errors.New("tree is not on this host")

// Entries returns the entries of a tree. If the tree is missing on this host, the error is ErrMissing.
func (t Local) Entries(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(id.Format()) {
		return nil, nil
	}
	if entries, ok := t.Trees.Local(id); ok {
		return entries, nil
	}
	return nil, ErrMissing
}

// Walker visits the files of trees.
type Walker struct{ Trees Trees }

// Order is the order in which a walk visits the entries of each directory. Programs that keep the names of a directory
// on a stack, such as rg, read files in the order Backward.
type Order bool

const (
	Forward  Order = false
	Backward Order = true
)

// of returns the entries in this order.
func (o Order) of(entries []object.TreeEntry) iter.Seq2[int, object.TreeEntry] {
	if o == Backward {
		return slices.Backward(entries)
	}
	return slices.All(entries)
}

// after returns the entries that follow the entry with index i in this order.
func (o Order) after(entries []object.TreeEntry, i int) []object.TreeEntry {
	if o == Backward {
		return entries[:i]
	}
	return entries[i+1:]
}

// Walk calls visit for every blob below the tree root, depth first and in the order of the entries, until visit returns
// false. dir is the path of the tree root; the paths that visit receives begin with dir. Walk waits for missing trees.
// It returns false if visit returned false.
func (w Walker) Walk(ctx context.Context, root object.ID, dir string, visit func(File) bool) (bool, error) {
	return w.walkIn(ctx, root, dir, Forward, visit)
}

// walkIn calls visit for the blobs below the tree root, as Walk does, in the given order.
func (w Walker) walkIn(ctx context.Context, root object.ID, dir string, o Order, visit func(File) bool) (bool, error) {
	if root.IsZero() {
		return true, nil
	}
	entries, err := w.Trees.Entries(ctx, root)
	if err != nil {
		return false, err
	}
	return w.walkEntries(ctx, entries, dir, o, visit)
}

// walkEntries calls visit for the blobs below the entries of directory dir, as walkIn does.
func (w Walker) walkEntries(ctx context.Context, entries []object.TreeEntry, dir string, o Order,
	visit func(File) bool) (bool, error) {
	for _, e := range o.of(entries) {
		path := Join(dir, e.Name)
		switch {
		case e.Mode == object.ModeDir:
			if on, err := w.walkIn(ctx, e.ID, path, o, visit); !on || err != nil {
				return false, err
			}
		case e.Mode.IsBlob():
			if !visit(File{e.ID, path, e.Mode}) {
				return false, nil
			}
		}
	}
	return true, nil
}

// WalkLocal calls visit for blobs as Walk does, but skips trees that are not on this host, so it never waits.
func (w Walker) WalkLocal(root object.ID, dir string, visit func(File)) {
	if root.IsZero() {
		return
	}
	// If the tree is missing, all files below it are skipped.
	entries, ok := w.Trees.Local(root)
	if !ok {
		return
	}
	for _, e := range entries {
		path := Join(dir, e.Name)
		switch {
		case e.Mode == object.ModeDir:
			w.WalkLocal(e.ID, path, visit)
		case e.Mode.IsBlob():
			visit(File{e.ID, path, e.Mode})
		}
	}
}

// WalkFrom calls visit for the blobs that follow path in the order o, until visit returns false or the end of the tree
// is reached.
func (w Walker) WalkFrom(ctx context.Context, root object.ID, path string, o Order, visit func(File) bool) error {
	_, err := w.walkRest(ctx, root, "", path, o, visit)
	return err
}

// walkRest calls visit for the blobs that follow the path rest in a tree. dir is the path of the tree, and rest is
// relative to dir. If the tree has no entry whose name is the first component of rest, walkRest does not call visit. It
// returns false if visit returned false.
func (w Walker) walkRest(ctx context.Context, tree object.ID, dir, rest string, o Order,
	visit func(File) bool) (bool, error) {
	name, below, deeper := strings.Cut(rest, "/")
	entries, err := w.Trees.Entries(ctx, tree)
	if err != nil {
		return false, err
	}
	for i, e := range entries {
		if e.Name != name {
			continue
		}
		// The remaining files of the subdirectory are visited before the entries that follow the subdirectory.
		if deeper && e.Mode == object.ModeDir {
			if on, err := w.walkRest(ctx, e.ID, Join(dir, name), below, o, visit); !on || err != nil {
				return false, err
			}
		}
		return w.walkEntries(ctx, o.after(entries, i), dir, o, visit)
	}
	return true, nil
}

// WalkDir calls visit for the blobs that follow path, in the order o, in the directory of path, until visit returns
// false. It visits no subdirectories.
func (w Walker) WalkDir(ctx context.Context, root object.ID, path string, o Order, visit func(File) bool) error {
	dir := DirOf(path)
	entries, err := w.Directory(ctx, root, dir)
	if err != nil {
		return err
	}
	passed := false
	for _, e := range o.of(entries) {
		if passed && e.Mode.IsBlob() && !visit(File{e.ID, Join(dir, e.Name), e.Mode}) {
			return nil
		}
		passed = passed || e.Name == path[strings.LastIndexByte(path, '/')+1:]
	}
	return nil
}

// Directory returns the entries of the directory at path; "" is the root. It returns nil if path is not a directory of
// the tree. It waits for missing trees.
func (w Walker) Directory(ctx context.Context, root object.ID, path string) ([]object.TreeEntry, error) {
	id, err := w.Find(ctx, root, path)
	if err != nil {
		return nil, err
	}
	return w.Trees.Entries(ctx, id)
}

// Find returns the tree of the directory at path; "" is the root. It returns the zero id if path is not a directory of
// the tree. It waits for missing trees.
func (w Walker) Find(ctx context.Context, root object.ID, path string) (object.ID, error) {
	for path != "" && !root.IsZero() {
		entries, err := w.Trees.Entries(ctx, root)
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

// Join returns the path of name in the directory dir; "" is the root.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// DirOf returns the directory of path; "" for a path in the root.
func DirOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i]
	}
	return ""
}
