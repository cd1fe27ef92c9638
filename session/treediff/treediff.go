// Package treediff compares trees by their ids, and prepares and reads the merges of trees that git makes.
package treediff

import (
	"context"
	"path"

	"github.com/artifactfs/artifactfs/object"
)

// Reader returns the entries of a tree. A zero ID stands for the empty tree.
type Reader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// Trees calls each for every path in which two trees differ. It reads only directories that differ. The entry of a
// path that a tree does not have has mode 0. A directory that replaces a file is reported as the removed file and the
// added files.
func Trees(ctx context.Context, read Reader, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	return comparison{read, each, false}.below(ctx, "", from, to)
}

// WithDirs is Trees with empty directories, which have object.ModeDir: those that replace another entry or are new,
// and those that were removed.
func WithDirs(ctx context.Context, read Reader, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	return comparison{read, each, true}.below(ctx, "", from, to)
}

// comparison is a comparison of two trees.
type comparison struct {
	read Reader
	each func(path string, from, to object.TreeEntry) error
	dirs bool // report empty directories too
}

// isEmptyDir reports whether e is the empty tree.
func isEmptyDir(e object.TreeEntry) bool {
	return e.Mode == object.ModeDir && e.ID == object.EmptyTree(e.ID.Format())
}

// below compares the directory at in both trees. A zero ID means that a tree does not have the directory.
func (d comparison) below(ctx context.Context, at string, from, to object.ID) error {
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
	// Entries that remain in this map after the loop over the new tree were removed.
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

// entry compares one entry of both trees, and everything below it.
func (d comparison) entry(ctx context.Context, at string, from, to object.TreeEntry) error {
	if from.Mode == to.Mode && from.ID == to.ID {
		return nil
	}
	// An empty directory has no entries by which it would be reported.
	if d.dirs && (isEmptyDir(to) || isEmptyDir(from) && to.Mode == 0) {
		was, is := object.TreeEntry{}, object.TreeEntry{}
		if isEmptyDir(from) {
			was = from
		}
		if isEmptyDir(to) {
			is = to
		}
		if err := d.each(at, was, is); err != nil {
			return err
		}
	}
	// A directory is compared by its entries; only a file or link in its place is reported itself.
	var fromDir, toDir object.ID
	if from.Mode == object.ModeDir {
		fromDir, from = from.ID, object.TreeEntry{}
	}
	if to.Mode == object.ModeDir {
		toDir, to = to.ID, object.TreeEntry{}
	}
	if from.Mode != 0 || to.Mode != 0 {
		if err := d.each(at, from, to); err != nil {
			return err
		}
	}
	return d.below(ctx, at, fromDir, toDir)
}
