package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

// What was made in a session, and not on this host, the Store's remote does not have. A Local that stands for a session's
// repository knows another remote, the second, which has it; what comes from there stays in the Local's packs. A tree of a
// session names blobs of both remotes, and does not say which are whose: those that differ from the tree that the session
// began with are looked for at the second first (Expect), all others when the Store's remote has refused them.

// SessionRemote is a remote that has the objects of a session.
type SessionRemote interface {
	Capabilities(ctx context.Context) (transport.Capabilities, error)
	Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error)
}

// From has the Store ask another remote too, for what its own does not have; nil: no longer. The Local does not close it.
func (l *Local) From(second SessionRemote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.second = second
}

// Expect tells which blobs the second remote is likely to have, and the Store's not.
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

func (l *Local) unexpect(id object.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.expected, id)
}

func (l *Local) expects(id object.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected[id]
}

func (l *Local) asks() SessionRemote {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	return l.second
}

// BringRequest asks for objects of a session.
type BringRequest struct {
	From  SessionRemote
	Wants []object.ID // commits, trees or blobs
	Haves []object.ID // commits that are here with all that they reach
	// Contents says that blobs come too; without, only those that are wanted by their ids.
	Contents bool
}

// Brought is what came.
type Brought struct {
	Objects int
	Bytes   int64
	Shallow []object.ID // commits whose parents did not come, since who gave them lacks them
}

// Bring fetches objects into the packs of the Local, commits with their trees.
func (l *Local) Bring(ctx context.Context, r BringRequest) (Brought, error) {
	caps, err := r.From.Capabilities(ctx)
	if err != nil {
		return Brought{}, err
	}
	packs, err := l.make(caps.Format)
	if err != nil {
		return Brought{}, err
	}
	req := transport.FetchRequest{Wants: r.Wants, Haves: r.Haves}
	if caps.Filter && !r.Contents {
		req.Filter = "blob:none"
	}
	resp, err := r.From.Fetch(ctx, req)
	if err != nil {
		return Brought{}, err
	}
	defer resp.Pack.Close()
	in, err := packs.Ingest(ctx, resp.Pack, l.store.ingestOptions(), nil)
	return Brought{Objects: in.Objects, Bytes: in.Bytes, Shallow: resp.Shallow}, err
}

// make is open, and makes the directory of packs if there is none.
func (l *Local) make(f object.Format) (*odb.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, ErrClosed
	case l.packs != nil && l.packs.Format() != f:
		return nil, fmt.Errorf("open objects of session: they are %s, and the remote's are %s", l.packs.Format(), f)
	case l.packs != nil:
		return l.packs, nil
	}
	p, err := odb.Open(l.dir, f)
	if err != nil {
		return nil, fmt.Errorf("open objects of session: %w", err)
	}
	l.packs, l.loose = p, odb.NewLoose(l.dir, f)
	return l.packs, nil
}

// seconds lists who has another remote.
func (s *Store) seconds() []*Local {
	s.mu.Lock()
	lent := s.lent
	s.mu.Unlock()
	var with []*Local
	for _, l := range lent {
		if l.asks() != nil {
			with = append(with, l)
		}
	}
	return with
}

// askFirst parts the ids that the Store's remote is asked for from those that a second remote is.
func askFirst(ids []object.ID, seconds []*Local) (own, theirs []object.ID) {
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

// elsewhere says whether a second remote is likely to have a blob, and the Store's not.
func (s *Store) elsewhere(id object.ID) bool {
	return slices.ContainsFunc(s.seconds(), func(l *Local) bool { return l.expects(id) })
}

// fetchBlobs asks for blobs wherever they may be, and has each published as it arrives.
func (s *Store) fetchBlobs(ctx context.Context, b *batch, wants []object.ID, arrived func(object.ID, []byte)) (n int, err error) {
	seconds := s.seconds()
	own, theirs := askFirst(wants, seconds)
	var secondErr error
	came := map[object.ID]bool{} // of theirs, from either remote
	if len(theirs) > 0 {
		n, secondErr = s.askSeconds(ctx, seconds, theirs, func(id object.ID, content []byte) {
			came[id] = true
			arrived(id, content)
		})
		if secondErr != nil && ctx.Err() == nil { // a file that was moved is expected there and is the mounted remote's
			own = append(slices.Clone(own), slices.DeleteFunc(theirs, func(id object.ID) bool { return came[id] })...)
		}
	}
	var refusedBoth []object.ID // of theirs
	for len(own) > 0 {
		var resp *transport.FetchResponse
		resp, err = s.request(ctx, transport.FetchRequest{Wants: own, Once: true})
		if err == nil {
			var got int
			got, err = s.unpackBlobs(ctx, s.pausing(ctx, b, resp.Pack), func(id object.ID, content []byte) {
				came[id] = true
				arrived(id, content)
			})
			n += got
			resp.Pack.Close()
			if err != nil {
				err = cutAnswer{err}
			}
		}
		var refused transport.NotOurRef
		if !errors.As(err, &refused) || len(seconds) == 0 {
			break
		}
		own = slices.DeleteFunc(own, func(id object.ID) bool { return id == refused.ID })
		if secondErr != nil && slices.Contains(theirs, refused.ID) {
			refusedBoth, err = append(refusedBoth, refused.ID), nil
			continue
		}
		var got int
		got, err = s.askSeconds(ctx, seconds, []object.ID{refused.ID}, arrived)
		n += got
		if err != nil {
			break
		}
	}
	switch {
	case err == nil && len(refusedBoth) > 0 && slices.ContainsFunc(theirs, func(id object.ID) bool { return came[id] }):
		// A session's repository that is a partial clone dies when it is asked for what it lacks, and gives nothing of the
		// rest. It was not unreachable, then: without what the other remote had, it is asked for something else.
		var got int
		got, err = s.askSeconds(ctx, seconds, refusedBoth, arrived)
		n += got
	case err == nil && (len(refusedBoth) > 0 || ctx.Err() != nil):
		err = secondErr
	}
	return n, err
}

// askSeconds asks the second remotes one after the other.
func (s *Store) askSeconds(ctx context.Context, seconds []*Local, ids []object.ID, arrived func(object.ID, []byte)) (n int, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = secondError{err}
		}
	}()
	for _, l := range seconds {
		var lacks []object.ID
		for len(ids) > 0 {
			start := time.Now()
			got, bringErr := l.bringBlobs(ctx, ids, arrived)
			n += got
			s.log.Debug("fetch blobs of session", zap.Int("wants", len(ids)), zap.Int("got", got), zap.Duration("took", time.Since(start)), zap.Error(bringErr))
			var refused transport.NotOurRef
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

// bringBlobs fetches blobs from the second remote into the Local's packs.
func (l *Local) bringBlobs(ctx context.Context, ids []object.ID, arrived func(object.ID, []byte)) (n int, err error) {
	s, second := l.store, l.asks()
	if second == nil {
		return 0, ErrClosed
	}
	packs, err := l.make(s.objects.Format())
	if err != nil {
		return 0, err
	}
	resp, err := second.Fetch(ctx, transport.FetchRequest{Wants: ids})
	if err != nil {
		return 0, err
	}
	defer resp.Pack.Close()
	var came []object.ID
	_, err = packs.Ingest(ctx, resp.Pack, s.ingestOptions(), func(id object.ID, t object.Type, content []byte) {
		if t != object.Blob {
			return
		}
		came = append(came, id)
		if content != nil {
			s.sizes.Put(id, int64(len(content)))
			s.bytesIn.Add(int64(len(content)))
		}
		s.blobsIn.Add(1)
	})
	if err != nil {
		return 0, err
	}
	for _, id := range came {
		if ok, err := s.materialize(id); !ok || err != nil {
			return n, errors.Join(err, fmt.Errorf("keep blob %s: %w", id, ErrNotFound))
		}
		arrived(id, nil)
		n++
	}
	return n, nil
}

// Format, Refresh, Missing and Provide are the Store's, for a git directory that borrows from the Local too.

func (l *Local) Format() object.Format { return l.store.Format() }

// Refresh takes up what others have put into the Store or the Local.
func (l *Local) Refresh() error {
	packs, _, ok := l.open()
	if !ok {
		return l.store.Refresh()
	}
	return errors.Join(l.store.Refresh(), packs.Refresh())
}

// Size tells an object's type and size in bytes, if the Store or the Local has it.
func (l *Local) Size(id object.ID) (object.Type, int64, error) {
	packs, loose, ok := l.open()
	if ok {
		if t, n, err := packs.Size(id); err == nil {
			return t, n, nil
		}
		if t, n, err := loose.Size(id); err == nil {
			return t, n, nil
		}
	}
	if n, ok := l.store.sizes.Get(id); ok {
		return object.Blob, n, nil
	}
	return l.store.objects.Size(id)
}

// Missing gives those of ids that neither the Store nor the Local has.
func (l *Local) Missing(ids []object.ID) []object.ID {
	missing := l.store.Missing(ids)
	packs, loose, ok := l.open()
	if !ok {
		return missing
	}
	var lacks []object.ID
	for _, id := range missing {
		if packs.Has(id) {
			continue
		}
		if _, _, err := loose.Size(id); err != nil {
			lacks = append(lacks, id)
		}
	}
	return lacks
}

// Provide is the Store's, and brings what only the second remote has.
func (l *Local) Provide(ctx context.Context, wanted, along []object.ID) error {
	wanted, along = l.Missing(wanted), l.Missing(along)
	if l.asks() == nil {
		return l.provideRest(ctx, wanted, along)
	}
	own, theirs := askFirst(wanted, []*Local{l})
	ownAlong, theirsAlong := askFirst(along, []*Local{l})
	if err := l.provideSecond(ctx, append(theirs, theirsAlong...)); err != nil && len(theirs) > 0 {
		if ctx.Err() != nil {
			return err
		}
		own = append(slices.Clone(own), l.Missing(theirs)...) // as in fetchBlobs
	}
	err := l.provideRest(ctx, own, ownAlong)
	if err == nil || ctx.Err() != nil {
		return err
	}
	lacking := l.Missing(own)
	if len(lacking) == 0 {
		return nil
	}
	if secondErr := l.provideSecond(ctx, lacking); secondErr != nil {
		var refused transport.NotOurRef
		if errors.As(secondErr, &refused) {
			return err
		}
		return secondErr
	}
	return nil
}

func (l *Local) provideRest(ctx context.Context, wanted, along []object.ID) error {
	if len(wanted)+len(along) == 0 {
		return nil
	}
	return l.store.Provide(ctx, wanted, along)
}

// provideSecond has objects in the Local's packs; those that the second remote does not have fail it at the end.
func (l *Local) provideSecond(ctx context.Context, ids []object.ID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := l.store.askSeconds(ctx, []*Local{l}, ids, l.store.blobPipe.arrived)
	return err
}

// Keep writes objects into a pack of the Local, as made there.
func (l *Local) Keep(ctx context.Context, objects []odb.Outgoing) error {
	if len(objects) == 0 {
		return nil
	}
	return l.KeepAs(ctx, l.store.Format(), objects)
}

// KeepAs is Keep before the Store knows the format of its objects.
func (l *Local) KeepAs(ctx context.Context, f object.Format, objects []odb.Outgoing) error {
	packs, err := l.make(f)
	if err != nil {
		return err
	}
	seen := make(map[object.ID]bool, len(objects))
	objects = slices.DeleteFunc(slices.Clone(objects), func(o odb.Outgoing) bool {
		again := seen[o.ID]
		seen[o.ID] = true
		return again
	})
	_, err = packs.Write(ctx, objects, odb.WriteOptions{})
	return err
}
