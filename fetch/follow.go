package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// Tip returns the commit of a branch of the remote, in one request; the zero id if the branch has no commit. While the remote
// is unreachable, it waits, for at most Config.Deadline.
func (s *Store) Tip(ctx context.Context, ref string) (tip object.ID, err error) {
	err = s.Retry(ctx, func() (err error) {
		tip, err = s.Resolve(ctx, ref)
		return err
	})
	return tip, err
}

// Advance fetches tip, the new commit of a branch of the remote, with its trees and without
// contents. A complete history stays complete: the commits since have, a commit on this host, are
// fetched in one request. Otherwise only the newest commits are fetched, as for a mount.
func (s *Store) Advance(ctx context.Context, ref string, tip, have object.ID) error {
	if !s.repo.Complete() {
		return s.acquireWhole(ctx, tip.String())
	}
	unlock, err := s.repo.LockHistory(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var caps transport.Capabilities
	err = s.Retry(ctx, func() (err error) {
		if caps, err = s.remote.Capabilities(ctx); err != nil {
			return err
		}
		return s.blobPipe.RequestObject(ctx, tip, func() error { return s.requestSince(ctx, caps, tip, have) })
	})
	if errors.Is(err, transport.ErrNoV2) {
		return s.acquireWhole(ctx, ref)
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", ref, err)
	}
	return s.moveRef(ref, tip)
}

// acquireWhole acquires ref and waits for all of its trees. It repeats the acquisition while the
// remote is unreachable.
func (s *Store) acquireWhole(ctx context.Context, ref string) error {
	return s.Retry(ctx, func() error {
		snap, err := s.Acquire(ctx, ref)
		if err != nil {
			return err
		}
		return snap.Wait(ctx)
	})
}

// requestSince fetches, in one request, the commits that can be reached from tip but not from have.
func (s *Store) requestSince(ctx context.Context, caps transport.Capabilities, tip, have object.ID) error {
	req := transport.FetchRequest{Wants: []object.ID{tip}, Haves: s.repo.CompleteTips()}
	if !have.IsZero() && !slices.Contains(req.Haves, have) {
		req.Haves = append(req.Haves, have)
	}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := s.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	if err := s.ingest(ctx, resp.Pack, nil); err != nil {
		return err
	}
	if len(resp.Shallow) > 0 { // the remote is a shallow repository
		return s.repo.AddBoundary(resp.Shallow, s.hasParents)
	}
	return nil
}

// moveRef sets the store's copy of a ref of the remote to a commit whose history is on this host.
// The caller holds history.lock.
func (s *Store) moveRef(ref string, tip object.ID) error {
	// The other refs are kept as they are: only the followed branch is known to have moved.
	list, err := s.repo.MoveRef(ref, tip)
	if err != nil {
		return err
	}
	s.setRefs(list)
	return nil
}

// HasCommit reports whether a commit and its trees are on this host.
func (s *Store) HasCommit(id object.ID) bool {
	return s.haveSnapshot(&Snapshot{Commit: id, Format: id.Format()})
}
