package session

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
)

// Mended describes a broken ref that MendRefs has repaired or removed.
type Mended struct {
	Ref string    // full name of the ref
	ID  object.ID // new value; zero if the ref was removed, because its value is unknown
}

// MendRefs repairs refs whose files are broken, for example after a power failure. It sets the ref of a segment to the
// newest checkpoint of the segment on this host, and MetaRef to the newest version of the metadata on this host. It
// sets any other ref to the id that the function known returns, if the Repo owns that object; if known returns the zero
// ID, it removes the ref.
//
// A ref remains broken if the Repo lacks the object that known returns, and MetaRef if no metadata is found. The error
// lists these refs; the others are repaired nevertheless.
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
			errs = append(errs, fmt.Errorf("repair ref %s: %w, and its object is not on this host", name, ErrBroken))
			continue
		}
		mended = append(mended, Mended{name, id})
		// The old value is unreadable, so Update cannot compare it.
		changes = append(changes, RefChange{Name: name, New: id, Force: true})
	}
	if err := r.Update(ctx, changes); err != nil {
		return nil, errors.Join(append(errs, fmt.Errorf("repair refs: %w", err))...)
	}
	for _, m := range mended {
		r.log.Warn("repaired broken ref", zap.String("ref", m.Ref), zap.Stringer("names", m.ID))
	}
	return mended, errors.Join(errs...)
}

// newestOf searches the packs of the Repo for checkpoints and metadata, and returns the ids to which the refs of
// segments and MetaRef should point, by ref name.
func (r *Repo) newestOf(ctx context.Context) (map[string]object.ID, error) {
	tables, err := r.packs.readTables()
	if err != nil {
		return nil, err
	}
	newest := map[string]object.ID{}
	checkpoints := map[string]CheckpointID{} // IDs of the checkpoints in newest
	metas := map[object.ID]int{}             // number of transitions of each version of the metadata
	passed := map[object.ID]bool{}           // versions of the metadata that are the parent of another version
	for _, t := range tables {
		for i := range t.live {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			id, err := t.index.ID(i)
			if err != nil {
				return nil, err
			}
			// Most objects are blobs and trees. Size reads the type of an object without its contents.
			if kind, _, err := r.Size(id); err != nil || kind != object.Commit {
				continue
			}
			if p, err := r.CheckpointAt(id); err == nil && p.Session == r.session {
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
	most := -1
	// Every version has all transitions of its parent. A version that adds no transition has the same number of
	// transitions as its parent, so skip the versions that are parents.
	for id, transitions := range metas {
		if !passed[id] && transitions > most {
			most, newest[MetaRef(r.session)] = transitions, id
		}
	}
	return newest, nil
}
