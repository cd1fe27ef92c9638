package fetch

import (
	"context"
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Tips has the refs of the remote below a prefix, at the time of a request.
type Tips struct {
	Store *Store // store of the remote; List sets the other fields

	Here     []packedrefs.Ref  // refs that git can use, because their objects are on this host
	Missing  []packedrefs.Ref  // the other refs; Fetch fetches their objects
	Symbolic map[string]string // the targets of the symbolic refs among both
	// Deep is whether the history of the remote's branches was fetched, possibly by another process.
	Deep bool
}

// List asks the remote for its refs below a prefix. mounted is the mounted commit, with the trees of which the caller
// has waited.
func (t *Tips) List(ctx context.Context, prefix string, mounted object.ID) error {
	s := t.Store
	*t = Tips{Store: s, Symbolic: map[string]string{}, Deep: s.repo.Complete()}
	if err := s.Refresh(); err != nil { // another process may have fetched objects
		return err
	}
	refs, err := s.fetcher.remote.Refs(ctx, []string{prefix})
	if err != nil {
		return fmt.Errorf("list refs below %s: %w", prefix, err)
	}
	usable := s.history.usable(mounted)
	for _, r := range refs.List {
		if r.Target != "" {
			t.Symbolic[r.Name] = r.Target
		}
		ref := packedrefs.Ref{Name: r.Name, ID: r.ID, Peeled: r.Peeled}
		if usable(tipOf(r)) && s.history.has(r.ID) {
			t.Here = append(t.Here, ref)
		} else {
			t.Missing = append(t.Missing, ref)
		}
	}
	return nil
}

// Fetch fetches the objects of the missing refs, without blobs. Deep must be true, because the remote then sends what
// is not part of the history.
func (t *Tips) Fetch(ctx context.Context) error {
	s := t.Store
	h, req, wanted := s.history, transport.FetchRequest{Haves: s.repo.CompleteTips()}, map[object.ID]bool{}
	for _, r := range t.Missing {
		if !wanted[r.ID] {
			wanted[r.ID] = true
			req.Wants = append(req.Wants, r.ID)
		}
	}
	caps, err := h.fetcher.remote.Capabilities(ctx)
	if err != nil {
		return err
	}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := h.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	if err := h.fetcher.ingest(ctx, resp.Pack, nil); err != nil {
		return err
	}
	return s.repo.AddBoundary(resp.Shallow, h.storage.hasParents)
}
