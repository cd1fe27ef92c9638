package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/fetch/foreseen"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/prioritize"
)

// RawView reads the blobs of one mount as they are stored in the repository. It is also responsible for the readahead
// and the prefetches of the mount. Its methods may be called from any goroutine.
type RawView struct {
	store *Store
	tree  atomic.Pointer[object.ID] // the tree that the mount shows
	// commit is the commit of the remote with which the mount began, and commitTree its tree.
	commit, commitTree object.ID
	ahead              readahead.Tracker
	reads              atomic.Pointer[readprofile.Recorder] // records which files are read; nil: not recorded
	Foreseen           *foreseen.Prefetcher                 // prefetches read profiles

	gone     chan struct{} // channel that Close closes
	crawling atomic.Bool   // true while a goroutine requests the rest of the tree (see crawl)

	mu     sync.Mutex
	closed bool
	// sizing is the request for sizes that is in flight, or nil. At most one such request is in flight, because each
	// request is for thousands of sizes.
	sizing *sizeRequest
}

// rawView returns the RawView of a mount that shows the tree of snap. The call counts as the beginning of a read, so
// that prefetches are delayed for a short time.
func (s *Store) rawView(snap *Snapshot) *RawView {
	s.fetcher.pipe.NoteReader()
	v := &RawView{store: s, commit: snap.Commit, commitTree: snap.Tree, gone: make(chan struct{})}
	v.tree.Store(&snap.Tree)
	v.Foreseen = v.newForeseen()
	return v
}

// size returns the size, in bytes, of the blob at path. It searches the sizes that are known on this host, then the
// object directories of mounts (type Local). If it finds no size, it sends an object-info request. ok is false if the
// remote does not return the size either, so that the contents have to be fetched.
func (v *RawView) size(ctx context.Context, id object.ID, path string) (n int64, ok bool, err error) {
	if n, ok := v.store.storage.knownSize(id); ok {
		return n, true, nil
	}
	v.store.storage.refresh() // Another process may have added a pack that contains the blob.
	if n, ok := v.store.storage.contentSize(id); ok {
		return n, true, nil
	}
	if n, ok := v.store.storage.localSize(id); ok {
		return n, true, nil
	}
	// The blob is probably not on the Store's remote, so an object-info request to that remote would be a useless round
	// trip.
	if v.store.storage.onSessionRemote(id) {
		return 0, false, nil
	}
	return v.askSizes(ctx, id, path)
}

// Show sets the tree that the mount shows from now on, which readahead and prefetching use.
func (v *RawView) Show(tree object.ID) { v.tree.Store(&tree) }

// Shown returns the tree that the mount shows.
func (v *RawView) Shown() object.ID { return *v.tree.Load() }

// Run calls work and returns when work has ended. Store.Close also waits for its end. If the store is closed, Run
// returns false and does not call work.
func (v *RawView) Run(work func()) bool {
	done := make(chan struct{})
	if !v.store.tasks.Start(func(context.Context) { work(); close(done) }) {
		return false
	}
	<-done
	return true
}

// LocalTree returns the entries of a tree, and false if the tree is not on this host. It never waits.
func (v *RawView) LocalTree(id object.ID) ([]object.TreeEntry, bool) { return v.store.trees.Local(id) }

// BlobState returns the size of a blob in bytes (-1: unknown), whether the blob is on this host, and whether its want
// is queued or in flight. It never waits.
func (v *RawView) BlobState(id object.ID) (size int64, fetched, pending bool) {
	if size, fetched = v.store.storage.contentSize(id); fetched {
		return size, true, false
	}
	size, known := v.store.storage.sizes.Get(id)
	if !known {
		size = -1
	}
	return size, false, v.store.fetcher.pipe.IsPending(id)
}

// Close ends all calls that wait for objects of this view. These calls return context.Canceled.
func (v *RawView) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.closed = true
		close(v.gone)
	}
}

// untilClosed returns a context that ends with ctx or when the view is closed. The caller must call the returned
// function.
func (v *RawView) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-v.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Tree returns the entries of a tree. It waits until the tree has been fetched. When the read deadline has passed, it
// returns an error that wraps ErrDeadline. The zero id stands for the empty tree.
func (v *RawView) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() {
		return nil, nil
	}
	if entries, ok := v.store.storage.memory.Tree(id); ok {
		return entries, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, v.store.fetcher.pipe.Health().Deadline(), ErrDeadline)
	defer cancel()
	closing, cancel := v.untilClosed(ctx)
	defer cancel()
	entries, err := v.store.Tree(closing, id)
	// err is context.DeadlineExceeded or context.Canceled, which does not show that the read deadline has passed.
	// Therefore ErrDeadline is added.
	if err != nil && errors.Is(context.Cause(ctx), ErrDeadline) && !errors.Is(err, ErrDeadline) {
		err = fmt.Errorf("read tree %s: %w", id, ErrDeadline)
		v.store.fetcher.pipe.Health().ReportFailure(err, func() { v.store.trees.fetchLater(id) })
	}
	return entries, err
}

// NoteLookup records that a process looked at the attributes of a file. A reader that looks at files which were fetched
// by readahead is treated as a crawler, a process that reads the whole tree.
func (v *RawView) NoteLookup(b Blob) { v.ahead.Looked(b.ID) }

// openStored returns a blob's contents as they are stored in the repository. If the contents have to be fetched, the
// same request contains the wants that the function along returns.
func (v *RawView) openStored(ctx context.Context, id object.ID, path string,
	along func() pipeline.Neighbours) (Content, error) {
	if c, ok := v.store.storage.stored(id); ok {
		return c, nil
	}
	ok, err := v.store.storage.materialize(id)
	if err != nil {
		return nil, err
	}
	if !ok {
		ctx, cancel := v.untilClosed(ctx)
		defer cancel()
		data, err := v.store.fetcher.pipe.Wait(ctx, prioritize.Want{ID: id, Path: path}, along())
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if data != nil {
			return inMemory(data), nil
		}
	}
	if c, here := v.store.storage.stored(id); here {
		// Wait has stored large contents on disk and returned no bytes, so their number is added to the metrics here.
		if !ok {
			metrics.Charge(ctx, metrics.Fetched, 0, c.Size())
		}
		return c, nil
	}
	// a request on behalf of git has stored the blob in a pack only; copy it to the cache
	if _, err := v.store.storage.materialize(id); err != nil {
		return nil, err
	}
	if c, ok := v.store.storage.stored(id); ok {
		return c, nil
	}
	return nil, fmt.Errorf("read %s: cache is too small: blob %s was evicted when it arrived", path, id)
}

// missing reports whether a blob can only be read by a request to a remote.
func (v *RawView) missing(id object.ID) bool {
	if _, here := v.store.storage.blobs.Size(id); here || v.store.storage.objects.Has(id) {
		return false
	}
	_, shared := v.store.storage.host.ContentSize(id)
	return !shared
}

// IsFetched reports whether a blob is on this host.
func (v *RawView) IsFetched(b Blob) bool { return !v.missing(b.ID) }
