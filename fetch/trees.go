package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/tasks"
	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/metrics"
)

// trees reads the trees of the remote's commits, and fetches those that are missing. While a commit is being acquired,
// a reader that needs a missing tree waits for it to arrive with that commit. At other times, a missing tree is fetched
// with a request of its own, which all readers of this tree share. mu protects the fields below mu. A goroutine must
// not hold mu while it waits for the network or the disk.
type trees struct {
	treewalk.Walker
	storage *storage
	fetcher *fetcher
	tasks   *tasks.Group
	// holds one value for each in-flight request for a single tree; the capacity limits the number of such requests
	slots chan struct{}

	mu      sync.Mutex
	streams int // number of acquisitions of commits in progress
	// arrivals contains the missing trees for which readers wait while streams > 0. The channel of a tree is closed when
	// the tree arrives or streams becomes 0.
	arrivals map[object.ID]chan struct{}
	// trees that a reader is fetching; the channel of a tree is closed when its fetch has ended
	fetches map[object.ID]chan struct{}
	// odd holds the odd entries of the trees that have some, for all trees that this process has parsed.
	odd map[object.ID][]object.OddEntry
}

func newTrees(s *storage, f *fetcher, t *tasks.Group) *trees {
	all := &trees{
		storage: s, fetcher: f, tasks: t, slots: make(chan struct{}, pipeline.ForegroundSenders),
		arrivals: map[object.ID]chan struct{}{}, fetches: map[object.ID]chan struct{}{},
		odd: map[object.ID][]object.OddEntry{},
	}
	all.Walker.Trees = all
	return all
}

// Entries returns the entries of a tree. While a commit is being acquired, entries waits for a missing tree to arrive
// with that commit; at other times, Entries requests the missing tree. The zero id stands for the empty tree.
func (t *trees) Entries(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() || id == object.EmptyTree(id.Format()) {
		return nil, nil
	}
	if entries, ok := t.storage.memory.Tree(id); ok {
		return entries, nil
	}
	// The second iteration follows the arrival of the tree or a request for it. If the tree is still missing after a
	// request, the remote does not have it.
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

// fetchOnce fetches a tree, with one request for all readers that call it for the same tree at the same time.
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
		// The request of the other reader has ended. If the tree is still missing, this reader requests the tree, because the
		// request of the other reader may have ended when that reader was interrupted.
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
	// The entry in t.fetches is created before the slot is acquired, so that all readers of one tree use one slot
	// together.
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	again := func() { t.fetchLater(id) }
	err := t.fetcher.pipe.Health().Retry(ctx, again, func() error { return t.fetch(ctx, id) })
	// A reader that was interrupted proves nothing about the remote, so its error is not reported. A reader that waited
	// until its deadline shows that the remote is slow or fails, so that error is reported.
	if err != nil && !IsUnreachable(err) && !pipeline.IsRefused(err) &&
		(ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrDeadline)) {
		t.fetcher.pipe.Health().ReportFailure(err, again)
	}
	return err
}

// parse reads a tree that is on this host and keeps its entries in memory. It returns an error that wraps
// odb.ErrNotFound if the tree is missing.
func (t *trees) parse(id object.ID) ([]object.TreeEntry, error) {
	typ, content, err := t.storage.get(id, object.MaxTreeSize)
	if errors.Is(err, odb.ErrNotFound) {
		if shared, bytes, hostErr := t.storage.host.Get(id, object.MaxTreeSize); hostErr == nil {
			typ, content, err = shared, bytes, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	if typ != object.Tree {
		return nil, fmt.Errorf("read tree %s: object is a %s", id, typ)
	}
	entries, odd, err := object.ReadTree(id.Format(), content)
	if err != nil {
		return nil, fmt.Errorf("read tree %s: %w", id, err)
	}
	if len(odd) > 0 {
		t.mu.Lock()
		t.odd[id] = odd
		t.mu.Unlock()
	}
	t.storage.memory.PutTree(id, entries)
	return entries, nil
}

// oddOf returns the odd entries of a tree whose entries this process has read.
func (t *trees) oddOf(id object.ID) []object.OddEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.odd[id]
}

// anyOdd reports whether this process has read a tree with odd entries.
func (t *trees) anyOdd() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.odd) > 0
}

// Local returns the entries of a tree that is on this host, and false if the tree is missing or cannot be read. It does
// not wait.
func (t *trees) Local(id object.ID) ([]object.TreeEntry, bool) {
	if entries, ok := t.storage.memory.Tree(id); ok {
		return entries, true
	}
	entries, err := t.parse(id)
	return entries, err == nil
}

// fetchLater requests a tree in the background and reports to the pipeline whether the remote has answered. It is
// called to find out whether an unreachable remote answers again.
func (t *trees) fetchLater(id object.ID) {
	t.tasks.Start(func(ctx context.Context) {
		if err := t.fetch(ctx, id); err != nil {
			if pipeline.IsRefused(err) {
				// an error in the answer is not reported, because the remote has answered; the next reader requests the
				// tree again
				err = nil
			} else {
				t.fetcher.pipe.Health().ReportFailure(err, func() { t.fetchLater(id) })
				return
			}
		}
		t.fetcher.pipe.Health().ReportSuccess()
	})
}

// awaitArrival waits until the tree has arrived or the last acquisition in progress has ended, and then returns true.
// In the second case, the tree may still be missing. If no acquisition is in progress, awaitArrival returns at once
// whether the tree is on this host. err is nil, or the error of ctx.
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
	if t.storage.objects.Has(id) { // the tree arrived before its channel was in t.arrivals
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

// announce wakes the readers that wait for a tree. It is called when the tree has arrived.
func (t *trees) announce(id object.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ch := t.arrivals[id]; ch != nil {
		close(ch)
		delete(t.arrivals, id)
	}
}

// streamBegins records that the acquisition of a commit, with which trees may arrive, has started. Each call must be
// followed by one call of streamEnds.
func (t *trees) streamBegins() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams++
}

// streamEnds records that the acquisition of a commit has ended. When no other acquisition is in progress, streamEnds
// wakes the readers of trees that have not arrived.
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

// fetch requests one tree and all trees below it, without blobs. If an earlier answer for the tree was invalid, fetch
// may return the refusal of the tree without sending a request.
func (t *trees) fetch(ctx context.Context, id object.ID) error {
	return t.fetcher.pipe.Refusals().Request(ctx, id, func() error { return t.request(ctx, id) })
}

// request sends the request for one tree and stores the answer. A remote that does not support filters also sends the
// blobs of the tree.
func (t *trees) request(ctx context.Context, id object.ID) error {
	if err := t.storage.objects.Refresh(); err == nil && t.storage.objects.Has(id) {
		return nil // Another process has fetched the tree since the caller checked.
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
