package contents

import (
	"context"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// source implements worktree.Source: it reads trees and contents from the view of a store.
type source struct{ view *fetch.View }

// Source returns the source of trees and contents for the working tree of the mount.
func (c *Contents) Source() worktree.Source { return source{c.View} }

// Tree returns the entries of a tree.
func (s source) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	return s.view.Tree(ctx, id)
}

// KnownSize returns the size of a blob in bytes, or false if the size is not known on this host.
func (s source) KnownSize(b worktree.Blob) (int64, bool) { return s.of(b).KnownSize(blob(b)) }

// Looked records that a process looked up a blob. The store uses this to predict which blobs will be read.
func (s source) Looked(b worktree.Blob) { s.of(b).NoteLookup(blob(b)) }

// Here reports whether the contents of a blob are on this host and are shown without conversion, so that they can be
// read at once.
func (s source) Here(b worktree.Blob) bool { return s.of(b).Here(blob(b)) }

// Searched reports whether the process of the request ctx reads all files below some directories, like grep -r (ok),
// and whether path is one of these directories (target). If it is, the contents are requested at once.
func (s source) Searched(ctx context.Context, path string) (target, ok bool) {
	return s.view.Searches(ctx, path)
}

// Arriving reports whether the contents of all files were requested because a process reads all files.
func (s source) Arriving() bool { return s.view.Crawled() }

// Size returns the size of a blob in bytes. If the size is not known on this host, it sends a request to the remote.
func (s source) Size(ctx context.Context, b worktree.Blob) (int64, error) {
	return s.of(b).Size(ctx, blob(b))
}

// Open opens the contents of a blob, and fetches them if they are missing.
func (s source) Open(ctx context.Context, b worktree.Blob) (worktree.Content, error) {
	c, err := s.of(b).Open(ctx, blob(b))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// of returns the View whose conversion of contents follows the .gitattributes files of the tree that contains the blob
// b.
func (s source) of(b worktree.Blob) *fetch.View { return s.view.Of(b.Tree) }

// blob converts a Blob of package worktree into one of package fetch.
func blob(b worktree.Blob) fetch.Blob { return fetch.Blob{ID: b.ID, Path: b.Path, Link: b.Link} }
