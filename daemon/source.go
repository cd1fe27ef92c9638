package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// source is a view of a store as the namespace wants it.
type source struct{ view *fetch.View }

var _ worktree.Source = source{}

func (s source) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	return s.view.Tree(ctx, id)
}

func (s source) KnownSize(b worktree.Blob) (int64, bool) { return s.view.KnownSize(fetch.Blob(b)) }

func (s source) Size(ctx context.Context, b worktree.Blob) (int64, error) {
	return s.view.Size(ctx, fetch.Blob(b))
}

func (s source) Open(ctx context.Context, b worktree.Blob) (worktree.Content, error) {
	c, err := s.view.Open(ctx, fetch.Blob(b))
	if err != nil {
		return nil, err
	}
	return c, nil
}
