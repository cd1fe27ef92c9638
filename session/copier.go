package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Copier collects objects of the mount's git directory that the session is to keep.
//
// An object is only put into a Repo together with everything that it reaches, so a walk ends at objects that the Repo owns or
// the mounted remote has.
type Copier struct {
	repo *Repo
	seen map[object.ID]bool
	list []odb.Outgoing
}

// NewCopier returns a Copier that has collected nothing.
func NewCopier(repo *Repo) *Copier {
	return &Copier{repo: repo, seen: map[object.ID]bool{}}
}

// Objects returns the collected objects, for Repo.Write.
func (c *Copier) Objects() []odb.Outgoing { return c.list }

// Blob collects a blob if it was made on this host.
func (c *Copier) Blob(id object.ID) error { return c.blob(id) }

// Commits collects what tips, which are mostly commits, reach and the Repo does not own. If it fails it has collected nothing.
func (c *Copier) Commits(ctx context.Context, tips []object.ID) error {
	seen, taken := maps.Clone(c.seen), len(c.list)
	err := c.commits(ctx, tips)
	if err != nil { // part of a history is of no use to anybody, and would be taken for all of it
		c.seen, c.list = seen, c.list[:taken]
	}
	return err
}

func (c *Copier) commits(ctx context.Context, tips []object.ID) error {
	stack := slices.Clone(tips)
	for len(stack) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		below, err := c.tip(id)
		if err != nil {
			return err
		}
		stack = append(stack, below...)
	}
	return nil
}

// tip takes a commit, or whatever else a ref may name, and gives what is to be looked at next.
func (c *Copier) tip(id object.ID) ([]object.ID, error) {
	if c.seen[id] {
		return nil, nil
	}
	c.seen[id] = true
	if c.repo.Owned(id) || c.repo.Remotes(id) {
		return nil, nil
	}
	t, content, err := c.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) { // a blob that a tag names
		return nil, c.blob(id)
	}
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", id, err)
	}
	c.take(id, t, content)
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("copy commit %s: %w", id, err)
		}
		var before object.ID
		if len(info.Parents) > 0 {
			if parent, err := c.repo.Commit(info.Parents[0]); err == nil {
				before = parent.Tree
			}
		}
		return info.Parents, c.tree(info.Tree, before)
	case object.Tag:
		target, _, err := object.ParseTagTarget(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("copy tag %s: %w", id, err)
		}
		return []object.ID{target}, nil
	case object.Tree:
		c.list = c.list[:len(c.list)-1]
		delete(c.seen, id)
		return nil, c.tree(id, object.ID{})
	}
	return nil, nil
}

// tree takes a tree. What is in the tree before, of the commit before, is where it should be.
func (c *Copier) tree(id, before object.ID) error {
	if id == before || c.seen[id] {
		return nil
	}
	c.seen[id] = true
	if c.repo.Owned(id) || c.repo.Remotes(id) {
		return nil
	}
	t, content, err := c.repo.Get(id, object.MaxTreeSize)
	if err == nil && t != object.Tree {
		err = fmt.Errorf("it is a %s", t)
	}
	if err != nil {
		return fmt.Errorf("copy tree %s: %w", id, err)
	}
	entries, err := object.ParseTree(c.repo.Format(), content)
	if err != nil {
		return fmt.Errorf("copy tree %s: %w", id, err)
	}
	c.take(id, t, content)
	old := map[string]object.ID{}
	if !before.IsZero() {
		if list, err := c.repo.Tree(before); err == nil {
			for _, e := range list {
				old[e.Name] = e.ID
			}
		}
	}
	for _, e := range entries {
		switch {
		case e.ID == old[e.Name]:
		case e.Mode == object.ModeDir:
			err = c.tree(e.ID, old[e.Name])
		case e.Mode.IsBlob():
			err = c.blob(e.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blob takes a blob if it was made here. One that is nowhere on this host is the remote's: git has taken its id from the
// index.
func (c *Copier) blob(id object.ID) error {
	if c.seen[id] {
		return nil
	}
	c.seen[id] = true
	if c.repo.Owned(id) || c.repo.Remotes(id) {
		return nil
	}
	t, size, err := c.repo.Size(id)
	if errors.Is(err, odb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy blob %s: %w", id, err)
	}
	c.list = append(c.list, odb.Outgoing{ID: id, Type: t, Size: size, Open: func() (io.ReadCloser, error) { return c.repo.Open(id) }})
	return nil
}

// take puts what was read on the list.
func (c *Copier) take(id object.ID, t object.Type, content []byte) {
	c.list = append(c.list, odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}})
}
