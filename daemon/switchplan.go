package daemon

import (
	"context"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	hintCommit = "commit or stash them first"
	hintMove   = "move or remove them first"
)

// plan is what a switch does to index and working tree: git's two-way merge of HEAD's tree, the target's and the index
// (git-read-tree), for the paths in which the trees differ.
type plan struct {
	m      *mount
	git    *gitdir.Dir
	again  bool // it was begun before, and some of it may be done
	grafts []worktree.Graft
	clear  []worktree.Graft // of what git knows nothing of: ignored files, and directories in whose place files come
	index  []index.Change   // of submodules, which no graft changes

	staged, dirty, inTheWay []string                     // what is refused
	to                      map[string]gitdir.Difference // what comes
	gone                    map[string]bool
	above                   map[string]bool // directories that were looked at, and whether a file is there
	doubtful                []int           // grafts of files that may be as the index has them
	untracked               []int           // grafts of paths where something else is
}

// planSwitch decides about every path. A refusal has changed nothing.
func (m *mount) planSwitch(ctx context.Context, git *gitdir.Dir, x *index.Index, list []gitdir.Difference, again bool) (*plan, error) {
	p := &plan{m: m, git: git, again: again, to: map[string]gitdir.Difference{}, gone: map[string]bool{}, above: map[string]bool{}}
	if slices.ContainsFunc(x.Entries, func(e index.Entry) bool { return e.SkipWorktree }) {
		return nil, fault.ErrSparse
	}
	for _, d := range list {
		if d.NewMode != 0 {
			p.to[d.Path] = d
		}
	}
	if unmerged := unmergedPaths(x); len(unmerged) > 0 {
		return nil, fault.RefusalError{Why: "the index has conflicts", Hint: "resolve them first, and git add the files", Paths: unmerged}
	}
	for _, d := range list {
		at, ok := slices.BinarySearchFunc(x.Entries, d.Path, func(e index.Entry, path string) int { return strings.Compare(e.Path, path) })
		var have *index.Entry
		if ok {
			have = &x.Entries[at]
		}
		if err := p.add(ctx, d, have); err != nil {
			return nil, err
		}
	}
	if len(p.staged) == 0 {
		if err := p.settle(ctx); err != nil {
			return nil, err
		}
	}
	switch dirty := append(p.staged, p.dirty...); {
	case len(dirty) > 0:
		slices.Sort(dirty)
		return nil, fault.RefusalError{Why: "local changes would be overwritten", Hint: hintCommit, Paths: dirty}
	case len(p.inTheWay) > 0:
		slices.Sort(p.inTheWay)
		return nil, fault.RefusalError{Why: "untracked files would be overwritten", Hint: hintMove, Paths: slices.Compact(p.inTheWay)}
	}
	return p, nil
}

func unmergedPaths(x *index.Index) (paths []string) {
	for _, e := range x.Entries {
		if e.Stage != 0 && (len(paths) == 0 || paths[len(paths)-1] != e.Path) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// add decides about one path in which the trees differ (the numbers of git-read-tree's table in brackets).
func (p *plan) add(ctx context.Context, d gitdir.Difference, have *index.Entry) error {
	same := func(mode object.Mode, id object.ID) bool {
		return have != nil && !have.IntentToAdd && have.Mode == mode && have.ID == id
	}
	switch {
	case have == nil && d.OldMode != 0 && d.NewMode == 0: // [3] gone from the index already
		return nil
	case have == nil && d.OldMode != 0: // its removal is staged, and the target has another one
		p.staged = append(p.staged, d.Path)
		return nil
	case have != nil && same(d.NewMode, d.New): // [6, 7, 18, 19] as it is to be already
		return nil
	case have != nil && !same(d.OldMode, d.Old): // [8, 9, 12, 13, 16, 17]
		p.staged = append(p.staged, d.Path)
		return nil
	}
	g := worktree.Graft{Path: d.Path, Mode: d.NewMode, ID: d.New}
	var err error
	if g.Over, err = p.m.tree.Find(ctx, d.Path); err != nil {
		return err
	}
	if d.NewMode == 0 {
		p.gone[d.Path] = true
	}
	if p.again && d.NewMode == 0 && isDir(g.Over) && p.comesBelow(d.Path) {
		p.index = append(p.index, p.change(d, worktree.Attr{}, false))
		return nil
	}
	if d.OldMode == object.ModeGitlink && (d.NewMode == object.ModeGitlink || d.NewMode == 0 && p.m.mountedOn(d.Path)) {
		// What is checked out there is the submodule's business.
		p.index = append(p.index, p.change(d, worktree.Attr{}, false))
		return nil
	}
	p.grafts = append(p.grafts, g)
	at := len(p.grafts) - 1
	switch {
	case g.Over.Node == 0:
		return p.checkAbove(ctx, d.Path, have != nil)
	case g.Over.Shows(d.NewMode, d.New):
	case have == nil:
		p.untracked = append(p.untracked, at)
	case d.OldMode == object.ModeGitlink && isDir(g.Over):
		if d.NewMode != 0 {
			p.clearAway(&p.grafts[at])
		}
	case !g.Over.Shows(d.OldMode, d.Old):
		p.doubtful = append(p.doubtful, at)
	}
	return nil
}

// comesBelow says whether a path is a directory of the target.
func (p *plan) comesBelow(dir string) bool {
	for at := range p.to {
		if strings.HasPrefix(at, dir+"/") {
			return true
		}
	}
	return false
}

// clearAway has a directory removed in whose place a file is to come, if it is empty then.
func (p *plan) clearAway(g *worktree.Graft) {
	p.clear = append(p.clear, worktree.Graft{Path: g.Path, Over: g.Over})
	g.Over = worktree.Found{}
}

func isDir(f worktree.Found) bool { return f.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// checkAbove finds files where the directories of a path have to be, or were, if the path is tracked.
func (p *plan) checkAbove(ctx context.Context, at string, tracked bool) error {
	for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
		isFile, known := p.above[dir]
		if !known {
			f, err := p.m.tree.Find(ctx, dir)
			if err != nil {
				return err
			}
			to, comes := p.to[dir] // it may have come already (see finishSwitch)
			isFile = f.Node != 0 && !isDir(f) && !p.gone[dir] && !(comes && f.Shows(to.NewMode, to.New))
			p.above[dir] = isFile
		}
		switch {
		case isFile && tracked:
			p.dirty = append(p.dirty, at)
		case isFile:
			p.inTheWay = append(p.inTheWay, dir)
		}
	}
	return nil
}

// settle asks git where the namespace alone does not tell.
func (p *plan) settle(ctx context.Context) error {
	paths := make([]string, len(p.doubtful))
	for i, at := range p.doubtful {
		paths[i] = p.grafts[at].Path
	}
	modified, err := p.git.Modified(ctx, paths)
	if err != nil {
		return err
	}
	p.dirty = append(p.dirty, modified...)
	var files []string
	for _, at := range p.untracked {
		g := &p.grafts[at]
		switch {
		case !isDir(g.Over):
			files = append(files, g.Path)
		case g.Mode != object.ModeGitlink:
			left, err := p.left(ctx, g.Over.Node, g.Path)
			if err != nil {
				return err
			}
			files = append(files, left...)
			p.clearAway(g)
		}
	}
	files = append(files, p.inTheWay...)
	slices.Sort(files)
	files = slices.Compact(files)
	ignored, err := p.git.Ignored(ctx, files)
	if err != nil {
		return err
	}
	replaced := map[string]bool{}
	for _, at := range p.untracked {
		replaced[p.grafts[at].Path] = true
	}
	p.inTheWay = nil
	for _, f := range files {
		switch {
		case !slices.Contains(ignored, f):
			p.inTheWay = append(p.inTheWay, f)
		case !replaced[f]:
			over, err := p.m.tree.Find(ctx, f)
			if err != nil {
				return err
			}
			p.clear = append(p.clear, worktree.Graft{Path: f, Over: over})
		}
	}
	return nil
}

// left lists the files that removals leave below a directory in whose place a file is to come. Directories in there go.
func (p *plan) left(ctx context.Context, dir worktree.Node, at string) (paths []string, err error) {
	type child struct {
		name string
		node worktree.Node
		mode uint32
	}
	var children []child
	err = p.m.tree.ReadDir(ctx, dir, 0, func(e worktree.Entry) bool {
		children = append(children, child{strings.Clone(e.Name), e.Node, e.Mode})
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, c := range children {
		name := at + "/" + c.name
		switch {
		case p.gone[name]:
		case c.mode&syscall.S_IFMT != syscall.S_IFDIR:
			paths = append(paths, name)
		default:
			below, err := p.left(ctx, c.node, name)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
			p.clear = append(p.clear, worktree.Graft{Path: name, Over: worktree.Found{Node: c.node, Mode: c.mode}})
		}
	}
	return paths, nil
}

// changes gives what becomes of the index, after the grafts are done, and the paths that were left as they were.
func (p *plan) changes(done []worktree.Grafted, device uint32) (list []index.Change, kept []string) {
	list = p.index
	for i, g := range p.grafts {
		if done[i].Kept {
			kept = append(kept, g.Path)
		}
		c := p.change(gitdir.Difference{Path: g.Path, NewMode: g.Mode, New: g.ID}, done[i].Attr, !done[i].Kept)
		c.Entry.Stat.Dev = device
		list = append(list, c)
	}
	return list, kept
}

// change is an entry of the index. Its size is told as unknown: git then compares contents if it ever has to look, also
// where somebody changed the file in the very tick in which it came.
func (p *plan) change(d gitdir.Difference, a worktree.Attr, valid bool) index.Change {
	e := index.Entry{Path: d.Path, Mode: d.NewMode, ID: d.New, Valid: valid && d.NewMode != object.ModeGitlink}
	if e.Valid {
		e.Stat = index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Ino: uint32(a.Node), UID: a.UID, GID: a.GID}
	}
	return index.Change{Entry: e, Gone: d.NewMode == 0}
}
