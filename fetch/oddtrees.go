package fetch

import (
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
)

// Odd returns the entries of a tree, and those of its entries that are odd (object.ReadTree). It waits until the tree
// has been fetched.
func (v *RawView) Odd(ctx context.Context, id object.ID) ([]object.TreeEntry, []object.OddEntry, error) {
	entries, err := v.Tree(ctx, id)
	return entries, v.store.trees.oddOf(id), err
}

// maxOddPaths is the maximum number of paths that OddPaths returns.
const maxOddPaths = 20

// OddPaths returns a message for each path of the shown tree that the mount does not show, up to maxOddPaths, and the
// number of these paths. It looks only at trees on this host, and never waits.
func (v *RawView) OddPaths() (messages []string, all int) {
	if !v.store.trees.anyOdd() {
		return nil, 0
	}
	v.oddBelow(v.Shown(), "", func(path string, why object.Oddity) {
		if all++; all <= maxOddPaths {
			messages = append(messages, fmt.Sprintf("%.300q is not shown: %s", path, why))
		}
	})
	return messages, all
}

// oddBelow calls emit for the hidden entries of a tree and of the trees below it. dir is the path of the tree.
func (v *RawView) oddBelow(id object.ID, dir string, emit func(path string, why object.Oddity)) {
	entries, ok := v.store.trees.Local(id)
	if !ok {
		return
	}
	for _, e := range v.store.trees.oddOf(id) {
		if e.Hidden() {
			emit(treewalk.Join(dir, e.Name), e.Why)
		}
	}
	for _, e := range entries {
		if e.Mode == object.ModeDir && object.CanShow(e.Name) {
			v.oddBelow(e.ID, treewalk.Join(dir, e.Name), emit)
		}
	}
}
