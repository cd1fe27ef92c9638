package checkout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/worktree"
)

// Tree is the working tree that a checkout changes: an interface with methods of worktree.Tree.
type Tree interface {
	Find(ctx context.Context, path string) (worktree.Found, error)
	ReadDir(ctx context.Context, dir worktree.Node, from uint64, emit func(worktree.Entry) bool) error
	Graft(ctx context.Context, tree object.ID, list []worktree.Graft, token string) (worktree.GraftResult, error)
}

// Kernel invalidates parts of the kernel's cache of the working tree.
type Kernel interface {
	Refresh(nodes []worktree.Node)
	Invalidate(stale worktree.Stale)
}

// StaleMark is a mark that is set while paths were changed and the kernel was not notified of the changes yet. The mark
// exists as long as the kernel's mount, so it survives the death of the process.
type StaleMark interface {
	// Stale reports whether the mark is set: a process was killed between SetStale(true) and SetStale(false).
	Stale() bool
	// SetStale sets or removes the mark.
	SetStale(stale bool)
}

// Mounts finds other file systems that are mounted in the working tree.
type Mounts interface {
	On(path string) bool    // reports whether a file system is mounted on path
	Below(path string) bool // reports whether a file system is mounted on path or in a directory below path
}

// Difference is a path that differs between two trees. If the path does not exist in one of the trees, its mode there
// is zero.
type Difference struct {
	Path             string
	OldMode, NewMode object.Mode
	Old, New         object.ID
}

// Differ compares git trees.
type Differ interface {
	// Differences returns the paths at which the tree in the parameter to differs from the tree in the parameter from. The
	// zero ID stands for the empty tree.
	Differences(ctx context.Context, from, to object.ID) ([]Difference, error)
}

// Git runs git to find out properties of paths that only git can determine. Each method runs a single git command for
// any number of paths.
type Git interface {
	// returns the elements of paths whose files differ from the index
	Modified(ctx context.Context, paths []string) ([]string, error)
	// Ignored returns the elements of paths that git ignores.
	Ignored(ctx context.Context, paths []string) ([]string, error)
	Staged(ctx context.Context, tree object.ID) ([]string, error) // returns the paths at which the index differs from tree
}

// Index is git's index while its lock is held. Read returns the index, Replace writes a new one, and Restore undoes
// Replace. Release releases the lock; a second Release has no effect.
type Index interface {
	Read() (*index.Index, error)
	Replace(x *index.Index, written time.Time) error
	Restore() error
	Release() error
}

// Refs changes HEAD, or the branch that HEAD refers to.
type Refs interface {
	// Move moves HEAD to a branch or commit. It creates the branch if to.New is set.
	Move(ctx context.Context, from gitdir.Head, to gitdir.Destination) error
	// Forward moves the branch that HEAD refers to from one commit to another. reason is the message of the reflog
	// entry.
	Forward(ctx context.Context, branch string, from, to object.ID, reason string) error
}

// Checkout changes one mounted working tree. Its fields must not change after its first use. Its methods may be called
// concurrently, because the index lock serializes them.
type Checkout struct {
	Tree    Tree
	Kernel  Kernel
	Mark    StaleMark
	Mounts  Mounts
	Git     Git
	Refs    Refs
	Journal *Journal
	Trees   treediff.Reader // reads trees, and fetches those that are missing
	Log     *zap.Logger

	Dir  string    // directory of the mount, for log messages
	Base object.ID // tree that the mount started from
	// Lock acquires git's lock of the index. It returns gitdir.ErrLocked if a git command holds the lock.
	Lock      func(ctx context.Context) (Index, error)
	Device    func() (uint32, error)               // device number of the mount
	Added     func() []string                      // returns the paths of files that are missing in the base tree
	Redirects func() []string                      // returns the redirected paths, each with a slash at the end
	Show      func(tree object.ID)                 // sets the tree whose contents are prefetched
	Notify    func(changed []worktree.ChangedName) // reports a completed change to those who watch the working tree
	Reads     bool                                 // whether git may read ignore files that are not fetched

	// Refuses returns an error if a path must not be changed, because another session has locked it. It is called for
	// all paths before the first change. It is not called for changes that follow the branch on the remote, and for
	// repetitions of interrupted changes.
	Refuses func(path string) error
}

// refuse returns the first error that Refuses returns for the paths in list.
func (c *Checkout) refuse(list []Difference) error {
	for _, d := range list {
		if err := c.Refuses(d.Path); err != nil {
			return err
		}
	}
	return nil
}

// change is a planned change of the working tree and the index, with the intent that records it.
type change struct {
	to      object.ID // tree that the working tree shows after the change
	plan    *Plan     // changes of the working tree
	intent  Intent    // intent that is recorded for this change
	pending *Pending  // intent of an interrupted change, which this change repeats; nil if this change is new
	// reindex updates the index x after the working tree was changed. written is the modification time that the index file
	// will have.
	reindex func(x *index.Index, done worktree.GraftResult, written time.Time)
	// last is the last step of the change, which must change nothing if it fails; nil if there is no further step.
	last func() error
}

// apply carries out a change: it records the intent, changes the working tree, replaces the index, calls ch.last and
// releases the index lock. If a step fails, apply undoes the previous steps, so that nothing is changed. If that fails
// too, the intent stays in the journal as an unfinished one, and the error is an UnfinishedError. The intent of a
// repetition that fails stays as it is. Once the intent is recorded, apply continues even if ctx ends, because the
// remaining steps do not wait for the network.
func (c *Checkout) apply(ctx context.Context, lock Index, x *index.Index, ch change) error {
	pending := ch.pending
	if pending == nil {
		var err error
		if pending, err = c.Journal.Begin(ch.intent); err != nil {
			return err
		}
	}
	ctx = context.WithoutCancel(ctx)
	c.Mark.SetStale(true)
	done, err := c.Tree.Graft(ctx, ch.to, slices.Concat(ch.plan.Grafts, ch.plan.Clear), x.Token)
	c.Kernel.Refresh(done.Since.Open)
	// even if the graft has failed, because a program may have looked up a path before the change was undone
	c.Kernel.Invalidate(done.Stale)
	if err == nil {
		// If the new index stays, the working tree stays too: a repetition changes only paths whose index entries are the old
		// ones.
		if err = c.afterGraft(lock, x, ch, done); err == nil || errors.Is(err, worktree.ErrPartial) {
			done.Keep()
		} else {
			err = errors.Join(err, done.TakeBack())
			c.Kernel.Invalidate(done.Stale)
		}
	}
	c.Mark.SetStale(false)
	if errors.Is(err, worktree.ErrPartial) {
		pending.Leave()
		return UnfinishedError{err}
	}
	if err != nil && ch.pending != nil {
		return err // the changes of the killed process were not undone, so the caller decides about the intent
	}
	if err != nil {
		return errors.Join(err, pending.End())
	}
	if err := lock.Release(); err != nil {
		c.Log.Warn("release the index lock", zap.String("dir", c.Dir), zap.Error(err))
	}
	// If the intent stays, the change is repeated at a later start, which has no effect.
	if err := pending.End(); err != nil {
		c.Log.Warn("remove finished checkout from the journal", zap.String("dir", c.Dir), zap.Error(err))
	}
	c.Notify(done.Changed)
	return nil
}

// afterGraft replaces the index and calls ch.last, after the working tree was changed. If it returns an error, the
// index is unchanged, unless the error wraps worktree.ErrPartial.
func (c *Checkout) afterGraft(lock Index, x *index.Index, ch change, done worktree.GraftResult) error {
	written := time.Now().Truncate(time.Second).Add(time.Second)
	ch.reindex(x, done, written)
	if err := lock.Replace(x, written); err != nil || ch.last == nil {
		return err
	}
	err := ch.last()
	if err == nil {
		return nil
	}
	if back := lock.Restore(); back != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", worktree.ErrPartial, back))
	}
	return err
}

// UnfinishedError means that a change has failed and could not be undone. Its intent is in Journal.Unfinished, and a
// repetition of the change completes it.
type UnfinishedError struct{ Err error }

// Error returns a message with the cause.
func (e UnfinishedError) Error() string {
	return "change working tree: only a part of the paths was changed: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e UnfinishedError) Unwrap() error { return e.Err }

// refreshKernel invalidates the kernel's cache of the paths in list, if a killed process may have changed them without
// notifying the kernel.
func (c *Checkout) refreshKernel(ctx context.Context, list []Difference) {
	if c.Mark.Stale() {
		c.Kernel.Invalidate(c.staleAfter(ctx, list))
	}
}

// staleAfter returns the names and nodes of the paths in list, and of their parent directories, for invalidation in the
// kernel, because a killed process may have changed them. It omits the names of directories on or below which a file
// system is mounted, because the kernel would unmount that file system; such a directory existed before the change, so
// its name is still valid.
func (c *Checkout) staleAfter(ctx context.Context, list []Difference) worktree.Stale {
	stale := worktree.Stale{Dirs: map[worktree.Node]bool{}}
	asked := map[string]bool{}
	for _, d := range list {
		for at := d.Path; at != "" && !asked[at]; at = worktree.ParentOf(at) {
			asked[at] = true
			f, err := c.Tree.Find(ctx, at)
			if err != nil {
				continue
			}
			if f.Node != 0 {
				stale.Nodes = append(stale.Nodes, f.Node)
				stale.Dirs[f.Node] = isDir(f)
			}
			parent, ok := c.nodeOf(ctx, worktree.ParentOf(at))
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

// nodeOf returns the node at a path of the working tree, or false if the path does not exist or cannot be read.
func (c *Checkout) nodeOf(ctx context.Context, path string) (worktree.Node, bool) {
	if path == "" {
		return worktree.Root, true
	}
	f, err := c.Tree.Find(ctx, path)
	return f.Node, err == nil && f.Node != 0
}

// Differences returns the paths at which the trees of two commits differ, sorted, without empty directories. It
// compares what the trees show, as the working tree does. git diff-tree compares entries one by one: it names a path
// twice if a tree contains it twice, or if the entries of one tree are not sorted.
func Differences(ctx context.Context, read treediff.Reader, from, to object.ID) (list []Difference, err error) {
	err = treediff.Trees(ctx, read, from, to, func(path string, from, to object.TreeEntry) error {
		list = append(list, Difference{Path: path, OldMode: from.Mode, NewMode: to.Mode, Old: from.ID, New: to.ID})
		return nil
	})
	return list, err
}
