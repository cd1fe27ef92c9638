package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
)

// History is how much of the remote's history is on this host.
type History string

const (
	Shallow   History = "shallow"   // the newest commits are on this host, and older commits are missing
	Deepening History = "deepening" // the commits that are missing on this host are being fetched
	Complete  History = "complete"  // every commit reachable from the remote's refs is on this host
)

// history fetches all commits of the remote's branches and tags, and keeps the refs that the remote had at the last
// such fetch. On disk, the store's bare repository contains the refs and the boundary (the commits whose parents are
// missing). mu protects the fields below mu. A process that fetches history holds the lock of bare.Repo.LockHistory,
// which excludes other processes.
type history struct {
	repo    *bare.Repo
	storage *storage
	fetcher *fetcher
	log     *zap.Logger

	mu    sync.Mutex
	state History
	// refs are the refs that the remote had when the history was last completed, and those that were added by Listing.Here
	// since then. The slice is replaced, never changed.
	refs []packedrefs.Ref
	read bool // whether refs contains the refs that are stored on disk
}

// maxHistoryWait is the maximum time for which the fetch of history is delayed because readers wait for the remote.
const maxHistoryWait = 30 * time.Second

// fetch fetches the whole history of all branches and tags, without blobs. One process at a time fetches the history of
// a store; other processes wait. Just after a mount, many readers wait for the remote. As long as readers wait, fetch
// delays its request, for at most maxHistoryWait or until the function urgent returns true. listed is the list of the
// remote's refs, if it was requested before; the remote is asked again if the list is old, or after a failure.
func (h *history) fetch(ctx context.Context, listed *Listing, urgent func() bool) error {
	h.setState(Deepening)
	busy := func() bool { return !urgent() && h.fetcher.pipe.Busy() }
	err := pipeline.WaitWhile(ctx, maxHistoryWait, busy)
	if err == nil {
		err = h.fetcher.pipe.Health().Retry(ctx, nil, func() error {
			return h.fetcher.pipe.Refusals().Request(ctx, object.ID{}, func() error {
				l := listed
				listed = nil
				return h.fetchExclusively(ctx, l, busy)
			})
		})
	}
	if err != nil {
		h.setState(Shallow)
		return fmt.Errorf("fetch history: %w", err)
	}
	h.setState(Complete)
	return nil
}

// setState sets the state that Store.Stats reports.
func (h *history) setState(state History) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = state
}

// fetchExclusively waits for the lock that excludes other processes, and then fetches the history. While busy returns
// true, because readers wait for the remote, fetchExclusively does not read the pack.
func (h *history) fetchExclusively(ctx context.Context, listed *Listing, busy func() bool) error {
	unlock, err := h.repo.LockHistory(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have fetched the history while this process waited for the lock.
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
	refs, ok := listed.recent(h.repo.Changed())
	if !ok {
		if refs, err = h.fetcher.remote.Refs(ctx, listedRefs); err != nil {
			return err
		}
	}
	// If all commits of the refs are in the store, and the boundary is empty (no commit lacks its parents), then the first
	// fetch has contained the whole history, and no request is necessary.
	missing := h.missingTips(refs)
	if !h.repo.Complete() && (len(missing) > 0 || len(h.repo.Boundary()) > 0) {
		if err := h.copyFromHost(ctx); err != nil {
			h.log.Warn("history not copied from the host", zap.Error(err))
		}
		missing = h.missingTips(refs)
	}
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
	// The refs are written after the objects, because the existence of the file packed-refs marks the history as complete.
	if err := h.writeRefs(refs); err != nil {
		return err
	}
	if err := h.repo.TrimBoundary(h.storage.hasParents); err != nil {
		return err
	}
	h.writeCommitGraph(ctx)
	return nil
}

// copyFromHost copies the history that the host has fetched into the store. It does nothing if the host has no complete
// history. The caller holds the lock of bare.Repo.LockHistory.
func (h *history) copyFromHost(ctx context.Context) error {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(h.repo.Objects(), "pack", name+".idx"))
		return err == nil
	}
	past, ok, err := h.storage.host.History(has, func(pack io.Reader) error { return h.fetcher.ingest(ctx, pack, nil) })
	if err != nil || !ok {
		return err
	}
	// A ref without its commit would make the remote leave out objects that the store lacks.
	for _, r := range past.Refs {
		if !h.storage.objects.Has(r.ID) {
			return fmt.Errorf("copy history of the host: commit %s of %s is missing in its packs", r.ID, r.Name)
		}
	}
	if err := h.repo.AddBoundary(past.Boundary, h.storage.hasParents); err != nil {
		return err
	}
	return h.repo.WriteRefs(past.Head, past.Refs)
}

// writeCommitGraph writes git's commit-graph file, which makes git log faster in the store. If this fails,
// writeCommitGraph logs the error.
func (h *history) writeCommitGraph(ctx context.Context) {
	if err := h.repo.WriteCommitGraph(ctx); err != nil {
		h.log.Warn("commit-graph not written: git log will be slower", zap.Error(err))
	}
}

// missingTips returns the ids of refs whose objects are not in the store.
func (h *history) missingTips(refs transport.Refs) []object.ID {
	var ids []object.ID
	for _, r := range refs.List {
		if !h.storage.objects.Has(r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// fetchAll fetches all objects that are reachable from the refs, in one pack, as a clone does. It sends no haves,
// because the remote needs about ten times as long to create the pack for a request with haves.
func (h *history) fetchAll(ctx context.Context, caps transport.Capabilities, refs transport.Refs,
	busy func() bool) error {
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
	// The pack may be large. While readers wait for other requests, the pack is not read, so that TCP slows the remote
	// down.
	paused := readerFunc(func(p []byte) (int, error) {
		if err := pipeline.WaitWhile(ctx, pipeline.MaxPause, busy); err != nil {
			return 0, err
		}
		return resp.Pack.Read(p)
	})
	if err := h.fetcher.ingest(ctx, paused, nil); err != nil {
		return err
	}
	// The answer lists commits without parents if the remote is a shallow repository.
	return h.repo.AddBoundary(resp.Shallow, h.storage.hasParents)
}

// writeRefs sets the store's refs to those of the remote, in memory and on disk.
func (h *history) writeRefs(refs transport.Refs) error {
	head := refs.Unborn
	var list []packedrefs.Ref
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			head = r.Target
			continue
		}
		list = append(list, packedrefs.Ref{Name: r.Name, ID: r.ID, Peeled: r.Peeled})
	}
	// The refs in memory are set before the file is written, so that they are correct even if the disk is full.
	h.setRefs(list)
	if err := h.repo.WriteRefs(head, list); err != nil {
		return err
	}
	return h.repo.ForgetListed()
}

// setRefs sets the refs that Store.Refs returns. The caller must not change list afterwards.
func (h *history) setRefs(list []packedrefs.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs, h.read = list, true
}

// add adds refs to those that Store.Refs returns, in memory and on disk.
func (h *history) add(refs []packedrefs.Ref) error {
	known := make(map[packedrefs.Ref]bool)
	for _, r := range h.list() {
		known[r] = true
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(r packedrefs.Ref) bool { return known[r] })
	if len(refs) == 0 {
		return nil
	}
	h.mu.Lock()
	h.refs = joined(h.refs, refs)
	h.mu.Unlock()
	return h.repo.WriteListed(joined(h.repo.Listed(), refs))
}

// joined returns the refs in list and in newer. If both have a ref, the result has the value in newer.
func joined(list, newer []packedrefs.Ref) []packedrefs.Ref {
	names := make(map[string]bool, len(newer))
	for _, r := range newer {
		names[r.Name] = true
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(r packedrefs.Ref) bool { return names[r.Name] })
	return append(rest, newer...)
}

// list returns the remote's branches and tags at the time when the history was last completed, and those that were
// added since then.
func (h *history) list() []packedrefs.Ref {
	h.mu.Lock()
	refs, read := h.refs, h.read
	h.mu.Unlock()
	if read {
		return refs
	}
	// The files are read without the lock, because reading them waits for the disk.
	refs = joined(h.repo.Refs(), h.repo.Listed())
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.read {
		h.refs, h.read = refs, true
	}
	return h.refs
}

// defaultBranch returns the full name of the remote's HEAD branch at the time when the history was last completed; ""
// if it is not known or does not exist.
func (h *history) defaultBranch() string {
	// before the history is complete, Head returns the default branch of `git init`, which may not exist
	head := h.repo.Head()
	if !slices.ContainsFunc(h.list(), func(r packedrefs.Ref) bool { return r.Name == head }) {
		return ""
	}
	return head
}

// setComplete sets the state to Complete if no state was set before. It is called by a process that takes over from
// another process which had fetched the complete history.
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

// fetchWithGit fetches the missing history with stock git, which sends the commits on this host as haves. If filter is
// true, the remote leaves out the contents of files. The caller holds the lock of bare.Repo.LockHistory.
func (h *history) fetchWithGit(ctx context.Context, filter bool) error {
	if err := h.repo.FetchHistory(ctx, filter); err != nil {
		return err
	}
	if err := h.storage.addFetched(ctx); err != nil {
		return err
	}
	refs, err := h.repo.ReadRefs(ctx)
	if err != nil {
		return err
	}
	h.setRefs(refs)
	if err := h.repo.ForgetListed(); err != nil {
		return err
	}
	return h.repo.TrimBoundary(h.storage.hasParents)
}
