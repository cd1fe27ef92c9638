package capture

import (
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
)

// contents makes the blobs of the files in e.plain and e.cleaned, and adds the blobs to the tree.
func (e *edit) contents(ctx context.Context) error {
	e.c.steps.done("apply")
	if err := e.out.hash(ctx, e.plain); err != nil {
		return err
	}
	e.c.steps.done("hash")
	for i := range e.plain {
		s := &e.plain[i]
		// A file that was changed and then changed back has the same blob as before, which exists already.
		same, err := e.known(ctx, s.path, s.id)
		if err != nil {
			return err
		}
		if !same {
			e.out.keep(s)
		}
		if err := e.trees.set(ctx, s.path, s.mode, s.id); err != nil {
			return err
		}
	}
	if len(e.cleaned) == 0 {
		return nil
	}
	if err := e.clean(ctx); err != nil {
		return fmt.Errorf("convert contents of files: %w", err)
	}
	for i := range e.cleaned {
		s := &e.cleaned[i]
		if s.refused {
			if err := e.withhold(ctx, s); err != nil {
				return err
			}
			continue
		}
		e.left.delete(s.path)
		if err := e.trees.set(ctx, s.path, s.mode, s.id); err != nil {
			return err
		}
	}
	return nil
}

// known reports whether the base tree, the previous checkpoint or HEAD of the linked worktree already has the blob id
// at path. Such a blob need not be written again, even if only the mounted remote has it and this host does not.
func (e *edit) known(ctx context.Context, path string, id object.ID) (bool, error) {
	t, rel := e.v.of(path)
	places := []struct {
		tree object.ID
		path string
	}{{e.c.o.BaseTree, path}, {e.v.from, path}}
	if t.path != "" {
		places = append(places, struct {
			tree object.ID
			path string
		}{t.head, rel})
		places[0].path = rel
	}
	for _, p := range places {
		was, err := e.c.lookup(ctx, p.tree, p.path)
		if err != nil {
			return false, err
		}
		if was.Mode.IsBlob() && was.ID == id {
			return true, nil
		}
	}
	return false, nil
}
