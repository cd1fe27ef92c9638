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
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// provideBatch bounds the objects of one request for git, and provideRequests the requests in
	// flight: a remote needs long to collect a large pack, and uses several processors.
	provideBatch    = 6000
	provideRequests = 3
	// provideTries bounds how often objects are requested after a truncated answer, or after one
	// unknown id failed the request.
	provideTries = 3
	// fewUnknown is the number of wanted objects up to which some of them may be commits. Commits are first fetched without their
	// history and files.
	fewUnknown = 16
)

// Provide returns when the objects are in the store's packs, where git reads them. It writes the cached objects into a pack,
// waits for the objects that are in flight, and requests the rest. wanted are objects of any type: a commit is fetched with
// its trees and its history. along lists blobs that are requested as well; it is no error if they are still missing
// afterwards. If ctx ends, requests in flight continue.
func (s *Store) Provide(ctx context.Context, wanted, along []object.ID) error {
	p := &provision{s: s, refused: map[object.ID]bool{}, wanted: wanted, along: along}
	p.unknown = len(wanted) <= fewUnknown && slices.ContainsFunc(wanted, func(id object.ID) bool { return !slices.Contains(along, id) })
	done := make(chan error, 1)
	if !s.tasks.start(func(ctx context.Context) { done <- p.run(ctx) }) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// provision is one call of Provide.
type provision struct {
	s             *Store
	wanted, along []object.ID
	unknown       bool // some of wanted may not be blobs

	// mu guards the fields below: the batches of one provision are requested concurrently.
	mu sync.Mutex
	// refused holds objects that the remote refused as unknown; they are not requested again by
	// this provision.
	refused map[object.ID]bool
	commits []object.ID // wanted, and fetched without their history
	err     error       // the last one
}

// run provides the objects in rounds: each writes the cached ones into a pack and requests the
// rest. It returns ErrNotFound, or the last error, if a wanted object is still missing after the
// last round.
func (p *provision) run(ctx context.Context) error {
	s := p.s
	s.fetcher.pipe.NoteReader()
	if err := s.Refresh(); err != nil {
		return err
	}
	s.storage.awaitRoom(ctx)
	defer s.fetcher.pipe.BeginForeground()() // the pipeline delays prefetches until run returns
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
			break // the answer was complete: the remote does not have the rest
		}
	}
	// The last round may have joined requests of readers, whose contents are in the cache and not
	// yet in a pack.
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
	// Objects of along may still be missing: they are predictions, and git requests them again if it
	// needs them.
	return nil
}

// missing returns the objects that are still missing, the wanted ones first.
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

// fromCache writes a pack of the contents that were read through a mount before.
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
	// Promisor marks the pack as fetched from the remote, so that git does not expect everything
	// that its objects refer to.
	_, err := p.s.storage.objects.Write(ctx, out, odb.WriteOptions{Promisor: true})
	if errors.Is(err, errEvicted) || errors.Is(err, odb.ErrCorrupt) {
		return nil // the remote is asked for them
	}
	return err
}

// fetch requests the objects that are not in flight, and waits for all objects. It returns true if some of them were in flight
// already.
func (p *provision) fetch(ctx context.Context, ids []object.ID) (joined bool) {
	// The error of an earlier round says nothing about the objects that are still missing.
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

// recordError records why objects were not fetched.
func (p *provision) recordError(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var refused transport.NotOurRef
	// The remote fails a request as a whole if it does not know one of the ids. Without that id the
	// next round succeeds.
	if errors.As(err, &refused) {
		p.refused[refused.ID] = true
		if len(p.refused) > 1 { // each request finds only one unknown id, so the blobs that are only predicted are given up
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

// join waits for objects that other requests fetch. Such objects are stored in the cache, and the next round writes them to a
// pack. Objects that do not arrive in time are requested again.
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
			// The next round can claim these objects although the request for them is still in flight.
			p.s.fetcher.pipe.Release(others[i:])
		}
		return
	}
}

// withRetry runs a request for git. If objects are wanted, and not only predicted, it waits for the
// remote as a reader does.
func (p *provision) withRetry(ctx context.Context, request func() error) error {
	if len(p.wanted) > 0 {
		return p.s.fetcher.pipe.Health().Retry(ctx, nil, request)
	}
	if !p.s.Reachable() {
		return p.s.fetcher.requestFailure()
	}
	return request()
}

// send requests a batch and stores its objects in a pack of the store.
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
	if caps.Filter { // a filter does not apply to objects that are wanted by id
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
	// Readers that wait for the same blobs are woken after the whole pack has been stored.
	if err == nil {
		for _, id := range blobs {
			s.fetcher.pipe.Arrived(id, nil)
		}
	}
	s.log.Debug("fetch for git", zap.Int("wants", len(ids)), zap.Int("blobs", len(blobs)),
		zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// fetchHistory fetches the history of commits that were fetched without it, because git expects the parents of a
// commit to exist.
func (p *provision) fetchHistory(ctx context.Context) error {
	if len(p.commits) == 0 {
		return nil
	}
	s := p.s
	caps, err := s.fetcher.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	// Depth is not set: without it the remote sends the whole history that the haves do not reach.
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
