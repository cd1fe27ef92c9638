// Package capture makes checkpoints of a mount. It asks the working tree for the changed paths, makes blobs and trees of
// them, reads what git has beside the files (index, HEAD, refs, stashes), and stores all of it in the session's Repo.
//
// It promises:
//   - The tree of a checkpoint is the tree that `git add -A` and `git write-tree` would make of the files at that moment with
//     the present index. The differences: directories without files have an entry of the empty tree, and paths that Rules
//     leave out and nested repositories are missing. Files that git converts (line ends, filters) are converted by stock git.
//   - The cost of a checkpoint is proportional to the changes since the previous one: it reads no unchanged file of the mount
//     and fetches no contents of the mounted repository. The exception are ignore files and attributes that decide about
//     new files.
//   - When Point returns, the checkpoint is on disk: the objects in one pack, then the lane's ref by compare-and-swap.
//   - It writes to nothing that belongs to the user: it reads the index as a file, and leaves refs and objects as they are.
//   - A file that was only staged and looks like a secret is neither in a checkpoint nor in its state.
//
// # How a checkpoint is made
//
// A dry run of Tree.Freeze returns the changed names, so that the ignore rules they need are fetched before writers have
// to wait; then the Tree is frozen. Ignored directories without tracked files are skipped. Usually only the changes
// since the previous checkpoint are read and applied to its tree. Everything that differs from the base tree is read
// again after a change of an ignore file or of other rules, and if the memory file is lost. Then git's state is read. If
// the index tracks a path that was left out, or does not track a path any more that was held, the tree is corrected.
//
// Terms: a tracked path is in the index, as for git. Each path that is left out is listed with a reason; a directory is
// listed once.
//
// Locks: a goroutine holds Capturer.token while it makes a checkpoint. token guards all fields except those that
// Capturer.mu guards.
package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// DefaultMaxFileSize is the default of Rules.MaxFileSize, in bytes.
const DefaultMaxFileSize = 50 << 20

// Rules decide which files checkpoints hold beside the tracked ones. Exclude applies to tracked files, too: they keep the
// version of the base tree.
type Rules struct {
	// Include are globs of ignored or denied paths that are held nevertheless.
	Include []string
	// Exclude are globs of paths that are left out, even tracked ones.
	Exclude []string
	// NoDenyList makes checkpoints hold paths that look like secrets.
	NoDenyList bool
	// MaxFileSize is the maximum size in bytes of new files that are held; 0: DefaultMaxFileSize.
	MaxFileSize int64
}

// Options configures a Capturer.
type Options struct {
	Tree *worktree.Tree
	// WriteBack writes the kernel's cached pages back to the Tree; nil: the kernel caches no writes.
	WriteBack func(ctx context.Context) error
	// GitDir is the git directory of the mount.
	GitDir string
	Repo   *session.Repo
	// Memory is the file for the state from which the next checkpoint continues; "": none.
	Memory string
	// Lane is the lane of the checkpoints; "": "main".
	Lane string
	// Segment is the lowest-numbered segment of the lane that this writer may write to. Lower ones belong to another writer.
	Segment int
	// Base is the base commit of the session; zero: unborn.
	Base object.ID
	// BaseTree is the base tree of Tree; zero: empty.
	BaseTree object.ID
	// InitialState is the state of git in a mount of a plain commit, before any work; nil: not known.
	InitialState *InitialState
	Rules        Rules
	// Converts reports whether the mounted attributes may make git convert the file at path, so that its blob differs
	// from its contents; nil: never.
	Converts func(ctx context.Context, path string) (bool, error)
	// Blob returns a blob of the base tree that the Repo cannot read: an ignore file, or a file of attributes. It may
	// fetch the blob. nil: such blobs are missing.
	Blob func(ctx context.Context, path string, id object.ID) ([]byte, error)
	// Trees returns a tree that the Repo cannot read because it is still being fetched; nil: such trees are missing.
	Trees func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// OthersNotes returns the value that a notes ref got when notes of other sessions were merged into it; zero: none.
	// Such a change alone causes no checkpoint. nil: there are no other sessions.
	OthersNotes func(ref string) object.ID
	Log         *zap.Logger // nil: no log
}

// LeftOut is a path that a checkpoint does not hold, with the reason.
type LeftOut = session.LeftOut

// Report describes the making of a checkpoint.
type Report struct {
	// Made is false if nothing has changed: the returned checkpoint is the previous one.
	Made bool
	// Left holds the first entries of Checkpoint.Left, at most 100, the most surprising reasons first.
	Left []LeftOut
	// Unread are ignore files that could not be read: the checkpoint holds what they ignore, and the next one tries
	// again.
	Unread []string
	// Paused is the longest time for which a writer had to wait.
	Paused time.Duration
	// Took is the total duration.
	Took time.Duration
	// Steps are the parts of Took, in order.
	Steps []Step
}

// Capturer makes the checkpoints of one mount. Its methods may be called concurrently; it makes one checkpoint at a
// time.
type Capturer struct {
	o      Options
	rules  rules
	format object.Format
	refs   *session.RefDir // refs of the mount's git directory

	// token holds one token. Its holder makes a checkpoint and owns the fields down to settled.
	token chan struct{}
	// mem is the state from which the next checkpoint continues; left are the paths that its tree does not hold.
	mem      memory
	left     *leftSet
	user     userIgnore
	baseDirs map[string]uint32 // State.Dirs of the checkpoint that the mount started from
	// steps are the durations of the checkpoint in progress.
	steps steps
	// headTree is the tree of HEAD during a checkpoint.
	headTree object.ID
	// pinned is FreezeOptions.MaxPinned: larger contents are not frozen; 0: no limit.
	pinned int64
	// treeCache holds the trees that were read for the checkpoint in progress.
	treeCache     map[object.ID][]object.TreeEntry
	treeCacheSize int // number of entries in treeCache
	// pending are encoded trees that are not in the Repo yet.
	pending map[object.ID][]byte
	// tracking determines the tracked paths, as far as they are known.
	tracking tracking
	// ignoreFiles are parsed ignore files, by blob id.
	ignoreFiles map[object.ID]globs
	// settled are objects that refs name and that need no copy: the mounted remote has them, or they are lost.
	settled map[object.ID]bool

	mu sync.Mutex
	// lane is the lane of the next checkpoint.
	lane  string
	least int  // lowest segment of lane to write to, as Options.Segment
	fresh bool // the next checkpoint starts a new segment
	// last is the newest checkpoint; nil: none.
	last  *session.Checkpoint
	count int // number of checkpoints in last's segment
}

// segmentCheckpoints is the maximum number of checkpoints in a segment.
const segmentCheckpoints = 256

// New returns a Capturer that continues from the newest checkpoint of the lane. It removes temporary files that a crash
// left.
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

// Last returns the newest checkpoint of the lane; false: there is none.
func (c *Capturer) Last() (session.Checkpoint, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		return session.Checkpoint{}, false
	}
	return *c.last, true
}

// SetLane makes the next checkpoint start a new segment in lane, with a number of at least segment.
func (c *Capturer) SetLane(lane string, segment int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lane, c.least, c.fresh = lane, segment, true
}

// Checkpoint makes a checkpoint of the current state and returns after it is on disk. If nothing has changed since the newest
// checkpoint, it returns that one, unless message is new. If the lane has no checkpoint and nothing differs from the
// mounted base, it makes one only if the reason is Manual, Forking or Restore; otherwise it returns the zero Checkpoint.
// Calls wait for each other until ctx is done.
func (c *Capturer) Checkpoint(ctx context.Context, reason session.Reason, message string) (session.Checkpoint, Report, error) {
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
	c.tracking = c.mem.tracking()
	// The checkpoint below does not have the files of a mass removal: make one that has them first.
	if _, _, many := c.o.Tree.MassRemoved(); many && reason != session.Removal {
		if _, _, err := c.checkpoint(ctx, session.Removal, ""); err != nil {
			c.o.Log.Warn("make a checkpoint of removed files", zap.Error(err))
			c.mem, c.left = memory{}, newLeftSet(nil)
		}
		c.treeCache, c.treeCacheSize, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
		c.tracking = c.mem.tracking()
	}
	p, report, err := c.checkpoint(ctx, reason, message)
	c.treeCache, c.pending, c.tracking = nil, nil, tracking{}
	if err != nil {
		// mem may be half updated: the next checkpoint reads everything that differs from the base tree.
		c.mem, c.left = memory{}, newLeftSet(nil)
		return session.Checkpoint{}, Report{}, fmt.Errorf("make checkpoint: %w", err)
	}
	report.Took, report.Steps = time.Since(began), c.steps.list
	return p, report, nil
}

// tracking determines the tracked paths: the tree of HEAD, and the index.
type tracking struct {
	head  object.ID
	index session.Index
}

// shot holds the parts of a checkpoint in progress.
type shot struct {
	view   *view
	edit   *edit
	out    *output
	copies *session.Copier
	state  gitState
	tree   object.ID // tree of the frozen files
	shown  object.ID // tree of the checkpoint: tree, or tree plus the files that were just removed
	left   []LeftOut // first of the paths that the tree does not hold
	at     time.Time // time at which the Tree was frozen
}

// checkpoint makes a checkpoint. The caller holds token.
func (c *Capturer) checkpoint(ctx context.Context, reason session.Reason, message string) (session.Checkpoint, Report, error) {
	// With a write-back cache the kernel holds written data that the Tree has not received yet.
	if c.o.WriteBack != nil {
		if err := c.o.WriteBack(ctx); err != nil {
			return session.Checkpoint{}, Report{}, fmt.Errorf("write back cached pages: %w", err)
		}
		c.steps.done("write-back")
	}
	// Until the lane's ref moves, no ref names the objects: Working keeps gc away from them.
	defer c.o.Repo.Working()()
	if err := c.follow(); err != nil {
		return session.Checkpoint{}, Report{}, fmt.Errorf("find the newest checkpoint: %w", err)
	}
	s, err := c.shoot(ctx)
	if err != nil {
		return session.Checkpoint{}, Report{}, err
	}
	defer s.view.frozen.Release()
	defer s.out.close()
	saved := false // whether the removed files are in a checkpoint
	// The removed files are read after the freeze, and their contents are released after the checkpoint is written.
	if reason == session.Removal {
		done, said, err := c.takeRemoved(ctx, s)
		defer func() { done(saved) }()
		if err != nil {
			return session.Checkpoint{}, Report{}, err
		}
		message = said
	}
	s.left = s.edit.left.first()
	report := Report{Left: s.left, Unread: s.view.unread, Paused: s.view.frozen.Paused}
	last, have := c.Last()
	nothing, err := c.nothingNew(ctx, s, last, have, reason)
	c.steps.done("compare")
	if err != nil {
		return session.Checkpoint{}, Report{}, err
	}
	saved = nothing
	// A new message is worth a checkpoint even if nothing has changed.
	if nothing && (!have || message == "" || reason == session.Removal || strings.TrimSpace(message) == strings.TrimSpace(last.Message)) {
		// The memory is stored even without a new checkpoint: the next one then reads fewer changes. If the last checkpoint
		// has the removed files already, the tree without them is not written, so the next checkpoint must not start from it.
		if have && s.tree == s.shown {
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

// shoot freezes the working tree and reads git's state, and repeats that until both agree on the tracked paths.
func (c *Capturer) shoot(ctx context.Context) (*shot, error) {
	whole := false
	// While git commands keep changing the index, both may never agree: after several tries the last reading is used.
	for try := 0; ; try++ {
		s := &shot{out: newOutput(c.format, c.o.Repo.Remotes), copies: session.NewCopier(c.o.Repo)}
		var err error
		if s.view, err = c.look(ctx, whole); err != nil {
			return nil, fmt.Errorf("look at the working tree: %w", err)
		}
		s.at = time.Now().UTC()
		c.steps.done("names")
		again, err := c.develop(ctx, s)
		if err == nil && (again == agree || try > 3) {
			return s, nil
		}
		s.view.frozen.Release()
		s.out.close()
		switch {
		case errors.Is(err, errUnpinned) && c.pinned > 0: // git tracks a file larger than the limit
			c.pinned, whole = 0, true // apply has changed the remembered state
		case err != nil:
			return nil, err
		}
		whole = whole || again == lookAgain
	}
}

// verdict is the result of develop.
type verdict int

const (
	// agree means that the tree is complete; lookAgain, that everything differing from the base tree has to be read
	// again.
	agree verdict = iota
	lookAgain
)

// develop reads git's state and makes the tree of a shot.
func (c *Capturer) develop(ctx context.Context, s *shot) (verdict, error) {
	var err error
	if s.state, err = c.readState(ctx, s.out, s.copies); err != nil {
		return agree, err
	}
	c.steps.done("git")
	c.headTree = s.state.head
	// Trees of the index are needed below, and are not written yet.
	for id, content := range s.out.trees {
		c.pending[id] = content
	}
	// HEAD or the index changed, so paths may have become tracked or untracked.
	anew := c.mem.Index == nil || c.mem.Index.Head != s.state.head.String() || c.mem.Index.Tree != s.state.Index.Tree.String() ||
		!slices.Equal(c.mem.Index.Special, s.state.Index.Special)
	c.tracking = tracking{s.state.head, s.state.Index}
	s.view.track(c.tracking)
	for dir := range s.view.skipped {
		if s.view.tracked(dir) { // git started to track a path in it meanwhile
			return lookAgain, nil
		}
	}
	// A path that was left out and is tracked now has to be read, although it may not have changed since.
	if anew && !s.view.whole {
		for path := range c.left.all {
			if dir, isDir := strings.CutSuffix(path, "/"); isDir && s.view.tracked(dir) || !isDir && s.view.trackedFile(path) {
				return lookAgain, nil
			}
		}
	}
	if s.edit, err = c.apply(ctx, s.view, s.out, s.copies); err != nil {
		return agree, err
	}
	// A mount that was resumed from a checkpoint and has not changed since has that checkpoint's tree already: no ignore
	// file is fetched to check it again.
	if anew || s.view.whole && len(s.view.frozen.Entries) > 0 {
		if err := s.edit.forgotten(ctx, c.mem.tracking(), c.tracking); err != nil {
			return agree, err
		}
	}
	if err := s.edit.emptyDirs(ctx); err != nil {
		return agree, err
	}
	s.state.Dirs = s.edit.dirs
	// Only trees that changed are encoded and written.
	s.tree, err = s.edit.trees.write(func(id object.ID, content []byte) error {
		s.out.raw(id, object.Tree, content)
		return nil
	})
	s.shown = s.tree
	c.steps.done("trees")
	return agree, err
}
