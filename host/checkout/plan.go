package checkout

import (
	"context"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Plan lists the changes that a checkout makes to the working tree, and to the index entries of the same paths.
type Plan struct {
	Grafts []worktree.Graft // paths that get the entry of the target tree or are removed
	// Clear lists the paths that are removed so that the grafts can be applied: ignored files, and directories that
	// files replace.
	Clear []worktree.Graft
	Kept  []string       // paths that stay unchanged although the target tree has another entry
	Index []index.Change // index entries of submodules, whose directories stay unchanged
}

// clearAway adds the removal of the directory at g.Path to the plan, which happens before the graft g is applied. Other
// grafts must empty the directory.
func (p *Plan) clearAway(g *worktree.Graft) {
	p.Clear = append(p.Clear, worktree.Graft{Path: g.Path, Over: g.Over})
	g.Over = worktree.Found{}
}

// planner compares the target tree with the working tree and builds a plan. It has what switches and restores share:
// the search for files at paths where the target needs other entries. Their different rules are in switchplan.go and
// restoreplan.go.
type planner struct {
	tree Tree
	plan Plan

	to   map[string]Difference // entries of the target at the paths in which the two trees differ, by path
	gone map[string]bool       // paths that the plan removes
	// directories that fileAbove has checked; the value is true if a file that stays has this path
	above map[string]bool
}

// newPlanner returns a planner for the working tree, with an empty plan.
func newPlanner(tree Tree) planner {
	return planner{tree: tree, to: map[string]Difference{}, gone: map[string]bool{}, above: map[string]bool{}}
}

// fileAbove returns the path of a file that the checkout keeps, and that occupies the path of a parent directory of at,
// or "" if there is none. At most one such file can exist, because nothing exists below a file.
func (p *planner) fileAbove(ctx context.Context, at string) (string, error) {
	for dir := worktree.ParentOf(at); dir != ""; dir = worktree.ParentOf(dir) {
		stays, known := p.above[dir]
		if !known {
			f, err := p.tree.Find(ctx, dir)
			if err != nil {
				return "", err
			}
			// A killed process may already have put the target's file at this path.
			to, comes := p.to[dir]
			stays = f.Node != 0 && !isDir(f) && !p.gone[dir] && !(comes && f.Shows(to.NewMode, to.New))
			p.above[dir] = stays
		}
		if stays {
			return dir, nil
		}
	}
	return "", nil
}

// filesBelow returns the files below the directory dir that the plan does not remove. at is the path of dir, where the
// target has a file. filesBelow adds the directories below dir to the paths that the plan removes. All files that the
// plan removes must be in p.gone before the call.
func (p *planner) filesBelow(ctx context.Context, dir worktree.Node, at string) (paths []string, err error) {
	var children []worktree.Entry
	err = p.tree.ReadDir(ctx, dir, 0, func(e worktree.Entry) bool {
		e.Name = strings.Clone(e.Name)
		children = append(children, e)
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, c := range children {
		name := at + "/" + c.Name
		switch {
		case p.gone[name]:
		case c.Mode&syscall.S_IFMT != syscall.S_IFDIR:
			paths = append(paths, name)
		default:
			below, err := p.filesBelow(ctx, c.Node, name)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
			p.plan.Clear = append(p.plan.Clear, worktree.Graft{Path: name, Over: worktree.Found{Node: c.Node, Mode: c.Mode}})
		}
	}
	return paths, nil
}

// changesBelow reports whether the target has a changed path below the directory dir.
func (p *planner) changesBelow(dir string) bool {
	for at := range p.to {
		if strings.HasPrefix(at, dir+"/") {
			return true
		}
	}
	return false
}

// entryOf returns the change of the index entry of a changed path. The entry has an unknown size, so that git compares
// the contents whenever it checks the file, even if the file changes again in the same clock tick. The attributes a of
// the file are used only if valid is set.
func entryOf(path string, mode object.Mode, id object.ID, a worktree.Attr, valid bool) index.Change {
	e := index.Entry{Path: path, Mode: mode, ID: id, Valid: valid && mode != object.ModeGitlink}
	if e.Valid {
		e.Stat = index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Ino: uint32(a.Node), UID: a.UID, GID: a.GID}
	}
	return index.Change{Entry: e, Gone: mode == 0}
}
