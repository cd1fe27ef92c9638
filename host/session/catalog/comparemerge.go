package catalog

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/proposals"
)

// comparedPair is a pair of sides of a comparison that git merges.
type comparedPair struct {
	a, b    int       // indexes in comparing.sides, a less than b
	base    object.ID // tree of the merge base; zero for the empty tree
	renames bool      // whether the contents by which git detects renames are on this host
}

// pairs returns all pairs of sides with their merge bases, and adds the contents that git needs to merge the pairs to
// c.merged.
func (c *comparing) pairs(ctx context.Context) (all []comparedPair, err error) {
	for i, a := range c.sides {
		for j, b := range c.sides[:i] {
			p := comparedPair{a: j, b: i}
			if p.base, err = c.commonTree(ctx, b, a); err != nil {
				return nil, err
			}
			ids, complete, err := treediff.ContentsToMerge(ctx, c.tree, p.base, b.checkpoint.Tree, a.checkpoint.Tree)
			if err != nil {
				return nil, err
			}
			c.merged, p.renames = append(c.merged, ids...), complete
			all = append(all, p)
		}
	}
	return all, nil
}

// provide fetches the missing contents that git is going to compare. It requests the contents of each side from the
// remote of that side.
func (c *comparing) provide(ctx context.Context) error {
	for _, s := range c.sides {
		ids, err := c.missing(ctx, s.ids)
		if err != nil {
			return err
		}
		if err := c.provideFrom(ctx, s, ids); err != nil {
			return err
		}
	}
	// The contents of a merge base may be stored by the session of either side or by the mounted remote, so try the
	// remotes of all sides.
	var last error
	for _, s := range c.sides {
		ids, err := c.missing(ctx, c.merged)
		if err != nil || len(ids) == 0 {
			return err
		}
		last = c.provideFrom(ctx, s, ids)
	}
	return last
}

// provideFrom fetches contents for the side s: through the mount of the session if there is one, from the session
// remote if the session was read from there, and from the mounted remote otherwise.
func (c *comparing) provideFrom(ctx context.Context, s *compareSide, ids []object.ID) error {
	switch {
	case len(ids) == 0:
		return nil
	case s.o.mount != nil:
		return s.o.mount.Owned.Provide(ctx, ids, nil)
	case s.o.far != nil:
		return s.o.provide(ctx, ids)
	}
	m, err := c.mirrorOf(ctx, s) // one request for all contents; git would send one request for each object
	if err != nil {
		return err
	}
	if err := m.Contents(ctx, s.o.Session, ids); err != nil {
		return fault.SessionRemote(m.Remote(), err)
	}
	return nil
}

// missing returns those elements of ids whose objects git does not find in the repositories of the sides, without
// duplicates.
func (c *comparing) missing(ctx context.Context, ids []object.ID) (lacks []object.ID, err error) {
	return read.Missing(ctx, c.git(c.scratch.Dir()), ids)
}

// count adds the numbers of files and lines that each side changed to the reply. Lines of binary files are not counted.
func (c *comparing) count(ctx context.Context) error {
	for _, s := range c.sides {
		r := &s.reply
		if len(r.Changes) == 0 {
			continue
		}
		git := c.git(c.scratch.Dir())
		if err := addLines(ctx, git, c.scratch.Format(), r.Changes, s.base, s.checkpoint.Tree); err != nil {
			return err
		}
		r.ChangeCount = proposals.Count(r.Changes)
	}
	return nil
}

// shared merges the sides of each pair. It returns the paths that at least two sides have changed, and for each path
// whether the sides agree, can be merged, or conflict.
func (c *comparing) shared(ctx context.Context, pairs []comparedPair) ([]control.SharedPath, error) {
	var merged []proposals.Pair
	for _, p := range pairs {
		conflicts, err := c.conflicts(ctx, p)
		if err != nil {
			return nil, err
		}
		merged = append(merged, proposals.Pair{A: p.a, B: p.b, Conflicts: conflicts})
	}
	changes := make([][]control.PathChange, len(c.sides))
	for i, s := range c.sides {
		changes[i] = s.reply.Changes
	}
	return proposals.Shared(changes, merged), nil
}

// conflicts runs git merge-tree for the pair p of sides in the scratch repository, and returns the paths with
// conflicts.
func (c *comparing) conflicts(ctx context.Context, p comparedPair) ([]string, error) {
	a, b := c.sides[p.a].proposal(), c.sides[p.b].proposal()
	if proposals.Clean(p.base, a, b) {
		return nil, nil
	}
	// The command "git merge-tree" takes two commits and finds their merge base. Create temporary commits for the three
	// trees.
	objects, us, them, err := session.CommitsToMerge(c.scratch.Format(), p.base, a.Tree, b.Tree)
	if err != nil {
		return nil, err
	}
	if err := c.scratch.Write(ctx, objects); err != nil {
		return nil, err
	}
	git := c.git(c.scratch.Dir()).WithoutUser()
	merged, err := merge.Commits(git.Runner(ctx), us.String(), them.String(), merge.Renames(p.renames))
	return merged.Conflicted(), err
}

// proposal returns the side for package proposals.
func (s *compareSide) proposal() proposals.Side[object.ID] {
	return proposals.Side[object.ID]{Base: s.base, Tree: s.checkpoint.Tree, Changes: s.reply.Changes}
}

// git returns the repository dir, with the objects of all sides as alternates.
func (c *comparing) git(dir string) gitcmd.Repo {
	var objects []string
	add := func(dir string) {
		if dir = filepath.Join(dir, "objects"); !slices.Contains(objects, dir) {
			objects = append(objects, dir)
		}
	}
	for _, o := range c.opened {
		if o.Repo != nil {
			add(o.Repo.Dir())
		}
		if o.mount != nil {
			add(o.mount.GitDir)
		}
	}
	// A merge base that no session has is in one of the mirrors of mounted remotes.
	for _, m := range c.mirrors {
		add(m.Dir())
	}
	return gitcmd.Repo{Dir: dir, Objects: objects}
}
