package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// provideBatch is how many objects one request for git asks for, and provideLanes how many such requests are under
	// way at a time: the remote takes long to gather large packs, and does so on several processors.
	provideBatch = 6000
	provideLanes = 3
	// provideTries is how often what broke off, or what one bad id spoilt, is asked for.
	provideTries = 3
	// fewUnknown is up to how many objects of unknown type may turn out to be commits, which shall not bring all their
	// history and all its files along.
	fewUnknown = 16
)

// Missing gives those of ids that git does not find in the store's packs.
func (s *Store) Missing(ids []object.ID) []object.ID {
	var missing []object.ID
	for _, id := range ids {
		if !s.objects.Has(id) {
			missing = append(missing, id)
		}
	}
	return missing
}

// Refresh takes up what others, git among them, have put into the store.
func (s *Store) Refresh() error { return s.objects.Refresh() }

// Format is the store's object format; it is known once something was acquired.
func (s *Store) Format() object.Format { return s.objects.Format() }

// Objects returns where the store's packs are.
func (s *Store) Objects() []string { return []string{filepath.Join(s.GitDir(), "objects")} }

// Provide has objects in the store's packs, where git reads them, when it returns. What the cache has is written from
// there, what somebody else is bringing is waited for, and the rest comes in one request as long as it is not very much.
// Wanted may be anything that the remote has; a commit comes with its trees and its history. Along are blobs; if they do
// not come, that is no error. If ctx ends, what is under way goes on.
func (s *Store) Provide(ctx context.Context, wanted, along []object.ID) error {
	p := &provision{s: s, refused: map[object.ID]bool{}, wanted: wanted, along: along}
	p.unknown = len(wanted) <= fewUnknown && slices.ContainsFunc(wanted, func(id object.ID) bool { return !slices.Contains(along, id) })
	done := make(chan error, 1)
	if !s.background(func(ctx context.Context) { done <- p.run(ctx) }) {
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
	unknown       bool // some of wanted may be other than blobs

	mu      sync.Mutex
	refused map[object.ID]bool
	commits []object.ID // wanted, and brought without their history
	err     error       // the last
}

func (p *provision) run(ctx context.Context) error {
	s := p.s
	s.blobPipe.readerWaits()
	if err := s.Refresh(); err != nil {
		return err
	}
	s.awaitRoom(ctx)
	s.blobPipe.foreground.Add(1) // what nobody waits for stays back
	defer s.blobPipe.foreground.Add(-1)
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
		if err := p.failure(); !joined && (err == nil || final(err)) {
			break // the answer was whole: what is missing is not to be had
		}
	}
	if err := p.fromCache(ctx, p.missing()); err != nil {
		return err
	}
	if err := p.bringHistory(ctx); err != nil {
		return err
	}
	if lacking := s.Missing(p.wanted); len(lacking) > 0 {
		err := p.failure()
		if err == nil {
			err = ErrNotFound
		}
		return fmt.Errorf("fetch %d of %d objects from %s: %w", len(lacking), len(p.wanted), s.URL(), err)
	}
	return nil
}

// missing gives what has to come still, the wanted first.
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

// fromCache writes a pack of what was read through some mount before.
func (p *provision) fromCache(ctx context.Context, ids []object.ID) error {
	var out []odb.Outgoing
	for _, id := range ids {
		if n, ok := p.s.cachedSize(id); ok {
			out = append(out, odb.Outgoing{ID: id, Type: object.Blob, Size: n, Open: func() (io.ReadCloser, error) { return p.s.openCached(id) }})
		}
	}
	if len(out) == 0 {
		return nil
	}
	_, err := p.s.objects.Write(ctx, out, odb.WriteOptions{Promisor: true})
	if errors.Is(err, errEvicted) || errors.Is(err, odb.ErrCorrupt) {
		return nil // they come from the remote, then
	}
	return err
}

var errEvicted = errors.New("evicted meanwhile")

func (s *Store) cachedSize(id object.ID) (int64, bool) {
	if n, ok := s.blobs.Size(id); ok {
		return n, true
	}
	data, ok := s.memory.Content(id)
	return int64(len(data)), ok
}

func (s *Store) openCached(id object.ID) (io.ReadCloser, error) {
	c, ok := s.content(id)
	if !ok {
		return nil, errEvicted
	}
	return contentReader{io.NewSectionReader(c, 0, c.Size()), c}, nil
}

type contentReader struct {
	io.Reader
	c Content
}

func (r contentReader) Close() error {
	r.c.Release()
	return nil
}

// fetch asks for what is not under way, and waits for that and for what is: joined says that there was such.
func (p *provision) fetch(ctx context.Context, ids []object.ID) (joined bool) {
	p.mu.Lock()
	p.err = nil
	p.mu.Unlock()
	mine, others := p.s.blobPipe.claim(ids)
	var wg sync.WaitGroup
	lanes := make(chan struct{}, provideLanes)
	for _, b := range mine {
		wg.Go(func() {
			lanes <- struct{}{}
			defer func() { <-lanes }()
			err := p.patiently(ctx, func() error { return p.send(ctx, b) })
			p.s.blobPipe.settle(b, err, p.unknown)
			p.note(err)
		})
	}
	p.join(ctx, others)
	wg.Wait()
	return len(others) > 0
}

func (p *provision) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// note keeps why objects did not come.
func (p *provision) note(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var refused transport.NotOurRef
	if errors.As(err, &refused) {
		p.refused[refused.ID] = true
		if len(p.refused) > 1 { // one bad id a request: what was only guessed is not worth more
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

// join waits for what other requests bring. It arrives in the cache, so the next round writes it; what does not come in
// time is asked for again.
func (p *provision) join(ctx context.Context, others []*flight) {
	patience := time.NewTimer(hedgeCrawl)
	defer patience.Stop()
	for i, f := range others {
		select {
		case <-f.done:
			p.note(f.err)
			continue
		case <-ctx.Done():
		case <-patience.C:
			p.s.blobPipe.abandon(others[i:])
		}
		return
	}
}

// patiently sends a request for git: if something was asked for, and not only foreseen, it waits as a reader does.
func (p *provision) patiently(ctx context.Context, request func() error) error {
	if len(p.wanted) > 0 {
		return p.s.blobPipe.persevere(ctx, nil, request)
	}
	if !p.s.Reachable() {
		return p.s.failure()
	}
	return request()
}

// send brings a batch straight into a pack of the store.
func (p *provision) send(ctx context.Context, b *batch) error {
	s, start := p.s, time.Now()
	caps, err := s.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	ids := make([]object.ID, len(b.wants))
	for i, w := range b.wants {
		ids[i] = w.ID
	}
	req := transport.FetchRequest{Wants: ids}
	if caps.Filter { // it does not touch what is wanted by id
		req.Filter = "blob:none"
	}
	if caps.Shallow && p.unknown {
		req.Depth = 1
	}
	resp, err := s.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	var blobs []object.ID
	err = s.ingest(ctx, resp.Pack, func(id object.ID, t object.Type, content []byte) {
		switch t {
		case object.Blob:
			blobs = append(blobs, id)
			if content != nil {
				s.sizes.Put(id, int64(len(content)))
				s.bytesIn.Add(int64(len(content)))
			}
			s.blobsIn.Add(1)
		case object.Commit:
			p.mu.Lock()
			p.commits = append(p.commits, id)
			p.mu.Unlock()
		}
	})
	if err == nil {
		for _, id := range blobs {
			s.blobPipe.arrived(id, nil)
		}
	}
	s.log.Debug("fetch for git", zap.Int("wants", len(ids)), zap.Int("blobs", len(blobs)), zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// bringHistory completes commits that came alone: git takes it for granted that a commit's parents are there.
func (p *provision) bringHistory(ctx context.Context) error {
	if len(p.commits) == 0 {
		return nil
	}
	s := p.s
	caps, err := s.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	req := transport.FetchRequest{Wants: p.commits, Haves: s.completeTips()}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := s.request(ctx, req)
	if err != nil {
		return fmt.Errorf("fetch history of %s: %w", p.commits[0], err)
	}
	defer resp.Pack.Close()
	if err = s.ingest(ctx, resp.Pack, nil); err != nil {
		return fmt.Errorf("fetch history of %s: %w", p.commits[0], err)
	}
	return nil
}

// claim makes batches of those objects that no request under way brings; the flights of the others are returned.
func (p *pipeline) claim(ids []object.ID) (mine []*batch, others []*flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b *batch
	for _, id := range ids {
		f := p.flights[id]
		if f != nil && f.batch != nil {
			f.batch.urgent.Add(1)
			others = append(others, f)
			continue
		}
		if r := p.refused(id); r != nil {
			others = append(others, &flight{done: closedChannel, err: r})
			continue
		}
		if f == nil {
			f = &flight{done: make(chan struct{})}
			p.flights[id] = f
		} else {
			p.queue.Drop(id)
		}
		if b == nil || len(b.wants) == provideBatch {
			b = &batch{}
			mine = append(mine, b)
		}
		f.batch = b
		b.wants = append(b.wants, prioritize.Want{ID: id, Class: prioritize.Waiting})
	}
	return mine, others
}

// abandon makes flights that are late free to be claimed.
func (p *pipeline) abandon(late []*flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range late {
		if f.batch != nil && !f.batch.suspect { // one that is suspected is asked for by one alone
			f.batch = nil
		}
	}
}

// settle ends a batch for git. What did not come and somebody else wants too goes on as if git had never asked. Contents of
// an answer that could not be used are asked for in parts; unknown says that there may be other objects among them, of which
// that cannot be done.
func (p *pipeline) settle(b *batch, err error, unknown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var notOurs transport.NotOurRef
	spoilt := unusable(err) && !errors.As(err, &notOurs)
	if err == nil {
		err = ErrNotFound
	}
	var suspects []prioritize.Want
	for _, w := range b.wants {
		f := p.flights[w.ID]
		if f == nil || f.batch != b {
			continue
		}
		f.batch = nil
		switch {
		case p.closed:
			p.land(w.ID, f, nil, ErrClosed)
		case spoilt && !unknown:
			f.keep = true
			suspects = append(suspects, w)
		case spoilt:
			p.land(w.ID, f, nil, p.record(w.ID, w.Path, err))
		case f.waiters > 0 || f.keep:
			p.queue.Push(w)
		default:
			p.land(w.ID, f, nil, err)
		}
	}
	p.suspect(suspects, err)
	p.wake.Broadcast()
}

// closedChannel is that of a flight that was never begun.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
