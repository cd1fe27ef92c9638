package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Retention is the rule that decides which checkpoints GC keeps. GC always keeps the newest checkpoint of each lane
// and the pinned ones; in an archived session it keeps no others.
type Retention struct {
	All   time.Duration // age below which every checkpoint is kept; 0: DefaultAll
	Daily time.Duration // age below which the last checkpoint of each day (UTC) and lane is kept; 0: DefaultDaily
}

const (
	// DefaultAll is the default of Retention.All.
	DefaultAll = 7 * 24 * time.Hour
	// DefaultDaily is the default of Retention.Daily.
	DefaultDaily = 30 * 24 * time.Hour
)

// GCOptions are the parameters of GC.
type GCOptions struct {
	Session string    // name of the session
	Keep    Retention // which checkpoints to keep
	Now     time.Time // time that ages are measured from
	Writer  Writer    // the caller; checkpoints in lanes that another live writer holds are kept
	DryRun  bool      // report only, change nothing
}

// GCResult is the result of GC.
type GCResult struct {
	Kept    int          // number of checkpoints that remain
	Dropped []Checkpoint // dropped checkpoints, or in a dry run those that would be dropped; newest first
	Bytes   int64        // disk space that was freed, in bytes; 0 in a dry run
}

// GC removes the checkpoints that o.Keep does not keep, and all objects that only they reach. Checkpoints that follow
// a removed one in its segment are rewritten as new commits without it; they keep their IDs. GC never changes
// branches, tags, notes, or the refs below KeptPrefix.
//
// The caller must make sure that no checkpoint is made meanwhile. A crash in the middle leaves unreachable objects,
// which the next GC removes.
func GC(ctx context.Context, r *Repo, o GCOptions) (GCResult, error) {
	result, err := r.dropCheckpoints(ctx, o)
	if err != nil {
		return GCResult{}, fmt.Errorf("remove checkpoints of session %s: %w", o.Session, err)
	}
	if o.DryRun {
		return result, nil
	}
	// The refs no longer lead to the dropped checkpoints, so their objects are unreachable now.
	if result.Bytes, err = r.sweep(ctx); err != nil {
		return result, fmt.Errorf("remove unreachable objects from %s: %w", r.dir, err)
	}
	return result, nil
}

// Working blocks the removal of unreachable objects by Sweep and GC until done is called. A caller that looks up
// which objects exist, writes the others and then updates a ref must hold it throughout: otherwise an object that it
// found could be removed before the ref points to it. A goroutine must not call Working again before it has called
// done, because a pending Sweep would block the second call for ever.
func (r *Repo) Working() (done func()) {
	r.sweeping.RLock()
	return r.sweeping.RUnlock
}

// segment is a segment of a lane with all of its checkpoints.
type segment struct {
	ref         string    // name of the segment's ref
	tip         object.ID // commit of the newest checkpoint
	lane        string
	checkpoints []Checkpoint // oldest first
}

// segments returns all segments of a session, ordered by their first checkpoints.
func (r *Repo) segments(session string) ([]segment, error) {
	refs, err := r.Refs(LanePrefix(session))
	if err != nil {
		return nil, err
	}
	var all []segment
	for _, ref := range refs {
		s := segment{ref: ref.Name, tip: ref.ID}
		// The ref points to the newest checkpoint; each one leads to the previous one of the segment.
		for at := ref.ID; !at.IsZero(); {
			p, parent, err := r.checkpointAt(at)
			if err != nil {
				return nil, err
			}
			s.checkpoints, at = append(s.checkpoints, p), parent
		}
		slices.Reverse(s.checkpoints)
		s.lane = s.checkpoints[0].Lane
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b segment) int { return compareIDs(a.checkpoints[0].ID, b.checkpoints[0].ID) })
	return all, nil
}

// compareIDs compares two checkpoint IDs, and so their times.
func compareIDs(a, b CheckpointID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// dropCheckpoints rewrites the segments of a session without the checkpoints that the rules do not keep. It removes
// no objects. In a dry run it only lists them.
func (r *Repo) dropCheckpoints(ctx context.Context, o GCOptions) (GCResult, error) {
	defer r.Working()()
	all, err := r.segments(o.Session)
	if err != nil {
		return GCResult{}, err
	}
	pins, err := r.Refs(PinPrefix(o.Session))
	if err != nil {
		return GCResult{}, err
	}
	meta, metaID, err := r.metaIfThere(o.Session)
	if err != nil {
		return GCResult{}, err
	}
	keep := keepers{rules: o.Keep, now: o.Now, archived: !metaID.IsZero() && meta.State == Archived, pinned: map[object.ID]bool{},
		held: meta.heldByOthers(o.Writer)}
	for _, p := range pins {
		keep.pinned[p.ID] = true
	}
	kept := keep.choose(all)
	result := GCResult{}
	for _, s := range all {
		for _, p := range s.checkpoints {
			if kept[p.ID] {
				result.Kept++
			} else {
				result.Dropped = append(result.Dropped, p)
			}
		}
	}
	// The segments of several lanes overlap in time.
	slices.SortFunc(result.Dropped, func(a, b Checkpoint) int { return compareIDs(b.ID, a.ID) })
	if o.DryRun || len(result.Dropped) == 0 {
		return result, nil
	}
	return result, r.shorten(ctx, all, pins, kept)
}

// metaIfThere is like ReadMeta but returns a zero ID and no error if the session has no metadata.
func (r *Repo) metaIfThere(session string) (Meta, object.ID, error) {
	if id, err := r.Ref(MetaRef(session)); err != nil || id.IsZero() {
		return Meta{}, id, err
	}
	return ReadMeta(r, session)
}

// heldByOthers returns the lanes that a writer other than w holds, except those of writers that are known to be dead.
func (m Meta) heldByOthers(w Writer) map[string]bool {
	held := map[string]bool{}
	for _, l := range m.Lanes {
		if l.Left == nil && !l.Writer.Same(w) && l.Writer.Life() != Dead {
			held[l.Name] = true
		}
	}
	return held
}

// keepers holds what decides whether a checkpoint is kept.
type keepers struct {
	rules    Retention
	now      time.Time          // time that ages are measured from
	archived bool               // the session is archived
	pinned   map[object.ID]bool // commits of the pinned checkpoints
	held     map[string]bool    // lanes of other live writers, in which everything is kept
}

// choose returns the set of checkpoints to keep.
func (k keepers) choose(all []segment) map[CheckpointID]bool {
	every, daily := k.rules.All, k.rules.Daily
	if every == 0 {
		every = DefaultAll
	}
	if daily == 0 {
		daily = DefaultDaily
	}
	kept := map[CheckpointID]bool{}
	type day struct{ lane, date string }
	seen := map[day]bool{}
	newest := map[string]bool{}
	// The newest come first, so the first checkpoint of a lane and day in this loop is the last one of that
	// day.
	for _, s := range slices.Backward(all) {
		for _, p := range slices.Backward(s.checkpoints) {
			age := k.now.Sub(p.Time)
			d := day{s.lane, p.Time.UTC().Format(time.DateOnly)}
			switch {
			case !newest[s.lane] || k.held[s.lane] || k.pinned[p.Commit]:
				kept[p.ID] = true
			// An archived session keeps no checkpoint for its age.
			case k.archived:
			case age < every || age < daily && !seen[d]:
				kept[p.ID] = true
			}
			newest[s.lane], seen[d] = true, true
		}
	}
	return kept
}

// shorten rewrites the kept checkpoints that follow a dropped one in their segment, and moves the refs of segments
// and pins to the new commits in one Update.
func (r *Repo) shorten(ctx context.Context, all []segment, pins []packedrefs.Ref, kept map[CheckpointID]bool) error {
	var objects []odb.Outgoing
	var changes []RefChange
	moved := map[object.ID]object.ID{}  // new commit of each rewritten checkpoint
	before := map[string]CheckpointID{} // last kept checkpoint of each lane so far
	for _, s := range all {
		var parent object.ID
		anew := false // a checkpoint before this one in the segment was dropped
		for _, p := range s.checkpoints {
			if !kept[p.ID] {
				anew = true
				continue
			}
			if anew {
				old := p.Commit
				p.Prev = before[s.lane]
				commit, err := Outgoing(r.format, object.Commit, p.Encode(parent))
				if err != nil {
					return err
				}
				objects, moved[old] = append(objects, commit), commit.ID
				p.Commit = commit.ID
			}
			parent, before[s.lane] = p.Commit, p.ID
		}
		// parent is the last kept checkpoint of the segment; zero deletes the ref of a segment without any.
		if parent != s.tip {
			changes = append(changes, RefChange{Name: s.ref, Old: s.tip, New: parent})
		}
	}
	// A pin has to follow its checkpoint to the new commit, otherwise it would keep the old history.
	for _, pin := range pins {
		if to, ok := moved[pin.ID]; ok {
			changes = append(changes, RefChange{Name: pin.Name, Old: pin.ID, New: to})
		}
	}
	if err := r.Write(ctx, objects); err != nil {
		return err
	}
	return r.Update(ctx, changes)
}
