package upkeep

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// upkeepActor is the name of the upkeep in audit entries, and its operation in the usage.
const upkeepActor = "upkeep"

// errRemovesOnly is the error of a change that is not a removal. The upkeep makes no other ones.
var errRemovesOnly = errors.New("upkeep can only remove cache entries")

// expire removes the cache entries of a repository that have expired, damaged ones, and the oldest of those beyond
// Options.MaxEntries.
func (w *Worker) expire(ctx context.Context, id string) error {
	v, err := w.view(ctx, id)
	if err != nil {
		return err
	}
	defer v.release()
	if !slices.ContainsFunc(v.snap.Refs, isEntry) {
		return nil
	}
	s := &cacheentry.Store{Place: place{w, v}, Now: w.now}
	_, err = s.GC(ctx, cacheentry.GCOptions{MaxSize: w.o.MaxEntries})
	return err
}

// isEntry reports whether a ref is that of a cache entry.
func isEntry(r records.Ref) bool { return strings.HasPrefix(r.Name, session.EntryPrefix) }

// place is a repository of the server, for package cacheentry.
type place struct {
	w *Worker
	v *view
}

var _ cacheentry.Place = place{}

// Format implements cacheentry.Place.
func (p place) Format(context.Context) (object.Format, error) { return p.v.format, nil }

// Refs implements cacheentry.Place.
func (p place) Refs(_ context.Context, prefix string) (refs []transport.Ref, err error) {
	for _, r := range p.v.snap.Refs {
		if !strings.HasPrefix(r.Name, prefix) {
			continue
		}
		id, err := object.ParseIDOf(p.v.format, r.ID)
		if err != nil {
			return nil, err
		}
		refs = append(refs, transport.Ref{Name: r.Name, ID: id})
	}
	return refs, nil
}

// Read implements cacheentry.Place. The replica has the objects whatever the depth is.
func (p place) Read(_ context.Context, _ []object.ID, _ int, use func(*odb.Store) error) error {
	objects, err := odb.Open(filepath.Join(p.v.on.Dir, "objects"), p.v.format)
	if err != nil {
		return err
	}
	defer objects.Close()
	return use(objects)
}

// Update implements cacheentry.Place. The removals become visible by a transaction like that of a push, with an audit
// entry and an event for each ref.
func (p place) Update(ctx context.Context, updates []transport.RefUpdate, _ []odb.Outgoing) ([]error, error) {
	push := records.Push{RepoID: p.v.snap.Repo.ID, Version: p.v.snap.Repo.Version, Usage: upkeepActor,
		Cause: records.Cause{Actor: upkeepActor, Method: "upkeep",
			Target: p.v.snap.Repo.Namespace + "/" + p.v.snap.Repo.Name}}
	for _, u := range updates {
		if !u.New.IsZero() {
			return nil, errRemovesOnly
		}
		push.Updates = append(push.Updates, records.RefUpdate{Name: u.Name, Old: u.Old.String(),
			New: strings.Repeat("0", 2*p.v.format.Size())})
	}
	stamp := events.Stamp{Account: p.w.o.Account, Time: p.w.now()}
	push.Events = func(done []records.RefUpdate) []records.Event { return events.Pushed(stamp, p.v.snap.Repo, done, nil) }
	results, err := p.w.o.Records.Repos.Push(ctx, push)
	for i, failed := range results {
		if failed != nil { // the entry was changed in the meantime
			results[i] = &transport.Rejected{Ref: updates[i].Name, Kind: transport.RejectMoved, Text: failed.Error()}
		}
	}
	return results, err
}
