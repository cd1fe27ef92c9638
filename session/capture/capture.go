// Package capture makes checkpoints of a mount. It asks the working tree for the changed paths, makes blobs and trees
// from them, reads the state that git stores beside the files (index, HEAD, refs, stashes), and writes all of it to the
// session's Repo.
//
// Package capture promises the following:
//   - The tree of a checkpoint is the tree that `git add -A` and `git write-tree` would make of the files at that
//     moment with the current index. The differences: directories without files have an entry of the empty tree, and
//     paths that Rules leave out and nested repositories are missing. Files of linked worktrees are in another tree.
//     Files that git converts (line ends, filters) are converted by stock git.
//   - The cost of a checkpoint is proportional to the changes since the previous checkpoint: no unchanged file of the
//     mount is read, and no contents of the mounted repository are fetched. The exceptions are ignore files and
//     attributes that decide about new files.
//   - When Checkpoint returns, the checkpoint is on disk: its objects are written as one pack, then the ref of the lane
//     is updated by compare-and-swap.
//   - Nothing that belongs to the user is written: the index is read as a file, and git's refs and objects stay
//     unchanged.
//   - A file that was only staged and looks like a secret is stored neither in a checkpoint's tree nor in its state.
//
// # How a checkpoint is made
//
// First, a dry run of Tree.Freeze returns the changed names. The ignore rules that these names need are fetched, so
// that writers do not have to wait for the fetch. Then the Tree is frozen. Ignored directories without tracked files
// are skipped. Usually only the changes since the previous checkpoint are read and applied to its tree. After a change
// of an ignore file or of other rules, or if the file with the type memory is lost, everything that differs from the
// base tree is read again. Then git's state (index, HEAD, refs, stashes) is read. If the index now tracks a path that
// the new tree leaves out, or no longer tracks an ignored path that the new tree contains, the new tree is corrected.
//
// Terms: a path is tracked if it is in the index, as in git. A path is left out if the checkpoint's tree does not
// contain it although the file exists. Each left-out path is listed with a reason; a directory that is left out as a
// whole is listed once.
//
// Locks: a goroutine that makes a checkpoint first receives the value of the channel Capturer.token. The lock
// Capturer.mu protects the fields that are declared below mu; the goroutine with the token may use all other fields.
package capture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// LeftOut is a path that exists in the working tree but not in a checkpoint, with the reason.
type LeftOut = session.LeftOut

// Report describes how a checkpoint was made.
type Report struct {
	// Made is false if nothing had changed. In this case no checkpoint was made, and Checkpoint has returned the previous
	// checkpoint.
	Made bool
	// Left lists at most 100 paths that the checkpoint leaves out, sorted by reason: first the reasons that a user
	// expects least.
	Left []LeftOut
	// Unread are the ignore files that could not be read. The checkpoint contains the files that they ignore, and the next
	// checkpoint reads them again.
	Unread []string
	// Unfiltered are the files, sorted, whose contents the checkpoint lacks because a required filter could not convert
	// them. The checkpoint has them as the previous one had them, or not. The next checkpoint converts them again.
	Unfiltered []string
	// Times are the times of the checkpoint's paths, for a checkpoint that is made for the reason Forking; nil if they
	// are not known.
	Times *worktree.Times
	// Carried are the files that were taken for a fork; nil if none could be taken because of the error NotCarried.
	Carried    *Taken
	NotCarried error
	// Paused is the longest time for which a writer to the mount had to wait for the checkpoint.
	Paused time.Duration
	// Took is the total duration of the call of Checkpoint.
	Took time.Duration
	// Steps are the durations of the parts of the call, in order.
	Steps []Step
}

// Capturer makes the checkpoints of one mount. Its methods may be called concurrently, but it makes only one checkpoint
// at a time.
type Capturer struct {
	o      Options
	rules  rules
	format object.Format
	refs   *session.RefDir // refs of the mount's git directory

	// The channel token holds one value. The goroutine that has received the value makes a checkpoint and may use the
	// fields from mem to settled.
	token chan struct{}
	// mem is what the next checkpoint needs to know about the previous one. left is the set of paths that the previous
	// checkpoint left out.
	mem      memory
	left     *leftSet
	user     userIgnore
	baseDirs map[string]uint32 // State.Dirs of the checkpoint from which the mount was resumed
	// steps are the durations of the checkpoint in progress.
	steps steps
	// roots are the linked worktrees inside the mount, sorted by path. The method freezeView sets it.
	roots roots
	// pinned is used as FreezeOptions.MaxPinned: the contents of larger files are not frozen. 0 means that there is no
	// limit.
	pinned int64
	// carrying takes files for a fork during the checkpoint in progress; nil if none are taken.
	carrying *carrying
	// treeCache holds the trees that were read for the checkpoint in progress.
	treeCache     map[object.ID][]object.TreeEntry
	treeCacheSize int // number of entries in treeCache
	// pending holds encoded trees that are not in the Repo yet, by id.
	pending map[object.ID][]byte
	// tracking contains HEAD's tree and the index, which determine the tracked paths.
	tracking tracking
	// ignoreFiles are parsed ignore files, by blob id.
	ignoreFiles map[object.ID]globs
	// settled is the set of objects to which refs point and that need not be copied to the Repo, because the mounted
	// remote has these objects or because the objects no longer exist.
	settled map[object.ID]bool

	mu sync.Mutex
	// lane is the lane of the next checkpoint.
	lane  string
	least int  // lowest segment number of lane that may be used, as in Options.Segment
	fresh bool // whether the next checkpoint starts a new segment
	// last is the newest checkpoint of the lane; nil if the lane has no checkpoint.
	last  *session.Checkpoint
	count int // number of checkpoints in last's segment
}

// segmentCheckpoints is the maximum number of checkpoints in a segment.
const segmentCheckpoints = 256

// New returns a Capturer that continues from the newest checkpoint of the lane. It removes temporary files that a
// crashed process left behind.
func New(o Options) (*Capturer, error) {
	if o.Lane == "" {
		o.Lane = "main"
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	r, err := o.Rules.compile()
	if err != nil {
		return nil, fmt.Errorf("read rules of checkpoints: %w", err)
	}
	c := &Capturer{
		o: o, rules: r, format: o.Repo.Format(), refs: session.NewRefDir(o.GitDir, o.Repo.Format()),
		token: make(chan struct{}, 1), lane: o.Lane, least: o.Segment,
		pinned: r.max, ignoreFiles: map[object.ID]globs{}, settled: map[object.ID]bool{}, left: newLeftSet(nil),
	}
	last, err := o.Repo.Newest(o.Lane)
	switch {
	case errors.Is(err, session.ErrNoCheckpoint):
	case err != nil:
		return nil, fmt.Errorf("find the newest checkpoint: %w", err)
	default:
		if c.count, err = c.segmentLength(last); err != nil {
			return nil, fmt.Errorf("find the newest checkpoint: %w", err)
		}
		c.last = &last
		c.mem = recall(o.Memory, last.Commit)
		c.left = newLeftSet(c.mem.Left)
	}
	if startIndex := c.startIndex(); c.mem.Index == nil {
		c.mem.Index = startIndex
	}
	c.sweepClean()
	c.token <- struct{}{}
	return c, nil
}

// Last returns the newest checkpoint of the lane, or false if there is none.
func (c *Capturer) Last() (session.Checkpoint, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		return session.Checkpoint{}, false
	}
	return *c.last, true
}

// SetLane sets the lane to which checkpoints are added. The next checkpoint starts a new segment of the lane, whose
// number is at least segment.
func (c *Capturer) SetLane(lane string, segment int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lane, c.least, c.fresh = lane, segment, true
}

// Checkpoint makes a checkpoint of the current state and returns when the checkpoint is on disk. If nothing has changed
// since the newest checkpoint, Checkpoint returns the newest checkpoint, unless message is a new message. If the lane
// has no checkpoint and the mount is unchanged since it was mounted, Checkpoint makes a checkpoint only if the reason
// is Manual, Forking or Restore; otherwise it returns the zero Checkpoint. Concurrent calls run one after the other; a
// call stops waiting when ctx is done.
//
// carry may have one element, for a checkpoint that is made for a fork: Checkpoint then takes the paths that the
// checkpoint leaves out, as they are at the same moment (Report.Carried). If they cannot be taken, the checkpoint is
// made nevertheless, and Report.NotCarried has the cause.
func (c *Capturer) Checkpoint(ctx context.Context, reason session.Reason,
	message string, carry ...Carrying) (session.Checkpoint, Report, error) {
	began := time.Now()
	select {
	case <-c.token:
	case <-ctx.Done():
		return session.Checkpoint{}, Report{}, ctx.Err()
	}
	defer func() { c.token <- struct{}{} }()
	c.steps = steps{last: began}
	c.steps.done("turn")
	c.treeCache, c.treeCacheSize, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
	c.tracking = c.mem.Index.tracking()
	// Many files were removed at once. The checkpoint below will not contain them, so first make a checkpoint that
	// contains the removed files.
	if _, _, many := c.o.Tree.Removals().Requested(); many && reason != session.Removal {
		if _, _, err := c.checkpoint(ctx, session.Removal, ""); err != nil {
			c.o.Log.Warn("create checkpoint of removed files", zap.Error(err))
			c.mem, c.left = memory{}, newLeftSet(nil)
		}
		c.treeCache, c.treeCacheSize, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
		c.tracking = c.mem.Index.tracking()
	}
	for _, k := range carry {
		c.carrying = &carrying{Carrying: k}
	}
	defer func() {
		c.carrying.close()
		c.carrying = nil
	}()
	p, report, err := c.checkpoint(ctx, reason, message)
	// The checkpoint has left out paths to carry that the previous one did not. Their contents must be sealed at the
	// moment of the checkpoint, so it is made once more. Usually it is the same one.
	if k := c.carrying; err == nil && k != nil && k.lacks {
		k.must = true
		c.treeCache, c.treeCacheSize, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
		c.tracking = c.mem.Index.tracking()
		again, next, nextErr := c.checkpoint(ctx, reason, message)
		if nextErr == nil || ctx.Err() != nil {
			next.Made = next.Made || report.Made
			p, report, err = again, next, nextErr
		} else { // the first one is complete without the paths to carry; mem may be updated in part, as below
			report.Carried, report.NotCarried = nil, nextErr
			c.mem, c.left = memory{}, newLeftSet(nil)
		}
	}
	c.treeCache, c.pending, c.tracking = nil, nil, tracking{}
	if err != nil {
		// The failed checkpoint may have updated a part of mem. Reset mem, so that the next checkpoint reads everything that
		// differs from the base tree.
		c.mem, c.left = memory{}, newLeftSet(nil)
		return session.Checkpoint{}, Report{}, fmt.Errorf("create checkpoint: %w", err)
	}
	report.Took, report.Steps = time.Since(began), c.steps.list
	return p, report, nil
}

// shot collects the parts of one checkpoint while it is made.
type shot struct {
	view   *view
	edit   *edit
	out    *output
	copier *session.Copier
	state  gitState
	tree   object.ID // tree of the frozen files
	full   object.ID // tree of the frozen files and of files that were just removed
	shown  object.ID // tree of the checkpoint: the tree full without the files of linked worktrees
	left   []LeftOut // at most 100 of the left-out paths, for Report.Left
	at     time.Time // time at which the Tree was frozen
}

// checkpoint makes one checkpoint, unless nothing has changed. See Checkpoint for the parameters and results. The
// caller holds c.token.
func (c *Capturer) checkpoint(ctx context.Context, reason session.Reason,
	message string) (session.Checkpoint, Report, error) {
	// With a write-back cache, the kernel may cache written data that the Tree has not received yet.
	if c.o.WriteBack != nil {
		if err := c.o.WriteBack(ctx); err != nil {
			return session.Checkpoint{}, Report{}, fmt.Errorf("write back cached pages: %w", err)
		}
		c.steps.done("write-back")
	}
	// No ref reaches the new objects until the lane's ref is updated. Working prevents gc from deleting these objects.
	defer c.o.Repo.Working()()
	if err := c.follow(); err != nil {
		return session.Checkpoint{}, Report{}, fmt.Errorf("find the newest checkpoint: %w", err)
	}
	s, err := c.makeShot(ctx)
	if err != nil {
		return session.Checkpoint{}, Report{}, err
	}
	defer s.view.frozen.Release()
	defer s.out.close()
	saved := false // saved is set once a checkpoint contains the removed files
	// The contents of the removed files are read after the freeze. The function done releases these contents once the
	// checkpoint was written or has failed.
	if reason == session.Removal {
		done, said, err := c.takeRemoved(ctx, s)
		defer func() { done(saved) }()
		if err != nil {
			return session.Checkpoint{}, Report{}, err
		}
		message = said
	}
	if err := s.addLinked(ctx); err != nil {
		return session.Checkpoint{}, Report{}, fmt.Errorf("read linked worktrees: %w", err)
	}
	s.left = s.edit.left.first()
	report := Report{Left: s.left, Unread: s.view.unread, Paused: s.view.frozen.Paused,
		Unfiltered: slices.Sorted(maps.Keys(s.edit.left.unfiltered))}
	if reason == session.Forking {
		report.Times = s.times(ctx)
		c.steps.done("times")
	}
	if k := c.carrying; k != nil {
		report.Carried, report.NotCarried = k.take(ctx, s)
		c.steps.done("carry")
	}
	last, have := c.Last()
	nothing, err := c.isUnchanged(ctx, s, last, have, reason)
	c.steps.done("compare")
	if err != nil {
		return session.Checkpoint{}, Report{}, err
	}
	saved = nothing
	// A new message is a reason to make a checkpoint even if nothing has changed.
	if nothing && (!have || message == "" || reason == session.Removal ||
		strings.TrimSpace(message) == strings.TrimSpace(last.Message)) {
		// Store the memory even without a new checkpoint: its journal position is newer, so the next checkpoint reads fewer
		// changes. There is one exception. If s.tree differs from s.full, the last checkpoint contains the removed files, and
		// the tree without these files was not written to the Repo. The next checkpoint must not start from such a tree.
		if have && s.tree == s.full {
			c.remember(s, last.Commit)
		}
		return last, report, nil
	}
	p, err := c.write(ctx, s, last, reason, message)
	if err != nil {
		return session.Checkpoint{}, Report{}, err
	}
	report.Made, saved = true, true
	c.remember(s, p.Commit)
	c.steps.done("memory")
	return p, report, nil
}

// makeShot freezes the working tree, reads git's state and makes the tree of the checkpoint. If git changes the index
// in the meantime, so that other paths are tracked than before, makeShot repeats all of this.
func (c *Capturer) makeShot(ctx context.Context) (*shot, error) {
	whole := false
	// If git commands change the index all the time, the tracked paths of the view and of the index may never agree.
	// After five attempts, use the last one.
	for try := 0; ; try++ {
		out := &output{format: c.format, have: c.o.Repo.Remotes, listed: map[object.ID]bool{}, trees: map[object.ID][]byte{}}
		s := &shot{out: out, copier: session.NewCopier(c.o.Repo)}
		var err error
		if s.view, err = c.freezeView(ctx, whole); err != nil {
			return nil, fmt.Errorf("read the working tree: %w", err)
		}
		s.at = time.Now().UTC()
		c.steps.done("names")
		again, err := c.makeTree(ctx, s)
		if err == nil && (again == agree || try > 3) {
			return s, nil
		}
		s.view.frozen.Release()
		s.out.close()
		switch {
		case errors.Is(err, errUnpinned) && c.pinned > 0: // the checkpoint needs a file that is larger than the limit
			// the failed call of apply has changed c.left, so read all differences from the base tree again
			c.pinned, whole = 0, true
		case err != nil:
			return nil, err
		}
		whole = whole || again == readAgain
	}
}

// verdict is the result of makeTree: agree, or readAgain.
type verdict int

const (
	// agree means that the tree is complete. readAgain means that everything that differs from the base tree has to be
	// read again, because other paths are tracked now.
	agree verdict = iota
	readAgain
)

// makeTree reads git's state (index, HEAD, refs) and makes the tree of the checkpoint s.
func (c *Capturer) makeTree(ctx context.Context, s *shot) (verdict, error) {
	var err error
	if s.state, err = c.readState(ctx, s.out, s.copier); err != nil {
		return agree, err
	}
	c.steps.done("git")
	// Trees of the index are read below, before they are written to the Repo.
	for id, content := range s.out.trees {
		c.pending[id] = content
	}
	// If HEAD or the index has changed, paths may have become tracked or untracked.
	anew := c.mem.Index.differs(tracking{s.state.head, s.state.Index})
	anewIn := slices.ContainsFunc(c.roots, func(r root) bool { return c.mem.Linked[r.path].differs(r.tracking) })
	c.tracking = tracking{s.state.head, s.state.Index}
	s.view.track(c.tracking)
	for dir := range s.view.skipped {
		if s.view.tracked(dir) { // git started to track a path in the directory after the view was made
			return readAgain, nil
		}
	}
	// A tracked path that the previous checkpoint left out has to be read now, although the file may not have changed
	// since that checkpoint.
	if (anew || anewIn) && !s.view.whole {
		for path, l := range c.left.all {
			if dir, isDir := strings.CutSuffix(path, "/"); isDir && s.view.tracked(dir) || !isDir && s.view.trackedFile(path) &&
				l.Why != session.Unfiltered { // filterAgain reads these in any case
				return readAgain, nil
			}
		}
	}
	if (anew || anewIn) && c.o.LinksAsFiles && !s.view.whole {
		if changed, err := c.linksChanged(ctx); err != nil || changed {
			return readAgain, err
		}
	}
	if s.edit, err = c.apply(ctx, s.view, s.out, s.copier); err != nil {
		return agree, err
	}
	// A mount that was resumed from a checkpoint and has not changed since then already has the tree of that checkpoint.
	// Do not fetch ignore files to check this tree again.
	if anew || s.view.whole && len(s.view.frozen.Entries) > 0 {
		before := c.mem.Index.tracking()
		if s.view.whole { // the entries are relative to the base tree
			before.index.Tree = c.o.BaseTree
		}
		if err := s.edit.forgotten(ctx, "", before, c.tracking); err != nil {
			return agree, err
		}
	}
	if anewIn && !s.view.whole { // otherwise the entries describe all files of the linked worktrees
		for _, r := range c.roots {
			if err := s.edit.forgotten(ctx, r.path, c.mem.Linked[r.path].tracking(), r.tracking); err != nil {
				return agree, err
			}
		}
	}
	if err := s.edit.emptyDirs(ctx); err != nil {
		return agree, err
	}
	s.state.Dirs = s.edit.dirs
	// Encode and write only the trees that have changed.
	s.tree, err = s.edit.trees.write(s.edit.trees.root, s.emit)
	s.full = s.tree
	c.steps.done("trees")
	return agree, err
}
