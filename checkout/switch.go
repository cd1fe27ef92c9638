package checkout

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Switched is what a switch did.
type Switched struct {
	Paths int64    // whose index entries changed
	Kept  []string // of them, files that a program changed meanwhile, and that were left as they were
}

// Switch moves HEAD, the index and the working tree from one commit to another, all of whose trees are on this host. want
// is what the user asked for; it is recorded in a form that means the same after HEAD was moved. pending is the
// interrupted switch that is done again, nil for a new one. A fault.RefusalError, fault.ErrSparse or
// gitdir.ErrLocked means that nothing was changed.
func (c *Checkout) Switch(ctx context.Context, from gitdir.Head, to gitdir.Destination, want SwitchIntent,
	pending *Pending) (Switched, error) {
	lock, err := c.Lock(ctx)
	if err != nil {
		return Switched{}, err
	}
	done, begun, err := c.switchFiles(ctx, lock, from.Tree, to.Tree, want.lasting(to), pending)
	if err != nil {
		return done, errors.Join(err, lock.Release())
	}
	if err := c.moveHead(ctx, from, to, want, pending != nil); err != nil {
		// Git lists what differs from HEAD. It must not be moved later, behind the user's back.
		return done, errors.Join(err, begun.End())
	}
	c.Show(to.Tree)
	c.end(begun)
	return done, nil
}

// lasting returns the intent in a form that means the same when HEAD has been moved: "-" and "HEAD~2" do not.
func (s SwitchIntent) lasting(to gitdir.Destination) SwitchIntent {
	switch {
	case s.Forward != "", s.Create != "": // the branch exists when it is done again, see Retry
	case to.Branch != "":
		s.Ref = to.Branch
	default:
		s.Ref = to.Commit.String()
	}
	return s
}

// switchFiles changes the working tree and the index from one tree to another. It gives up the lock if it succeeds.
func (c *Checkout) switchFiles(ctx context.Context, lock Index, from, to object.ID, want SwitchIntent,
	pending *Pending) (s Switched, begun *Pending, err error) {
	list, err := c.Differ.Differences(ctx, from, to)
	if err != nil {
		return s, nil, err
	}
	c.refreshKernel(ctx, list)
	x, err := lock.Read()
	if err != nil {
		return s, nil, err
	}
	p, err := PlanSwitch(ctx, c.Tree, c.Git, c.Mounts, x, list, pending != nil)
	if err != nil {
		return s, nil, err
	}
	device, err := c.Device()
	if err != nil {
		return s, nil, err
	}
	staged, err := c.Git.Staged(ctx, to)
	if err != nil {
		return s, nil, err
	}
	missing, err := c.missing(ctx, to)
	if err != nil {
		return s, nil, err
	}
	begun, err = c.apply(ctx, lock, x, change{
		to: to, plan: p, intent: Intent{Switch: &want}, pending: pending,
		reindex: func(x *index.Index, done worktree.GraftResult, written time.Time) {
			ctx := context.WithoutCancel(ctx) // as in apply
			entries, kept := switchedEntries(p, done.Done, device)
			switchIndex(x, entries, done.Since, c.others(ctx, slices.Concat(missing, staged)), c.Reads, written)
			c.setTrees(ctx, x, to, except(staged, entries))
			s.Paths, s.Kept = int64(len(entries)), kept
		},
	})
	return s, begun, err
}

// moveHead moves HEAD or the branch that it is on. If a killed process has done so already, nothing is left to do: the
// reflog must not have a move from a commit to itself.
func (c *Checkout) moveHead(ctx context.Context, from gitdir.Head, to gitdir.Destination, want SwitchIntent, again bool) error {
	switch {
	case again && from.Branch == to.Branch && from.Commit == to.Commit && !to.New:
		return nil
	case want.Forward != "":
		return c.Refs.Forward(ctx, to.Branch, from.Commit, to.Commit, "follow: moving from "+from.Commit.String()+" to "+to.Commit.String())
	}
	return c.Refs.Move(ctx, from, to)
}

// Retry returns the switch that does the rest of an interrupted one after err: if the killed process had created the
// branch and not yet moved HEAD, HEAD still has to go there.
func (s SwitchIntent) Retry(err error) (SwitchIntent, bool) {
	return SwitchIntent{Ref: s.Create}, errors.Is(err, gitdir.ErrBranchExists)
}
