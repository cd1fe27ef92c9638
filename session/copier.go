package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/treediff"
)

// Copier collects objects of the mount's git directory that are to be written to a Repo. A Repo that owns an object
// also owns all objects of the session that are reachable from it. So the Copier does not follow objects that the Repo
// owns already, nor objects of the mounted remote.
type Copier struct {
	repo *Repo              // repository to which the objects are to be written
	seen map[object.ID]bool // objects that need not be visited again
	list []odb.Outgoing     // collected objects
}

// NewCopier returns a Copier for objects that are to be written to repo.
func NewCopier(repo *Repo) *Copier {
	return &Copier{repo: repo, seen: map[object.ID]bool{}}
}

// Objects returns the collected objects. The caller passes them to Repo.Write.
func (c *Copier) Objects() []odb.Outgoing { return c.list }

// Blob collects a blob unless the Repo owns it or the mounted remote has it.
func (c *Copier) Blob(id object.ID) error {
	if !c.visit(id) {
		return nil
	}
	return c.blob(id)
}

// Commits collects all objects that are reachable from tips and that the Repo does not own. Most tips are commits, but
// a tip may be an object of any type. If Commits returns an error, it has collected nothing.
func (c *Copier) Commits(ctx context.Context, tips []object.ID) error {
	seen, taken := maps.Clone(c.seen), len(c.list)
	err := c.commits(ctx, tips)
	// forget the visited objects; otherwise a later walk would end at an object whose history is not collected
	if err != nil {
		c.seen, c.list = seen, c.list[:taken]
	}
	return err
}

// commits does the work of Commits. Unlike Commits, it may leave some objects in the list after an error.
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

// visit reports whether the object id has to be collected: it is visited for the first time, the Repo does not own it,
// and the mounted remote does not have it.
func (c *Copier) visit(id object.ID) bool {
	if c.seen[id] {
		return false
	}
	c.seen[id] = true
	return !c.repo.Owned(id) && !c.repo.Remotes(id)
}

// tip collects the object id, which is a commit or any other object that a ref may point to, and returns the objects to
// visit next.
func (c *Copier) tip(id object.ID) ([]object.ID, error) {
	if !c.visit(id) {
		return nil, nil
	}
	t, content, err := c.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) { // a tag or ref may point to a large blob
		return nil, c.blob(id)
	}
	if err != nil {
		return nil, fmt.Errorf("copy object %s: %w", id, err)
	}
	if t == object.Tree {
		return nil, c.below(id, object.ID{})
	}
	c.take(id, t, content)
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("copy commit %s: %w", id, err)
		}
		// Compare this tree with the parent's tree, so that unchanged directories are not visited.
		var before object.ID
		if len(info.Parents) > 0 {
			if parent, err := c.repo.Commit(info.Parents[0]); err == nil {
				before = parent.Tree
			}
		}
		if info.Tree == before || !c.visit(info.Tree) {
			return info.Parents, nil
		}
		return info.Parents, c.below(info.Tree, before)
	case object.Tag:
		target, _, err := object.ParseTagTarget(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("copy tag %s: %w", id, err)
		}
		return []object.ID{target}, nil
	}
	return nil, nil
}

// below collects the tree id and everything below it, except entries that are the same in the tree before, the tree of
// the first parent. Those entries are collected when the parent is visited.
func (c *Copier) below(id, before object.ID) error {
	return treediff.Walk{
		Read: c.tree,
		Base: func(id object.ID) ([]object.TreeEntry, error) {
			entries, _ := c.repo.Tree(id)
			return entries, nil // a parent that is not on this host has no entries
		},
		// Gitlinks are skipped: the commits of submodules are in other repositories.
		Visit: func(_ string, e object.TreeEntry, before []object.TreeEntry) (enter bool, err error) {
			switch {
			case e.ID == before[0].ID:
			case e.Mode == object.ModeDir:
				return c.visit(e.ID), nil
			case e.Mode.IsBlob():
				return false, c.Blob(e.ID)
			}
			return false, nil
		},
	}.Run(id, before)
}

// tree collects the tree id, and returns its entries.
func (c *Copier) tree(id object.ID) ([]object.TreeEntry, error) {
	content, err := typed(c.repo, id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, fmt.Errorf("copy tree: %w", err)
	}
	entries, _, err := object.ReadTree(c.repo.Format(), content)
	if err != nil {
		return nil, fmt.Errorf("copy tree %s: %w", id, err)
	}
	c.take(id, object.Tree, content)
	return entries, nil
}

// blob collects the blob id if its contents are on this host. A blob that is missing on this host is on the mounted
// remote: git took its ID from the index, without the contents.
func (c *Copier) blob(id object.ID) error {
	t, size, err := c.repo.Size(id)
	if errors.Is(err, odb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("copy blob %s: %w", id, err)
	}
	// Read the contents only when the object is written, because a blob may be large.
	c.list = append(c.list, odb.Outgoing{ID: id, Type: t, Size: size,
		Open: func() (io.ReadCloser, error) { return c.repo.Open(id) }})
	return nil
}

// take collects the object id, whose contents were read already.
func (c *Copier) take(id object.ID, t object.Type, content []byte) {
	c.list = append(c.list, odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}})
}
