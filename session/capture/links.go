package capture

import (
	"context"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
)

// If Options.LinksAsFiles is set, symbolic links are files in the working tree, as in a checkout with
// core.symlinks=false. Git then takes the type of a path from its index entry.

// isLink reports whether the file at path is a symbolic link. The entry in the index decides. Without an entry, HEAD
// decides, and for a path that is not in HEAD either, the tree from which the edit starts.
func (e *edit) isLink(ctx context.Context, path string) (bool, error) {
	was, err := e.v.staged(path)
	if err == nil && was.Mode == 0 {
		t, rel := e.v.of(path)
		was, err = e.c.lookup(ctx, t.head, rel)
	}
	if err == nil && was.Mode == 0 {
		was.Mode, _, err = e.trees.get(ctx, path)
	}
	return was.Mode == object.ModeSymlink, err
}

// linksChanged reports whether a path is a symbolic link in an index, but was none at the previous checkpoint, or the
// reverse. The previous checkpoint may then contain the path with the wrong type, because git writes the files of a
// checkout before the index.
func (c *Capturer) linksChanged(ctx context.Context) (changed bool, err error) {
	compare := func(before, now object.ID) {
		if err != nil || changed {
			return
		}
		err = treediff.Trees(ctx, c.readTree, before, now, func(_ string, from, to object.TreeEntry) error {
			changed = changed || (from.Mode == object.ModeSymlink) != (to.Mode == object.ModeSymlink)
			return nil
		})
	}
	compare(c.mem.Index.tracking().index.Tree, c.tracking.index.Tree)
	for _, r := range c.roots {
		compare(c.mem.Linked[r.path].tracking().index.Tree, r.tracking.index.Tree)
	}
	return changed, err
}
