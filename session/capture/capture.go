// Package capture makes checkpoints of a mount: it asks the working tree what changed, makes trees and blobs of that, reads
// what git has beside the files, and keeps it all in the session's repository.
//
// It promises:
//   - The tree of a checkpoint is the one that `git add -A` and `git write-tree` would make of the files at that moment, with
//     the index there is, and entries of the empty tree for directories in which it holds nothing, but for what Rules leave out, and nested repositories. Files that git converts (line ends,
//     filters) are converted by stock git.
//   - A checkpoint costs as much as what has changed since the one before: no file of the mount is looked at, no content of the
//     mounted repository fetched. Ignore files and attributes that decide about new files are the exception.
//   - When Point returns, the checkpoint is on disk: objects in one pack, then the lane's ref by compare-and-swap.
//   - Nothing of the user's is written to: not the index, which is read as a file, nor refs, nor objects.
//   - What was only staged and looks like a secret is nowhere in a checkpoint, nor in its state.
//
// # How
//
// The Tree tells names first (a dry run), so that the rules which they need are known before anybody has to wait; then it
// is frozen. Directories that are ignored and hold nothing that git tracks are passed over. An ignore file that has changed
// makes all that differs from the base tree be looked at anew, as do other rules and a memory that is gone; else only what
// has changed since the checkpoint before is told, and put into its tree. Then git's state is read, and if it tracks something
// that was left out, or no more what was held, that is mended.
//
// Terms: to be tracked is to be in the index, as for git. What is left out is listed with a reason, of a directory once.
//
// Capturer.turn is held while a checkpoint is made, and all but what Capturer.mu guards belongs to whoever holds it.
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

// DefaultMaxFileSize is the size in bytes over which new files are left out, if nothing else is said.
const DefaultMaxFileSize = 50 << 20

// Rules say which files checkpoints hold that git does not track.
type Rules struct {
	Include     []string // globs of ignored or denied paths that are held all the same
	Exclude     []string // globs of paths that are left out
	NoDenyList  bool     // paths that look like secrets are held
	MaxFileSize int64    // larger new files are left out, in bytes; 0: DefaultMaxFileSize
}

// Options describe a Capturer.
type Options struct {
	Tree      *worktree.Tree
	WriteBack func(ctx context.Context) error // brings what the kernel has to the Tree; nil: it has nothing
	GitDir    string                          // the mount's git directory
	Repo      *session.Repo
	Memory    string    // file that remembers where the last checkpoint ended, so that the next one goes on from there
	Lane      string    // "": "main"
	Segment   int       // of the lane, the first that may be written to: those before it are another writer's
	Base      object.ID // commit that the session began with, which the mounted remote has; zero: unborn
	BaseTree  object.ID // the Tree's base; zero: empty
	// Beginning is how git was then, if nobody has worked before; nil: it is not known.
	Beginning *Beginning
	Rules     Rules
	// Converts says whether git may convert the file at a path by the attributes that were mounted, so that its blob is not
	// what the file holds; nil: never.
	Converts func(ctx context.Context, path string) (bool, error)
	// Blob gives a blob of the base that the Repo cannot read: an ignore file that nobody has looked at yet, or one of
	// attributes. nil: there is no other place.
	Blob func(ctx context.Context, path string, id object.ID) ([]byte, error)
	// Trees gives a tree that the Repo cannot read, since it is still on its way; nil: there is no other place.
	Trees func(ctx context.Context, id object.ID) ([]object.TreeEntry, error)
	// OthersNotes returns what a notes ref was moved to when notes of other sessions were merged into it; zero: nothing. It is
	// no reason for a checkpoint. nil: there are no other sessions.
	OthersNotes func(ref string) object.ID
	Log         *zap.Logger // nil: no log
}

// LeftOut is a path that a checkpoint does not hold.
type LeftOut = session.LeftOut

// Report tells of the making of a checkpoint.
type Report struct {
	Made   bool      // false: nothing has changed, and the checkpoint is the one before
	Left   []LeftOut // the first of Point.Left, at most a hundred
	Unread []string  // ignore files that could not be had: the checkpoint holds what they name, and the next one tries again
	Paused time.Duration
	Took   time.Duration
	Steps  []Step // of Took, in order
}

// Capturer makes the checkpoints of one mount. Its methods may be called from many goroutines; one checkpoint is made at a time.
type Capturer struct {
	o      Options
	rules  rules
	format object.Format
	refs   *session.RefDir // of the mount's git directory

	turn     chan struct{} // holds a token; who has it makes a checkpoint, and owns what follows
	mem      memory
	left     *leftSet
	user     userIgnore
	baseDirs map[string]uint32 // as State.Dirs, of the checkpoint that the mount began with
	// steps are those of the checkpoint that is made.
	steps steps
	// headTree is HEAD's while a checkpoint is made.
	headTree    object.ID
	pinned      int64                            // FreezeOptions.MaxPinned
	treeCache   map[object.ID][]object.TreeEntry // trees that were read
	treesKept   int                              // entries of them
	pending     map[object.ID][]byte             // trees that are not in the Repo yet
	tracking    tracking                         // as far as it is known
	ignoreFiles map[object.ID]globs
	settled     map[object.ID]bool // what refs name that need not be copied: the mounted remote has it, or nobody

	mu    sync.Mutex
	lane  string
	least int  // as Options.Segment, of lane
	fresh bool // the next checkpoint begins a segment
	last  *session.Point
	count int // of checkpoints in last's segment
}

// segmentCheckpoints is how many checkpoints a segment has at most.
const segmentCheckpoints = 256

// New goes on from the newest checkpoint of the lane.
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
		o: o, rules: r, format: o.Repo.Format(), refs: session.NewRefDir(o.GitDir, o.Repo.Format()), turn: make(chan struct{}, 1), lane: o.Lane, least: o.Segment,
		pinned: r.max, ignoreFiles: map[object.ID]globs{}, settled: map[object.ID]bool{}, left: newLeftSet(nil),
	}
	last, err := o.Repo.Newest(o.Lane)
	switch {
	case errors.Is(err, session.ErrNoPoint):
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
	if began := c.began(); c.mem.Index == nil {
		c.mem.Index = began
	}
	c.sweepClean()
	c.turn <- struct{}{}
	return c, nil
}

// Last is the newest checkpoint that was made, or that the lane had before; false: there is none.
func (c *Capturer) Last() (session.Point, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		return session.Point{}, false
	}
	return *c.last, true
}

// SetLane makes the next checkpoint begin a segment of its own, in that lane, that is at least the one given.
func (c *Capturer) SetLane(lane string, segment int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lane, c.least, c.fresh = lane, segment, true
}

// Point makes a checkpoint of what is there now, or gives the newest one if nothing has changed since and message says nothing that
// is not said there. When it returns the checkpoint is on disk. With a reason that nobody has asked for, a session without a
// checkpoint gets none as long as nothing differs from what was mounted: the Point is zero then.
func (c *Capturer) Point(ctx context.Context, reason session.Reason, message string) (session.Point, Report, error) {
	began := time.Now()
	select {
	case <-c.turn:
	case <-ctx.Done():
		return session.Point{}, Report{}, ctx.Err()
	}
	defer func() { c.turn <- struct{}{} }()
	c.steps = steps{last: began}
	c.steps.done("turn")
	c.treeCache, c.treesKept, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
	c.tracking = c.mem.tracking()
	if _, _, many := c.o.Tree.MassRemoved(); many && reason != session.Removal { // what comes next does not have it
		if _, _, err := c.point(ctx, session.Removal, ""); err != nil {
			c.o.Log.Warn("make a checkpoint of removed files", zap.Error(err))
			c.mem, c.left = memory{}, newLeftSet(nil)
		}
		c.treeCache, c.treesKept, c.pending = map[object.ID][]object.TreeEntry{}, 0, map[object.ID][]byte{}
		c.tracking = c.mem.tracking()
	}
	p, report, err := c.point(ctx, reason, message)
	c.treeCache, c.pending, c.tracking = nil, nil, tracking{}
	if err != nil {
		// What was remembered may be half of something: the next checkpoint looks at everything.
		c.mem, c.left = memory{}, newLeftSet(nil)
		return session.Point{}, Report{}, fmt.Errorf("make checkpoint: %w", err)
	}
	report.Took, report.Steps = time.Since(began), c.steps.list
	return p, report, nil
}

// tracking is what git knows: the tree of HEAD, and the index.
type tracking struct {
	head  object.ID
	index session.Index
}

// shot is what a checkpoint is made of.
type shot struct {
	view   *view
	edit   *edit
	out    *output
	copies *session.Copier
	state  gitState
	tree   object.ID // of what was seen
	shown  object.ID // of the checkpoint: with what was removed a moment before, or tree
	left   []LeftOut // the first of what it does not hold
	at     time.Time // when it was taken
}

func (c *Capturer) point(ctx context.Context, reason session.Reason, message string) (session.Point, Report, error) {
	if c.o.WriteBack != nil {
		if err := c.o.WriteBack(ctx); err != nil {
			return session.Point{}, Report{}, fmt.Errorf("write back cached pages: %w", err)
		}
		c.steps.done("write-back")
	}
	defer c.o.Repo.Working()()
	if err := c.follow(); err != nil {
		return session.Point{}, Report{}, fmt.Errorf("find the newest checkpoint: %w", err)
	}
	s, err := c.shoot(ctx)
	if err != nil {
		return session.Point{}, Report{}, err
	}
	defer s.view.frozen.Release()
	defer s.out.close()
	saved := false // what was removed is in a checkpoint
	if reason == session.Removal {
		done, said, err := c.takeRemoved(ctx, s)
		defer func() { done(saved) }()
		if err != nil {
			return session.Point{}, Report{}, err
		}
		message = said
	}
	s.left = s.edit.left.first()
	report := Report{Left: s.left, Unread: s.view.unread, Paused: s.view.frozen.Paused}
	last, have := c.Last()
	nothing, err := c.nothingNew(ctx, s, last, have, reason)
	c.steps.done("compare")
	if err != nil {
		return session.Point{}, Report{}, err
	}
	saved = nothing
	if nothing && (!have || message == "" || reason == session.Removal || strings.TrimSpace(message) == strings.TrimSpace(last.Message)) { // what somebody says is kept, too
		if have {
			c.remember(s, last.Commit)
		}
		return last, report, nil
	}
	p, err := c.write(ctx, s, last, reason, message)
	if err != nil {
		return session.Point{}, Report{}, err
	}
	report.Made, saved = true, true
	c.remember(s, p.Commit)
	c.steps.done("memory")
	return p, report, nil
}

// shoot looks at files and git until both agree on what is tracked.
func (c *Capturer) shoot(ctx context.Context) (*shot, error) {
	whole := false
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
		case errors.Is(err, errUnpinned) && c.pinned > 0: // a file that git tracks is that large
			c.pinned, whole = 0, true // what was remembered has been written to
		case err != nil:
			return nil, err
		}
		whole = whole || again == lookAgain
	}
}

// verdict says whether a look at the working tree is of use.
type verdict int

const (
	agree     verdict = iota
	lookAgain         // at all that differs from the base tree
)

// develop makes a tree of what was seen.
func (c *Capturer) develop(ctx context.Context, s *shot) (verdict, error) {
	var err error
	if s.state, err = c.readState(ctx, s.out, s.copies); err != nil {
		return agree, err
	}
	c.steps.done("git")
	c.headTree = s.state.head
	for id, content := range s.out.trees {
		c.pending[id] = content
	}
	anew := c.mem.Index == nil || c.mem.Index.Head != s.state.head.String() || c.mem.Index.Tree != s.state.Index.Tree.String() ||
		!slices.Equal(c.mem.Index.Special, s.state.Index.Special)
	c.tracking = tracking{s.state.head, s.state.Index}
	s.view.track(c.tracking)
	for dir := range s.view.skipped {
		if s.view.tracked(dir) { // git was told of something in it meanwhile
			return lookAgain, nil
		}
	}
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
	// A mount that began with a checkpoint, and in which nothing was done since, has what that holds: no ignore file is fetched to
	// judge it once more.
	if anew || s.view.whole && len(s.view.frozen.Entries) > 0 {
		if err := s.edit.forgotten(ctx, c.mem.tracking(), c.tracking); err != nil {
			return agree, err
		}
	}
	if err := s.edit.emptyDirs(ctx); err != nil {
		return agree, err
	}
	s.state.Dirs = s.edit.dirs
	s.tree, err = s.edit.trees.write(func(id object.ID, content []byte) error {
		s.out.raw(id, object.Tree, content)
		return nil
	})
	s.shown = s.tree
	c.steps.done("trees")
	return agree, err
}

// nothingNew says whether there is nothing to make a checkpoint of.
func (c *Capturer) nothingNew(ctx context.Context, s *shot, last session.Point, have bool, reason session.Reason) (bool, error) {
	if !have {
		switch reason {
		case session.Manual, session.Forking, session.Restore:
			return false, nil
		}
		if c.o.Beginning != nil && !c.o.Beginning.like(s.state.State) {
			return false, nil
		}
		base, err := c.baseTree()
		return err == nil && s.shown == base && s.state.Head == c.o.Base && len(s.state.Stashes) == 0 && s.state.Index.Tree == base && len(s.state.Index.Special) == 0, err
	}
	if last.Tree != s.shown {
		return false, nil
	}
	info, err := c.o.Repo.Commit(last.State)
	if err != nil {
		return false, err
	}
	_, objects, err := session.EncodeState(c.format, s.state.State, s.state.parents, time.Time{})
	if err != nil {
		return false, err
	}
	tree := objects[len(objects)-2].ID
	if tree == info.Tree && slices.Equal(info.Parents, s.state.parents) {
		return true, nil
	}
	return c.onlyOthersNotes(s, last, info)
}

// baseTree is what was mounted; an empty tree if that is nothing.
func (c *Capturer) baseTree() (object.ID, error) {
	if !c.o.BaseTree.IsZero() {
		return c.o.BaseTree, nil
	}
	return object.Hash(c.format, object.Tree, nil)
}

// write makes the objects of a checkpoint and moves the lane's ref to it.
func (c *Capturer) write(ctx context.Context, s *shot, last session.Point, reason session.Reason, message string) (session.Point, error) {
	now := s.at          // not when it is written: that may be long after
	bytes := s.out.bytes // of files, not of what comes now
	state := s.state.State
	state.Left = s.left
	stateID, objects, err := session.EncodeState(c.format, state, s.state.parents, now)
	if err != nil {
		return session.Point{}, err
	}
	for _, o := range objects {
		s.out.add(o)
	}
	c.mu.Lock()
	lane, fresh, count, least := c.lane, c.fresh, c.count, c.least
	c.mu.Unlock()
	p := session.Point{
		ID: session.NewPointIDAfter(now, last.ID), Tree: s.shown, State: stateID, Session: c.o.Repo.Session(), Lane: lane, Segment: last.Segment, Reason: reason,
		Message: message, Time: now.Truncate(time.Second), Head: s.state.Head, Branch: s.state.Branch, Prev: last.ID, Base: c.o.Base, Bytes: bytes, Left: int64(len(s.edit.left.all)),
	}
	if p.Changed, err = c.changed(ctx, s, last.Tree); err != nil {
		return session.Point{}, err
	}
	parent := last.Commit
	change := session.RefChange{Name: session.SegmentRef(p.Session, lane, p.Segment), Old: last.Commit}
	if !parent.IsZero() && !fresh && lane == last.Lane {
		tip, err := c.o.Repo.Ref(change.Name)
		if err != nil {
			return session.Point{}, err
		}
		fresh = tip != last.Commit // old checkpoints were dropped, and this one has another commit now
	}
	y1, m1, d1 := last.Time.UTC().Date()
	y2, m2, d2 := now.Date()
	if parent.IsZero() || fresh || lane != last.Lane || count >= segmentCheckpoints || p.Segment < least || y1 != y2 || m1 != m2 || d1 != d2 {
		segments, err := c.o.Repo.Segments(lane)
		if err != nil {
			return session.Point{}, err
		}
		p.Segment, parent, count = max(1, least), object.ID{}, 0
		if len(segments) > 0 {
			p.Segment = max(p.Segment, segments[len(segments)-1]+1)
		}
		change = session.RefChange{Name: session.SegmentRef(p.Session, lane, p.Segment)}
	}
	commit, err := session.Outgoing(c.format, object.Commit, p.Encode(parent))
	if err != nil {
		return session.Point{}, err
	}
	p.Commit, change.New = commit.ID, commit.ID
	s.out.add(commit)
	c.steps.done("compare")
	if err := c.o.Repo.Record(ctx, append(s.out.list, s.copies.Objects()...), []session.RefChange{change}); err != nil {
		return session.Point{}, err
	}
	c.steps.done("disk")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.count = &p, count+1
	if c.lane == lane {
		c.fresh = false
	}
	return p, nil
}
