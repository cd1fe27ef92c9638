package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
)

const (
	// provideBatch is the maximum number of objects in one request that Provide sends on behalf of git. provideRequests is
	// the maximum number of such requests in flight: several requests are faster than one, because a remote needs a long
	// time to assemble a large pack, and can assemble several packs at the same time on different processors.
	provideBatch    = 6000
	provideRequests = 3
	// provideTries is the maximum number of rounds in which Provide requests objects. A further round is necessary after a
	// truncated answer, or after a request that failed as a whole because the remote lacked one of the objects.
	provideTries = 3
	// If the number of wanted objects is at most fewUnknown, Provide assumes that some of them may be commits. In this
	// case it first requests the objects with depth 1, so that a commit arrives without its history.
	fewUnknown = 16
)

// Provide returns when the objects are in the store's packs, where git reads them. It writes objects that are in the
// cache of contents into a pack, waits for the objects that are in flight, and requests the others from the remote.
// wanted may contain objects of any type: a commit is fetched with its trees and its history. The parameter along lists
// additional blobs to request; Provide returns no error if some of these are still missing afterwards. If ctx ends,
// requests in flight continue.
func (s *Store) Provide(ctx context.Context, wanted, along []object.ID) error {
	p := &provision{s: s, refused: map[object.ID]bool{}, wanted: wanted, along: along}
	p.unknown = len(wanted) <= fewUnknown && slices.ContainsFunc(wanted,
		func(id object.ID) bool { return !slices.Contains(along, id) })
	done := make(chan error, 1)
	if !s.tasks.Start(func(ctx context.Context) { done <- p.run(ctx) }) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// FromCache writes those objects among ids that are in the cache of contents, and not in the store's packs, into a
// pack. It sends no request.
func (s *Store) FromCache(ctx context.Context, ids []object.ID) error {
	s.caching.Lock()
	defer s.caching.Unlock()
	return (&provision{s: s}).fromCache(ctx, s.Missing(ids))
}

// provision is the state of one call of Provide.
type provision struct {
	s             *Store
	wanted, along []object.ID
	unknown       bool // true if wanted may contain objects other than blobs

	// mu protects the fields below, because the batches of one provision are requested concurrently.
	mu sync.Mutex
	// refused contains the objects that the remote lacks. This provision does not request them again.
	refused map[object.ID]bool
	commits []object.ID // wanted commits that were fetched without their history
	err     error       // last error of the current round; nil if no request has failed
}

// run provides the objects in rounds. Each round writes the objects that are in the cache into a pack and requests the
// others. run returns ErrNotFound, or the last error, if a wanted object is still missing after the last round.
func (p *provision) run(ctx context.Context) error {
	s := p.s
	s.fetcher.pipe.NoteReader()
	if err := s.Refresh(); err != nil {
		return err
	}
	s.repo.AwaitRoom(ctx, func() bool { return s.storage.joining.Load() > 0 })
	defer s.fetcher.pipe.BeginForeground()() // while run runs, the pipeline delays prefetches
	for range provideTries {
		if err := p.fromCache(ctx, p.missing()); err != nil {
			return err
		}
		missing := p.missing()
		if len(missing) == 0 {
			break
		}
		joined := p.fetch(ctx, missing)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.failure(); !joined && (err == nil || pipeline.IsFinal(err)) {
			// The remote has answered every request of this round completely, so it does not have the objects that are
			// still missing.
			break
		}
	}
	// During the last round, some of the objects may have arrived through requests of readers, which store contents in the
	// cache, not in a pack.
	if err := p.fromCache(ctx, p.missing()); err != nil {
		return err
	}
	if err := p.fetchHistory(ctx); err != nil {
		return err
	}
	if lacking := s.Missing(p.wanted); len(lacking) > 0 {
		err := p.failure()
		if err == nil {
			err = ErrNotFound
		}
		return fmt.Errorf("fetch %d of %d objects from %s: %w", len(lacking), len(p.wanted), s.URL(), err)
	}
	// Objects of the list along may still be missing. These objects are predictions, and git requests them again if it
	// needs them.
	return nil
}

// missing returns the objects in p.wanted, followed by those in p.along, that are not in the store's packs yet. It
// leaves out objects that the remote has refused.
func (p *provision) missing() []object.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := make(map[object.ID]bool, len(p.wanted)+len(p.along))
	var ids []object.ID
	for _, list := range [][]object.ID{p.wanted, p.along} {
		for _, id := range list {
			if !seen[id] && !p.refused[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	return p.s.Missing(ids)
}

// fromCache writes the blobs in ids whose contents are in the cache into a pack of the store. The cache contains blobs
// that were fetched for reads through a mount.
func (p *provision) fromCache(ctx context.Context, ids []object.ID) error {
	var out []odb.Outgoing
	for _, id := range ids {
		if n, ok := p.s.storage.cachedSize(id); ok {
			open := func() (io.ReadCloser, error) { return p.s.storage.openCached(id) }
			out = append(out, odb.Outgoing{ID: id, Type: object.Blob, Size: n, Open: open})
		}
	}
	if len(out) == 0 {
		return nil
	}
	// The option Promisor marks the pack as fetched from the remote, so git accepts that objects to which the pack refers
	// are missing.
	_, err := p.s.storage.objects.Write(ctx, out, odb.WriteOptions{Promisor: true})
	if errors.Is(err, errEvicted) || errors.Is(err, odb.ErrCorrupt) {
		// the error is ignored: the objects are still missing in the packs, so the next step requests them from the
		// remote
		return nil
	}
	return err
}

// fetch requests the objects in ids that are not in flight, and waits until all objects in ids have arrived or failed.
// It returns true if some of the objects were in flight already because of another caller.
func (p *provision) fetch(ctx context.Context, ids []object.ID) (joined bool) {
	// An error of an earlier round does not describe the objects that are still missing, so it is reset.
	p.mu.Lock()
	p.err = nil
	p.mu.Unlock()
	mine, others := p.s.fetcher.pipe.Claim(ids, provideBatch)
	var wg sync.WaitGroup
	lanes := make(chan struct{}, provideRequests)
	for _, b := range mine {
		wg.Go(func() {
			lanes <- struct{}{}
			defer func() { <-lanes }()
			err := p.withRetry(ctx, func() error { return p.send(ctx, b) })
			p.s.fetcher.pipe.Complete(b, err, p.unknown)
			p.recordError(err)
		})
	}
	p.join(ctx, others)
	wg.Wait()
	return len(others) > 0
}

// failure returns the last error of the current round, or nil if every request succeeded.
func (p *provision) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// recordError records err as the reason why objects were not fetched. If err contains the id of an object that the
// remote lacks, the object is not requested again. If err is nil, recordError does nothing.
func (p *provision) recordError(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var refused transport.NotOurRef
	// The remote rejects a request as a whole if it lacks one of the objects. The next round leaves out this object.
	if errors.As(err, &refused) {
		p.refused[refused.ID] = true
		// A rejected request shows one object that the remote lacks, so finding all such objects could take many requests.
		// Therefore the predicted blobs (the list along) are not requested again.
		if len(p.refused) > 1 {
			for _, id := range p.along {
				p.refused[id] = true
			}
			for _, id := range p.wanted {
				delete(p.refused, id)
			}
			p.refused[refused.ID] = true
		}
	}
	p.err = err
}

// join waits for objects that requests of other callers fetch. Those requests store the objects in the cache, and the
// next round of run writes them into a pack. Objects that do not arrive within pipeline.HedgeCrawl are requested again
// in the next round.
func (p *provision) join(ctx context.Context, others []*pipeline.Pending) {
	patience := time.NewTimer(pipeline.HedgeCrawl)
	defer patience.Stop()
	for i, f := range others {
		select {
		case <-f.Done():
			p.recordError(f.Err())
			continue
		case <-ctx.Done():
		case <-patience.C:
			// After Release, the next round can request these objects although another request for them is still in flight.
			p.s.fetcher.pipe.Release(others[i:])
		}
		return
	}
}

// withRetry runs the function request on behalf of git. If git wants at least one of the objects, withRetry repeats
// request while the remote is unreachable, as for a reader. If git wants none of the objects, because all of them are
// predictions, withRetry runs request once. In this case it returns an error at once if the remote is unreachable.
func (p *provision) withRetry(ctx context.Context, request func() error) error {
	if len(p.wanted) > 0 {
		return p.s.fetcher.pipe.Health().Retry(ctx, nil, request)
	}
	if !p.s.Reachable() {
		return p.s.fetcher.requestFailure()
	}
	return request()
}

// send requests the objects of batch b and stores the answer as a pack of the store.
func (p *provision) send(ctx context.Context, b *pipeline.Batch) error {
	s, start := p.s, time.Now()
	caps, err := s.fetcher.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	ids := make([]object.ID, len(b.Wants))
	for i, w := range b.Wants {
		ids[i] = w.ID
	}
	req := transport.FetchRequest{Wants: ids}
	// remotes do not apply the filter to the wanted blobs, but to blobs that belong to a wanted commit or tree
	if caps.Filter {
		req.Filter = "blob:none"
	}
	if caps.Shallow && p.unknown {
		req.Depth = 1
	}
	resp, err := s.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	var blobs []object.ID
	err = s.fetcher.ingest(ctx, resp.Pack, func(id object.ID, t object.Type, content []byte) {
		switch t {
		case object.Blob:
			blobs = append(blobs, id)
			s.fetcher.count(id, content)
		case object.Commit:
			p.mu.Lock()
			p.commits = append(p.commits, id)
			p.mu.Unlock()
		}
	})
	// Readers that wait for blobs of this pack are woken now and not earlier, because the pack cannot be read before it
	// was stored as a whole.
	if err == nil {
		for _, id := range blobs {
			s.fetcher.pipe.Arrived(id, nil)
		}
	}
	s.log.Debug("fetch for git", zap.Int("wants", len(ids)), zap.Int("blobs", len(blobs)),
		zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// fetchHistory fetches the history of the commits in p.commits, which were fetched without their history. git expects
// that the parents of a commit exist.
func (p *provision) fetchHistory(ctx context.Context) error {
	if len(p.commits) == 0 {
		return nil
	}
	s := p.s
	caps, err := s.fetcher.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	// The request has no depth, so the remote sends all commits that are not reachable from the haves.
	req := transport.FetchRequest{Wants: p.commits, Haves: s.repo.CompleteTips()}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := s.fetcher.request(ctx, req)
	if err != nil {
		return fmt.Errorf("fetch history of %s: %w", p.commits[0], err)
	}
	defer resp.Pack.Close()
	if err = s.fetcher.ingest(ctx, resp.Pack, nil); err != nil {
		return fmt.Errorf("fetch history of %s: %w", p.commits[0], err)
	}
	return nil
}
