package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// tip returns the commit of a branch of the remote, with one request. It returns the zero id if the branch has no commit. While
// the remote is unreachable, it waits for at most Config.Deadline.
func (a *acquirer) tip(ctx context.Context, ref string) (tip object.ID, err error) {
	err = a.fetcher.retry(ctx, func() (err error) {
		tip, err = a.resolveCommit(ctx, ref)
		return err
	})
	return tip, err
}

// advance fetches tip, the new commit of a branch of the remote, with its trees and without contents. If the store has the
// complete history, it stays complete: one request fetches all commits that tip reaches and have, a commit on this host, does
// not. Otherwise advance fetches only the newest commits, as for a new mount.
func (a *acquirer) advance(ctx context.Context, ref string, tip, have object.ID) error {
	if !a.repo.Complete() {
		return a.acquireWhole(ctx, tip.String())
	}
	unlock, err := a.repo.LockHistory(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var caps transport.Capabilities
	err = a.fetcher.retry(ctx, func() (err error) {
		if caps, err = a.fetcher.remote.Capabilities(ctx); err != nil {
			return err
		}
		return a.fetcher.pipe.Refusals().Request(ctx, tip, func() error { return a.requestSince(ctx, caps, tip, have) })
	})
	if errors.Is(err, transport.ErrNoV2) {
		return a.acquireWhole(ctx, ref)
	}
	if err != nil {
		return fmt.Errorf("fetch %s: %w", ref, err)
	}
	return a.moveRef(ref, tip)
}

// acquireWhole acquires ref and waits until all of its trees are on this host. It repeats the acquisition while the remote is
// unreachable.
func (a *acquirer) acquireWhole(ctx context.Context, ref string) error {
	return a.fetcher.retry(ctx, func() error {
		snap, err := a.acquire(ctx, ref)
		if err != nil {
			return err
		}
		return snap.Wait(ctx)
	})
}

// requestSince fetches, with one request, the commits that can be reached from tip but not from have. A zero have stands for no
// commit.
func (a *acquirer) requestSince(ctx context.Context, caps transport.Capabilities, tip, have object.ID) error {
	req := transport.FetchRequest{Wants: []object.ID{tip}, Haves: a.repo.CompleteTips()}
	if !have.IsZero() && !slices.Contains(req.Haves, have) {
		req.Haves = append(req.Haves, have)
	}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := a.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	if err := a.fetcher.ingest(ctx, resp.Pack, nil); err != nil {
		return err
	}
	if len(resp.Shallow) > 0 { // the remote is itself a shallow repository
		return a.repo.AddBoundary(resp.Shallow, a.storage.hasParents)
	}
	return nil
}

// moveRef sets one ref of the store's repository to tip, a commit whose history is on this host. The caller holds the lock of
// bare.Repo.LockHistory.
func (a *acquirer) moveRef(ref string, tip object.ID) error {
	// The other refs are not changed, because only the branch that the mount follows is known to have moved.
	list, err := a.repo.MoveRef(ref, tip)
	if err != nil {
		return err
	}
	a.history.setRefs(list)
	return nil
}

// hasCommit reports whether the store has a commit and its trees.
func (a *acquirer) hasCommit(id object.ID) bool {
	return a.haveSnapshot(&Snapshot{Commit: id, Format: id.Format()})
}
