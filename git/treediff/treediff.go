// Package treediff compares git trees by the IDs of their entries: two trees (Trees), or one with several others
// (Walk). It also finds the contents that git merge-tree reads, and merge bases in a part of the history.
package treediff

import (
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Reader returns the entries of a tree. A zero ID stands for the empty tree.
type Reader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// Trees calls the function each for every path in which the trees from and to differ, with the entries of the path in
// both trees. An entry has mode 0 if its tree does not contain the path. Trees reads only directories that differ. A
// directory that replaces a file is reported as a removed file and added files. The paths are sorted, as in the output
// of git diff. An error of read or each ends the comparison and is returned.
func Trees(ctx context.Context, read Reader, from, to object.ID,
	each func(path string, from, to object.TreeEntry) error) error {
	return compare(ctx, read, false, from, to, each)
}

// WithDirs compares two trees like Trees, and also reports empty directories, as entries with object.ModeDir: each
// empty directory that is new or replaces another entry, and each one that was removed.
func WithDirs(ctx context.Context, read Reader, from, to object.ID,
	each func(path string, from, to object.TreeEntry) error) error {
	return compare(ctx, read, true, from, to, each)
}

// EntryAt returns the entry of a path in a tree. Its mode is 0 if the tree does not contain the path.
func EntryAt(ctx context.Context, read Reader, tree object.ID, path string) (object.TreeEntry, error) {
	e := object.TreeEntry{Mode: object.ModeDir, ID: tree}
	for name := range strings.SplitSeq(path, "/") {
		if e.Mode != object.ModeDir {
			return object.TreeEntry{}, nil
		}
		entries, err := read(ctx, e.ID)
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
		if err != nil || i < 0 {
			return object.TreeEntry{}, err
		}
		e = entries[i]
	}
	return e, nil
}

// difference is a path whose entries differ.
type difference struct {
	path     string
	from, to object.TreeEntry
}

// compare compares two trees, and calls each for the differences, sorted by their paths. The parameter dirs states
// whether empty directories are reported in addition to files.
func compare(ctx context.Context, read Reader, dirs bool, from, to object.ID,
	each func(path string, from, to object.TreeEntry) error) error {
	var found []difference
	err := Walk{
		Read: func(id object.ID) ([]object.TreeEntry, error) { return read(ctx, id) },
		Visit: func(at string, to object.TreeEntry, bases []object.TreeEntry) (enter bool, err error) {
			from := bases[0]
			// The comparison of its entries cannot report an empty directory, so report the directory here.
			if dirs && (isEmptyDir(to) || isEmptyDir(from) && to.Mode == 0) {
				d := difference{path: at}
				if isEmptyDir(from) {
					d.from = from
				}
				if isEmptyDir(to) {
					d.to = to
				}
				found = append(found, d)
			}
			// A directory is not reported itself; its entries are compared below. If a directory has replaced a file or link, or
			// was replaced by a file or link, that file or link is reported.
			for _, e := range []*object.TreeEntry{&from, &to} {
				if e.Mode == object.ModeDir {
					*e, enter = object.TreeEntry{}, true
				}
			}
			if from.Mode != 0 || to.Mode != 0 {
				found = append(found, difference{at, from, to})
			}
			return enter, nil
		},
	}.Run(to, from)
	if err != nil {
		return err
	}
	slices.SortStableFunc(found, func(a, b difference) int { return strings.Compare(a.path, b.path) })
	for _, d := range found {
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
