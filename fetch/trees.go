package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

// trees reads the trees of the remote's commits, and fetches those that are missing. While a commit is being acquired, a reader
// waits for its tree to arrive with that commit; otherwise the tree is requested alone, once for all readers that wait for it. mu
// guards the fields below it, and is not held while a goroutine waits for the network or the disk.
type trees struct {
	storage *storage
	fetcher *fetcher
	tasks   *tasks
	slots   chan struct{} // one token for each tree that is requested alone

	mu       sync.Mutex
	streams  int                         // acquisitions in progress
	arrivals map[object.ID]chan struct{} // trees that readers wait for while streams > 0
	fetches  map[object.ID]chan struct{} // trees that readers fetch; closed when the fetch has ended
}

func newTrees(s *storage, f *fetcher, t *tasks) *trees {
	return &trees{
		storage: s, fetcher: f, tasks: t, slots: make(chan struct{}, pipeline.ForegroundSenders),
		arrivals: map[object.ID]chan struct{}{}, fetches: map[object.ID]chan struct{}{},
	}
}

// entries returns the entries of a tree. While an acquisition is in progress it waits for the tree to arrive; otherwise it
// requests the tree if it is missing. The zero id stands for the empty tree.
func (t *trees) entries(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(id.Format()) {
		return nil, nil
	}
	if entries, ok := t.storage.memory.Tree(id); ok {
		return entries, nil
	}
	// The second attempt follows the arrival or a fetch of the tree. A tree that is still missing then is neither on this host
	// nor on the remote.
	for try := 0; ; try++ {
		entries, err := t.parse(id)
		if err == nil || !errors.Is(err, odb.ErrNotFound) {
			return entries, err
		}
		arrived, err := t.awaitArrival(ctx, id)
		if err != nil {
			return nil, err
		}
		if arrived {
			continue
		}
		if try > 0 {
			return nil, fmt.Errorf("read tree %s: %w", id, ErrNotFound)
		}
		if err := t.fetchOnce(ctx, id); err != nil {
			return nil, fmt.Errorf("read tree %s: %w", id, err)
		}
		metrics.Charge(ctx, metrics.Listed, 0, 0)
	}
}

// fetchOnce fetches a tree, once for all readers that wait for it.
func (t *trees) fetchOnce(ctx context.Context, id object.ID) error {
	for {
		t.mu.Lock()
		other, ok := t.fetches[id]
		if !ok {
			t.fetches[id] = make(chan struct{})
		}
		t.mu.Unlock()
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
		if t.storage.objects.Has(id) {
			return nil
		}
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		close(t.fetches[id])
		delete(t.fetches, id)
	}()
	// A slot is acquired after the entry in fetches was made, so that all readers of one tree use one slot.
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	again := func() { t.fetchLater(id) }
	err := t.fetcher.pipe.Health().Retry(ctx, again, func() error { return t.fetch(ctx, id) })
	// That a reader was interrupted shows nothing about the state of the remote. That a reader waited until its deadline shows
	// that the remote is slow or fails.
	if err != nil && !IsUnreachable(err) && !pipeline.IsRefused(err) && (ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrDeadline)) {
		t.fetcher.pipe.Health().ReportFailure(err, again)
	}
	return err
}

// parse reads a tree on this host. It returns odb.ErrNotFound if the tree is missing.
func (t *trees) parse(id object.ID) ([]object.TreeEntry, error) {
	typ, content, err := t.storage.get(id, object.MaxTreeSize)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	if typ != object.Tree {
		return nil, fmt.Errorf("read tree %s: it is a %s", id, typ)
	}
	entries, err := object.ParseTree(id.Format(), content)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	t.storage.memory.PutTree(id, entries)
	return entries, nil
}

// local returns a tree on this host. It does not wait.
func (t *trees) local(id object.ID) ([]object.TreeEntry, bool) {
	if entries, ok := t.storage.memory.Tree(id); ok {
		return entries, true
	}
	entries, err := t.parse(id)
	return entries, err == nil
}

// fetchLater requests a tree in the background, to find out whether the remote answers again, and reports the result to the pipeline.
func (t *trees) fetchLater(id object.ID) {
	t.tasks.start(func(ctx context.Context) {
		if err := t.fetch(ctx, id); err != nil {
			if pipeline.IsRefused(err) {
				err = nil // the next reader requests it again
			} else {
				t.fetcher.pipe.Health().ReportFailure(err, func() { t.fetchLater(id) })
				return
			}
		}
		t.fetcher.pipe.Health().ReportSuccess()
	})
}

// awaitArrival waits until the tree has arrived, or until the last acquisition in progress has ended, and returns true; the tree may
// still be missing then. If no acquisition is in progress, it returns at once whether the tree is on this host. The error is that
// of ctx.
func (t *trees) awaitArrival(ctx context.Context, id object.ID) (bool, error) {
	t.mu.Lock()
	if t.streams == 0 {
		t.mu.Unlock()
		return t.storage.objects.Has(id), nil
	}
	ch := t.arrivals[id]
	if ch == nil {
		ch = make(chan struct{})
		t.arrivals[id] = ch
	}
	t.mu.Unlock()
	if t.storage.objects.Has(id) { // it arrived before the channel was registered
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
func (t *trees) announce(id object.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ch := t.arrivals[id]; ch != nil {
		close(ch)
		delete(t.arrivals, id)
	}
}

// streamBegins records that an acquisition may deliver trees. Each call must be followed by one call of streamEnds.
func (t *trees) streamBegins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams++
}

// streamEnds wakes the readers of trees that have not arrived.
func (t *trees) streamEnds() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams--; t.streams > 0 {
		return
	}
	for id, ch := range t.arrivals {
		close(ch)
		delete(t.arrivals, id)
	}
}

// fetch requests one tree and everything below it, without blobs.
func (t *trees) fetch(ctx context.Context, id object.ID) error {
	return t.fetcher.pipe.Refusals().Request(ctx, id, func() error { return t.request(ctx, id) })
}

// request sends the request for one tree. A remote without support for filters sends the blobs of the tree as well.
func (t *trees) request(ctx context.Context, id object.ID) error {
	if err := t.storage.objects.Refresh(); err == nil && t.storage.objects.Has(id) {
		return nil // another process has fetched it
	}
	caps, err := t.fetcher.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	req := transport.FetchRequest{Wants: []object.ID{id}}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := t.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	return t.fetcher.ingest(ctx, resp.Pack, nil)
}
