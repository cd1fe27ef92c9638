// Package fetch brings objects from a remote: commits and trees at once, blobs when somebody needs them.
//
// Terms. A Store is what all mounts of one remote share: its trees and history in git's own layout, the sizes
// and contents of blobs that came, and the pipeline that brings more. A Snapshot is one acquired commit; its
// trees may still be streaming in. A View reads blobs of one tree and knows the neighbours of a path, so that
// one request brings what will be read next.
//
// A read goes View -> cache of contents -> local packs -> pipeline -> transport, and every object's hash is
// checked before the first byte of it is given out.
//
// Lock order: Store.mu and pipeline.mu are leaves; neither is held across network or disk waits.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// maxBlobSize bounds one content in bytes; what a header claims above it is refused before any allocation.
	maxBlobSize = 1 << 40
	// spoolOver is the content size, in bytes, above which a blob goes through a file and never through memory.
	spoolOver = 1 << 20
	// quietMost is how long a request may wait for a byte before the remote counts as failing. A server that works on an
	// answer says so in between, git's every five seconds.
	quietMost = 3 * time.Second
)

// Config says what a Store is made of. Blobs and Memory are shared by all stores of a process.
type Config struct {
	Dir        string // the store's directory, made if missing
	Remote     *transport.Remote
	Blobs      *cache.Blobs
	Memory     *cache.Memory
	Readers    *Readers              // of all stores of the process; nil: of this one
	Deadline   time.Duration         // how long a read waits for content before it fails
	Credential func() Credential     // for stock git, where it stands in for our transport; nil: none
	Env        transport.Environment // of stock git that reaches the remote
	Log        *zap.Logger
}

// Store is what all mounts of one remote share. Its methods may be called from any goroutine.
type Store struct {
	dir        string
	remote     *transport.Remote
	blobs      *cache.Blobs
	memory     *cache.Memory
	credential func() Credential
	env        transport.Environment
	log        *zap.Logger

	treeLanes chan struct{} // one token a tree that is fetched by itself
	stop      chan struct{}
	wg        sync.WaitGroup // streams and deepening

	blobsIn, bytesIn atomic.Int64
	joining          atomic.Int32 // joins of packs under way

	mu        sync.Mutex
	closed    bool
	objects   *odb.Store // nil until the object format is known
	sizes     *cache.Sizes
	blobPipe  *pipeline
	streams   int                         // acquisitions under way
	arrivals  map[object.ID]chan struct{} // trees that readers wait for while streams > 0
	notices   []string                    // degradations worth telling, each once
	history   History
	refs      []packedrefs.Ref      // the remote's, once history was completed
	lent      []*Local              // read beside objects; replaced, never changed
	smudges   map[object.ID]*smudge // contents that programs are converting
	rulings   map[object.ID]ruling  // of trees that were looked through
	walks     map[hydration]chan struct{}
	treeTurns map[object.ID]chan struct{} // trees that readers fetch; closed at the end
	counts    map[object.ID]count         // of trees, as they were counted last
	counting  map[object.ID]chan struct{}
}

// Open opens or makes the store in cfg.Dir. Nothing is asked of the remote yet.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		dir: cfg.Dir, remote: cfg.Remote, blobs: cfg.Blobs, memory: cfg.Memory, credential: cfg.Credential, env: cfg.Env, log: cfg.Log,
		stop: make(chan struct{}), treeLanes: make(chan struct{}, foregroundLanes), arrivals: map[object.ID]chan struct{}{}, treeTurns: map[object.ID]chan struct{}{},
		smudges: map[object.ID]*smudge{}, rulings: map[object.ID]ruling{}, walks: map[hydration]chan struct{}{}, counts: map[object.ID]count{}, counting: map[object.ID]chan struct{}{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.blobPipe = newPipeline(s.sendBlobs, s.cached, cfg.Deadline, cfg.Readers, cfg.Log)
	s.blobPipe.look = s.lookForRemote
	if f, ok := readFormat(s.GitDir()); ok {
		if err := s.openObjects(f); err != nil {
			s.blobPipe.close()
			return nil, err
		}
	}
	return s, nil
}

// Close ends every stream and request and waits for them.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.blobPipe.close()
	s.wg.Wait()
	err := s.remote.Close()
	if s.objects != nil {
		err = errors.Join(err, s.sizes.Close(), s.objects.Close())
	}
	return err
}

// URL is the remote's, without secrets.
func (s *Store) URL() string { return s.remote.URL() }

// Remote is what the store fetches from. Close closes it.
func (s *Store) Remote() *transport.Remote { return s.remote }

// GitDir is the bare git repository that holds commits, trees and refs.
func (s *Store) GitDir() string { return filepath.Join(s.dir, "git") }

// openObjects opens what depends on the object format; later calls do nothing.
func (s *Store) openObjects(f object.Format) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects != nil {
		return nil
	}
	objects, err := odb.Open(filepath.Join(s.GitDir(), "objects"), f)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	sizes, err := cache.OpenSizes(filepath.Join(s.dir, "sizes"), f)
	if err != nil {
		objects.Close()
		return fmt.Errorf("open store: %w", err)
	}
	s.objects, s.sizes = objects, sizes
	return nil
}

// background runs work that outlives the caller; Close cancels it and waits for it.
func (s *Store) background(work func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-s.stop:
				cancel()
			case <-ctx.Done():
			}
		}()
		work(ctx)
	})
	return true
}

// Tree gives the entries of a tree. While an acquisition streams, it waits for the tree to arrive; a tree that
// no stream brings is asked for by itself. The zero id is the empty tree.
func (s *Store) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(id.Format()) {
		return nil, nil
	}
	if entries, ok := s.memory.Tree(id); ok {
		return entries, nil
	}
	for try := 0; ; try++ {
		entries, err := s.parseTree(id)
		if err == nil || !errors.Is(err, odb.ErrNotFound) {
			return entries, err
		}
		arrived, err := s.awaitArrival(ctx, id)
		if err != nil {
			return nil, err
		}
		if arrived {
			continue
		}
		if try > 0 {
			return nil, fmt.Errorf("read tree %s: %w", id, ErrNotFound)
		}
		if err := s.bringTree(ctx, id); err != nil {
			return nil, fmt.Errorf("read tree %s: %w", id, err)
		}
		metrics.Charge(ctx, metrics.Listed, 0, 0)
	}
}

// bringTree fetches a tree for a reader, once for all who wait for it.
func (s *Store) bringTree(ctx context.Context, id object.ID) error {
	for {
		s.mu.Lock()
		other, ok := s.treeTurns[id]
		if !ok {
			s.treeTurns[id] = make(chan struct{})
		}
		s.mu.Unlock()
		if !ok {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.objects.Has(id) {
			return nil
		}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.treeTurns[id])
		delete(s.treeTurns, id)
	}()
	select {
	case s.treeLanes <- struct{}{}:
		defer func() { <-s.treeLanes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	again := func() { s.fetchTreeLater(id) }
	err := s.blobPipe.persevere(ctx, again, func() error { return s.fetchTree(ctx, id) })
	var refused *refusal
	if err != nil && !Away(err) && !errors.As(err, &refused) && (ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrDeadline)) {
		s.blobPipe.failed(err, again)
	}
	return err
}

// parseTree reads a tree that is here; odb.ErrNotFound if it is not.
func (s *Store) parseTree(id object.ID) ([]object.TreeEntry, error) {
	t, content, err := s.get(id, object.MaxTreeSize)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	if t != object.Tree {
		return nil, fmt.Errorf("read tree %s: it is a %s", id, t)
	}
	entries, err := object.ParseTree(id.Format(), content)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	s.memory.PutTree(id, entries)
	return entries, nil
}

// treeHere gives a tree without waiting for it.
func (s *Store) treeHere(id object.ID) ([]object.TreeEntry, bool) {
	if entries, ok := s.memory.Tree(id); ok {
		return entries, true
	}
	entries, err := s.parseTree(id)
	return entries, err == nil
}

// fetchTreeLater asks for a tree to see whether the remote is back.
func (s *Store) fetchTreeLater(id object.ID) {
	s.background(func(ctx context.Context) {
		if err := s.fetchTree(ctx, id); err != nil {
			var refused *refusal
			if errors.As(err, &refused) {
				err = nil // its turn comes with a reader
			} else {
				s.blobPipe.failed(err, func() { s.fetchTreeLater(id) })
				return
			}
		}
		s.blobPipe.succeeded()
	})
}

// failure is why something did not come.
func (s *Store) failure() error {
	if _, err := s.blobPipe.health(); err != nil {
		return err
	}
	if refused := s.Refusals(); len(refused) > 0 {
		return refused[0]
	}
	return ErrNotFound
}

// failureOf is why a content did not come.
func (s *Store) failureOf(id object.ID) error {
	s.blobPipe.mu.Lock()
	r := s.blobPipe.refused(id)
	s.blobPipe.mu.Unlock()
	if r != nil {
		return r
	}
	return s.failure()
}

// awaitArrival waits until a streaming acquisition brings the tree; false: no stream is on.
func (s *Store) awaitArrival(ctx context.Context, id object.ID) (bool, error) {
	s.mu.Lock()
	if s.streams == 0 {
		s.mu.Unlock()
		return s.objects.Has(id), nil
	}
	ch := s.arrivals[id]
	if ch == nil {
		ch = make(chan struct{})
		s.arrivals[id] = ch
	}
	s.mu.Unlock()
	if s.objects.Has(id) { // it came before the channel stood
		return true, nil
	}
	select {
	case <-ch:
		metrics.Charge(ctx, metrics.Listed, 0, 0)
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// announce wakes the readers of a tree that has just become readable.
func (s *Store) announce(id object.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.arrivals[id]; ch != nil {
		close(ch)
		delete(s.arrivals, id)
	}
}

func (s *Store) streamBegins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
}

// streamEnds lets go whoever still waits for a tree that did not come.
func (s *Store) streamEnds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams--; s.streams > 0 {
		return
	}
	for id, ch := range s.arrivals {
		close(ch)
		delete(s.arrivals, id)
	}
}

// fetchTree asks for one tree and what lies below it, without blobs.
func (s *Store) fetchTree(ctx context.Context, id object.ID) error {
	return s.refusing(ctx, id, func() error { return s.requestTree(ctx, id) })
}

func (s *Store) requestTree(ctx context.Context, id object.ID) error {
	if err := s.objects.Refresh(); err == nil && s.objects.Has(id) {
		return nil // another process or git itself brought it
	}
	caps, err := s.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	req := transport.FetchRequest{Wants: []object.ID{id}}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := s.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	return s.ingest(ctx, resp.Pack, nil)
}

func (s *Store) ingestOptions() odb.IngestOptions {
	return odb.IngestOptions{Promisor: true, MaxObjectSize: maxBlobSize}
}

// notice records a degradation that the user should know of, once.
func (s *Store) notice(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.notices {
		if n == text {
			return
		}
	}
	s.notices = append(s.notices, text)
	s.log.Warn(text)
}

// Stats counts what went over the network and what waits.
type Stats struct {
	Requests, RoundTrips   int64
	Blobs                  int64 // blobs that arrived
	BytesIn                int64 // bytes read from the network
	Foreground, Background int   // wants queued
	Notices                []string
	Failure                error // of the last request, nil after a success
	FailedAt               time.Time
	History                History
	Refused                []Refusal
}

// Latencies are how long readers waited for contents, and how long requests for contents took, those that somebody
// waited for and the others.
func (s *Store) Latencies() (waits, foreground, background *metrics.Histogram) {
	p := s.blobPipe
	return &p.waits, &p.requests[0], &p.requests[1]
}

// Stats is cheap enough to be asked for at any time.
func (s *Store) Stats() Stats {
	t := s.remote.Stats()
	st := Stats{Requests: t.Requests, RoundTrips: t.RoundTrips, BytesIn: t.BytesIn, Blobs: s.blobsIn.Load()}
	st.Foreground, st.Background = s.blobPipe.queued()
	st.FailedAt, st.Failure = s.blobPipe.health()
	if st.Failure == nil && t.Quiet >= quietMost {
		st.Failure = fmt.Errorf("%w: no byte for %s", transport.ErrStalled, t.Quiet.Truncate(time.Second))
		st.FailedAt = time.Now().Add(-t.Quiet)
	}
	st.Refused = s.Refusals()
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Notices = append(st.Notices, s.notices...)
	st.History = s.history
	return st
}
