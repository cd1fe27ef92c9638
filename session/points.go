package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// PointAt returns the checkpoint that a commit stores. It returns ErrNotPoint if the commit is not a checkpoint.
func (r *Repo) PointAt(commit object.ID) (Point, error) {
	p, _, err := r.checkpointAt(commit)
	return p, err
}

// checkpointAt returns a checkpoint and the previous one of the same segment, zero if there is none.
func (r *Repo) checkpointAt(commit object.ID) (p Point, parent object.ID, err error) {
	content, err := r.typed(commit, object.Commit, object.MaxCommitSize)
	if err != nil {
		return Point{}, object.ID{}, err
	}
	if p, err = ParsePoint(r.format, commit, content); err != nil {
		return Point{}, object.ID{}, err
	}
	parent, err = PointParent(r.format, content)
	return p, parent, err
}

// Points returns the newest checkpoints of all lanes, newest first; at most limit of them, or all if limit is 0. Each
// one is read from its commit.
func (r *Repo) Points(limit int) ([]Point, error) {
	var list []Point
	err := r.EachPoint(func(p Point) bool {
		list = append(list, p)
		return limit <= 0 || len(list) < limit
	})
	return list, err
}

// cursor is the position of EachPoint in one segment: the next checkpoint and its parent.
type cursor struct {
	point  Point
	parent object.ID
}

// EachPoint calls emit with each checkpoint of all lanes, newest first, until emit returns false.
func (r *Repo) EachPoint(emit func(Point) bool) error {
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
		i, _ := slices.BinarySearchFunc(heads, p.ID, func(c cursor, id PointID) int { return cmp.Compare(c.point.ID, id) })
		heads = slices.Insert(heads, i, cursor{p, parent})
		return nil
	}
	for _, ref := range refs {
		if err := add(ref.ID); err != nil {
			return err
		}
	}
	// The newest of all segments is emitted, and the previous one of its segment takes its place.
	for len(heads) > 0 {
		c := heads[len(heads)-1]
		heads = heads[:len(heads)-1]
		if !emit(c.point) {
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

// Newest returns the newest checkpoint of a lane, and ErrNoPoint if the lane has none.
func (r *Repo) Newest(lane string) (Point, error) {
	segments, err := r.Segments(lane)
	if err != nil {
		return Point{}, err
	}
	if len(segments) == 0 {
		return Point{}, fmt.Errorf("lane %s: %w", lane, ErrNoPoint)
	}
	tip, err := r.Ref(SegmentRef(r.session, lane, segments[len(segments)-1]))
	if err != nil {
		return Point{}, err
	}
	if tip.IsZero() {
		return Point{}, fmt.Errorf("lane %s: %w", lane, ErrNoPoint)
	}
	return r.PointAt(tip)
}

// Pins returns the names of all pins by the ID of the pinned checkpoint.
func (r *Repo) Pins() (map[PointID][]string, error) {
	prefix := PinPrefix(r.session)
	refs, err := r.Refs(prefix)
	if err != nil {
		return nil, err
	}
	pins := map[PointID][]string{}
	for _, ref := range refs {
		p, err := r.PointAt(ref.ID)
		if err != nil {
			return nil, fmt.Errorf("read pin %s: %w", ref.Name, err)
		}
		pins[p.ID] = append(pins[p.ID], strings.TrimPrefix(ref.Name, prefix))
	}
	return pins, nil
}

// State returns the State that belongs to a checkpoint.
func (r *Repo) State(p Point) (State, error) { return ReadState(r, r.format, p.State) }
