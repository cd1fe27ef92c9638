// Package fetch fetches objects from a remote and stores them on this host. Commits and trees are fetched when a mount begins,
// blobs when they are read.
//
// Terms. A Store is shared by all mounts of one remote: its trees and history in git's own layout, the sizes and contents of
// fetched blobs, and the pipeline that requests further blobs. A Snapshot is one fetched commit; its trees may still be in
// flight. A RawView reads the blobs of one mount and knows the neighbours of a path, so that one request fetches what will
// probably be read next. A View wraps a RawView and converts contents as git checkout would.
//
// A read calls, from top to bottom: View.Open, RawView.openStored (cache, then local packs),
// pipeline.Wait, Store.sendBlobs, transport.Fetch, odb.Unpack. The hash of every object is verified
// before its first byte is returned.
//
// Lock order: conversions.mu and RawView.mu, then Store.mu and Local.mu (Store.mu is released before Local.mu is acquired),
// then the pipeline's mutex. None of these locks is held while a goroutine waits for the network or the disk.
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
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// maxBlobSize bounds the size of one blob, in bytes. Larger sizes in headers are refused before
	// anything is allocated.
	maxBlobSize = 1 << 40
	// spoolOver is the size, in bytes, above which blobs are written to a file instead of memory.
	spoolOver = 1 << 20
	// quietMost is how long a request may wait for a byte before the remote counts as failing.
	// Servers report progress while they work on an answer, git's every five seconds.
	quietMost = 3 * time.Second
)

// Config configures a Store. Blobs and Memory are shared by all stores of a process.
type Config struct {
	Dir        string // the store's directory, created if it does not exist
	Remote     *transport.Remote
	Blobs      *cache.Blobs
	Memory     *cache.Memory
	Readers    *Readers              // shared by all stores of the process; nil: of this one only
	Deadline   time.Duration         // how long a read waits for contents before it fails
	Credential func() Credential     // for stock git, which is used if package transport cannot talk to the remote; nil: none
	Env        transport.Environment // environment of stock git when it contacts the remote
	Log        *zap.Logger
}

// Credential is a user name and secret for stock git; see bare.Credential.
type Credential = bare.Credential

// Store is the part that all mounts of one remote share. Its methods may be called from any
// goroutine.
type Store struct {
	dir    string
	remote *transport.Remote
	blobs  *cache.Blobs
	memory *cache.Memory
	repo   *bare.Repo
	log    *zap.Logger

	treeSlots chan struct{} // one token for each tree that is requested alone
	stop      chan struct{}
	wg        sync.WaitGroup // fetches of snapshots and history, and other background work

	// blobsIn counts the blobs that arrived, bytesIn their bytes after unpacking.
	blobsIn, bytesIn atomic.Int64
	joining          atomic.Int32 // joins of packs in progress

	mu          sync.Mutex
	closed      bool
	objects     *odb.Store // nil until the object format is known
	sizes       *cache.Sizes
	blobPipe    *pipeline.Pipeline
	streams     int                         // acquisitions in progress
	arrivals    map[object.ID]chan struct{} // trees that readers wait for while streams > 0
	notices     []string                    // degradations for the user, each once
	history     History
	refs        []packedrefs.Ref          // the remote's, when history was completed
	locals      []*Local                  // open Locals; the slice is replaced, never changed
	smudges     map[object.ID]*smudge     // conversions by programs in progress
	configFiles map[object.ID]configFiles // of trees, for Ruling
	prefetches  map[prefetchKey]chan struct{}
	treeFetches map[object.ID]chan struct{} // trees that readers fetch; closed when the fetch has ended
	counts      map[object.ID]treeCount     // the last count of each tree
	counting    map[object.ID]chan struct{}
}

// Open opens the store in cfg.Dir, and creates it if it does not exist. It sends no request.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		dir: cfg.Dir, remote: cfg.Remote, blobs: cfg.Blobs, memory: cfg.Memory, log: cfg.Log,
		repo: bare.New(bare.Config{Dir: cfg.Dir, URL: cfg.Remote.URL(), Credential: cfg.Credential, Env: cfg.Env}),
		stop: make(chan struct{}), treeSlots: make(chan struct{}, pipeline.ForegroundSenders), arrivals: map[object.ID]chan struct{}{},
		treeFetches: map[object.ID]chan struct{}{}, smudges: map[object.ID]*smudge{}, configFiles: map[object.ID]configFiles{},
		prefetches: map[prefetchKey]chan struct{}{}, counts: map[object.ID]treeCount{}, counting: map[object.ID]chan struct{}{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.blobPipe = pipeline.New(pipeline.Config{
		Send: s.sendBlobs, Cached: s.cached, Probe: s.probe, Deadline: cfg.Deadline, Readers: cfg.Readers, Log: cfg.Log,
	})
	// The format of an existing store is on disk, so that a mount can be resumed while the remote
	// is unreachable.
	if f, ok := s.repo.Format(); ok {
		if err := s.openObjects(f); err != nil {
			s.blobPipe.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close ends all requests and waits for every goroutine of the store.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.blobPipe.Close()
	s.wg.Wait()
	err := s.remote.Close()
	if s.objects != nil {
		err = errors.Join(err, s.sizes.Close(), s.objects.Close())
	}
	return err
}

// URL returns the remote's URL, without secrets.
func (s *Store) URL() string { return s.remote.URL() }

// Remote returns the remote, which Close closes.
func (s *Store) Remote() *transport.Remote { return s.remote }

// GitDir returns the path of the bare git repository with commits, trees and refs.
func (s *Store) GitDir() string { return s.repo.Path() }

// prepare opens the store's git directory, and creates it if it does not exist. partial is true if
// the remote can supply missing objects on demand.
func (s *Store) prepare(ctx context.Context, f object.Format, partial bool) error {
	if err := s.repo.Prepare(ctx, f, partial); err != nil {
		return err
	}
	return s.openObjects(f)
}

// openObjects opens the parts that depend on the object format. Later calls do nothing.
func (s *Store) openObjects(f object.Format) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects != nil {
		return nil
	}
	objects, err := odb.Open(s.repo.Objects(), f)
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

// background runs work in a goroutine, which may outlive the caller. Close cancels the context of work and waits until work
// returns. background returns false if the store is closed.
func (s *Store) background(work func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	// wg.Go is called with mu held, so that Close, which sets closed under mu, waits for every
	// goroutine that was started.
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

// Tree returns the entries of a tree. While an acquisition is in progress it waits for the tree to arrive; otherwise it
// requests the tree if it is missing. The zero id stands for the empty tree.
func (s *Store) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(id.Format()) {
		return nil, nil
	}
	if entries, ok := s.memory.Tree(id); ok {
		return entries, nil
	}
	// The second attempt follows the arrival or a fetch of the tree. A tree that is still missing then is neither on this host
	// nor on the remote.
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
		if err := s.fetchTreeOnce(ctx, id); err != nil {
			return nil, fmt.Errorf("read tree %s: %w", id, err)
		}
		metrics.Charge(ctx, metrics.Listed, 0, 0)
	}
}

// fetchTreeOnce fetches a tree, once for all readers that wait for it.
func (s *Store) fetchTreeOnce(ctx context.Context, id object.ID) error {
	for {
		s.mu.Lock()
		other, ok := s.treeFetches[id]
		if !ok {
			s.treeFetches[id] = make(chan struct{})
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
		// The fetch by the other reader has ended. If it failed, this reader fetches the tree itself, because the other reader
		// may have been canceled.
		if s.objects.Has(id) {
			return nil
		}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.treeFetches[id])
		delete(s.treeFetches, id)
	}()
	// A slot is acquired after the entry in treeFetches: all readers of one tree use one slot.
	select {
	case s.treeSlots <- struct{}{}:
		defer func() { <-s.treeSlots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	again := func() { s.fetchTreeLater(id) }
	err := s.blobPipe.Retry(ctx, again, func() error { return s.fetchTree(ctx, id) })
	// That a reader was interrupted shows nothing about the state of the remote. That a reader waited until its deadline shows
	// that the remote is slow or fails.
	if err != nil && !IsUnreachable(err) && !pipeline.IsRefused(err) && (ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrDeadline)) {
		s.blobPipe.ReportFailure(err, again)
	}
	return err
}

// parseTree reads a tree on this host. It returns odb.ErrNotFound if the tree is missing.
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

// localTree returns a tree on this host. It does not wait.
func (s *Store) localTree(id object.ID) ([]object.TreeEntry, bool) {
	if entries, ok := s.memory.Tree(id); ok {
		return entries, true
	}
	entries, err := s.parseTree(id)
	return entries, err == nil
}

// fetchTreeLater requests a tree in the background, to find out whether the remote answers again.
func (s *Store) fetchTreeLater(id object.ID) {
	s.background(func(ctx context.Context) {
		if err := s.fetchTree(ctx, id); err != nil {
			if pipeline.IsRefused(err) {
				err = nil // the next reader requests it again
			} else {
				s.blobPipe.ReportFailure(err, func() { s.fetchTreeLater(id) })
				return
			}
		}
		s.blobPipe.ReportSuccess()
	})
}

// awaitArrival waits until an acquisition in progress has fetched the tree. It returns false if no acquisition is in progress,
// or if the acquisition did not include the tree.
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
	if s.objects.Has(id) { // it arrived before the channel was registered
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

// announce wakes the readers of a tree that has arrived.
func (s *Store) announce(id object.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.arrivals[id]; ch != nil {
		close(ch)
		delete(s.arrivals, id)
	}
}

// streamBegins records that an acquisition may deliver trees. Each call must be followed by one call of streamEnds.
func (s *Store) streamBegins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
}

// streamEnds wakes the readers of trees that have not arrived.
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

// fetchTree requests one tree and everything below it, without blobs.
func (s *Store) fetchTree(ctx context.Context, id object.ID) error {
	return s.blobPipe.RequestObject(ctx, id, func() error { return s.requestTree(ctx, id) })
}

// requestTree sends the request for one tree. A remote without support for filters sends the blobs of the tree as well.
func (s *Store) requestTree(ctx context.Context, id object.ID) error {
	if err := s.objects.Refresh(); err == nil && s.objects.Has(id) {
		return nil // another process has fetched it
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

// ingestOptions returns the options for every pack from the remote.
func (s *Store) ingestOptions() odb.IngestOptions {
	return odb.IngestOptions{Promisor: true, MaxObjectSize: maxBlobSize}
}

// notice records a message about reduced service for the user. The same message is recorded only once.
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

// Stats counts traffic and queued wants.
type Stats struct {
	Requests, RoundTrips   int64
	Blobs                  int64 // blobs that arrived
	BytesIn                int64 // bytes read from the network
	Foreground, Background int   // queued wants
	Notices                []string
	Failure                error // of the last request, nil after a success
	FailedAt               time.Time
	History                History
	Refused                []Refusal
}

// Latencies returns how long readers waited for contents, and how long requests for contents took:
// foreground for readers, background for prefetches.
func (s *Store) Latencies() (waits, foreground, background *metrics.Histogram) {
	return s.blobPipe.Latencies()
}

// Stats returns the current counts. It is cheap and never waits for network or disk.
func (s *Store) Stats() Stats {
	t := s.remote.Stats()
	st := Stats{Requests: t.Requests, RoundTrips: t.RoundTrips, BytesIn: t.BytesIn, Blobs: s.blobsIn.Load()}
	st.Foreground, st.Background = s.blobPipe.Queued()
	st.FailedAt, st.Failure = s.blobPipe.Failure()
	// The request has not failed yet, but a user who looks at the status must learn why reads
	// block.
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
