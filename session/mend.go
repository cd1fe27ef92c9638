package session

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

// Mended is what became of a broken ref.
type Mended struct {
	Ref string
	ID  object.ID // zero: nothing is known of what it named, and it is not there any more
}

// MendRefs gives broken refs a value again: a segment the newest of its checkpoints that is here, what the session is the newest
// that was written of it. Any other gets what it was known to name, if that is here; known gives zero for one of which
// nothing is known, and that goes. What cannot be mended is an error, and stays.
func (r *Repo) MendRefs(ctx context.Context, known func(ref string) object.ID) ([]Mended, error) {
	_, broken, err := r.AllRefs("")
	if err != nil || len(broken) == 0 {
		return nil, err
	}
	newest, err := r.newestOf(ctx)
	if err != nil {
		return nil, fmt.Errorf("repair refs: %w", err)
	}
	var mended []Mended
	var changes []RefChange
	var errs []error
	for _, name := range broken {
		id, before := newest[name], known(name)
		if id.IsZero() && !before.IsZero() && r.Owned(before) {
			id = before
		}
		if id.IsZero() && (!before.IsZero() || name == MetaRef(r.session)) {
			errs = append(errs, fmt.Errorf("repair %s: %w, and the object that it pointed to is not on this host", name, ErrBroken))
			continue
		}
		mended = append(mended, Mended{name, id})
		changes = append(changes, RefChange{Name: name, New: id, Force: true})
	}
	if err := r.Update(ctx, changes); err != nil {
		return nil, errors.Join(append(errs, fmt.Errorf("repair refs: %w", err))...)
	}
	for _, m := range mended {
		r.log.Warn("repaired a broken ref", zap.String("ref", m.Ref), zap.Stringer("names", m.ID))
	}
	return mended, errors.Join(errs...)
}

// newestOf gives what refs of the session's own should name, by the commits that are here.
func (r *Repo) newestOf(ctx context.Context) (map[string]object.ID, error) {
	tables, err := r.readTables()
	if err != nil {
		return nil, err
	}
	newest := map[string]object.ID{}
	checkpoints := map[string]PointID{} // of newest
	metas := map[object.ID]int{}        // their transitions
	passed := map[object.ID]bool{}      // metas that another one stands on
	for _, t := range tables {
		for i := range t.live {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			id, err := t.index.ID(i)
			if err != nil {
				return nil, err
			}
			if kind, _, err := r.Size(id); err != nil || kind != object.Commit {
				continue
			}
			if p, err := r.PointAt(id); err == nil && p.Session == r.session {
				if ref := SegmentRef(p.Session, p.Lane, p.Segment); p.ID > checkpoints[ref] {
					checkpoints[ref], newest[ref] = p.ID, id
				}
			} else if m, err := MetaAt(r, r.format, id); err == nil && m.Session == r.session {
				metas[id] = len(m.Transitions)
				if info, err := r.Commit(id); err == nil && len(info.Parents) > 0 {
					passed[info.Parents[0]] = true
				}
			}
		}
	}
	told := -1
	for id, transitions := range metas { // transitions are only added, but not every version has one more
		if !passed[id] && transitions > told {
			told, newest[MetaRef(r.session)] = transitions, id
		}
	}
	return newest, nil
}
