package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
)

// tip asks the remote, with one request, for the commit of a branch. It returns the zero id if the branch has no
// commit. While the remote is unreachable, it waits for at most Config.Deadline.
func (a *acquirer) tip(ctx context.Context, ref string) (tip object.ID, err error) {
	err = a.fetcher.retry(ctx, func() (err error) {
		tip, err = a.resolveCommit(ctx, ref)
		return err
	})
	return tip, err
}

// advance fetches the new commit tip of a branch of the remote, with the trees of the commit and without file contents.
// If the store has the complete history, the history stays complete: one request fetches all commits reachable from the
// commit tip but not from have, a commit on this host. If the history is not complete, advance fetches the newest
// commits, as for a new mount.
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

// acquireWhole acquires ref and waits until all of its trees are on this host. While the remote is unreachable,
// acquireWhole tries again.
func (a *acquirer) acquireWhole(ctx context.Context, ref string) error {
	return a.fetcher.retry(ctx, func() error {
		snap, err := a.acquire(ctx, ref)
		if err != nil {
			return err
		}
		return snap.Wait(ctx)
	})
}

// requestSince fetches, with one request, the commits that are reachable from the commit tip but not from the commit
// have. have is the zero id if the request has no such commit.
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
	if len(resp.Shallow) > 0 { // commits without parents in the answer mean that the remote is a shallow repository
		return a.repo.AddBoundary(resp.Shallow, a.storage.hasParents)
	}
	return nil
}

// moveRef sets one ref of the store's repository to the commit tip, whose history is on this host. The caller holds the
// lock of bare.Repo.LockHistory.
func (a *acquirer) moveRef(ref string, tip object.ID) error {
	// The other refs are not changed, because it is not known whether other branches have also moved.
	list, err := a.repo.MoveRef(ref, tip)
	if err != nil {
		return err
	}
	a.history.setRefs(joined(a.history.list(), list))
	return nil
}

// hasCommit reports whether the store has a commit and its trees.
func (a *acquirer) hasCommit(id object.ID) bool {
	return a.haveSnapshot(&Snapshot{Commit: id, Format: id.Format()})
}
