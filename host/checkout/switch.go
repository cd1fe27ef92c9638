package checkout

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/worktree"
)

// Switched is the result of a switch.
type Switched struct {
	Paths int64    // number of paths whose index entries changed
	Kept  []string // files among these paths that a program changed during the switch, and that were left unchanged
}

// Switch moves HEAD, the index and the working tree from one commit to another. All trees of both commits must be on
// this host. want is the request of the user. pending is the intent of the interrupted switch that is repeated, or nil
// for a new one. If Switch returns an error, it has changed nothing, unless the error is an UnfinishedError.
func (c *Checkout) Switch(ctx context.Context, from gitdir.Head, to gitdir.Destination, want SwitchIntent,
	pending *Pending) (Switched, error) {
	lock, err := c.Lock(ctx)
	if err != nil {
		return Switched{}, err
	}
	done, err := c.switchFiles(ctx, lock, from, to, want, pending)
	if err != nil {
		return done, errors.Join(err, lock.Release())
	}
	return done, nil
}

// lasting returns the intent in a form that has the same meaning after HEAD has moved: names such as "-" and "HEAD~2"
// are replaced by the branch or commit in to.
func (s SwitchIntent) lasting(to gitdir.Destination) SwitchIntent {
	switch {
	// These intents are returned without a replacement. If the branch to create exists when the switch is repeated, Retry
	// returns the switch to use instead.
	case s.Forward != "", s.Create != "":
	case to.Branch != "":
		s.Ref = to.Branch
	default:
		s.Ref = to.Commit.String()
	}
	return s
}

// switchFiles changes the working tree, the index and HEAD for Switch. If it succeeds, it has released the index lock.
func (c *Checkout) switchFiles(ctx context.Context, lock Index, from gitdir.Head, to gitdir.Destination,
	want SwitchIntent,
	pending *Pending) (s Switched, err error) {
	list, err := Differences(ctx, c.Trees, from.Tree, to.Tree)
	if err != nil {
		return s, err
	}
	if pending == nil && want.Forward == "" {
		if err := c.refuse(list); err != nil {
			return s, err
		}
	}
	c.refreshKernel(ctx, list)
	x, err := lock.Read()
	if err != nil {
		return s, err
	}
	p, err := PlanSwitch(ctx, c.Tree, c.Git, c.Mounts, x, list, pending != nil)
	if err != nil {
		return s, err
	}
	device, err := c.Device()
	if err != nil {
		return s, err
	}
	staged, err := c.Git.Staged(ctx, to.Tree)
	if err != nil {
		return s, err
	}
	missing, err := c.missing(ctx, to.Tree)
	if err != nil {
		return s, err
	}
	lasting := want.lasting(to)
	err = c.apply(ctx, lock, x, change{
		to: to.Tree, plan: p, intent: Intent{Switch: &lasting}, pending: pending,
		reindex: func(x *index.Index, done worktree.GraftResult, written time.Time) {
			// the change continues after ctx has ended, because the remaining steps do not wait for the network
			ctx := context.WithoutCancel(ctx)
			entries, kept := switchedEntries(p, done.Done, device)
			switchIndex(x, entries, done.Since, c.others(ctx, slices.Concat(missing, staged)), c.Reads, written)
			c.setTrees(ctx, x, to.Tree, except(staged, entries))
			s.Paths, s.Kept = int64(len(entries)), kept
		},
		last: func() error {
			err := c.moveHead(ctx, from, to, want, pending != nil)
			if err == nil {
				c.Show(to.Tree)
			}
			return err
		},
	})
	return s, err
}

// moveHead moves HEAD, or the branch that HEAD refers to. If again is set and a killed process has already moved HEAD,
// moveHead does nothing, because another move would add an entry to the reflog from a commit to itself.
func (c *Checkout) moveHead(ctx context.Context, from gitdir.Head, to gitdir.Destination, want SwitchIntent,
	again bool) error {
	switch {
	case again && from.Branch == to.Branch && from.Commit == to.Commit && !to.New:
		return nil
	case want.Forward != "":
		return c.Refs.Forward(ctx, to.Branch, from.Commit, to.Commit,
			"follow: moving from "+from.Commit.String()+" to "+to.Commit.String())
	}
	return c.Refs.Move(ctx, from, to)
}

// Retry returns another switch that completes the interrupted switch s, whose repetition has failed with err, or false
// if there is none. Another switch is needed if the killed process had created the branch and not moved HEAD to it: a
// repetition of s would try to create the branch again, and fail.
func (s SwitchIntent) Retry(err error) (SwitchIntent, bool) {
	return SwitchIntent{Ref: s.Create}, errors.Is(err, gitdir.ErrBranchExists)
}
