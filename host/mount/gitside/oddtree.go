package gitside

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
)

// oddDir describes a directory whose tree git would not write.
type oddDir struct {
	rewritten bool          // whether git makes another tree from the index entries of the directory
	hidden    []index.Entry // entries that the directory does not show
}

// odd returns the properties of a directory for git's index. dir is its path, and id its tree.
func (ix *Index) odd(ctx context.Context, id object.ID, dir string) (oddDir, error) {
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

// hide appends the index entries of an entry of a tree that the mount does not show, and of everything below it.
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
