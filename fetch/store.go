// Package fetch fetches objects from a remote and stores them on this host. Commits and trees are fetched when a mount
// is created, blobs when they are read.
//
// Terms. A Store is shared by all mounts of one remote: it holds trees and history in git's own layout, the sizes and
// contents of fetched blobs, and the pipeline that requests further blobs. A Snapshot is one fetched commit; its trees
// may still be in flight. A RawView reads the blobs of one mount and finds the neighbours of a path, so that one
// request fetches the files that will probably be read next. A View wraps a RawView and converts contents as git
// checkout would.
//
// A read calls, from top to bottom: View.Open, RawView.openStored (cache, then local packs), pipeline.Wait,
// fetcher.sendBlobs, transport.Fetch, odb.Unpack. The hash of every object is verified before its first byte is
// returned.
//
// Lock order: conversions.mu and RawView.mu, then Local.mu, then the mutex of one part of the Store (such as storage or
// trees; a goroutine must not hold two of these), then the pipeline's mutex. A goroutine must not hold any of these
// locks while it waits for the network or the disk.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/hoststore"
	"github.com/artifactfs/artifactfs/fetch/notices"
	"github.com/artifactfs/artifactfs/fetch/tasks"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/namedset"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/metrics"
)

const (
	// maxBlobSize is the maximum size of one blob, in bytes. A pack entry whose header declares a larger size is rejected
	// before memory is allocated for it.
	maxBlobSize = 1 << 40
	// spoolOver is the size, in bytes, above which a blob is written to a file while it arrives; smaller blobs are kept in
	// memory.
	spoolOver = 1 << 20
	// quietMost is how long a request may receive no byte before Store.Stats reports the remote as stalled. While a server
	// works on an answer it sends progress messages; git sends one every five seconds.
	quietMost = 3 * time.Second
)

// Config configures a Store. All stores of a process share the same Blobs and Memory.
type Config struct {
	Dir      string // the store's directory; Open creates it if it does not exist
	Remote   *transport.Remote
	Blobs    *cache.Blobs
	Memory   *cache.Memory
	Readers  *Readers      // shared by all stores of the process; nil: Open creates one for this store
	Deadline time.Duration // maximum time for which a read waits for contents before it returns ErrDeadline
	// login for stock git, which fetches from remotes that package transport does not support; nil: no login
	Credential func() Credential
	Env        transport.Environment // environment of stock git when it contacts the remote
	Host       *hoststore.Store      // what the daemon of the host has fetched from the same remote; nil: nothing
	Notice     string                // message for the user about the remote, for Stats.Notices; "": none
	Log        *zap.Logger
}

// Credential is a user name and secret for stock git; see bare.Credential.
type Credential = bare.Credential

// Store is the part of the program that all mounts of one remote share. Each field of a Store has one task and its own
// lock. The methods of Store may be called from any goroutine.
type Store struct {
	repo       *bare.Repo
	log        *zap.Logger
	tasks      *tasks.Group
	notices    *notices.List
	storage    *storage
	fetcher    *fetcher
	trees      *trees
	history    *history
	acquirer   *acquirer
	counts     *counts
	prefetches tasks.Turns[prefetchKey]
	smudges    smudges
	caching    sync.Mutex // held by FromCache, so that two callers do not write the same pack
}

// Open opens the store in cfg.Dir, and creates it if it does not exist. It sends no request.
func Open(cfg Config) (*Store, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		repo:    bare.New(bare.Config{Dir: cfg.Dir, URL: cfg.Remote.URL(), Credential: cfg.Credential, Env: cfg.Env}),
		log:     cfg.Log,
		tasks:   tasks.New(),
		notices: &notices.List{Log: cfg.Log},
		smudges: smudges{running: map[object.ID]*smudge{}},
	}
	s.storage = &storage{dir: cfg.Dir, repo: s.repo, blobs: cfg.Blobs, memory: cfg.Memory, notices: s.notices,
		host: cfg.Host}
	s.notices.Add(cfg.Notice)
	s.fetcher = newFetcher(cfg, s.storage, s.tasks)
	s.trees = newTrees(s.storage, s.fetcher, s.tasks)
	s.history = &history{repo: s.repo, storage: s.storage, fetcher: s.fetcher, log: cfg.Log}
	s.acquirer = &acquirer{
		repo: s.repo, storage: s.storage, fetcher: s.fetcher, trees: s.trees, history: s.history, tasks: s.tasks,
		notices: s.notices,
		log:     cfg.Log,
	}
	s.counts = newCounts(s.trees, s.storage, s.tasks)
	// Problem reads the index of the host's cache, which takes time, so it is called in the background.
	s.tasks.Start(func(context.Context) { s.notices.AddError(cfg.Host.Problem()) })
	// The object format of an existing store is recorded on disk, so its packs can be opened although the remote may be
	// unreachable.
	if f, ok := s.repo.Format(); ok {
		if err := s.storage.openObjects(f); err != nil {
			s.fetcher.pipe.Close()
			return nil, err
		}
		// An error is ignored, because the next look-up reads the set again.
		s.tasks.Start(func(ctx context.Context) { _ = s.NamedBlobs().Sync(ctx) })
	}
	return s, nil
}

// Close cancels all requests, waits for every goroutine of the store, and closes the remote and the packs.
func (s *Store) Close() error {
	if !s.tasks.Close() {
		return nil
	}
	s.fetcher.pipe.Close()
	s.tasks.Wait()
	s.storage.host.Close()
	return errors.Join(s.fetcher.remote.Close(), s.storage.close())
}

// URL returns the remote's URL, without secrets.
func (s *Store) URL() string { return s.fetcher.remote.URL() }

// Remote returns the store's remote. Close closes it, so the caller must not.
func (s *Store) Remote() *transport.Remote { return s.fetcher.remote }

// GitDir returns the path of the store's bare git repository, which contains commits, trees and refs.
func (s *Store) GitDir() string { return s.repo.Path() }

// Stats describes the state and the traffic of a store.
type Stats struct {
	Requests, RoundTrips   int64 // number of requests; number of requests and of opened connections together
	Blobs                  int64 // number of blobs that have arrived
	BytesIn                int64 // number of bytes read from the network
	Failures               int64 // number of requests that failed
	Foreground, Background int   // numbers of queued wants: those of readers with their neighbours, and all others
	Notices                []string
	Failure                error // error of the last request; nil after a success
	FailedAt               time.Time
	History                History
	Refused                []Refusal
}

// Latencies returns histograms of the time for which readers waited for contents, and of the time that requests for
// contents took. The histogram foreground is for the requests of readers, background is for prefetches.
func (s *Store) Latencies() (waits, foreground, background *metrics.Histogram) {
	return s.fetcher.pipe.Latencies()
}

// Stats returns the present state and counters of the store. It is cheap and never waits for the network or the disk.
func (s *Store) Stats() Stats {
	t := s.fetcher.remote.Stats()
	st := Stats{Requests: t.Requests, RoundTrips: t.RoundTrips, BytesIn: t.BytesIn, Blobs: s.fetcher.blobsIn.Load()}
	st.Foreground, st.Background = s.fetcher.pipe.Queued()
	st.Failures = s.fetcher.pipe.Health().Failures()
	st.FailedAt, st.Failure = s.fetcher.pipe.Health().Failure()
	// A request that receives no bytes has not failed yet, but the status that users see must show why reads block.
	if st.Failure == nil && t.Quiet >= quietMost {
		st.Failure = fmt.Errorf("%w: no byte for %s", transport.ErrStalled, t.Quiet.Truncate(time.Second))
		st.FailedAt = time.Now().Add(-t.Quiet)
	}
	st.Refused = s.Refusals()
	st.Notices = s.notices.All()
	st.History = s.history.current()
	return st
}

// The methods below forward to the parts of the Store. They are the methods that other packages use.

// Format returns the store's object format. It must not be called before a commit was acquired, because until then the
// format is unknown.
func (s *Store) Format() object.Format { return s.storage.objects.Format() }

// Objects returns the path of the store's object directory, as a slice with one element.
func (s *Store) Objects() []string { return []string{s.repo.Objects()} }

// NamedBlobs returns the set of the blobs that the trees in the store name. Like Format, it must not be called before a
// commit was acquired.
func (s *Store) NamedBlobs() namedset.Union {
	return namedset.Union{s.storage.named.In(s.repo.Objects(), s.Format())}
}

// Missing returns the elements of ids that are not in the store's packs.
func (s *Store) Missing(ids []object.ID) []object.ID { return s.storage.missing(ids) }

// Refresh makes packs visible that other processes, such as git, have added to the store.
func (s *Store) Refresh() error { return s.storage.refresh() }

// Join joins small packs of the store into larger ones. While Join runs, Provide waits for a short time if there are
// too many packs.
func (s *Store) Join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	return s.storage.join(ctx, o)
}

// Tree returns the entries of a tree. While a commit is being acquired, Tree waits for a missing tree to arrive with
// that commit; at other times, Tree requests the missing tree. The zero id stands for the empty tree.
func (s *Store) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	return s.trees.Entries(ctx, id)
}

// Acquire resolves the name ref ("" stands for the remote's HEAD) to a commit, and fetches the commit and its trees,
// without blobs if the remote supports filters. Acquire returns as soon as the commit has been read. The trees continue
// to arrive in the background. If ctx ends before the commit has been read, nothing is stored.
func (s *Store) Acquire(ctx context.Context, ref string) (*Snapshot, error) {
	return s.acquirer.acquire(ctx, ref)
}

// Resume returns the snapshot that an earlier mount had. It sends no request if the commit is on this host. If the
// branch was unborn, the snapshot is that of an unborn branch, even if the branch exists on the remote by now.
func (s *Store) Resume(ctx context.Context, b Base) (*Snapshot, error) {
	return s.acquirer.resume(ctx, b)
}

// Reopen returns the snapshot of a mount that this process takes over from another process. It sends no request. If
// trees are missing, Snapshot.Wait returns an error, and the caller can fetch the trees by calling Acquire with the
// same commit.
func (s *Store) Reopen(ctx context.Context, b Base) (*Snapshot, error) {
	return s.acquirer.reopen(ctx, b)
}

// Resolve returns the id of the commit to which the name ref points on the remote ("" stands for the remote's HEAD). It
// returns the zero id for a branch without a commit.
func (s *Store) Resolve(ctx context.Context, ref string) (object.ID, error) {
	return s.acquirer.resolveCommit(ctx, ref)
}

// Connect opens a connection to the remote in the background, so that the next request does not have to wait for the
// name lookup, TCP and TLS.
func (s *Store) Connect() { s.acquirer.connect() }

// ConnectFor opens a connection in the background, as Connect does. It is called before the commit is acquired or
// resumed. If the store is empty, ConnectFor also sends the request for the commit.
func (s *Store) ConnectFor(commit object.ID) { s.acquirer.connectFor(commit) }

// HasCommit reports whether a commit and its trees are on this host.
func (s *Store) HasCommit(id object.ID) bool { return s.acquirer.hasCommit(id) }

// Tip asks the remote, with one request, for the commit of a branch. It returns the zero id if the branch has no
// commit. While the remote is unreachable, it waits for at most Config.Deadline.
func (s *Store) Tip(ctx context.Context, ref string) (object.ID, error) {
	return s.acquirer.tip(ctx, ref)
}

// Advance fetches the new commit tip of a branch of the remote, with the trees of the commit and without file contents.
// If the store has the complete history, the history stays complete: one request fetches all commits reachable from the
// commit tip but not from have, a commit on this host. If the history is not complete, Advance fetches the newest
// commits, as for a new mount.
func (s *Store) Advance(ctx context.Context, ref string, tip, have object.ID) error {
	return s.acquirer.advance(ctx, ref, tip, have)
}

// Deepen fetches the whole history of all branches and tags, without blobs. While Busy returns true, Deepen delays the
// request, for at most 30 seconds or until the function urgent returns true. listed is the Listing that the caller has
// requested last; nil: none.
func (s *Store) Deepen(ctx context.Context, listed *Listing, urgent func() bool) error {
	return s.history.fetch(ctx, listed, urgent)
}

// SetHistoryComplete records that the history is complete. It is called by a process that takes over from another
// process which had fetched the complete history.
func (s *Store) SetHistoryComplete() { s.history.setComplete() }

// Boundary returns the commits whose parents are not in the store. git calls such commits shallow.
func (s *Store) Boundary() []object.ID { return s.repo.Boundary() }

// Refs returns the remote's branches and tags at the time when the history was last completed, and those that
// Listing.Here has returned since then.
func (s *Store) Refs() []packedrefs.Ref { return s.history.list() }

// DefaultBranch returns the full name of the remote's HEAD branch at the time when the history was last completed; ""
// if the HEAD branch is not known.
func (s *Store) DefaultBranch() string { return s.history.defaultBranch() }

// Retry calls work, a function that sends requests to the remote, and repeats the call while the remote is unreachable,
// for at most Config.Deadline.
func (s *Store) Retry(ctx context.Context, work func() error) error {
	return s.fetcher.retry(ctx, work)
}

// Forgive allows objects that were refused, because their answers were invalid, to be requested again.
func (s *Store) Forgive() { s.fetcher.pipe.Refusals().Forgive() }

// Refusals returns the refused objects that have not come in another way, sorted by path.
func (s *Store) Refusals() []Refusal {
	refused := s.fetcher.pipe.Refusals()
	refused.Settle(s.storage.objects.Has)
	return refused.List()
}

// Recovered returns a channel that is closed when the remote answers again after a failure.
func (s *Store) Recovered() <-chan struct{} { return s.fetcher.pipe.Health().Recovered() }

// Reachable returns false if the last requests have shown that the remote is unreachable. Before the first request, it
// returns true.
func (s *Store) Reachable() bool { return s.fetcher.pipe.Health().Reachable() }

// Busy reports whether requests of readers are in flight, a reader has begun to wait within the last second, or a
// process reads the whole tree. Background requests should be delayed while Busy returns true.
func (s *Store) Busy() bool { return s.fetcher.pipe.Busy() }

// AwaitCrawl waits while a process reads the whole tree, but for at most limit. It returns early if ctx ends, if the
// channel wanted is closed, or, with the result true, if a value was received from the channel changed.
func (s *Store) AwaitCrawl(ctx context.Context, limit time.Duration, wanted, changed <-chan struct{}) bool {
	for start := time.Now(); s.fetcher.pipe.Crawled() && time.Since(start) < limit; {
		select {
		case <-time.After(prefetchPoll):
		case <-changed:
			return true
		case <-wanted:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return false
}
