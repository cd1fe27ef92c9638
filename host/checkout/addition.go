package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// ErrInTheWay means that Checkout.Add cannot add a file, because another file has the path of one of its parent
// directories.
var ErrInTheWay = errors.New("path is occupied by another file")

// Add adds the files and empty directories of list to the working tree, as they are in the tree to, and then calls the
// function last, which must change nothing if it fails. Add leaves paths that exist unchanged, so an interrupted
// addition is completed by repeating it. It changes no entries of git's index. If Add succeeds, it has released lock.
// If it returns an error, it has changed nothing, unless the error is an UnfinishedError. The caller must hold the
// index lock.
func (c *Checkout) Add(ctx context.Context, lock Index, to object.ID, list []Difference, intent WorktreesIntent,
	last func() error) error {
	c.refreshKernel(ctx, list)
	var missing []Difference
	found := map[string]worktree.Found{}
	for _, d := range list {
		f, err := c.Tree.Find(ctx, d.Path)
		if err != nil {
			return err
		}
		if f.Node == 0 {
			missing, found[d.Path] = append(missing, d), f
		}
	}
	x, err := lock.Read()
	if err != nil {
		return err
	}
	p, err := PlanRestore(ctx, c.Tree, missing, found,
		func(context.Context) (map[string]uint32, error) { return nil, nil })
	if err != nil {
		return err
	}
	if len(p.Kept) > 0 {
		return fmt.Errorf("add %s: %w", p.Kept[0], ErrInTheWay)
	}
	device, err := c.Device()
	if err != nil {
		return err
	}
	return c.apply(ctx, lock, x, change{
		to: to, plan: p, intent: Intent{Worktrees: &intent}, last: last,
		reindex: func(x *index.Index, done worktree.GraftResult, _ time.Time) {
			restoreIndex(x, nil, p.Grafts, done, device)
		},
	})
}
