package checkout

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// PlanRestore returns the plan of a restore of the paths in list, which has the differences of the target checkpoint
// from a checkpoint of the current state, in the order of a tree walk. found has the state of each path before the
// latter checkpoint was created; a path that is missing there was changed later, and stays unchanged. If a file that
// checkpoints do not store, such as an ignored file, occupies a path, PlanRestore lists the path in Kept. dirs returns
// the permissions of the directories of the target that are empty or contain empty directories; it is called only if
// list contains an empty directory. PlanRestore changes nothing.
func PlanRestore(ctx context.Context, tree Tree, list []Difference, found map[string]worktree.Found,
	dirs func(context.Context) (map[string]uint32, error)) (*Plan, error) {
	p := newPlanner(tree)
	for _, d := range list {
		if d.NewMode == 0 {
			p.gone[d.Path] = true
		}
	}
	var perms map[string]uint32
	if slices.ContainsFunc(list, func(d Difference) bool { return d.NewMode == object.ModeDir }) {
		var err error
		if perms, err = dirs(ctx); err != nil {
			return nil, err
		}
	}
	for _, d := range list {
		over, looked := found[d.Path]
		g := worktree.Graft{Path: d.Path, Mode: d.NewMode, ID: d.New, Over: over, Perm: perms[d.Path]}
		keep := !looked
		switch {
		case !looked, d.NewMode == 0, d.NewMode == object.ModeDir && isDir(over):
		case over.Node == 0:
			file, err := p.fileAbove(ctx, d.Path)
			if err != nil {
				return nil, err
			}
			keep = file != ""
		case isDir(over):
			before := len(p.plan.Clear)
			files, err := p.filesBelow(ctx, over.Node, d.Path)
			if err != nil {
				return nil, err
			}
			if keep = len(files) > 0; keep {
				p.plan.Clear = p.plan.Clear[:before]
			} else {
				p.plan.clearAway(&g)
			}
		}
		if keep {
			p.plan.Kept = append(p.plan.Kept, d.Path)
		} else {
			p.plan.Grafts = append(p.plan.Grafts, g)
		}
	}
	p.dirsAbove(perms)
	return &p.plan, nil
}

// dirsAbove adds to the plan, for each parent directory of an empty directory, a graft that sets its permissions, if
// perms has permissions for it.
func (p *planner) dirsAbove(perms map[string]uint32) {
	added := map[string]bool{}
	for _, g := range p.plan.Grafts {
		if g.Mode != object.ModeDir {
			continue
		}
		for dir := worktree.ParentOf(g.Path); dir != "" && !added[dir]; dir = worktree.ParentOf(dir) {
			added[dir] = true
			if perm, ok := perms[dir]; ok {
				p.plan.Grafts = append(p.plan.Grafts, worktree.Graft{Path: dir, Mode: object.ModeDir, Perm: perm})
			}
		}
	}
}
