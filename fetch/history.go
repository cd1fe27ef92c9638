package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

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

// maxHistoryWait bounds how long busy readers delay the fetch of history.
const maxHistoryWait = 30 * time.Second

// Boundary returns the commits whose parents are not in the store. git calls such commits shallow.
func (s *Store) Boundary() []object.ID { return s.repo.Boundary() }

// hasParents reports whether a commit is in the store with all of its parents. Such a
// commit does not belong in the boundary.
func (s *Store) hasParents(commit object.ID) bool {
	_, content, err := s.objects.Get(commit, object.MaxCommitSize)
	if err != nil {
		return false
	}
	info, err := object.ParseCommit(commit.Format(), content)
	if err != nil {
		return false
	}
	for _, p := range info.Parents {
		if !s.objects.Has(p) {
			return false
		}
	}
	return true
}

// Deepen fetches the whole history of all branches and tags, without blobs. One process at a time does so for a store; others
// wait for it. While readers wait for the remote, of which there are many just after a mount, Deepen waits for at most
// maxHistoryWait, or until urgent returns true.
func (s *Store) Deepen(ctx context.Context, urgent func() bool) error {
	s.setHistory(Deepening)
	busy := func() bool { return !urgent() && s.blobPipe.Busy() }
	err := pipeline.WaitWhile(ctx, maxHistoryWait, busy)
	if err == nil {
		err = s.blobPipe.Retry(ctx, nil, func() error {
			return s.blobPipe.RequestObject(ctx, object.ID{}, func() error { return s.deepen(ctx, busy) })
		})
	}
	if err != nil {
		s.setHistory(Shallow)
		return fmt.Errorf("fetch history: %w", err)
	}
	s.setHistory(Complete)
	return nil
}

// setHistory records the state that Stats returns.
func (s *Store) setHistory(h History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = h
}

// deepen fetches the history while it holds a lock that excludes other processes. busy reports whether readers wait; the
// reading of the pack pauses for them.
func (s *Store) deepen(ctx context.Context, busy func() bool) error {
	unlock, err := s.repo.LockHistory(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have fetched the history while this one waited for the lock.
	if err := s.objects.Refresh(); err != nil {
		return err
	}
	caps, err := s.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		if err := s.deepenWithGit(ctx, false); err != nil {
			return err
		}
		s.writeCommitGraph(ctx)
		return nil
	}
	if err != nil {
		return err
	}
	refs, err := s.remote.Refs(ctx, []string{"HEAD", "refs/heads/", "refs/tags/"})
	if err != nil {
		return err
	}
	// Nothing is missing if all tips exist and no commit lacks its parents: the whole history was
	// fetched at once.
	missing := s.missingTips(refs)
	switch {
	case len(missing) == 0 && len(s.repo.Boundary()) == 0:
	case s.repo.Complete():
		err = s.deepenWithGit(ctx, caps.Filter)
	default:
		err = s.fetchHistory(ctx, caps, refs, busy)
	}
	if err != nil {
		return err
	}
	// The refs are written last: their file marks the history as complete.
	if err := s.writeRefs(refs); err != nil {
		return err
	}
	if err := s.repo.TrimBoundary(s.hasParents); err != nil {
		return err
	}
	s.writeCommitGraph(ctx)
	return nil
}

// writeCommitGraph makes git log faster in the store. A failure is only logged.
func (s *Store) writeCommitGraph(ctx context.Context) {
	if err := s.repo.WriteCommitGraph(ctx); err != nil {
		s.log.Warn("commit-graph not written: git log will be slower", zap.Error(err))
	}
}

// missingTips returns the commits of refs that are not in the store.
func (s *Store) missingTips(refs transport.Refs) []object.ID {
	var ids []object.ID
	for _, r := range refs.List {
		if !s.objects.Has(r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// fetchHistory fetches everything that the refs reach in one pack, as a clone would. It sends no haves, because they would
// increase the remote's work about tenfold.
func (s *Store) fetchHistory(ctx context.Context, caps transport.Capabilities, refs transport.Refs, busy func() bool) error {
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
	resp, err := s.request(ctx, req)
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
	if err := s.ingest(ctx, paused, nil); err != nil {
		return err
	}
	return s.repo.AddBoundary(resp.Shallow, s.hasParents) // the remote is a shallow repository
}

// writeRefs sets the store's refs to those of the remote.
func (s *Store) writeRefs(refs transport.Refs) error {
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
	s.setRefs(list)
	return s.repo.WriteRefs(head, list)
}

// setRefs replaces the refs that Refs returns. The caller must not change list afterwards.
func (s *Store) setRefs(list []packedrefs.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs = list
}

// Refs returns the remote's branches and tags as of the last time that history was completed.
func (s *Store) Refs() []packedrefs.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refs
}

// DefaultBranch returns the full name of the remote's HEAD branch as of the last time that history
// was completed; "" if it is not known.
func (s *Store) DefaultBranch() string {
	if len(s.Refs()) == 0 { // until then HEAD is as git init wrote it
		return ""
	}
	return s.repo.Head()
}
