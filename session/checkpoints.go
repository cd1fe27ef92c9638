package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// CheckpointAt returns the checkpoint that a commit stores. It returns ErrNotCheckpoint if the commit is not a checkpoint.
func (r *Repo) CheckpointAt(commit object.ID) (Checkpoint, error) {
	p, _, err := r.checkpointAt(commit)
	return p, err
}

// checkpointAt returns the checkpoint that a commit stores, and the commit of the previous checkpoint of the same segment; zero: there
// is none.
func (r *Repo) checkpointAt(commit object.ID) (p Checkpoint, parent object.ID, err error) {
	content, err := r.typed(commit, object.Commit, object.MaxCommitSize)
	if err != nil {
		return Checkpoint{}, object.ID{}, err
	}
	if p, err = ParseCheckpoint(r.format, commit, content); err != nil {
		return Checkpoint{}, object.ID{}, err
	}
	parent, err = CheckpointParent(r.format, content)
	return p, parent, err
}

// Checkpoints returns the newest checkpoints of all lanes, newest first. It returns at most limit checkpoints, or all if limit is 0. It
// reads the commit of each checkpoint.
func (r *Repo) Checkpoints(limit int) ([]Checkpoint, error) {
	var list []Checkpoint
	err := r.EachCheckpoint(func(p Checkpoint) bool {
		list = append(list, p)
		return limit <= 0 || len(list) < limit
	})
	return list, err
}

// cursor is the position of EachCheckpoint in one segment: the next checkpoint and its parent.
type cursor struct {
	checkpoint Checkpoint
	parent     object.ID
}

// EachCheckpoint calls emit with each checkpoint of all lanes, newest first, until emit returns false.
func (r *Repo) EachCheckpoint(emit func(Checkpoint) bool) error {
	refs, err := r.Refs(LanePrefix(r.session))
	if err != nil {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	var heads []cursor // one for each segment, sorted by ID, newest last
	add := func(commit object.ID) error {
		p, parent, err := r.checkpointAt(commit)
		if err != nil {
			return fmt.Errorf("list checkpoints: %w", err)
		}
		i, _ := slices.BinarySearchFunc(heads, p.ID, func(c cursor, id CheckpointID) int { return cmp.Compare(c.checkpoint.ID, id) })
		heads = slices.Insert(heads, i, cursor{p, parent})
		return nil
	}
	for _, ref := range refs {
		if err := add(ref.ID); err != nil {
			return err
		}
	}
	// Emit the newest checkpoint of all segments, and put the checkpoint before it, in the same segment, in its place.
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
func (r *Repo) Segments(lane string) ([]int, error) {
	prefix := LanePrefix(r.session) + lane + "/"
	refs, err := r.Refs(prefix)
	if err != nil {
		return nil, err
	}
	var list []int
	for _, ref := range refs {
		n, err := strconv.Atoi(strings.TrimPrefix(ref.Name, prefix))
		if err == nil && SegmentRef(r.session, lane, n) == ref.Name {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

// Newest returns the newest checkpoint of a lane, and ErrNoCheckpoint if the lane has none.
func (r *Repo) Newest(lane string) (Checkpoint, error) {
	segments, err := r.Segments(lane)
	if err != nil {
		return Checkpoint{}, err
	}
	if len(segments) == 0 {
		return Checkpoint{}, fmt.Errorf("find newest checkpoint of lane %s: %w", lane, ErrNoCheckpoint)
	}
	tip, err := r.Ref(SegmentRef(r.session, lane, segments[len(segments)-1]))
	if err != nil {
		return Checkpoint{}, err
	}
	if tip.IsZero() {
		return Checkpoint{}, fmt.Errorf("find newest checkpoint of lane %s: %w", lane, ErrNoCheckpoint)
	}
	return r.CheckpointAt(tip)
}

// Pins returns the names of all pins by the ID of the pinned checkpoint.
func (r *Repo) Pins() (map[CheckpointID][]string, error) {
	prefix := PinPrefix(r.session)
	refs, err := r.Refs(prefix)
	if err != nil {
		return nil, err
	}
	pins := map[CheckpointID][]string{}
	for _, ref := range refs {
		p, err := r.CheckpointAt(ref.ID)
		if err != nil {
			return nil, fmt.Errorf("read pin %s: %w", ref.Name, err)
		}
		pins[p.ID] = append(pins[p.ID], strings.TrimPrefix(ref.Name, prefix))
	}
	return pins, nil
}

// State returns the State that belongs to a checkpoint.
func (r *Repo) State(p Checkpoint) (State, error) { return ReadState(r, r.format, p.State) }
