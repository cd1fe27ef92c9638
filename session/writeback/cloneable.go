package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// cloneable makes sure that stock git can clone the branches, tags and notes of a Repo at any time. It marks the base commits as
// shallow, so that a clone does not need the history before them, and it fetches all contents in the trees that a clone needs.
// A commit does not need these contents, so most of them may be missing.
type cloneable struct {
	repo    *session.Repo      // repository that has to be cloneable
	provide Provider           // fetches contents from the mounted remote
	commits map[object.ID]bool // commits and tags that were made cloneable
	// trees holds the trees whose contents have been fetched.
	trees map[object.ID]bool
}

// newCloneable returns a cloneable for the Repo repo. It fetches missing contents with the Provider p.
func newCloneable(repo *session.Repo, p Provider) *cloneable {
	return &cloneable{repo: repo, provide: p, commits: map[object.ID]bool{}, trees: map[object.ID]bool{}}
}

// survey collects the objects that are needed to make tips cloneable.
type survey struct {
	commits, trees map[object.ID]bool // visited commits and tags, and visited trees
	baseCommits    []object.ID        // base commits, to be marked as shallow
	blobs          map[object.ID]bool // contents that a clone needs
}

// ready fetches the contents that a clone of the commits and tags in tips needs, and marks their base commits as shallow.
func (c *cloneable) ready(ctx context.Context, tips []object.ID) error {
	v := survey{commits: map[object.ID]bool{}, trees: map[object.ID]bool{}, blobs: map[object.ID]bool{}}
	for stack := slices.Clone(tips); len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if c.commits[id] || v.commits[id] {
			continue
		}
		v.commits[id] = true
		below, err := c.look(id, &v)
		if err != nil {
			return err
		}
		stack = append(stack, below...)
	}
	// Contents that were created in the session are in the Repo, or are copied to it with the refs.
	missing := slices.DeleteFunc(c.provide.Missing(slices.Collect(maps.Keys(v.blobs))), c.ours)
	if len(missing) > 0 {
		if err := c.provide.Provide(ctx, missing, nil); err != nil {
			return fmt.Errorf("fetch contents for clones: %w", err)
		}
	}
	// From now on, git treats the base commits as commits without parents, in the Repo and in its clones.
	if err := c.repo.AddShallow(v.baseCommits); err != nil {
		return err
	}
	maps.Copy(c.commits, v.commits)
	maps.Copy(c.trees, v.trees)
	return nil
}

// ours reports whether the object id was created in the session. If id is on this host and not known to be an object of the
// mounted remote, it counts as created in the session, because it may be in the git directory and not in the Repo yet.
func (c *cloneable) ours(id object.ID) bool {
	if c.repo.Owned(id) {
		return true
	}
	if c.repo.Remotes(id) {
		return false
	}
	_, _, err := c.repo.Size(id)
	return err == nil
}

// look adds the contents in the tree of the object id to the survey v, and returns the other objects that a clone needs together
// with id: the parents of a commit, or the target of a tag.
func (c *cloneable) look(id object.ID, v *survey) ([]object.ID, error) {
	t, content, err := c.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) { // the object is a blob that a tag refers to
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", id, err)
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("read commit %s: %w", id, err)
		}
		if err := c.tree(info.Tree, v); err != nil {
			return nil, err
		}
		// A base commit is marked as shallow, so its parents are not needed.
		if !c.ours(id) {
			v.baseCommits = append(v.baseCommits, id)
			return nil, nil
		}
		return info.Parents, nil
	case object.Tag:
		target, _, err := object.ParseTagTarget(c.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("read tag %s: %w", id, err)
		}
		return []object.ID{target}, nil
	case object.Tree:
		return nil, c.tree(id, v)
	}
	return nil, nil
}

// tree adds the contents below the tree id to v.blobs.
func (c *cloneable) tree(id object.ID, v *survey) error {
	if c.trees[id] || v.trees[id] {
		return nil
	}
	v.trees[id] = true
	entries, err := c.repo.Tree(id)
	if err != nil {
		return fmt.Errorf("read tree %s: %w", id, err)
	}
	for _, e := range entries {
		switch {
		case e.Mode == object.ModeDir:
			if err := c.tree(e.ID, v); err != nil {
				return err
			}
		// Submodules have no contents to fetch.
		case e.Mode.IsBlob():
			v.blobs[e.ID] = true
		}
	}
	return nil
}
