package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Lanes reads the checkpoints of one session: the checkpoints in its lanes (a lane is the chain of checkpoints of one
// writer), and the pinned checkpoints. Each method reads the refs and commits anew, so all methods are safe for
// concurrent use.
type Lanes struct {
	refs    *RefDir  // reads the refs of the segments and pins
	objects *sources // reads the commits of the checkpoints
	session string   // name of the session
	format  object.Format
}

// CheckpointAt returns the checkpoint that is stored as the given commit. It returns ErrNotCheckpoint if the commit is
// not a checkpoint.
func (l *Lanes) CheckpointAt(commit object.ID) (Checkpoint, error) {
	p, _, err := l.checkpointAt(commit)
	return p, err
}

// checkpointAt returns the checkpoint that is stored as the given commit, and the commit of the previous checkpoint of
// the same segment, or the zero ID if there is none.
func (l *Lanes) checkpointAt(commit object.ID) (p Checkpoint, parent object.ID, err error) {
	content, err := typed(l.objects, commit, object.Commit, object.MaxCommitSize)
	if err != nil {
		return Checkpoint{}, object.ID{}, err
	}
	if p, err = ParseCheckpoint(l.format, commit, content); err != nil {
		return Checkpoint{}, object.ID{}, err
	}
	parent, err = CheckpointParent(l.format, content)
	return p, parent, err
}

// Checkpoints returns the newest checkpoints of all lanes, newest first: at most limit checkpoints, or all if limit is
// 0. It reads the commit of each checkpoint.
func (l *Lanes) Checkpoints(limit int) ([]Checkpoint, error) {
	var list []Checkpoint
	err := l.EachCheckpoint(func(p Checkpoint) bool {
		list = append(list, p)
		return limit <= 0 || len(list) < limit
	})
	return list, err
}

// cursor is the position of EachCheckpoint in one segment: the next checkpoint and its parent.
type cursor struct {
	checkpoint Checkpoint // next checkpoint of the segment to be emitted
	parent     object.ID  // commit of the previous checkpoint of the segment; zero if there is none
}

// EachCheckpoint calls the function emit with each checkpoint of all lanes, newest first, until emit returns false.
func (l *Lanes) EachCheckpoint(emit func(Checkpoint) bool) error {
	refs, err := l.refs.Refs(LanePrefix(l.session))
	if err != nil {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	var heads []cursor // one cursor for each segment, sorted by ID, newest last
	add := func(commit object.ID) error {
		p, parent, err := l.checkpointAt(commit)
		if err != nil {
			return fmt.Errorf("list checkpoints: %w", err)
		}
		i, _ := slices.BinarySearchFunc(heads, p.ID,
			func(c cursor, id CheckpointID) int { return cmp.Compare(c.checkpoint.ID, id) })
		heads = slices.Insert(heads, i, cursor{p, parent})
		return nil
	}
	for _, ref := range refs {
		if err := add(ref.ID); err != nil {
			return err
		}
	}
	// Emit the newest of all checkpoints, and replace it by the previous checkpoint of the same segment.
	for len(heads) > 0 {
		c := heads[len(heads)-1]
		heads = heads[:len(heads)-1]
		if !emit(c.checkpoint) {
			return nil
		}
		if !c.parent.IsZero() {
			if err := add(c.parent); err != nil {
				return err
			}
		}
	}
	return nil
}

// Segments returns the numbers of the segments of a lane, in ascending order.
func (l *Lanes) Segments(lane string) ([]int, error) {
	prefix := LanePrefix(l.session) + lane + "/"
	refs, err := l.refs.Refs(prefix)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, ref := range refs {
		n, err := strconv.Atoi(strings.TrimPrefix(ref.Name, prefix))
		if err == nil && SegmentRef(l.session, lane, n) == ref.Name {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

// Newest returns the newest checkpoint of a lane. It returns ErrNoCheckpoint if the lane has no checkpoint.
func (l *Lanes) Newest(lane string) (Checkpoint, error) {
	segments, err := l.Segments(lane)
	if err != nil {
		return Checkpoint{}, err
	}
	if len(segments) == 0 {
		return Checkpoint{}, fmt.Errorf("find newest checkpoint of lane %s: %w", lane, ErrNoCheckpoint)
	}
	tip, err := l.refs.Ref(SegmentRef(l.session, lane, segments[len(segments)-1]))
	if err != nil {
		return Checkpoint{}, err
	}
	if tip.IsZero() {
		return Checkpoint{}, fmt.Errorf("find newest checkpoint of lane %s: %w", lane, ErrNoCheckpoint)
	}
	return l.CheckpointAt(tip)
}

// Pins returns the names of all pins of the session, grouped by the ID of the pinned checkpoint.
func (l *Lanes) Pins() (map[CheckpointID][]string, error) {
	prefix := PinPrefix(l.session)
	refs, err := l.refs.Refs(prefix)
	if err != nil {
		return nil, err
	}
	pins := map[CheckpointID][]string{}
	for _, ref := range refs {
		p, err := l.CheckpointAt(ref.ID)
		if err != nil {
			return nil, fmt.Errorf("read pin %s: %w", ref.Name, err)
		}
		pins[p.ID] = append(pins[p.ID], strings.TrimPrefix(ref.Name, prefix))
	}
	return pins, nil
}

// State returns the State that belongs to a checkpoint.
func (l *Lanes) State(p Checkpoint) (State, error) { return ReadState(l.objects, l.format, p.State) }
