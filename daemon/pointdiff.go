package daemon

import (
	"context"
	"path"

	"github.com/artifactfs/artifactfs/object"
)

// treeReader gives the entries of a tree; the zero ID is the empty one.
type treeReader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// diffTrees tells every path that two trees do not have alike, reading only directories that differ. An entry without a
// mode is not there. A directory in the place of a file is told as the file that goes, and the files that come.
func diffTrees(ctx context.Context, read treeReader, from, to object.ID, each func(path string, from, to object.TreeEntry) error) error {
	return diffBelow(ctx, read, "", from, to, each)
}

func diffBelow(ctx context.Context, read treeReader, at string, from, to object.ID, each func(string, object.TreeEntry, object.TreeEntry) error) error {
	if from == to {
		return nil
	}
	var before, after []object.TreeEntry
	var err error
	if !from.IsZero() {
		before, err = read(ctx, from)
	}
	if err == nil && !to.IsZero() {
		after, err = read(ctx, to)
	}
	if err != nil {
		return err
	}
	was := make(map[string]object.TreeEntry, len(before))
	for _, e := range before {
		was[e.Name] = e
	}
	for _, e := range after {
		old := was[e.Name]
		delete(was, e.Name)
		if err := diffEntry(ctx, read, path.Join(at, e.Name), old, e, each); err != nil {
			return err
		}
	}
	for _, e := range before {
		if old, gone := was[e.Name]; gone {
			if err := diffEntry(ctx, read, path.Join(at, e.Name), old, object.TreeEntry{}, each); err != nil {
				return err
			}
		}
	}
	return nil
}

func diffEntry(ctx context.Context, read treeReader, at string, from, to object.TreeEntry, each func(string, object.TreeEntry, object.TreeEntry) error) error {
	if from.Mode == to.Mode && from.ID == to.ID {
		return nil
	}
	var fromDir, toDir object.ID
	if from.Mode == object.ModeDir {
		fromDir, from = from.ID, object.TreeEntry{}
	}
	if to.Mode == object.ModeDir {
		toDir, to = to.ID, object.TreeEntry{}
	}
	if from.Mode != 0 || to.Mode != 0 {
		if err := each(at, from, to); err != nil {
			return err
		}
	}
	return diffBelow(ctx, read, at, fromDir, toDir, each)
}
