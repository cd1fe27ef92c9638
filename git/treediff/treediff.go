// Package treediff compares two git trees by the IDs of their entries. It also prepares the input of git merge-tree, which
// merges trees, and parses its output.
package treediff

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Reader returns the entries of a tree. A zero ID stands for the empty tree.
type Reader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// Trees calls the function each for every path in which the trees from and to differ, with the entries of the path in both
// trees. An entry has mode 0 if its tree does not contain the path. Trees reads only directories that differ. A directory
// that replaces a file is reported as a removed file and added files. The paths are sorted, as in the output of git diff. An error of
// read or each ends the comparison and is returned.
func Trees(ctx context.Context, read Reader, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	return compare(ctx, comparison{read: read}, from, to, each)
}

// WithDirs compares two trees like Trees, and also reports empty directories, as entries with object.ModeDir: each empty
// directory that is new or replaces another entry, and each one that was removed.
func WithDirs(ctx context.Context, read Reader, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	return compare(ctx, comparison{read: read, dirs: true}, from, to, each)
}

// comparison is a comparison of two trees.
type comparison struct {
	read  Reader
	dirs  bool // whether empty directories are reported in addition to files
	found []difference
}

// difference is a path whose entries differ.
type difference struct {
	path     string
	from, to object.TreeEntry
}

// compare compares two trees, and calls each for the differences, sorted by their paths.
func compare(ctx context.Context, c comparison, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	if err := c.below(ctx, "", from, to); err != nil {
		return err
	}
	slices.SortStableFunc(c.found, func(a, b difference) int { return strings.Compare(a.path, b.path) })
	for _, d := range c.found {
		if err := each(d.path, d.from, d.to); err != nil {
			return err
		}
	}
	return nil
}

// isEmptyDir reports whether e is the empty tree.
func isEmptyDir(e object.TreeEntry) bool {
	return e.Mode == object.ModeDir && e.ID == object.EmptyTree(e.ID.Format())
}

// below compares the entries of one directory in both trees. The parameter at is the path of the directory; from and to are
// the IDs of the directory in the two trees, zero if a tree does not have the directory.
func (d *comparison) below(ctx context.Context, at string, from, to object.ID) error {
	if from == to {
		return nil
	}
	var before, after []object.TreeEntry
	var err error
	if !from.IsZero() {
		before, err = d.read(ctx, from)
	}
	if err == nil && !to.IsZero() {
		after, err = d.read(ctx, to)
	}
	if err != nil {
		return err
	}
	// The entries of the old tree that are still in this map after the loop over the new tree were removed.
	was := make(map[string]object.TreeEntry, len(before))
	for _, e := range before {
		was[e.Name] = e
	}
	for _, e := range after {
		old := was[e.Name]
		delete(was, e.Name)
		if err := d.entry(ctx, path.Join(at, e.Name), old, e); err != nil {
			return err
		}
	}
	for _, e := range before {
		if old, gone := was[e.Name]; gone {
			if err := d.entry(ctx, path.Join(at, e.Name), old, object.TreeEntry{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry compares the entries from and to of the path at in the two trees, and everything below that path.
func (d *comparison) entry(ctx context.Context, at string, from, to object.TreeEntry) error {
	if from.Mode == to.Mode && from.ID == to.ID {
		return nil
	}
	// The comparison of its entries cannot report an empty directory, so report the directory here.
	if d.dirs && (isEmptyDir(to) || isEmptyDir(from) && to.Mode == 0) {
		was, is := object.TreeEntry{}, object.TreeEntry{}
		if isEmptyDir(from) {
			was = from
		}
		if isEmptyDir(to) {
			is = to
		}
		d.found = append(d.found, difference{at, was, is})
	}
	// A directory is not reported itself; its entries are compared below. If a directory has replaced a file or link, or was
	// replaced by a file or link, that file or link is reported.
	var fromDir, toDir object.ID
	if from.Mode == object.ModeDir {
		fromDir, from = from.ID, object.TreeEntry{}
	}
	if to.Mode == object.ModeDir {
		toDir, to = to.ID, object.TreeEntry{}
	}
	if from.Mode != 0 || to.Mode != 0 {
		d.found = append(d.found, difference{at, from, to})
	}
	return d.below(ctx, at, fromDir, toDir)
}
