package cacheentry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

const (
	// listed is the maximum number of entries whose descriptions one request to the session remote fetches.
	listed = 5000
	// removals is the maximum number of refs that one push to the session remote removes.
	removals = 1000
)

// found is a ref that may contain an entry, with the entry or the error that reading it returned.
type found struct {
	Entry
	ref  transport.Ref
	fail error // error that wraps ErrDamaged or ErrNewer; nil if the entry could be read
}

// Listing is the result of List.
type Listing struct {
	Entries []Entry // entries, sorted by key
	Damaged int     // number of refs that do not contain an entry in a format that this version can read
}

// List returns the entries whose keys begin with the text keys. It reads no values. If expired is set, it also returns
// the entries that have expired and that GC has not removed yet.
func (s *Store) List(ctx context.Context, keys string, expired bool) (l Listing, err error) {
	now := s.now()
	all, err := s.all(ctx)
	if err != nil {
		return l, err
	}
	for _, f := range all {
		switch {
		case f.fail != nil:
			l.Damaged++
		case strings.HasPrefix(f.Key, keys) && (expired || !f.Expired(now)):
			l.Entries = append(l.Entries, f.Entry)
		}
	}
	slices.SortFunc(l.Entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return l, nil
}

// all reads the descriptions of all entries.
func (s *Store) all(ctx context.Context) ([]found, error) {
	refs, err := s.Place.Refs(ctx, session.EntryPrefix)
	if err != nil {
		return nil, err
	}
	var all []found
	for part := range slices.Chunk(refs, listed) {
		commits := make([]object.ID, 0, len(part))
		for _, ref := range part {
			commits = append(commits, ref.ID)
		}
		err := s.Place.Read(ctx, commits, 1, func(objects *odb.Store) error {
			for _, ref := range part {
				f := found{ref: ref}
				f.Entry, _, f.fail = describe(objects, ref.Name, ref.ID)
				if f.fail != nil && !errors.Is(f.fail, ErrDamaged) && !errors.Is(f.fail, ErrNewer) {
					return f.fail
				}
				all = append(all, f)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// GCOptions configures GC.
type GCOptions struct {
	MaxSize int64         // remove the oldest entries until the values have at most this size in bytes; 0: no limit
	MaxAge  time.Duration // remove entries that were stored longer ago; 0: no limit
	DryRun  bool          // remove nothing
}

// GCResult is the result of GC.
type GCResult struct {
	Removed []Entry // entries that were removed or would be removed, oldest first
	Damaged int     // number of removed refs that contained no entry
	Kept    int     // number of entries that were not removed
	Size    int64   // size in bytes of the values of the kept entries
}

// GC removes expired and damaged entries, and the oldest of the other entries until the limits of o are kept. It keeps
// entries that change at the same time, and entries of later versions of artifactfs.
func (s *Store) GC(ctx context.Context, o GCOptions) (r GCResult, err error) {
	all, err := s.all(ctx)
	if err != nil {
		return r, err
	}
	all = slices.DeleteFunc(all, func(f found) bool { return errors.Is(f.fail, ErrNewer) })
	slices.SortStableFunc(all,
		func(a, b found) int { return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.Key, b.Key)) })
	now := s.now()
	dead := func(f found) bool {
		return f.fail != nil || f.Expired(now) || o.MaxAge > 0 && now.Sub(f.Time) > o.MaxAge
	}
	for _, f := range all {
		if !dead(f) {
			r.Size += f.Size
		}
	}
	var gone []found
	for _, f := range all {
		switch {
		case dead(f):
			gone = append(gone, f)
		case o.MaxSize > 0 && r.Size > o.MaxSize:
			r.Size -= f.Size
			gone = append(gone, f)
		default:
			r.Kept++
		}
	}
	for part := range slices.Chunk(gone, removals) {
		removed, err := s.remove(ctx, part, o.DryRun)
		if err != nil {
			return r, err
		}
		for i, f := range part {
			switch {
			case !removed[i]:
				r.Kept++
				r.Size += f.Size
			case f.fail != nil:
				r.Damaged++
			default:
				r.Removed = append(r.Removed, f.Entry)
			}
		}
	}
	return r, nil
}

// remove removes the refs of entries, and reports for each entry whether it was removed. It keeps an entry that was
// changed since it was listed. If dryRun is set, it removes nothing and reports that all were removed.
func (s *Store) remove(ctx context.Context, entries []found, dryRun bool) ([]bool, error) {
	removed := slices.Repeat([]bool{true}, len(entries))
	if dryRun {
		return removed, nil
	}
	var updates []transport.RefUpdate
	for _, f := range entries {
		updates = append(updates, transport.RefUpdate{Name: f.ref.Name, Old: f.ref.ID})
	}
	results, err := s.Place.Update(ctx, updates, nil)
	if err != nil {
		return nil, err
	}
	for i, err := range results {
		var refused *transport.Rejected
		if errors.As(err, &refused) && refused.Kind == transport.RejectMoved {
			removed[i] = false
		} else if err != nil {
			return nil, err
		}
	}
	return removed, nil
}
