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

func (s source) KnownSize(b worktree.Blob) (int64, bool) { return s.of(b).KnownSize(blob(b)) }

func (s source) Looked(b worktree.Blob) { s.of(b).NoteLookup(blob(b)) }

func (s source) Size(ctx context.Context, b worktree.Blob) (int64, error) {
	return s.of(b).Size(ctx, blob(b))
}

func (s source) Open(ctx context.Context, b worktree.Blob) (worktree.Content, error) {
	c, err := s.of(b).Open(ctx, blob(b))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// of gives the view of the tree that a blob came with.
func (s source) of(b worktree.Blob) *fetch.View { return s.view.Of(b.Tree) }

func blob(b worktree.Blob) fetch.Blob { return fetch.Blob{ID: b.ID, Path: b.Path, Link: b.Link} }
