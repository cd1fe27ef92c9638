package fetch

import (
	"context"
	"errors"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/namedset"
)

// ingestOptions returns the options with which every pack from a remote is stored in the objects directory dir, whose
// object format is f.
func (s *storage) ingestOptions(dir string, f object.Format) odb.IngestOptions {
	return odb.IngestOptions{Promisor: true, MaxObjectSize: maxBlobSize, Names: s.named.In(dir, f).Add}
}

// missing returns the elements of ids that are not in the store's packs.
func (s *storage) missing(ids []object.ID) []object.ID {
	var missing []object.ID
	for _, id := range ids {
		if !s.objects.Has(id) {
			missing = append(missing, id)
		}
	}
	return missing
}

// refresh makes packs visible that other processes, such as git, have added to the store.
func (s *storage) refresh() error { return s.objects.Refresh() }

// addFetched makes the packs visible that stock git has fetched into the store, and adds the blobs that their trees
// name to the set.
func (s *storage) addFetched(ctx context.Context) error {
	return errors.Join(s.refresh(), namedset.Union{s.named.In(s.repo.Objects(), s.objects.Format())}.Sync(ctx))
}

// find returns a source on this host that contains the object with the given id, the object's type, and its size in
// bytes. If a Local contains the object but cannot read it, find searches the next source, which may also contain the
// object.
func (s *storage) find(id object.ID) (from odb.Source, t object.Type, size int64, err error) {
	if t, size, err = s.objects.Size(id); !errors.Is(err, odb.ErrNotFound) {
		return s.objects, t, size, err
	}
	for _, from := range s.localSources() {
		if t, size, err := from.Size(id); err == nil {
			return from, t, size, nil
		}
	}
	return nil, 0, 0, err
}

// get returns an object's contents from any source on this host, as odb.Store.Get does. limit is the maximum size in
// bytes.
func (s *storage) get(id object.ID, limit int64) (object.Type, []byte, error) {
	s.mu.Lock()
	all := s.locals
	s.mu.Unlock()
	return s.getFrom(all, id, limit)
}

// getFrom returns an object's contents, as get does, from the store or one of the directories.
func (s *storage) getFrom(locals []*Local, id object.ID, limit int64) (object.Type, []byte, error) {
	t, content, err := s.objects.Get(id, limit)
	if !errors.Is(err, odb.ErrNotFound) {
		return t, content, err
	}
	for _, from := range sourcesOf(locals) {
		if t, content, err := from.Get(id, limit); err == nil {
			return t, content, nil
		}
	}
	return 0, nil, err
}

// localSources returns the object directories of all open Locals as sources of objects.
func (s *storage) localSources() []odb.Source {
	s.mu.Lock()
	lent := s.locals
	s.mu.Unlock()
	return sourcesOf(lent)
}

// sourcesOf returns the object directories of the Locals that are open.
func sourcesOf(locals []*Local) (all []odb.Source) {
	for _, l := range locals {
		if own, ok := l.open(); ok {
			all = append(all, own)
		}
	}
	return all
}

// localSize returns the size, in bytes, of a blob in the object directory of a mount (type Local). It returns false if
// no Local has the blob.
func (s *storage) localSize(id object.ID) (int64, bool) {
	for _, from := range s.localSources() {
		if t, n, err := from.Size(id); err == nil && t == object.Blob {
			return n, true
		}
	}
	return 0, false
}

// join joins packs of the store. While it runs, bare.Repo.AwaitRoom waits for a short time if there are too many packs.
func (s *storage) join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	s.mu.Lock()
	own := s.objects
	s.mu.Unlock()
	if own == nil {
		return odb.JoinResult{}, nil
	}
	s.joining.Add(1)
	defer s.joining.Add(-1)
	return own.Join(ctx, o)
}

// sessionLocals returns the open Locals that have a session remote.
func (s *storage) sessionLocals() []*Local {
	s.mu.Lock()
	lent := s.locals
	s.mu.Unlock()
	var with []*Local
	for _, l := range lent {
		if l.remote() != nil {
			with = append(with, l)
		}
	}
	return with
}

// onSessionRemote reports whether a blob is probably on a session remote and not on the Store's remote.
func (s *storage) onSessionRemote(id object.ID) bool {
	return slices.ContainsFunc(s.sessionLocals(), func(l *Local) bool { return l.expects(id) })
}
