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

// Kernel is the kernel's cache of the working tree, of which parts can be invalidated.
type Kernel interface {
	Refresh(nodes []worktree.Node)
	Invalidate(stale worktree.Stale)
}

// StaleMark records that paths are being changed that the kernel has not been notified of. It lives as long as the
// kernel's mount.
type StaleMark interface {
	// Stale reports whether a process was killed between SetStale(true) and SetStale(false).
	Stale() bool
	SetStale(stale bool)
}

// Mounts knows the mount points in the working tree.
type Mounts interface {
	On(path string) bool    // something is mounted on path
	Below(path string) bool // something is mounted on path or below it
}

// Differ compares trees.
type Differ interface {
	// Differences returns the paths in which two trees differ. A zero ID is the empty tree.
	Differences(ctx context.Context, from, to object.ID) ([]gitdir.Difference, error)
}

// Git answers questions on paths that only git can answer. Each method is one git command, whatever the number of paths.
type Git interface {
	Modified(ctx context.Context, paths []string) ([]string, error) // files that differ from the index
	Ignored(ctx context.Context, paths []string) ([]string, error)
	Staged(ctx context.Context, tree object.ID) ([]string, error) // paths in which the index differs from tree
}

// Index is git's index, locked. Replace writes a new index and releases the lock. A Release after that has no effect.
type Index interface {
	Read() (*index.Index, error)
	Replace(x *index.Index, written time.Time) error
	Release() error
}

// Refs moves HEAD.
type Refs interface {
	// Move moves HEAD to a branch or commit, and creates the branch if it is new.
	Move(ctx context.Context, from gitdir.Head, to gitdir.Destination) error
	// Forward moves the branch that HEAD is on from one commit to another.
	Forward(ctx context.Context, branch string, from, to object.ID, reason string) error
}

// TreeReader returns the entries of a tree; the zero ID is the empty tree.
type TreeReader func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)

// Checkout is one mounted working tree. Its fields do not change. Its methods may be called concurrently; the index lock
// serializes them.
type Checkout struct {
	Tree    Tree
	Kernel  Kernel
	Mark    StaleMark
	Mounts  Mounts
	Differ  Differ // compares commits, without empty directories
	Git     Git
	Refs    Refs
	Journal *Journal
	Trees   TreeReader
	Log     *zap.Logger

	Dir  string    // directory of the mount, for the log
	Base object.ID // tree that the mount started from
	// Takes git's lock of the index; returns gitdir.ErrLocked if git holds it.
	Lock      func(ctx context.Context) (Index, error)
	Device    func() (uint32, error) // device number of the mount
	Added     func() []string        // paths of files that the base tree does not have
	Redirects func() []string        // redirected paths, each with a slash at the end
	Show      func(tree object.ID)   // sets the tree that prefetch uses
	Reads     bool                   // git may read ignore files that are missing
}

// change is a plan and the intent that it carries out.
type change struct {
	to      object.ID // tree
	plan    *Plan
	intent  Intent
	pending *Pending // intent that a killed process left; nil if this change is new
	// reindex brings an index up to date with the changed working tree. written is the modification time that the file will have.
	reindex func(x *index.Index, done worktree.GraftResult, written time.Time)
}

// apply records the intent of a change, changes the working tree and replaces the index, which releases its lock. The
// returned intent is still open: the caller ends it after its own last step. If apply returns an error, it has ended the
// intent, and some paths may be changed; they are in the change journal, so that git status lists them. After the intent
// was recorded, apply continues even if ctx ends; none of its steps waits for the network.
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
	if err != nil { // if a later start repeated the checkout, that would surprise the user
		return nil, errors.Join(err, pending.End())
	}
	return pending, nil
}

// end ends the intent of a change that was carried out, and logs a failure. After a failure the change is repeated,
// without effect.
func (c *Checkout) end(p *Pending) {
	if err := p.End(); err != nil {
		c.Log.Warn("end the intent of a checkout", zap.String("dir", c.Dir), zap.Error(err))
	}
}

// refreshKernel invalidates the kernel's cache of paths that a killed process changed.
func (c *Checkout) refreshKernel(ctx context.Context, list []gitdir.Difference) {
	if c.Mark.Stale() {
		c.Kernel.Invalidate(c.staleAfter(ctx, list))
	}
}

// staleAfter returns the names and nodes along the paths of list, some of which a killed process may have changed
// without notifying the kernel. A directory with a mount on or below it existed before the change and is left out,
// because the kernel would unmount these mounts when it drops the directory's name.
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

// nodeOf returns the node at a path. It returns false if there is none, or if it cannot be read.
func (c *Checkout) nodeOf(ctx context.Context, path string) (worktree.Node, bool) {
	if path == "" {
		return worktree.Root, true
	}
	f, err := c.Tree.Find(ctx, path)
	return f.Node, err == nil && f.Node != 0
}
