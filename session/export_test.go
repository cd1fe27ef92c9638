package session

import (
	"context"

	"github.com/artifactfs/artifactfs/git/object"
)

// FindInPackTable reports whether the pack index in text contains the object id.
func FindInPackTable(f object.Format, text []byte, id object.ID) (bool, error) {
	t, err := parsePackTable(f, text)
	if err != nil {
		return false, err
	}
	_, ok := t.index.Position(id)
	return ok, nil
}

// UpdateAfter does the same as Update, but changes no ref before ready has returned.
func (r *Repo) UpdateAfter(ctx context.Context, changes []RefChange, ready func() error) error {
	return r.refs.updateAfter(ctx, changes, ready)
}
