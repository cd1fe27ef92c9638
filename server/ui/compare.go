package ui

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/proposals"
)

const (
	maxProposals = 6 // points that a page compares
	diffsAtOnce  = 2 // differences that a comparison reads at the same time
)

// proposal is one of the points that a page compares.
type proposal struct {
	control.ComparedSide        // changes since the base, and their totals
	name                 string // as the user has named it
	exact                string // name that stays that of this version: SESSION@CHECKPOINT or the id of a commit
	commit, tree         string // ids
	history              string // commit that the mounted remote has, or the commit itself; "" if the session has begun without a commit
	base                 string // tree to which the changes are relative; "" is the empty tree
	session              string // name of the session, "" for other points
	meta                 session.Meta
	subject, author      string // of the checkpoint or commit
	truncated            bool   // there are more changes
	result               testResult
}

// comparison compares up to maxProposals proposals. It uses the words and rules of `artifactfs session compare`.
type comparison struct {
	*place
	g        gitread.Repo
	refs     map[string]string
	sides    []*proposal
	base     string // what the changes of all sides are relative to, for people; "" if the sides have several bases
	baseName string // name of that point for links
	pairs    []proposals.Pair
	shared   []control.SharedPath
	trees    map[string]string // ids of trees by the commits of bases
}

// load compares the points that names stand for.
func (c *comparison) load(ctx context.Context, names []string) error {
	for _, name := range names {
		side, err := c.find(ctx, name)
		if err != nil {
			return err
		}
		c.sides = append(c.sides, side)
	}
	if err := c.findBases(ctx); err != nil {
		return lacksBase(err)
	}
	if err := c.readChanges(ctx); err != nil {
		if gitcmd.Exited(err, 128) && ctx.Err() == nil {
			return lacksBase(gitread.ErrNotFound)
		}
		return err
	}
	if err := c.merge(ctx); err != nil {
		return err
	}
	return c.readResults(ctx)
}

// lacksBase explains that objects are missing.
func lacksBase(err error) error {
	if errors.Is(err, gitread.ErrNotFound) {
		return &Problem{http.StatusConflict, "Cannot be compared", "The repository does not have all objects of these proposals and of " +
			"their base; they are in the repository where the code comes from. The command artifactfs session compare reads both."}
	}
	return err
}

// find finds the point that a name stands for.
func (c *comparison) find(ctx context.Context, name string) (*proposal, error) {
	side := &proposal{name: name}
	s, _ := control.SplitCheckpoint(name)
	if s == "" || session.ValidName(s) != nil || c.refs[session.MetaRef(s)] == "" {
		list, err := c.g.Log(ctx, name, 0, 1)
		if err != nil || len(list) == 0 {
			return nil, errors.Join(err, gitread.ErrNotFound)
		}
		side.commit, side.tree, side.history, side.exact = list[0].Hash, list[0].TreeHash, list[0].Hash, list[0].Hash
		side.subject, side.author = line(list[0].Message, maxMessages), clip(list[0].Author.Name, 80)
		return side, nil
	}
	if isThin(c.refs, s) {
		return nil, &Problem{http.StatusConflict, "Cannot be compared", "The session " + s + " is thin: the repository lacks the files on " +
			"which it is based. This command compares it: artifactfs session compare SESSION SESSION --session-remote " + c.remote()}
	}
	var err error
	if side.commit, err = c.point(ctx, c.g, c.refs, name); err != nil {
		return nil, err
	}
	metas, err := readMetas(ctx, c.g, c.refs, []string{s})
	if err != nil {
		return nil, err
	}
	if side.session = s; metas[0] != nil {
		side.meta = *metas[0]
	}
	var checkpoint session.Checkpoint
	err = c.g.Contents(ctx, []string{side.commit}, maxCommit, func(_ int, text gitread.Content) { checkpoint, _ = checkpointOf(text) })
	if err != nil {
		return nil, err
	}
	if checkpoint.ID == "" { // a pin may have been pushed to any commit
		return nil, gitread.ErrNotFound
	}
	side.tree, side.history, side.exact = checkpoint.Tree.String(), side.meta.Base, s+"@"+string(checkpoint.ID)
	side.subject, side.author = clip(firstOf(checkpoint.Message, string(checkpoint.Reason)), maxMessages), actorOf(side.meta)
	return side, nil
}

// findBases finds the trees to which the changes of the sides are relative: that of the checkpoint from which all were forked, or else
// that of the commit from which each session was started. The changes of other points are relative to the common ancestor of all.
func (c *comparison) findBases(ctx context.Context) error {
	fork, name, err := c.fork(ctx, c.sides)
	if err != nil {
		return err
	}
	if fork != "" {
		c.base, c.baseName = "checkpoint "+name+", from which all were forked", name
		for _, s := range c.sides {
			s.base = fork
		}
		return nil
	}
	var histories []string
	for _, s := range c.sides {
		histories = append(histories, s.history)
	}
	common, err := c.ancestor(ctx, histories...)
	if err != nil {
		return err
	}
	several := false
	for _, s := range c.sides {
		from := common
		if s.session != "" {
			from = s.history
		}
		several = several || from != common
		if s.base, err = c.treeOf(ctx, from); err != nil {
			return err
		}
	}
	switch {
	case several:
	case common == "":
		c.base = "nothing: the proposals have no common history"
	default:
		c.base, c.baseName = "commit "+short(common), common
	}
	return nil
}

// fork returns the tree and the name of the checkpoint from which all of the sides were forked, "" if there is none.
func (c *comparison) fork(ctx context.Context, sides []*proposal) (tree, name string, err error) {
	var origins []proposals.Origin
	for _, s := range sides {
		origins = append(origins, proposals.Origin{Session: s.session, From: s.meta.From})
	}
	of, id, ok := proposals.Fork(origins)
	if !ok {
		return "", "", nil
	}
	commit, err := c.g.Checkpoint(ctx, c.refs, of, id)
	if errors.Is(err, gitread.ErrNotFound) || errors.Is(err, gitread.ErrCheckpointName) { // gc has dropped it, or the session was deleted
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	tree, err = c.treeOf(ctx, commit)
	return tree, of + "@" + id, err
}

// ancestor returns the best common ancestor of commits, "" if there is none or if one of the commits is "".
func (c *comparison) ancestor(ctx context.Context, commits ...string) (string, error) {
	slices.Sort(commits)
	commits = slices.Compact(commits)
	if len(commits) == 1 || commits[0] == "" {
		return commits[0], nil
	}
	return c.g.MergeBase(ctx, commits...)
}

// treeOf returns the tree of a commit, "" for none.
func (c *comparison) treeOf(ctx context.Context, commit string) (string, error) {
	if commit == "" || c.trees[commit] != "" {
		return c.trees[commit], nil
	}
	o, err := c.g.Stat(ctx, commit, "")
	c.trees[commit] = o.ID
	return o.ID, err
}

// readChanges reads the changes of all sides.
func (c *comparison) readChanges(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(diffsAtOnce)
	for _, s := range c.sides {
		all.Go(func() error {
			d, err := c.g.PathChanges(ctx, s.baseID(), s.tree, maxFiles)
			if err != nil {
				return err
			}
			s.truncated, s.Changes = d.Truncated, make([]control.PathChange, 0, len(d.Changes))
			for _, change := range d.Changes {
				s.Changes = append(s.Changes, pathChange(change))
			}
			proposals.Count(&s.ComparedSide)
			return nil
		})
	}
	return all.Wait()
}

// The letters of git for the statuses of paths, and their words.
var (
	letters = map[string]string{"added": "A", "deleted": "D", "modified": "M", "type-changed": "T"}
	words   = map[string]string{"A": "added", "D": "deleted", "M": "modified", "T": "type-changed"}
)

// pathChange returns a change in the form that sessions are compared in.
func pathChange(c gitread.Change) control.PathChange {
	p := control.PathChange{Path: c.Path, Status: letters[c.Status], Added: int64(c.Additions), Removed: int64(c.Deletions)}
	if c.Binary {
		p.Added, p.Removed = -1, -1
	}
	if c.Status != "added" {
		p.OldMode, p.Old = c.OldMode, c.OldHash
	}
	if c.Status != "deleted" {
		p.NewMode, p.New = c.NewMode, c.NewHash
	}
	return p
}

// merge finds out which of the changes conflict. It merges only pairs whose changes may meet.
func (c *comparison) merge(ctx context.Context) error {
	var merges []gitread.TreeMerge
	var of []int // numbers of the pairs of the merges
	for i, a := range c.sides {
		for j, b := range c.sides[i+1:] {
			c.pairs = append(c.pairs, proposals.Pair{A: i, B: i + 1 + j})
			base, err := c.pairBase(ctx, a, b)
			if err != nil {
				return lacksBase(err)
			}
			known := a.base == base && b.base == base && !a.truncated && !b.truncated
			if a.tree == b.tree || a.tree == base || b.tree == base || known && proposals.Independent(a.Changes, b.Changes) {
				continue
			}
			merges, of = append(merges, gitread.TreeMerge{Base: base, Ours: a.tree, Theirs: b.tree}), append(of, len(c.pairs)-1)
		}
	}
	conflicts, err := c.u.merged.conflicts(ctx, c.g, merges)
	if err != nil {
		return err
	}
	for i, paths := range conflicts {
		c.pairs[of[i]].Conflicts = paths
	}
	var changes [][]control.PathChange
	for _, s := range c.sides {
		changes = append(changes, s.Changes)
	}
	c.shared = proposals.Shared(changes, c.pairs)
	return nil
}

// pairBase returns the tree on which git merges two sides.
func (c *comparison) pairBase(ctx context.Context, a, b *proposal) (string, error) {
	if tree, _, err := c.fork(ctx, []*proposal{a, b}); tree != "" || err != nil {
		return tree, err
	}
	common, err := c.ancestor(ctx, a.history, b.history)
	if err != nil {
		return "", err
	}
	return c.treeOf(ctx, common)
}
