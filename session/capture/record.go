package capture

import (
	"context"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// isUnchanged reports whether the files and git's state equal those of the last checkpoint. If have is false, the lane
// has no checkpoint, and isUnchanged compares with the state of a new mount of the base commit.
func (c *Capturer) isUnchanged(ctx context.Context, s *shot, last session.Checkpoint, have bool,
	reason session.Reason) (bool, error) {
	if !have {
		switch reason {
		// For these reasons a checkpoint is made even without changes.
		case session.Manual, session.Forking, session.Restore:
			return false, nil
		}
		if c.o.InitialState != nil && !c.o.InitialState.like(s.state.State) {
			return false, nil
		}
		base, err := c.baseTree()
		return err == nil && s.shown == base && len(c.roots) == 0 && s.state.Head == c.o.Base && len(s.state.Stashes) == 0 &&
			s.state.Index.Tree == base && len(s.state.Index.Special) == 0, err
	}
	if last.Tree != s.shown {
		return false, nil
	}
	// The states are compared by the root tree and the parents of the commits that store them. The ids of these commits
	// always differ, because the commits contain the time.
	info, err := c.o.Repo.Commit(last.State)
	if err != nil {
		return false, err
	}
	_, objects, err := session.EncodeState(c.format, s.state.State, s.state.parents, time.Time{})
	if err != nil {
		return false, err
	}
	// The last object that EncodeState returns is the commit, and the object before it is the commit's root tree.
	tree := objects[len(objects)-2].ID
	if tree == info.Tree && slices.Equal(info.Parents, s.state.parents) {
		return true, nil
	}
	return c.onlyOthersRefs(s, last, info)
}

// baseTree returns the id of the base tree. The base tree of an unborn branch is the empty tree.
func (c *Capturer) baseTree() (object.ID, error) {
	if !c.o.BaseTree.IsZero() {
		return c.o.BaseTree, nil
	}
	return object.Hash(c.format, object.Tree, nil)
}

// write writes the objects of a checkpoint to the Repo and sets the ref of the lane to the checkpoint. It starts a new
// segment if the day, the lane or the writer has changed, if the segment is full, or if gc has replaced the commit of
// the previous checkpoint.
func (c *Capturer) write(
	ctx context.Context, s *shot, last session.Checkpoint, reason session.Reason, message string,
) (session.Checkpoint, error) {
	now := s.at          // the time of the freeze, because the objects may be written much later
	bytes := s.out.bytes // size of the files' blobs, before the objects of the checkpoint state are added to s.out
	state := s.state.State
	state.Left = s.left
	stateID, objects, err := session.EncodeState(c.format, state, s.state.parents, now)
	if err != nil {
		return session.Checkpoint{}, err
	}
	for _, o := range objects {
		s.out.add(o)
	}
	c.mu.Lock()
	lane, fresh, count, least := c.lane, c.fresh, c.count, c.least
	c.mu.Unlock()
	p := session.Checkpoint{
		ID: session.NewCheckpointIDAfter(now, last.ID), Tree: s.shown, State: stateID,
		Session: c.o.Repo.Session(), Lane: lane,
		Segment: last.Segment, Reason: reason, Message: message, Time: now.Truncate(time.Second), Head: s.state.Head,
		Branch: s.state.Branch, Prev: last.ID, Base: c.o.Base, Bytes: bytes, Left: int64(len(s.edit.left.all)),
	}
	if p.Changed, err = s.changed(ctx, last.Tree); err != nil {
		return session.Checkpoint{}, err
	}
	// The parent of a checkpoint is the previous checkpoint of its segment. The first checkpoint of a segment has no
	// parent, so that gc can drop a whole segment.
	parent := last.Commit
	change := session.RefChange{Name: session.SegmentRef(p.Session, lane, p.Segment), Old: last.Commit}
	if !parent.IsZero() && !fresh && lane == last.Lane {
		tip, err := c.o.Repo.Ref(change.Name)
		if err != nil {
			return session.Checkpoint{}, err
		}
		// If gc dropped old checkpoints of the segment, it has rewritten the previous checkpoint as another commit.
		fresh = tip != last.Commit
	}
	y1, m1, d1 := last.Time.UTC().Date()
	y2, m2, d2 := now.Date()
	if parent.IsZero() || fresh || lane != last.Lane || count >= segmentCheckpoints || p.Segment < least || y1 != y2 ||
		m1 != m2 || d1 != d2 {
		segments, err := c.o.Repo.Segments(lane)
		if err != nil {
			return session.Checkpoint{}, err
		}
		// Number the new segment higher than every segment of the lane.
		p.Segment, parent, count = max(1, least), object.ID{}, 0
		if len(segments) > 0 {
			p.Segment = max(p.Segment, segments[len(segments)-1]+1)
		}
		change = session.RefChange{Name: session.SegmentRef(p.Session, lane, p.Segment)}
	}
	commit, err := session.Outgoing(c.format, object.Commit, p.Encode(parent))
	if err != nil {
		return session.Checkpoint{}, err
	}
	p.Commit, change.New = commit.ID, commit.ID
	s.out.add(commit)
	c.steps.done("compare")
	if err := c.o.Repo.Record(ctx, append(s.out.list, s.copier.Objects()...), []session.RefChange{change}); err != nil {
		return session.Checkpoint{}, err
	}
	c.steps.done("disk")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.count = &p, count+1
	// If SetLane was called during the write, the next checkpoint must still start a segment.
	if c.lane == lane {
		c.fresh = false
	}
	return p, nil
}
