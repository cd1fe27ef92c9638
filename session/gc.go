package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
)

// Retention decides by age which checkpoints GC keeps. In addition, GC always keeps the newest checkpoint of each lane,
// the pinned checkpoints, and all checkpoints of lanes that other writers hold. Of an archived session, GC keeps only
// these.
type Retention struct {
	All   time.Duration // age up to which every checkpoint is kept; 0 means DefaultAll
	Daily time.Duration // age up to which the last checkpoint of each lane and day (UTC) is kept; 0 means DefaultDaily
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
	Keep    Retention // rule that decides which checkpoints to keep
	Now     time.Time // present time; the ages of checkpoints are computed from it
	Writer  Writer    // the caller; lanes of other writers are not changed
	DryRun  bool      // report the checkpoints that would be dropped, and change nothing
}

// GCResult is the result of GC.
type GCResult struct {
	Kept    int          // number of checkpoints that remain
	Dropped []Checkpoint // checkpoints that were dropped or, in a dry run, would be dropped; newest first
	Bytes   int64        // disk space that was freed, in bytes; 0 in a dry run
}

// GC removes the checkpoints that o.Keep does not keep, and then all objects that are not reachable from a ref. If a
// checkpoint is removed, the later checkpoints of the same segment are rewritten as new commits without this ancestor;
// their CheckpointIDs stay the same. GC never changes branches, tags, notes, or the refs below KeptPrefix.
//
// The caller must make sure that no checkpoint is made while GC runs. A crash during GC leaves unreachable objects,
// which the next GC removes.
func GC(ctx context.Context, r *Repo, o GCOptions) (GCResult, error) {
	result, err := collector{r, o}.dropCheckpoints(ctx)
	if err != nil {
		return GCResult{}, fmt.Errorf("remove checkpoints of session %s: %w", o.Session, err)
	}
	if o.DryRun {
		return result, nil
	}
	// No ref reaches the dropped checkpoints any more, so remove their objects.
	if result.Bytes, err = r.packs.sweep(ctx); err != nil {
		return result, fmt.Errorf("remove unreachable objects from %s: %w", r.dir, err)
	}
	return result, nil
}

// Sweep removes unreachable objects from the packs of the repository, and returns the number of freed bytes. It first
// waits until all done functions that Working has returned were called. While Sweep checks the refs for the last time
// and removes the packs, calls of Working block.
func (r *Repo) Sweep(ctx context.Context) (freed int64, err error) {
	if freed, err = r.packs.sweep(ctx); err != nil {
		return freed, fmt.Errorf("remove unreachable objects from %s: %w", r.dir, err)
	}
	return freed, nil
}

// Working keeps Sweep and GC from removing unreachable objects until the returned function done is called. A caller
// that looks up which objects exist, writes the missing ones and then updates a ref calls done after the update;
// otherwise an existing object could be removed before it is reachable from the ref. A goroutine must not call Working
// again before it has called done: a waiting Sweep would block the second call, while the first call blocks the Sweep.
func (r *Repo) Working() (done func()) {
	r.packs.sweeping.RLock()
	return r.packs.sweeping.RUnlock
}

// segment is a part of a lane (the chain of checkpoints of one writer), with all of its checkpoints.
type segment struct {
	ref         string       // name of the segment's ref
	tip         object.ID    // commit of the newest checkpoint
	lane        string       // name of the lane
	checkpoints []Checkpoint // checkpoints of the segment, oldest first
}

// segments returns all segments of the session with their checkpoints, ordered by the times of their first checkpoints.
func (c collector) segments() ([]segment, error) {
	refs, err := c.repo.Refs(LanePrefix(c.o.Session))
	if err != nil {
		return nil, err
	}
	var all []segment
	for _, ref := range refs {
		s := segment{ref: ref.Name, tip: ref.ID}
		// The ref points to the newest checkpoint of the segment. Each checkpoint has the previous checkpoint of the segment
		// as a parent.
		for at := ref.ID; !at.IsZero(); {
			p, parent, err := c.repo.checkpointAt(at)
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

// compareIDs returns -1, 0 or 1 if a sorts before, equal to or after b. The IDs of checkpoints sort in the order of
// their times.
func compareIDs(a, b CheckpointID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// collector does the work of GC: it selects and removes the checkpoints of one session.
type collector struct {
	repo *Repo
	o    GCOptions
}

// dropCheckpoints rewrites the segments of the session without the checkpoints that o.Keep does not keep, and returns
// the number of kept checkpoints and the list of dropped ones. It does not remove objects. In a dry run it changes
// nothing.
func (c collector) dropCheckpoints(ctx context.Context) (GCResult, error) {
	o := c.o
	defer c.repo.Working()()
	all, err := c.segments()
	if err != nil {
		return GCResult{}, err
	}
	pins, err := c.repo.Refs(PinPrefix(o.Session))
	if err != nil {
		return GCResult{}, err
	}
	meta, metaID, err := c.readMetaIfExists()
	if err != nil {
		return GCResult{}, err
	}
	keep := keepers{rules: o.Keep, now: o.Now, archived: !metaID.IsZero() && meta.State == Archived,
		pinned: map[object.ID]bool{},
		held:   meta.heldByOthers(o.Writer, o.Now)}
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
	// Sort all dropped checkpoints by time, because segments of different lanes overlap in time.
	slices.SortFunc(result.Dropped, func(a, b Checkpoint) int { return compareIDs(b.ID, a.ID) })
	if o.DryRun || len(result.Dropped) == 0 {
		return result, nil
	}
	return result, c.shorten(ctx, all, pins, kept)
}

// readMetaIfExists returns the metadata of the session and the ID of its commit. If the session has no metadata, it
// returns a zero ID and no error.
func (c collector) readMetaIfExists() (Meta, object.ID, error) {
	if id, err := c.repo.Ref(MetaRef(c.o.Session)); err != nil || id.IsZero() {
		return Meta{}, id, err
	}
	return ReadMeta(c.repo, c.o.Session)
}

// heldByOthers returns the names of the lanes that a writer other than w holds or may hold; see Held.
func (m Meta) heldByOthers(w Writer, now time.Time) map[string]bool {
	held := map[string]bool{}
	for _, l := range m.Lanes {
		if m.Held(l.Name, w, now) != nil {
			held[l.Name] = true
		}
	}
	return held
}

// keepers decides which checkpoints GC keeps.
type keepers struct {
	rules    Retention          // ages below which checkpoints are kept
	now      time.Time          // present time; the ages of checkpoints are computed from it
	archived bool               // the session is archived, so no checkpoint is kept because of its age
	pinned   map[object.ID]bool // commits of the pinned checkpoints
	held     map[string]bool    // lanes that other writers hold or may hold, of which all checkpoints are kept
}

// choose returns the set of the checkpoints that GC keeps. The parameter all holds all segments of the session, ordered
// by their first checkpoints.
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
	// The loop visits the newest checkpoints first, so the first checkpoint that it visits of a lane and day is the last
	// checkpoint of that day.
	for _, s := range slices.Backward(all) {
		for _, p := range slices.Backward(s.checkpoints) {
			age := k.now.Sub(p.Time)
			d := day{s.lane, p.Time.UTC().Format(time.DateOnly)}
			switch {
			case !newest[s.lane] || k.held[s.lane] || k.pinned[p.Commit]:
				kept[p.ID] = true
			// In an archived session, the age of a checkpoint does not count.
			case k.archived:
			case age < every || age < daily && !seen[d]:
				kept[p.ID] = true
			}
			newest[s.lane], seen[d] = true, true
		}
	}
	return kept
}

// shorten removes the checkpoints that are not in kept from their segments. It rewrites each kept checkpoint that
// follows a removed one in the same segment, and sets the refs of the segments and of the pins to the new commits by
// one Update.
func (c collector) shorten(ctx context.Context, all []segment, pins []packedrefs.Ref,
	kept map[CheckpointID]bool) error {
	var objects []odb.Outgoing
	var changes []RefChange
	moved := map[object.ID]object.ID{}  // new commit of each rewritten checkpoint
	before := map[string]CheckpointID{} // last kept checkpoint of each lane so far
	for _, s := range all {
		var parent object.ID
		anew := false // set if an earlier checkpoint of the segment was dropped; all later checkpoints are then rewritten
		for _, p := range s.checkpoints {
			if !kept[p.ID] {
				anew = true
				continue
			}
			if anew {
				old := p.Commit
				p.Prev = before[s.lane]
				commit, err := Outgoing(c.repo.format, object.Commit, p.Encode(parent))
				if err != nil {
					return err
				}
				objects, moved[old] = append(objects, commit), commit.ID
				p.Commit = commit.ID
			}
			parent, before[s.lane] = p.Commit, p.ID
		}
		// parent is the last kept checkpoint of the segment. If no checkpoint is kept, parent is zero, which deletes the ref.
		if parent != s.tip {
			changes = append(changes, RefChange{Name: s.ref, Old: s.tip, New: parent})
		}
	}
	// Move a pin to the rewritten commit of its checkpoint, because the pin would keep the old history at the old commit.
	for _, pin := range pins {
		if to, ok := moved[pin.ID]; ok {
			changes = append(changes, RefChange{Name: pin.Name, Old: pin.ID, New: to})
		}
	}
	if err := c.repo.Write(ctx, objects); err != nil {
		return err
	}
	return c.repo.Update(ctx, changes)
}
