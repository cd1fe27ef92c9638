// Package comparing compares up to six proposals in a repository of the server: sessions, checkpoints, branches and
// other commits. The REST API and the page show the result. The rules and the words are those of the command "session
// compare" (package proposals).
package comparing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/proposals"
)

// MaxProposals is the maximum number of proposals in a comparison. The minimum is two.
const MaxProposals = 6

const (
	maxPaths    = 20_000  // changes of a proposal that are read
	diffsAtOnce = 2       // differences that a comparison reads at the same time
	maxCommit   = 1 << 20 // bytes of a commit that is read
	maxText     = 1200    // bytes of a subject, and of the first line of test results
)

// ErrLacksBase means that the repository lacks objects of the proposals or of their base.
var ErrLacksBase = errors.New("repository lacks objects of the proposals or of their base")

// NotFoundError means that the repository has no proposal with a name. It wraps an error of package gitread.
type NotFoundError struct {
	Name  string // name as in the request
	Cause error
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("find proposal %.80q: %v", e.Name, e.Cause)
}

func (e *NotFoundError) Unwrap() error { return e.Cause }

// ThinError means that a session is thin, and that its container cannot be read.
type ThinError struct {
	Session string // name of the session
	Reason  string
}

func (e *ThinError) Error() string {
	return "session " + e.Session + " is thin, and cannot be read: " + e.Reason
}

// Source is a repository whose proposals are compared.
type Source struct {
	Git    gitread.Repo
	Refs   map[string]string // ids of all refs by their names, also of those that thin sessions have in their containers
	Thin   map[string]string // thin sessions whose containers cannot be read, and why
	Merges *Merges
	Now    time.Time // test results that expired before this time are left out
}

// Side is one of the compared proposals, with its changes since the base and their totals. The fields Checkpoint,
// SessionRemote and Users of ComparedSide are not set.
type Side struct {
	control.ComparedSide
	Name            string // name as in the request
	Exact           string // name that always stands for this version: SESSION@CHECKPOINT or the id of a commit
	Commit, Tree    string // ids
	BaseTree        string // id of the tree to which the changes are relative
	Session         string // name of the session; "": the proposal is another commit
	Meta            session.Meta
	Subject, Author string // subject and author of the checkpoint or commit, as the client has written them
	Truncated       bool   // Changes lacks further changes
	Result          Result

	base    string // tree to which the changes are relative; "": the empty tree
	history string // commit that the mounted remote has, or the commit itself; "": the session began without a commit
}

// Comparison is the result of a comparison. If Fork is set, all changes are relative to this checkpoint. Otherwise, the
// changes of a session are relative to the commit from which it was started, and those of other commits to the common
// ancestor of all proposals.
type Comparison struct {
	Sides  []*Side // in the order of the request
	Fork   string  // checkpoint from which all proposals were forked, as SESSION@CHECKPOINT; "": none
	Common string  // best common ancestor of the proposals; "": none
	// Several reports that the changes of the sides are relative to different trees.
	Several bool
	Pairs   []proposals.Pair
	Shared  []control.SharedPath // paths that two or more sides changed, or that have conflicts; sorted by name
}

// comparing is a comparison in progress.
type comparing struct {
	Source
	Comparison
	trees map[string]string // ids of trees by their commits
}

// Distinct returns the names of proposals in a request without empty and repeated ones.
func Distinct(names []string) []string {
	var list []string
	for _, name := range names {
		if name != "" && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// Compare compares the proposals with these names: SESSION@CHECKPOINT, SESSION@PIN, SESSION@, or the name of a commit.
// The caller has checked their number. Errors that the request causes are *NotFoundError, *ThinError and ErrLacksBase.
func (s Source) Compare(ctx context.Context, names []string) (*Comparison, error) {
	c := &comparing{Source: s, trees: map[string]string{}}
	for _, name := range names {
		side, err := c.find(ctx, name)
		if err != nil {
			return nil, err
		}
		c.Sides = append(c.Sides, side)
	}
	if err := c.findBases(ctx); err != nil {
		return nil, lacksBase(err)
	}
	if err := c.readChanges(ctx); err != nil {
		if gitcmd.Exited(err, 128) && ctx.Err() == nil {
			return nil, ErrLacksBase
		}
		return nil, err
	}
	if err := c.merge(ctx); err != nil {
		return nil, err
	}
	if err := c.readResults(ctx); err != nil {
		return nil, err
	}
	return &c.Comparison, nil
}

// lacksBase returns ErrLacksBase if err means that an object is missing, and err otherwise.
func lacksBase(err error) error {
	if errors.Is(err, read.ErrNotFound) {
		return ErrLacksBase
	}
	return err
}

// find finds the proposal with a name.
func (c *comparing) find(ctx context.Context, name string) (*Side, error) {
	side, err := c.side(ctx, name)
	if errors.Is(err, read.ErrNotFound) || errors.Is(err, gitread.ErrCheckpointName) ||
		errors.Is(err, gitread.ErrAmbiguous) {
		return nil, &NotFoundError{name, err}
	}
	return side, err
}

// side is like find, and returns errors of package gitread if there is no such proposal.
func (c *comparing) side(ctx context.Context, name string) (*Side, error) {
	side := &Side{Name: name}
	of, id := sessionlink.Split(name)
	if of == "" || session.ValidName(of) != nil || c.Refs[session.MetaRef(of)] == "" {
		list, err := c.Git.Log(ctx, name, 0, 1)
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		if err != nil || len(list) == 0 { // the name may stand for an object that is not a commit
			return nil, errors.Join(err, read.ErrNotFound)
		}
		side.Commit, side.Tree, side.history, side.Exact = list[0].Hash, list[0].TreeHash, list[0].Hash, list[0].Hash
		side.Subject, side.Author = firstLine(list[0].Message), list[0].Author.Name
		return side, nil
	}
	if why := c.Thin[of]; why != "" {
		return nil, &ThinError{of, why}
	}
	var err error
	if side.Commit, err = c.Git.Checkpoint(ctx, c.Refs, of, id); err != nil {
		return nil, err
	}
	metas, err := c.Git.Metas(ctx, c.Refs, []string{of})
	if err != nil {
		return nil, err
	}
	if side.Session = of; metas[0] != nil {
		side.Meta = *metas[0]
	}
	var checkpoint session.Checkpoint
	err = c.Git.Contents(ctx, []string{side.Commit}, maxCommit,
		func(_ int, text read.Content) { checkpoint, _ = gitread.CheckpointOf(text) })
	if err != nil {
		return nil, err
	}
	if checkpoint.ID == "" { // a pin may have been pushed to any commit
		return nil, read.ErrNotFound
	}
	side.Tree, side.history, side.Exact = checkpoint.Tree.String(), side.Meta.Base, of+"@"+string(checkpoint.ID)
	side.Base, side.Subject = side.Meta.Base, beginning(cmp.Or(checkpoint.Message, string(checkpoint.Reason)))
	if n := len(side.Meta.Transitions); n > 0 {
		side.Author = side.Meta.Transitions[n-1].Actor
	}
	return side, nil
}

// beginning returns at most maxText bytes of a text.
func beginning(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

// firstLine returns the first line of a text, at most maxText bytes.
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return beginning(text)
}

// findBases finds the trees to which the changes of the sides are relative: that of the checkpoint from which all were
// forked, or else that of the commit from which each session was started. The changes of other points are relative to
// the common ancestor of all.
func (c *comparing) findBases(ctx context.Context) error {
	fork, name, err := c.fork(ctx, c.Sides)
	if err != nil {
		return err
	}
	if fork != "" {
		c.Fork = name
		for _, s := range c.Sides {
			s.base, s.BaseTree, s.BaseCheckpoint = fork, fork, name
		}
		return nil
	}
	var histories []string
	for _, s := range c.Sides {
		histories = append(histories, s.history)
	}
	if c.Common, err = c.ancestor(ctx, histories...); err != nil {
		return err
	}
	for _, s := range c.Sides {
		if s.Session == "" {
			s.Base = c.Common
		}
		c.Several = c.Several || s.Base != c.Common
		if s.base, err = c.treeOf(ctx, s.Base); err != nil {
			return err
		}
		if s.BaseTree = s.base; s.base == "" {
			id, _ := object.ParseID(s.Tree) // git has written it
			s.BaseTree = object.EmptyTree(id.Format()).String()
		}
	}
	return nil
}

// fork returns the tree and the name of the checkpoint from which all of the sides were forked, "" if there is none.
func (c *comparing) fork(ctx context.Context, sides []*Side) (tree, name string, err error) {
	var origins []proposals.Origin
	for _, s := range sides {
		origins = append(origins, proposals.Origin{Session: s.Session, From: s.Meta.From})
	}
	of, id, ok := proposals.Fork(origins)
	if !ok {
		return "", "", nil
	}
	commit, err := c.Git.Checkpoint(ctx, c.Refs, of, id)
	// gc has dropped it, or the session was deleted
	if errors.Is(err, read.ErrNotFound) || errors.Is(err, gitread.ErrCheckpointName) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	tree, err = c.treeOf(ctx, commit)
	return tree, of + "@" + id, err
}

// ancestor returns the best common ancestor of commits, "" if there is none or if one of the commits is "".
func (c *comparing) ancestor(ctx context.Context, commits ...string) (string, error) {
	slices.Sort(commits)
	commits = slices.Compact(commits)
	if len(commits) == 1 || commits[0] == "" {
		return commits[0], nil
	}
	return c.Git.MergeBase(ctx, commits...)
}

// treeOf returns the tree of a commit, "" for none.
func (c *comparing) treeOf(ctx context.Context, commit string) (string, error) {
	if commit == "" || c.trees[commit] != "" {
		return c.trees[commit], nil
	}
	o, err := c.Git.Stat(ctx, commit, "")
	c.trees[commit] = o.ID
	return o.ID, err
}

// readChanges reads the changes of all sides.
func (c *comparing) readChanges(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(diffsAtOnce)
	for _, s := range c.Sides {
		all.Go(func() error {
			d, err := c.Git.PathChanges(ctx, s.BaseTree, s.Tree, maxPaths)
			if err != nil {
				return err
			}
			s.Truncated, s.Changes = d.Truncated, make([]control.PathChange, 0, len(d.Changes))
			for _, change := range d.Changes {
				s.Changes = append(s.Changes, proposals.PathChange(change))
			}
			s.ChangeCount = proposals.Count(s.Changes)
			return nil
		})
	}
	return all.Wait()
}

// merge finds out which of the changes conflict. It merges only pairs whose changes may meet.
func (c *comparing) merge(ctx context.Context) error {
	var merges []gitread.TreeMerge
	var of []int // numbers of the pairs of the merges
	for i, a := range c.Sides {
		for j, b := range c.Sides[i+1:] {
			c.Pairs = append(c.Pairs, proposals.Pair{A: i, B: i + 1 + j})
			base, err := c.pairBase(ctx, a, b)
			if err != nil {
				return lacksBase(err)
			}
			if proposals.Clean(base, a.proposal(), b.proposal()) {
				continue
			}
			merges, of = append(merges, gitread.TreeMerge{Base: base, Ours: a.Tree, Theirs: b.Tree}), append(of, len(c.Pairs)-1)
		}
	}
	conflicts, err := c.Merges.conflicts(ctx, c.Git, merges)
	if err != nil {
		return lacksBase(err)
	}
	for i, paths := range conflicts {
		c.Pairs[of[i]].Conflicts = paths
	}
	var changes [][]control.PathChange
	for _, s := range c.Sides {
		changes = append(changes, s.Changes)
	}
	c.Shared = proposals.Shared(changes, c.Pairs)
	return nil
}

// proposal returns the side for package proposals.
func (s *Side) proposal() proposals.Side[string] {
	return proposals.Side[string]{Base: s.base, Tree: s.Tree, Changes: s.Changes, Cut: s.Truncated}
}

// pairBase returns the tree on which git merges two sides.
func (c *comparing) pairBase(ctx context.Context, a, b *Side) (string, error) {
	if tree, _, err := c.fork(ctx, []*Side{a, b}); tree != "" || err != nil {
		return tree, err
	}
	common, err := c.ancestor(ctx, a.history, b.history)
	if err != nil {
		return "", err
	}
	return c.treeOf(ctx, common)
}
