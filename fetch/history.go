package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// History is how much of the remote's history is on this host.
type History string

const (
	Shallow   History = "shallow"   // the newest commits only
	Deepening History = "deepening" // the rest is being fetched
	Complete  History = "complete"  // every commit that the refs of the remote reach
)

// history fetches the commits of the remote's branches and tags, and knows the refs of the last time that it did. The refs and the
// boundary on disk are those of the repository; mu guards what is kept in memory. While history is fetched, the lock of
// bare.Repo.LockHistory excludes other processes.
type history struct {
	repo    *bare.Repo
	storage *storage
	fetcher *fetcher
	log     *zap.Logger

	mu    sync.Mutex
	state History
	refs  []packedrefs.Ref // the remote's, when history was completed; the slice is replaced, never changed
}

// maxHistoryWait bounds how long busy readers delay the fetch of history.
const maxHistoryWait = 30 * time.Second

// fetch fetches the whole history of all branches and tags, without blobs. One process at a time does so for a store; others
// wait for it. While readers wait for the remote, of which there are many just after a mount, fetch waits for at most
// maxHistoryWait, or until urgent returns true.
func (h *history) fetch(ctx context.Context, urgent func() bool) error {
	h.setState(Deepening)
	busy := func() bool { return !urgent() && h.fetcher.pipe.Busy() }
	err := pipeline.WaitWhile(ctx, maxHistoryWait, busy)
	if err == nil {
		err = h.fetcher.pipe.Health().Retry(ctx, nil, func() error {
			return h.fetcher.pipe.Refusals().Request(ctx, object.ID{}, func() error { return h.fetchExclusively(ctx, busy) })
		})
	}
	if err != nil {
		h.setState(Shallow)
		return fmt.Errorf("fetch history: %w", err)
	}
	h.setState(Complete)
	return nil
}

// setState records the state that Store.Stats returns.
func (h *history) setState(state History) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = state
}

// fetchExclusively acquires the lock that excludes other processes, and fetches the history. While busy returns true, because readers
// wait, the pack of the history is not read.
func (h *history) fetchExclusively(ctx context.Context, busy func() bool) error {
	unlock, err := h.repo.LockHistory(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have fetched the history while this one waited for the lock.
	if err := h.storage.objects.Refresh(); err != nil {
		return err
	}
	caps, err := h.fetcher.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		if err := h.fetchWithGit(ctx, false); err != nil {
			return err
		}
		h.writeCommitGraph(ctx)
		return nil
	}
	if err != nil {
		return err
	}
	refs, err := h.fetcher.remote.Refs(ctx, []string{"HEAD", "refs/heads/", "refs/tags/"})
	if err != nil {
		return err
	}
	// Nothing is missing if all tips exist and no commit lacks its parents: the whole history was
	// fetched at once.
	missing := h.missingTips(refs)
	switch {
	case len(missing) == 0 && len(h.repo.Boundary()) == 0:
	case h.repo.Complete():
		err = h.fetchWithGit(ctx, caps.Filter)
	default:
		err = h.fetchAll(ctx, caps, refs, busy)
	}
	if err != nil {
		return err
	}
	// The refs are written last: their file marks the history as complete.
	if err := h.writeRefs(refs); err != nil {
		return err
	}
	if err := h.repo.TrimBoundary(h.storage.hasParents); err != nil {
		return err
	}
	h.writeCommitGraph(ctx)
	return nil
}

// writeCommitGraph makes git log faster in the store. A failure is only logged.
func (h *history) writeCommitGraph(ctx context.Context) {
	if err := h.repo.WriteCommitGraph(ctx); err != nil {
		h.log.Warn("commit-graph not written: git log will be slower", zap.Error(err))
	}
}

// missingTips returns the commits of refs that are not in the store.
func (h *history) missingTips(refs transport.Refs) []object.ID {
	var ids []object.ID
	for _, r := range refs.List {
		if !h.storage.objects.Has(r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// fetchAll fetches everything that the refs reach in one pack, as a clone would. It sends no haves, because they would
// increase the remote's work about tenfold.
func (h *history) fetchAll(ctx context.Context, caps transport.Capabilities, refs transport.Refs, busy func() bool) error {
	seen := map[object.ID]bool{}
	req := transport.FetchRequest{}
	for _, r := range refs.List {
		if !seen[r.ID] {
			seen[r.ID] = true
			req.Wants = append(req.Wants, r.ID)
		}
	}
	if len(req.Wants) == 0 {
		return nil
	}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := h.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	// The pack may be large. While readers wait it is not read, so that TCP slows the remote down.
	paused := readerFunc(func(p []byte) (int, error) {
		if err := pipeline.WaitWhile(ctx, pipeline.MaxPause, busy); err != nil {
			return 0, err
		}
		return resp.Pack.Read(p)
	})
	if err := h.fetcher.ingest(ctx, paused, nil); err != nil {
		return err
	}
	return h.repo.AddBoundary(resp.Shallow, h.storage.hasParents) // the remote is a shallow repository
}

// writeRefs sets the store's refs to those of the remote.
func (h *history) writeRefs(refs transport.Refs) error {
	head := ""
	var list []packedrefs.Ref
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			head = r.Target
			continue
		}
		list = append(list, packedrefs.Ref{Name: r.Name, ID: r.ID, Peeled: r.Peeled})
	}
	// The refs in memory are set first, so that they are right even if the disk is full.
	h.setRefs(list)
	return h.repo.WriteRefs(head, list)
}

// setRefs replaces the refs that Store.Refs returns. The caller must not change list afterwards.
func (h *history) setRefs(list []packedrefs.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs = list
}

// list returns the remote's branches and tags as of the last time that history was completed.
func (h *history) list() []packedrefs.Ref {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refs
}

// defaultBranch returns the full name of the remote's HEAD branch as of the last time that history
// was completed; "" if it is not known.
func (h *history) defaultBranch() string {
	if len(h.list()) == 0 { // until then HEAD is as git init wrote it
		return ""
	}
	return h.repo.Head()
}

// setComplete records that the history is complete, which a previous process has found.
func (h *history) setComplete() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == "" {
		h.state = Complete
	}
}

// current returns how much of the history is on this host.
func (h *history) current() History {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// fetchWithGit fetches the missing history with stock git, which sends the commits on this host as haves. With filter it fetches no
// contents of files. The caller holds the lock of bare.Repo.LockHistory.
func (h *history) fetchWithGit(ctx context.Context, filter bool) error {
	if err := h.repo.FetchHistory(ctx, filter); err != nil {
		return err
	}
	if err := h.storage.objects.Refresh(); err != nil {
		return err
	}
	refs, err := h.repo.ReadRefs(ctx)
	if err != nil {
		return err
	}
	h.setRefs(refs)
	return h.repo.TrimBoundary(h.storage.hasParents)
}
