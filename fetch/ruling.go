package fetch

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/object"
)

const (
	ignoreName = ".gitignore"
	// maxRuling is how many trees are known for the files in them that tell git what to ignore and what to convert.
	maxRuling = 32
)

// ruling are the files of a tree by which git goes wherever they lie.
type ruling struct {
	ignore, attributes []Blob
	files              int // in all
}

// Ruling lists the ignore files of the view's tree, and its files of attributes, and says how many files there are in all. It
// waits for trees. Mounts of the same tree have it looked through once.
func (v *View) Ruling(ctx context.Context) (ignore, attributes []Blob, files int, err error) {
	s := v.store
	s.mu.Lock()
	r, ok := s.rulings[v.root]
	s.mu.Unlock()
	if !ok {
		if err := s.rule(ctx, v.root, "", &r); err != nil {
			return nil, nil, 0, err
		}
		s.mu.Lock()
		if len(s.rulings) >= maxRuling {
			clear(s.rulings)
		}
		s.rulings[v.root] = r
		s.mu.Unlock()
	}
	return slices.Clone(r.ignore), slices.Clone(r.attributes), r.files, nil
}

func (s *Store) rule(ctx context.Context, tree object.ID, dir string, to *ruling) error {
	entries, err := s.Tree(ctx, tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Mode != object.ModeDir {
			to.files++
		}
		switch {
		case e.Mode == object.ModeDir:
			if err := s.rule(ctx, e.ID, join(dir, e.Name), to); err != nil {
				return err
			}
		case e.Mode != object.ModeFile && e.Mode != object.ModeExec:
		case e.Name == ignoreName:
			to.ignore = append(to.ignore, Blob{ID: e.ID, Path: join(dir, e.Name)})
		case e.Name == attributesName:
			to.attributes = append(to.attributes, Blob{ID: e.ID, Path: join(dir, e.Name)})
		}
	}
	return nil
}
