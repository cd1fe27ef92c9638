package checkout

import (
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/worktree"
)

const (
	hintCommit = "commit or stash them first"
	hintMove   = "move or remove them first"
	hintMount  = "artifactfs mount REMOTE DIR --ref BRANCH shows the other files of such a commit"
)

// switchPlanner builds the plan of a switch. It implements git's two-way merge of HEAD's tree, the target's tree and
// the index (git-read-tree(1), "Two Tree Merge").
type switchPlanner struct {
	planner
	git    Git
	mounts Mounts
	again  bool // whether a killed process may have carried out a part of the switch

	staged, dirty, inTheWay []string // paths because of which the switch is refused, by the reason
	unfit                   []string // paths of the target that the working tree cannot have
	doubtful                []int    // indexes in plan.Grafts of files that git must compare with their index entries
	untracked               []int    // indexes in plan.Grafts of files that are not in the index
}

// PlanSwitch returns the plan of a switch of the paths in list, which has the differences of the target's tree from
// HEAD's tree, sorted by path. again states that a killed process may have carried out a part of the switch. PlanSwitch
// returns a fault.RefusalError if git would refuse the same switch, and fault.ErrSparse if the working tree is a sparse
// checkout. It changes nothing. The caller must hold the lock of the index x.
func PlanSwitch(ctx context.Context, tree Tree, git Git, mounts Mounts, x *index.Index, list []Difference,
	again bool) (*Plan, error) {
	p := &switchPlanner{planner: newPlanner(tree), git: git, mounts: mounts, again: again}
	// An entry that the mount cannot show does not make the working tree sparse.
	if slices.ContainsFunc(x.Entries, func(e index.Entry) bool { return e.SkipWorktree && object.CanShowPath(e.Path) }) {
		return nil, fault.ErrSparse
	}
	for _, d := range list {
		if d.NewMode != 0 {
			p.to[d.Path] = d
		}
	}
	if unmerged := unmergedPaths(x); len(unmerged) > 0 {
		return nil, fault.RefusalError{Why: "index has conflicts",
			Hint:  "resolve the conflicts first, and run git add on the files",
			Paths: unmerged}
	}
	for _, d := range list {
		at, ok := slices.BinarySearchFunc(x.Entries, d.Path,
			func(e index.Entry, path string) int { return strings.Compare(e.Path, path) })
		var have *index.Entry
		if ok {
			have = &x.Entries[at]
		}
		if err := p.add(ctx, d, have); err != nil {
			return nil, err
		}
	}
	if len(p.staged) == 0 {
		if err := p.askGit(ctx); err != nil {
			return nil, err
		}
	}
	switch dirty := append(p.staged, p.dirty...); {
	case len(p.unfit) > 0:
		return nil, fault.RefusalError{Why: "working tree cannot have files with these names", Hint: hintMount,
			Paths: p.unfit}
	case len(dirty) > 0:
		slices.Sort(dirty)
		return nil, fault.RefusalError{Why: "local changes would be overwritten", Hint: hintCommit, Paths: dirty}
	case len(p.inTheWay) > 0:
		slices.Sort(p.inTheWay)
		return nil, fault.RefusalError{Why: "untracked files would be overwritten", Hint: hintMove,
			Paths: slices.Compact(p.inTheWay)}
	}
	return &p.plan, nil
}

// unmergedPaths returns the paths that have conflicts in the index.
func unmergedPaths(x *index.Index) (paths []string) {
	for _, e := range x.Entries {
		if e.Stage != 0 && (len(paths) == 0 || paths[len(paths)-1] != e.Path) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// add adds the change of the path d to the plan, or to the refused paths. have is the index entry of the path, or nil
// if there is none. The numbers in brackets refer to the cases in the table of git-read-tree(1).
func (p *switchPlanner) add(ctx context.Context, d Difference, have *index.Entry) error {
	same := func(mode object.Mode, id object.ID) bool {
		return have != nil && !have.IntentToAdd && have.Mode == mode && have.ID == id
	}
	if !object.CanShowPath(d.Path) && d.NewMode != 0 { // git switch cannot create the file either
		p.unfit = append(p.unfit, d.Path)
		return nil
	}
	if !object.CanStagePath(d.Path) { // neither the index nor the working tree has such a path
		return nil
	}
	switch {
	case have == nil && d.OldMode != 0 && d.NewMode == 0: // [3] neither the index nor the target contains the path
		return nil
	case have == nil && d.OldMode != 0: // a removal of the entry is staged, but the target has a new version of the file
		p.staged = append(p.staged, d.Path)
		return nil
	case have != nil && same(d.NewMode, d.New): // [6, 7, 18, 19] the index entry equals the entry of the target
		return nil
	case have != nil && !same(d.OldMode, d.Old): // [8, 9, 12, 13, 16, 17] the entry differs from both trees
		p.staged = append(p.staged, d.Path)
		return nil
	}
	if !object.CanShowPath(d.Path) {
		p.plan.Index = append(p.plan.Index, entryOf(d.Path, d.NewMode, d.New, worktree.Attr{}, false))
		return nil
	}
	g := worktree.Graft{Path: d.Path, Mode: d.NewMode, ID: d.New}
	var err error
	if g.Over, err = p.tree.Find(ctx, d.Path); err != nil {
		return err
	}
	if d.NewMode == 0 {
		p.gone[d.Path] = true
	}
	if p.again && d.NewMode == 0 && isDir(g.Over) && p.changesBelow(d.Path) {
		p.plan.Index = append(p.plan.Index, entryOf(d.Path, d.NewMode, d.New, worktree.Attr{}, false))
		return nil
	}
	if d.OldMode == object.ModeGitlink && (d.NewMode == object.ModeGitlink || d.NewMode == 0 && p.mounts.On(d.Path)) {
		// The files in the directory belong to the submodule.
		p.plan.Index = append(p.plan.Index, entryOf(d.Path, d.NewMode, d.New, worktree.Attr{}, false))
		return nil
	}
	p.plan.Grafts = append(p.plan.Grafts, g)
	at := len(p.plan.Grafts) - 1
	switch {
	case g.Over.Node == 0:
		return p.checkAbove(ctx, d.Path, have != nil)
	case g.Over.Shows(d.NewMode, d.New):
	case have == nil:
		p.untracked = append(p.untracked, at)
	case d.OldMode == object.ModeGitlink && isDir(g.Over):
		if d.NewMode != 0 {
			p.plan.clearAway(&p.plan.Grafts[at])
		}
	case !g.Over.Shows(d.OldMode, d.Old):
		p.doubtful = append(p.doubtful, at)
	}
	return nil
}

// checkAbove refuses the path at if the user has a file at the path of one of its parent directories. If the index
// contains the path at, it counts as a local change; otherwise the file counts as untracked file that the switch would
// overwrite.
func (p *switchPlanner) checkAbove(ctx context.Context, at string, tracked bool) error {
	file, err := p.fileAbove(ctx, at)
	switch {
	case err != nil || file == "":
		return err
	case tracked:
		p.dirty = append(p.dirty, at)
	default:
		p.inTheWay = append(p.inTheWay, file)
	}
	return nil
}

// askGit decides about the paths for which names and blob IDs are not sufficient. It runs git to find out which files
// are modified, and which of the untracked files that the switch would overwrite are ignored.
func (p *switchPlanner) askGit(ctx context.Context) error {
	paths := make([]string, len(p.doubtful))
	for i, at := range p.doubtful {
		paths[i] = p.plan.Grafts[at].Path
	}
	modified, err := p.git.Modified(ctx, paths)
	if err != nil {
		return err
	}
	p.dirty = append(p.dirty, modified...)
	files, err := p.filesInTheWay(ctx)
	if err != nil {
		return err
	}
	ignored, err := p.git.Ignored(ctx, files)
	if err != nil {
		return err
	}
	replaced := map[string]bool{}
	for _, at := range p.untracked {
		replaced[p.plan.Grafts[at].Path] = true
	}
	p.inTheWay = nil
	for _, f := range files {
		switch {
		case !slices.Contains(ignored, f):
			p.inTheWay = append(p.inTheWay, f)
		case !replaced[f]:
			over, err := p.tree.Find(ctx, f)
			if err != nil {
				return err
			}
			p.plan.Clear = append(p.plan.Clear, worktree.Graft{Path: f, Over: over})
		}
	}
	return nil
}

// filesInTheWay returns the untracked files that the switch would overwrite, sorted and without duplicates.
func (p *switchPlanner) filesInTheWay(ctx context.Context) ([]string, error) {
	files := slices.Clone(p.inTheWay)
	for _, at := range p.untracked {
		g := &p.plan.Grafts[at]
		switch {
		case !isDir(g.Over):
			files = append(files, g.Path)
		case g.Mode != object.ModeGitlink:
			below, err := p.filesBelow(ctx, g.Over.Node, g.Path)
			if err != nil {
				return nil, err
			}
			files = append(files, below...)
			p.plan.clearAway(g)
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}
