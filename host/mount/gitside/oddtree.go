package gitside

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
)

// oddDir describes a directory whose tree git would not write in this form.
type oddDir struct {
	rewritten bool          // whether git would write another tree for the index entries of the directory
	hidden    []index.Entry // index entries for tree entries that the directory of the mount does not show
}

// oddDirOf returns the description, for git's index, of the directory with the path dir and the tree id.
func (ix *Index) oddDirOf(ctx context.Context, id object.ID, dir string) (oddDir, error) {
	var d oddDir
	_, odd, err := ix.Contents.View.Odd(ctx, id)
	for _, e := range odd {
		d.rewritten = d.rewritten || e.Why != object.OddLong
		if e.Staged() && err == nil {
			err = ix.hide(ctx, e.TreeEntry, treewalk.Join(dir, e.Name), &d.hidden)
		}
	}
	return d, err
}

// hide appends to the list to the index entries of the tree entry e, which the mount does not show, and of everything
// below it.
func (ix *Index) hide(ctx context.Context, e object.TreeEntry, path string, to *[]index.Entry) error {
	if e.Mode != object.ModeDir {
		*to = append(*to, index.Entry{Path: path, Mode: e.Mode, ID: e.ID, Valid: true, SkipWorktree: true})
		return nil
	}
	entries, odd, err := ix.Contents.View.Odd(ctx, e.ID)
	if err != nil {
		return err
	}
	for _, o := range odd {
		if o.Why == object.OddMerge {
			entries = append(entries[:len(entries):len(entries)], o.TreeEntry)
		}
	}
	for _, below := range entries {
		if object.CanStagePath(below.Name) {
			if err := ix.hide(ctx, below, treewalk.Join(path, below.Name), to); err != nil {
				return err
			}
		}
	}
	return nil
}
