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

// Retention is the rule by which checkpoints are kept. The newest of a lane, and those that are pinned, always are; of an archived
// session no others.
type Retention struct {
	All   time.Duration // younger than this; 0: DefaultAll
	Daily time.Duration // of those that are older, the last of each day in UTC for so long; 0: DefaultDaily
}

const (
	// DefaultAll is how long every checkpoint is kept.
	DefaultAll = 7 * 24 * time.Hour
	// DefaultDaily is how long the last checkpoint of a day is kept.
	DefaultDaily = 30 * 24 * time.Hour
)

// GCOptions limit what GC drops.
type GCOptions struct {
	Session string
	Keep    Retention
	Now     time.Time
	Writer  Writer // lanes that others work in are left alone
	DryRun  bool
}

// GCResult lists what GC has dropped, or would drop.
type GCResult struct {
	Kept    int
	Dropped []Point // newest first
	Bytes   int64   // that became free; in a dry run 0
}

// GC drops the checkpoints that nothing keeps, and all that only they had. Points keep their ids; the commits of those that
// follow a dropped one in its segment are made anew, so that their history ends there. Branches, tags and notes, and what
// they were before they were rewritten, are never touched.
//
// No checkpoint may be made meanwhile. Who dies in the middle leaves objects that nothing names, which the next GC removes.
func GC(ctx context.Context, r *Repo, o GCOptions) (GCResult, error) {
	result, err := r.dropCheckpoints(ctx, o)
	if err != nil {
		return GCResult{}, fmt.Errorf("remove checkpoints of session %s: %w", o.Session, err)
	}
	if o.DryRun {
		return result, nil
	}
	if result.Bytes, err = r.sweep(ctx); err != nil {
		return result, fmt.Errorf("remove what nothing names from %s: %w", r.dir, err)
	}
	return result, nil
}

// Working keeps what nothing names from being removed until done is called. Whoever looks for what is there already,
// writes the rest, and then has a ref name it, is in the middle of that. It must not be asked for twice at a time by one
// goroutine.
func (r *Repo) Working() (done func()) {
	r.sweeping.RLock()
	return r.sweeping.RUnlock
}

// segment is one with its checkpoints, oldest first.
type segment struct {
	ref         string
	tip         object.ID
	lane        string
	checkpoints []Point
}

// segments reads all of a session, oldest first.
func (r *Repo) segments(session string) ([]segment, error) {
	refs, err := r.Refs(LanePrefix(session))
	if err != nil {
		return nil, err
	}
	var all []segment
	for _, ref := range refs {
		s := segment{ref: ref.Name, tip: ref.ID}
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

func compareIDs(a, b PointID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// dropCheckpoints moves the refs of segments so that they lead to what is kept.
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
	keep := keepers{rules: o.Keep, now: o.Now, archived: !metaID.IsZero() && meta.State == Archived, pinned: map[object.ID]bool{}, held: meta.heldByOthers(o.Writer)}
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
	slices.SortFunc(result.Dropped, func(a, b Point) int { return compareIDs(b.ID, a.ID) })
	if o.DryRun || len(result.Dropped) == 0 {
		return result, nil
	}
	return result, r.shorten(ctx, all, pins, kept)
}

// metaIfThere is ReadMeta of what may never have been written: the zero ID.
func (r *Repo) metaIfThere(session string) (Meta, object.ID, error) {
	if id, err := r.Ref(MetaRef(session)); err != nil || id.IsZero() {
		return Meta{}, id, err
	}
	return ReadMeta(r, session)
}

// heldByOthers lists the lanes that somebody else is at work in, or may be.
func (m Meta) heldByOthers(w Writer) map[string]bool {
	held := map[string]bool{}
	for _, l := range m.Lanes {
		if l.Left == nil && !l.Writer.Same(w) && l.Writer.Life() != Dead {
			held[l.Name] = true
		}
	}
	return held
}

// keepers choose what is kept.
type keepers struct {
	rules    Retention
	now      time.Time
	archived bool
	pinned   map[object.ID]bool // commits
	held     map[string]bool    // lanes that are left alone
}

func (k keepers) choose(all []segment) map[PointID]bool {
	every, daily := k.rules.All, k.rules.Daily
	if every == 0 {
		every = DefaultAll
	}
	if daily == 0 {
		daily = DefaultDaily
	}
	kept := map[PointID]bool{}
	type day struct{ lane, date string }
	seen := map[day]bool{}
	newest := map[string]bool{}
	for _, s := range slices.Backward(all) {
		for _, p := range slices.Backward(s.checkpoints) {
			age := k.now.Sub(p.Time)
			d := day{s.lane, p.Time.UTC().Format(time.DateOnly)}
			switch {
			case !newest[s.lane] || k.held[s.lane] || k.pinned[p.Commit]:
				kept[p.ID] = true
			case k.archived:
			case age < every || age < daily && !seen[d]:
				kept[p.ID] = true
			}
			newest[s.lane], seen[d] = true, true
		}
	}
	return kept
}

// shorten writes checkpoints anew whose history is to end sooner, and moves all refs at once.
func (r *Repo) shorten(ctx context.Context, all []segment, pins []packedrefs.Ref, kept map[PointID]bool) error {
	var objects []odb.Outgoing
	var changes []RefChange
	moved := map[object.ID]object.ID{} // commits of checkpoints
	before := map[string]PointID{}     // in a lane, that is kept
	for _, s := range all {
		var parent object.ID
		anew := false
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
		if parent != s.tip {
			changes = append(changes, RefChange{Name: s.ref, Old: s.tip, New: parent})
		}
	}
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
