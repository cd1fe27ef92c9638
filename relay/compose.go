package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/relay/wire"
)

// flightsAhead is the number of groups that are fetched at the same time for one request.
const flightsAhead = 4

// selection lists the objects of an answer that the relay composes.
type selection struct {
	plan     *planned
	heads    []object.ID
	trees    map[object.ID]struct{}
	blobs    map[object.ID]struct{}
	deepened bool
	shallow  []object.ID
}

// serveCommit answers a request for a commit with all its trees and blobs, but without its parents. It returns false if
// the request has to be passed.
func (e *exchange) serveCommit(ctx context.Context, id object.ID) (bool, error) {
	m := e.remote
	if !m.filters() || m.refuses() {
		return false, nil
	}
	match := func(p *planned) bool { return p.Want == id }
	p, err := m.await(ctx, match)
	if err == nil && p == nil {
		f := m.fly(id, e.caller)
		defer f.release()
		p, err = m.await(ctx, match)
	}
	if err != nil || p == nil || e.check(ctx, id) != nil {
		return false, nil
	}
	s := &selection{plan: p, heads: p.Heads, trees: map[object.ID]struct{}{}, blobs: map[object.ID]struct{}{},
		deepened: true,
		shallow:  []object.ID{p.Commit}}
	for _, t := range p.Trees {
		s.trees[t] = struct{}{}
	}
	for _, b := range p.Blobs {
		s.blobs[b] = struct{}{}
	}
	return e.compose(ctx, s)
}

// serveParts answers a request for trees and blobs of one commit. It returns false if the request has to be passed.
func (e *exchange) serveParts(ctx context.Context, req wire.Request) (bool, error) {
	m := e.remote
	if m.refuses() {
		return false, nil
	}
	p, err := m.await(ctx, func(p *planned) bool {
		return !slices.ContainsFunc(req.Wants,
			func(id object.ID) bool { return !p.HasBlob(id) && (!p.HasTree(id) || req.Depth > 0) })
	})
	if err != nil || p == nil || e.check(ctx, p.Want) != nil {
		return false, nil
	}
	s := &selection{plan: p, trees: map[object.ID]struct{}{}, blobs: map[object.ID]struct{}{},
		deepened: req.Depth > 0 || req.Shallow}
	for _, id := range req.Wants {
		if !p.HasTree(id) {
			continue
		}
		if p.Below(id, s.trees, s.blobs); req.Filter != "" {
			clear(s.blobs)
		}
	}
	for _, id := range req.Wants {
		if p.HasBlob(id) {
			s.blobs[id] = struct{}{}
		}
	}
	return e.compose(ctx, s)
}

// source supplies blobs of one group: from a file, from entries that were read from the object store, or from a flight.
// Only one of them is set.
type source struct {
	file    *packs.File
	places  map[object.ID]packs.Place // places of the blobs in file
	entries map[object.ID][]byte
	flight  *groupFlight
}

func (s *source) close() {
	if s.file != nil {
		s.file.Close()
	}
	if s.flight != nil {
		s.flight.release()
	}
}

// open returns the source for blobs of a group: the file on the local disk, entries of the file in the object store, or
// a flight, which open starts if necessary.
func (e *exchange) open(ctx context.Context, p *planned, g int, ids []object.ID) *source {
	m := e.remote
	key := m.key(packs.Blob, p.Name(g))
	if file, ok := m.relay.shelf.Local(key); ok {
		if places, err := packs.Places(file.Table, file.Body); err == nil {
			m.relay.counts.groupHits.Add(1)
			return &source{file: file, places: places}
		}
		file.Close()
	}
	if entries, ok := m.readRanges(ctx, p, g, ids); ok {
		m.relay.counts.groupHits.Add(1)
		return &source{entries: entries}
	}
	return &source{flight: m.flyGroup(p, g, ids, e.caller)}
}

// compose sends the selected objects. It returns false if nothing was sent and the request has to be passed.
func (e *exchange) compose(ctx context.Context, s *selection) (bool, error) {
	m := e.remote
	// mark the files of the plan as used, so that they are not evicted
	for _, kind := range []packs.Kind{packs.Snap, packs.Tree, packs.Size} {
		m.relay.shelf.Touch(m.key(kind, s.plan.Want.String()))
	}
	var trees *source
	if len(s.trees) > 0 {
		file, ok := m.relay.shelf.Local(m.key(packs.Tree, s.plan.Want.String()))
		if !ok {
			return false, nil
		}
		defer file.Close()
		places, err := packs.Places(file.Table, file.Body)
		if err != nil {
			return false, nil
		}
		trees = &source{file: file, places: places}
	}
	split := s.plan.Split(s.blobs)
	groups := slices.Sorted(maps.Keys(split))
	sources := map[int]*source{}
	defer func() {
		for _, src := range sources {
			src.close()
		}
	}()
	ahead := func(n int) {
		for _, g := range groups[n:min(n+flightsAhead, len(groups))] {
			if sources[g] == nil {
				sources[g] = e.open(ctx, s.plan, g, split[g])
			}
		}
	}
	ahead(0)
	// The answer begins when the first blobs of the first group have arrived. Before that, the request can still be
	// passed, so that the git server itself can refuse it.
	if len(groups) > 0 {
		if err := sources[groups[0]].await(ctx); err != nil {
			return false, nil
		}
	}
	out := e.beginFetch()
	if err := out.Begin(s.deepened, s.shallow); err != nil {
		return true, err
	}
	pack, err := packs.NewStream(out, s.plan.Format, len(s.heads)+len(s.trees)+len(s.blobs))
	if err != nil {
		return true, err
	}
	if trees != nil {
		ids := append(slices.Clone(s.heads), slices.Collect(maps.Keys(s.trees))...)
		if err := trees.copy(ctx, pack, ids, out); err != nil {
			return true, err
		}
	}
	for i, g := range groups {
		ahead(i)
		if err := e.sendGroup(ctx, pack, sources[g], split[g], out); err != nil {
			return true, err
		}
		sources[g].close()
		delete(sources, g)
	}
	if err := pack.Close(); err != nil {
		return true, err
	}
	return true, out.End()
}

// sendGroup sends blobs of a group. If their source fails, it requests the remaining blobs from the git server on
// behalf of the client.
func (e *exchange) sendGroup(ctx context.Context, pack *packs.Stream, src *source, ids []object.ID,
	out *wire.FetchWriter) error {
	left := ids
	var err error
	if src.flight != nil {
		left, err = src.flight.copy(ctx, pack, ids, out)
	} else if err = src.copy(ctx, pack, ids, out); err == nil {
		return nil
	}
	var lost lostSource
	if err == nil || ctx.Err() != nil || !errors.As(err, &lost) {
		return err
	}
	e.relay.counts.fallThroughs.Add(1)
	return e.direct(ctx, pack, left)
}

// lostSource is the failure of a source of blobs. It distinguishes this failure from that of the connection to the
// client.
type lostSource struct{ error }

// Unwrap returns the cause of the failure.
func (l lostSource) Unwrap() error { return l.error }

// await waits until the flight of the source has its first blob, or returns the error of the flight. For a source
// without a flight, it returns nil at once.
func (s *source) await(ctx context.Context) error {
	if s.flight == nil {
		return nil
	}
	for f := s.flight; ; {
		f.mu.Lock()
		begun, err, changed := len(f.places) > 0, f.err, f.changed
		f.mu.Unlock()
		if begun || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// copy sends objects from the entries or the file of the source.
func (s *source) copy(_ context.Context, pack *packs.Stream, ids []object.ID, out *wire.FetchWriter) error {
	if s.entries != nil {
		for _, id := range ids {
			if err := pack.Entry(s.entries[id]); err != nil {
				return err
			}
		}
		return out.Flush()
	}
	places := make([]packs.Place, len(ids))
	for i, id := range ids {
		at, ok := s.places[id]
		if !ok { // no blob of the group was sent yet, so sendGroup can request all of them from the git server
			return lostSource{fmt.Errorf("group does not contain object %s", id)}
		}
		places[i] = at
	}
	slices.SortFunc(places, byOffset)
	if err := pack.Copy(s.file, places); err != nil {
		return err
	}
	return out.Flush()
}

// byOffset compares places by their offsets, for the order that packs.Stream.Copy needs.
func byOffset(a, b packs.Place) int { return cmp.Compare(a.Offset, b.Offset) }

// copy sends blobs of a flight while they arrive. It returns the blobs that it has not sent.
func (f *groupFlight) copy(ctx context.Context, pack *packs.Stream, ids []object.ID,
	out *wire.FetchWriter) ([]object.ID, error) {
	left := slices.Clone(ids)
	for {
		var places []packs.Place
		f.mu.Lock()
		left = slices.DeleteFunc(left, func(id object.ID) bool {
			at, ok := f.places[id]
			if ok {
				places = append(places, at)
			}
			return ok
		})
		complete, err, changed, file := f.complete, f.err, f.changed, f.file
		f.mu.Unlock()
		slices.SortFunc(places, byOffset)
		if err := pack.Copy(file, places); err != nil {
			return nil, err
		}
		if err := out.Flush(); err != nil {
			return nil, err
		}
		switch {
		case len(left) == 0:
			return nil, nil
		case err != nil:
			return left, lostSource{err}
		case complete:
			return left, lostSource{errors.New("flight has ended without all blobs of the group")}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// direct requests blobs from the git server on behalf of the client, and sends them.
func (e *exchange) direct(ctx context.Context, pack *packs.Stream, ids []object.ID) error {
	temp, err := e.relay.shelf.Temp()
	if err != nil {
		return err
	}
	defer e.relay.shelf.Drop(temp)
	answer, body, err := e.relay.upstream.fetch(ctx, e.remote.url, e.caller, wire.Request{Format: e.format, Wants: ids})
	if err != nil {
		return err
	}
	defer body.Close()
	w, err := packs.NewWriter(temp, e.format, len(ids))
	if err != nil {
		return err
	}
	places := map[object.ID]packs.Place{}
	u := unpacking{dir: e.relay.shelf.Dir(), format: e.format, file: temp, idle: func() {}, limit: 1 << 40,
		place: func(id object.ID) (packs.Place, bool) { at, ok := places[id]; return at, ok }}
	left := map[object.ID]struct{}{}
	for _, id := range ids {
		left[id] = struct{}{}
	}
	return u.run(ctx, answer, func(o odb.Object, contents io.Reader) error {
		if _, ok := left[o.ID]; !ok || o.Type != object.Blob {
			return nil
		}
		delete(left, o.ID)
		at, err := w.Add(o.ID, o.Type, o.Size, contents)
		if err != nil {
			return err
		}
		places[o.ID] = at
		return pack.Copy(temp, []packs.Place{at})
	})
}
