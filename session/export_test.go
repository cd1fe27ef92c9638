package session

import (
	"context"

	"github.com/artifactfs/artifactfs/git/object"
)

// FindInPackTable reports whether the index of a pack has an object.
func FindInPackTable(f object.Format, text []byte, id object.ID) (bool, error) {
	t, err := parsePackTable(f, text)
	if err != nil {
		return false, err
	}
	_, ok := t.index.Position(id)
	return ok, nil
}

// UpdateAfter is Update, except that it changes no ref before ready has returned.
func (r *Repo) UpdateAfter(ctx context.Context, changes []RefChange, ready func() error) error {
	return r.refs.updateAfter(ctx, changes, ready)
}
