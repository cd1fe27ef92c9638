package checkout

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// Tree is the working tree that is changed.
type Tree interface {
	Find(ctx context.Context, path string) (worktree.Found, error)
	ReadDir(ctx context.Context, dir worktree.Node, from uint64, emit func(worktree.Entry) bool) error
	Graft(ctx context.Context, tree object.ID, list []worktree.Graft, token string) (worktree.GraftResult, error)
}

// Kernel has a cache of the working tree, and is told which parts of it are out of date.
type Kernel interface {
	Refresh(nodes []worktree.Node)
	Invalidate(stale worktree.Stale)
}

// StaleMark records, for as long as the kernel has the mount, that paths are being changed of which it was not told yet.
type StaleMark interface {
	// Stale reports whether a process was killed between SetStale(true) and SetStale(false).
	Stale() bool
	SetStale(stale bool)
}

// Mounts knows what is mounted over paths of the working tree.
type Mounts interface {
	On(path string) bool    // something is mounted on path
	Below(path string) bool // something is mounted on path or below it
}

// Differ compares trees.
type Differ interface {
	// Differences lists the paths in which two trees differ; the zero ID is an empty tree.
	Differences(ctx context.Context, from, to object.ID) ([]gitdir.Difference, error)
}

// Git answers for paths of the working tree what only git knows. Each method is one git command, whatever the number of paths.
type Git interface {
	Modified(ctx context.Context, paths []string) ([]string, error) // files that are not as the index has them
	Ignored(ctx context.Context, paths []string) ([]string, error)
	Staged(ctx context.Context, tree object.ID) ([]string, error) // paths in which the index differs from tree
}

// Index is git's index, locked. Replace gives up the lock; Release does so too and has no effect afterwards.
type Index interface {
	Read() (*index.Index, error)
	Replace(x *index.Index, written time.Time) error
	Release() error
}

// Refs moves HEAD.
type Refs interface {
	// Move moves HEAD to a branch or commit, and creates the branch if it is new.
	Move(ctx context.Context, from gitdir.Head, to gitdir.Destination) error
	// Forward moves the branch that HEAD is on.
	Forward(ctx context.Context, branch string, from, to object.ID, reason string) error
}

// TreeReader returns the entries of a tree; the zero ID is the empty tree.
type TreeReader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// Checkout is one mounted working tree. Its fields do not change; all methods may be called at the same time, and
// the index lock makes them take turns.
type Checkout struct {
	Tree    Tree
	Kernel  Kernel
	Mark    StaleMark
	Mounts  Mounts
	Differ  Differ // of commits: without directories that are empty
	Git     Git
	Refs    Refs
	Journal *Journal
	Trees   TreeReader
	Log     *zap.Logger

	Dir       string                                   // where it is mounted, for the log
	Base      object.ID                                // tree that the mount started from
	Lock      func(ctx context.Context) (Index, error) // takes git's lock of the index; gitdir.ErrLocked: git has it
	Device    func() (uint32, error)                   // device number of the mount
	Added     func() []string                          // paths of files that the base tree does not have
	Redirects func() []string                          // redirected paths, each with a slash at its end
	Show      func(tree object.ID)                     // prefetch goes by this tree from now on
	Reads     bool                                     // git may read ignore files that were not fetched
}

// change is a plan and what surrounds it.
type change struct {
	to      object.ID // tree
	plan    *Plan
	intent  Intent
	pending *Pending // intent that a killed process left; nil: this change is begun now
	// reindex brings an index up to date with the changed working tree. written is the modification time that the file will have.
	reindex func(x *index.Index, done worktree.GraftResult, written time.Time)
}

// apply records the intent of a change, changes the working tree and replaces the index, which gives up its lock. The
// returned intent has not ended yet: the caller ends it when its own last step is done. After an error it has ended, and
// some paths may be changed; they are recorded in the change journal, so that git status lists them. If ctx ends, apply
// continues after the intent was recorded; nothing in it waits for the network.
func (c *Checkout) apply(ctx context.Context, lock Index, x *index.Index, ch change) (*Pending, error) {
	pending := ch.pending
	if pending == nil {
		var err error
		if pending, err = c.Journal.Begin(ch.intent); err != nil {
			return nil, err
		}
	}
	ctx = context.WithoutCancel(ctx)
	c.Mark.SetStale(true)
	done, err := c.Tree.Graft(ctx, ch.to, ch.plan.all(), x.Token)
	c.Kernel.Refresh(done.Since.Open)
	c.Kernel.Invalidate(done.Stale)
	c.Mark.SetStale(false)
	if err == nil {
		written := time.Now().Truncate(time.Second).Add(time.Second)
		ch.reindex(x, done, written)
		err = lock.Replace(x, written)
	}
	if err != nil { // it must not be done again later, behind the user's back
		return nil, errors.Join(err, pending.End())
	}
	return pending, nil
}

// end ends the intent of a change that was carried out. A failure has no consequence but that the change is done again.
func (c *Checkout) end(p *Pending) {
	if err := p.End(); err != nil {
		c.Log.Warn("end the intent of a checkout", zap.String("dir", c.Dir), zap.Error(err))
	}
}

// refreshKernel invalidates what the kernel may know wrong of paths that a killed process changed.
func (c *Checkout) refreshKernel(ctx context.Context, list []gitdir.Difference) {
	if c.Mark.Stale() {
		c.Kernel.Invalidate(c.staleAfter(ctx, list))
	}
}

// staleAfter returns the names and nodes along the paths of list, of which a killed process may have changed some without
// telling the kernel. A directory on which, or below which, something is mounted existed before and is left out: the
// kernel would unmount that with the directory's name.
func (c *Checkout) staleAfter(ctx context.Context, list []gitdir.Difference) worktree.Stale {
	stale := worktree.Stale{Dirs: map[worktree.Node]bool{}}
	asked := map[string]bool{}
	for _, d := range list {
		for at := d.Path; at != "" && !asked[at]; at = parentOf(at) {
			asked[at] = true
			f, err := c.Tree.Find(ctx, at)
			if err != nil {
				continue
			}
			if f.Node != 0 {
				stale.Nodes = append(stale.Nodes, f.Node)
				stale.Dirs[f.Node] = isDir(f)
			}
			parent, ok := c.nodeOf(ctx, parentOf(at))
			if !ok || isDir(f) && c.Mounts.Below(at) {
				continue
			}
			stale.Places = append(stale.Places, worktree.Place{Dir: parent, Name: baseOf(at)})
		}
	}
	stale.Nodes = append(stale.Nodes, worktree.Root)
	stale.Dirs[worktree.Root] = true
	return stale
}

// nodeOf returns the node at a path; false: there is none, or it cannot be read.
func (c *Checkout) nodeOf(ctx context.Context, path string) (worktree.Node, bool) {
	if path == "" {
		return worktree.Root, true
	}
	f, err := c.Tree.Find(ctx, path)
	return f.Node, err == nil && f.Node != 0
}
