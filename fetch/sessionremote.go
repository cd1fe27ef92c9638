package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Objects that were created in a session on another host are not on the Store's remote. A Local for such a session has
// a session remote, from which these objects are fetched into the Local's packs. A tree of a session refers to blobs of
// both remotes, and does not show which of the two remotes has a blob. Therefore blobs that are not in the session's
// base tree (see Expect) are requested from the session remote first. All other blobs are requested from the Store's
// remote first. Those that the Store's remote lacks are requested from the session remote.

// SessionRemote is the interface to a session remote, a git repository that has the objects which were created in a
// session.
type SessionRemote interface {
	// Capabilities returns the protocol features of the remote. The first call may send a request.
	Capabilities(ctx context.Context) (transport.Capabilities, error)
	// Fetch sends one request. The caller must close the pack of the response.
	Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error)
}

// SetSessionRemote sets the session remote of the Local; nil removes it. The caller has to close the remote, because
// Local.Close does not close it.
func (l *Local) SetSessionRemote(second SessionRemote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessionRemote = second
}

// Expect records that the session remote probably has these blobs and that the Store's remote does not, so that they
// are requested from the session remote first.
func (l *Local) Expect(ids []object.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.expected == nil {
		l.expected = make(map[object.ID]bool, len(ids))
	}
	for _, id := range ids {
		l.expected[id] = true
	}
}

// unexpect reverses Expect for a blob that the session remote does not have.
func (l *Local) unexpect(id object.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.expected, id)
}

// expects reports whether Expect was called for a blob, which is therefore requested from the session remote first.
func (l *Local) expects(id object.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected[id]
}

// remote returns the session remote. It returns nil if no session remote is set or the Local is closed.
func (l *Local) remote() SessionRemote {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	return l.sessionRemote
}

// FetchRequest describes which objects of a session Local.Fetch is to fetch.
type FetchRequest struct {
	From  SessionRemote
	Wants []object.ID // commits, trees or blobs
	Haves []object.ID // commits that are on this host together with all objects reachable from them
	// If Contents is true, the blobs of all trees are fetched; otherwise the blobs in Wants are fetched, and no other
	// blobs.
	Contents bool
}

// Fetched is the result of Local.Fetch.
type Fetched struct {
	Objects int
	Bytes   int64
	Shallow []object.ID // commits whose parents the session remote does not have
}

// Fetch fetches objects from a session remote into the packs of the Local. A commit is fetched with its trees, and with
// those earlier commits that are not reachable from the haves.
func (l *Local) Fetch(ctx context.Context, r FetchRequest) (Fetched, error) {
	caps, err := r.From.Capabilities(ctx)
	if err != nil {
		return Fetched{}, err
	}
	packs, err := l.make(caps.Format)
	if err != nil {
		return Fetched{}, err
	}
	req := transport.FetchRequest{Wants: r.Wants, Haves: r.Haves}
	// Without the filter, the remote would send the contents of all files, although they may never be read.
	if caps.Filter && !r.Contents {
		req.Filter = "blob:none"
	}
	resp, err := r.From.Fetch(ctx, req)
	if err != nil {
		return Fetched{}, err
	}
	defer resp.Pack.Close()
	in, err := packs.Ingest(ctx, resp.Pack, l.store.storage.ingestOptions(l.dir, packs.Format()), nil)
	return Fetched{Objects: in.Objects, Bytes: in.Bytes, Shallow: resp.Shallow}, err
}

// make returns the packs of the Local, and creates their directory if it does not exist. f is the object format. It
// returns an error if the Local is closed or has another object format.
func (l *Local) make(f object.Format) (*odb.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, ErrClosed
	case l.own != nil && l.own.Packs.Format() != f:
		return nil, fmt.Errorf("open objects of session: object format is %s, the remote's is %s", l.own.Packs.Format(), f)
	case l.own != nil:
		return l.own.Packs, nil
	}
	packs, err := odb.Open(l.dir, f)
	if err != nil {
		return nil, fmt.Errorf("open objects of session: %w", err)
	}
	l.own = odb.OpenDir(l.dir, packs)
	return packs, nil
}

// splitByRemote divides ids into own, which are requested from the Store's remote, and theirs, which are requested from
// a session remote because one of the Locals in seconds expects them on its session remote.
func splitByRemote(ids []object.ID, seconds []*Local) (own, theirs []object.ID) {
	if len(seconds) == 0 {
		return ids, nil
	}
	for _, id := range ids {
		if slices.ContainsFunc(seconds, func(l *Local) bool { return l.expects(id) }) {
			theirs = append(theirs, id)
		} else {
			own = append(own, id)
		}
	}
	return own, theirs
}

// fetchFromSessions requests blobs from the session remotes of the Locals in seconds, one remote after the other, and
// calls arrived for each blob. It returns the number of blobs that have arrived. The error is a
// pipeline.SessionRemoteError, or the error of ctx.
func (f *fetcher) fetchFromSessions(ctx context.Context, seconds []*Local, ids []object.ID,
	arrived func(object.ID, []byte)) (n int, err error) {
	defer func() {
		// Because of the type SessionRemoteError, the pipeline does not treat the failure as a failure of the Store's remote,
		// which would delay the requests of mounts without a session.
		if err != nil && ctx.Err() == nil {
			err = pipeline.SessionRemoteError{Err: err}
		}
	}()
	for _, l := range seconds {
		var lacks []object.ID
		for len(ids) > 0 {
			start := time.Now()
			got, bringErr := l.fetchBlobs(ctx, ids, arrived)
			n += got
			f.log.Debug("fetch blobs of session", zap.Int("wants", len(ids)), zap.Int("got", got),
				zap.Duration("took", time.Since(start)), zap.Error(bringErr))
			var refused transport.NotOurRef
			// A remote rejects the whole request if it lacks one object. That object is requested from the session remote of the
			// next Local, and the other objects are requested from this session remote again.
			if errors.As(bringErr, &refused) && slices.Contains(ids, refused.ID) {
				ids = slices.DeleteFunc(slices.Clone(ids), func(id object.ID) bool { return id == refused.ID })
				lacks = append(lacks, refused.ID)
				l.unexpect(refused.ID)
				continue
			}
			if bringErr != nil {
				err = bringErr
				lacks = append(lacks, ids...)
			}
			break
		}
		if ids = lacks; len(ids) == 0 {
			return n, nil
		}
	}
	if err == nil {
		err = transport.NotOurRef{ID: ids[0]}
	}
	return n, err
}

// fetchBlobs fetches blobs from the session remote into the Local's packs, and calls the function arrived for each
// blob. It returns the number of blobs that have arrived.
func (l *Local) fetchBlobs(ctx context.Context, ids []object.ID, arrived func(object.ID, []byte)) (n int, err error) {
	s, second := l.store, l.remote()
	if second == nil {
		return 0, ErrClosed
	}
	packs, err := l.make(s.storage.objects.Format())
	if err != nil {
		return 0, err
	}
	resp, err := second.Fetch(ctx, transport.FetchRequest{Wants: ids})
	if err != nil {
		return 0, err
	}
	defer resp.Pack.Close()
	var came []object.ID
	_, err = packs.Ingest(ctx, resp.Pack, s.storage.ingestOptions(l.dir, packs.Format()),
		func(id object.ID, t object.Type, content []byte) {
			if t != object.Blob {
				return
			}
			came = append(came, id)
			s.fetcher.count(id, content)
		})
	if err != nil {
		return 0, err
	}
	// Readers read contents at any offset, which a pack does not support. Therefore each blob is copied to the cache
	// before the readers that wait for the blob are woken.
	for _, id := range came {
		if ok, err := s.storage.materialize(id); !ok || err != nil {
			return n, errors.Join(err, fmt.Errorf("keep blob %s: %w", id, ErrNotFound))
		}
		arrived(id, nil)
		n++
	}
	return n, nil
}

// The methods below correspond to those of Store. They are used for a git directory that reads the objects of the Store
// and of the Local.

// Format returns the object format of the Store, which is also that of the Local.
func (l *Local) Format() object.Format { return l.store.Format() }

// Refresh makes packs visible that other processes have added to the Store or to the Local.
func (l *Local) Refresh() error {
	own, ok := l.open()
	if !ok {
		return l.store.Refresh()
	}
	return errors.Join(l.store.Refresh(), own.Packs.Refresh())
}

// Size returns an object's type and its size in bytes. It supports objects of the Store and of the Local, and missing
// blobs whose size is known.
func (l *Local) Size(id object.ID) (object.Type, int64, error) {
	if own, ok := l.open(); ok {
		if t, n, err := own.Size(id); err == nil {
			return t, n, nil
		}
	}
	// git often asks for the size alone, for instance to detect renames. The table of sizes contains many blobs whose
	// contents are missing, so the answer needs no request.
	if n, ok := l.store.storage.sizes.Get(id); ok {
		return object.Blob, n, nil
	}
	return l.store.storage.objects.Size(id)
}

// Missing returns the elements of ids that are neither in the Store's packs nor in the Local.
func (l *Local) Missing(ids []object.ID) []object.ID {
	missing := l.store.Missing(ids)
	own, ok := l.open()
	if !ok {
		return missing
	}
	return slices.DeleteFunc(missing, own.Has)
}

// Provide does the same as Store.Provide, and also fetches objects that exist on the session remote and not on the
// Store's remote.
func (l *Local) Provide(ctx context.Context, wanted, along []object.ID) error {
	wanted, along = l.Missing(wanted), l.Missing(along)
	if l.remote() == nil {
		return l.provideRest(ctx, wanted, along)
	}
	own, theirs := splitByRemote(wanted, []*Local{l})
	ownAlong, theirsAlong := splitByRemote(along, []*Local{l})
	if err := l.provideFromSession(ctx, append(theirs, theirsAlong...)); err != nil && len(theirs) > 0 {
		if ctx.Err() != nil {
			return err
		}
		// request those objects from the Store's remote, too: the session remote may lack an object although the Local
		// expects it there
		own = append(slices.Clone(own), l.Missing(theirs)...)
	}
	err := l.provideRest(ctx, own, ownAlong)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// The Store's remote lacks these objects. The session remote may have them, although Expect was not called for them.
	lacking := l.Missing(own)
	if len(lacking) == 0 {
		return nil
	}
	if secondErr := l.provideFromSession(ctx, lacking); secondErr != nil {
		var refused transport.NotOurRef
		if errors.As(secondErr, &refused) {
			return err
		}
		return secondErr
	}
	return nil
}

// FromCache does the same as Store.FromCache, for objects that are not in the Local.
func (l *Local) FromCache(ctx context.Context, ids []object.ID) error {
	return l.store.FromCache(ctx, l.Missing(ids))
}

// provideRest provides objects of the Store's remote. It sends no request if wanted and along are empty.
func (l *Local) provideRest(ctx context.Context, wanted, along []object.ID) error {
	if len(wanted)+len(along) == 0 {
		return nil
	}
	return l.store.Provide(ctx, wanted, along)
}

// provideFromSession fetches objects from the session remote into the Local's packs. If the session remote lacks one of
// these objects, provideFromSession fetches the others and then returns an error.
func (l *Local) provideFromSession(ctx context.Context, ids []object.ID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := l.store.fetcher.fetchFromSessions(ctx, []*Local{l}, ids, l.store.fetcher.pipe.Arrived)
	return err
}

// Keep writes objects that were created in the session into a pack of the Local.
func (l *Local) Keep(ctx context.Context, objects []odb.Outgoing) error {
	if len(objects) == 0 {
		return nil
	}
	return l.KeepAs(ctx, l.store.Format(), objects)
}

// KeepAs does the same as Keep, for a Store that does not know its object format yet. f is the format of the objects.
func (l *Local) KeepAs(ctx context.Context, f object.Format, objects []odb.Outgoing) error {
	packs, err := l.make(f)
	if err != nil {
		return err
	}
	// The caller may list an object twice, but a pack must contain it once.
	seen := make(map[object.ID]bool, len(objects))
	objects = slices.DeleteFunc(slices.Clone(objects), func(o odb.Outgoing) bool {
		again := seen[o.ID]
		seen[o.ID] = true
		return again
	})
	_, err = packs.Write(ctx, objects, odb.WriteOptions{})
	return err
}
