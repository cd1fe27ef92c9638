package checkout

import (
	"context"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Plan is what a checkout does to the working tree and to the index entries of the same paths.
type Plan struct {
	Grafts []worktree.Graft // paths that become the target's, or are removed
	Clear  []worktree.Graft // removals that make room: of ignored files, and of directories in whose place files come
	Kept   []string         // paths that stay as they are, though the target has something else there
	Index  []index.Change   // of submodules, whose directories stay as they are
}

// all lists the grafts in the order of GraftResult.Done: Grafts before Clear.
func (p *Plan) all() []worktree.Graft { return slices.Concat(p.Grafts, p.Clear) }

// clearAway removes what is at a path before the graft's own contents come, if that is an empty directory by then.
func (p *Plan) clearAway(g *worktree.Graft) {
	p.Clear = append(p.Clear, worktree.Graft{Path: g.Path, Over: g.Over})
	g.Over = worktree.Found{}
}

// planner compares the target with what the working tree has. The rules of switch and restore are in their own files; both
// ask it which paths are in the way of the target.
type planner struct {
	tree Tree
	plan Plan

	to    map[string]gitdir.Difference // paths that the target has, of those in which the trees differ
	gone  map[string]bool              // paths that the plan removes
	above map[string]bool              // directories that were looked at; true: something else is there, and stays
}

func newPlanner(tree Tree) planner {
	return planner{tree: tree, to: map[string]gitdir.Difference{}, gone: map[string]bool{}, above: map[string]bool{}}
}

// fileAbove returns the path of a file that stays where a directory of at has to be; "": there is none. There is one at
// most, because nothing exists below a file.
func (p *planner) fileAbove(ctx context.Context, at string) (string, error) {
	for dir := parentOf(at); dir != ""; dir = parentOf(dir) {
		stays, known := p.above[dir]
		if !known {
			f, err := p.tree.Find(ctx, dir)
			if err != nil {
				return "", err
			}
			to, comes := p.to[dir] // a killed process may have put the target's file there
			stays = f.Node != 0 && !isDir(f) && !p.gone[dir] && !(comes && f.Shows(to.NewMode, to.New))
			p.above[dir] = stays
		}
		if stays {
			return dir, nil
		}
	}
	return "", nil
}

// filesBelow lists the files that the plan leaves below a directory in whose place a file is to come. It adds the
// directories in there to the plan's removals. All paths that go must be known by now.
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

// comesBelow reports whether a path is a directory of the target.
func (p *planner) comesBelow(dir string) bool {
	for at := range p.to {
		if strings.HasPrefix(at, dir+"/") {
			return true
		}
	}
	return false
}

// entryOf returns the index entry of a path that was changed. Its size is noted as unknown: git then compares contents if
// it ever has to look, also if the file was changed again in the same clock tick. a is the file's state, which only
// counts if valid is set.
func entryOf(path string, mode object.Mode, id object.ID, a worktree.Attr, valid bool) index.Change {
	e := index.Entry{Path: path, Mode: mode, ID: id, Valid: valid && mode != object.ModeGitlink}
	if e.Valid {
		e.Stat = index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Ino: uint32(a.Node), UID: a.UID, GID: a.GID}
	}
	return index.Change{Entry: e, Gone: mode == 0}
}
