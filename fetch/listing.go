package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
)

const (
	// listingAge is the maximum age of a Listing from which the history is fetched. If the Listing is older, the refs
	// are requested again.
	listingAge = time.Minute
	// maxTags is the maximum number of annotated tags that the method Here of a Listing fetches. Further tags are
	// fetched with the history.
	maxTags = 256
)

// listedRefs are the prefixes of the refs that git clone fetches.
var listedRefs = []string{"HEAD", "refs/heads/", "refs/tags/"}

// Listing is a list of the branches and tags of the remote. It is requested before the history, which is then fetched
// from the same list, so that the list costs no additional request.
type Listing struct {
	store *Store
	done  chan struct{} // closed when the list has arrived, or when the request has failed

	// The fields below do not change after done is closed.
	refs  transport.Refs
	asked time.Time // time of the request
	err   error
}

// List asks the remote for its branches and tags, and returns at once.
func (s *Store) List() *Listing {
	l := &Listing{store: s, done: make(chan struct{}), asked: time.Now()}
	started := s.tasks.Start(func(ctx context.Context) {
		defer close(l.done)
		l.refs, l.err = s.fetcher.remote.Refs(ctx, listedRefs)
	})
	if !started {
		l.err = ErrClosed
		close(l.done)
	}
	return l
}

// Here returns the branches and tags of the list that git can use before the history is fetched: those whose objects
// are on this host. head is the full name of the remote's default branch if it is one of them. The other refs are left
// out, because for a ref to a missing commit git would request this commit with its history when it lists or shows
// refs. Here first requests annotated tags of commits on this host, if the tags were not fetched with the commits. From
// then on, Store.Refs includes the refs. Here waits until the list has arrived; the caller must have waited for the
// trees of the mounted commit.
func (l *Listing) Here(ctx context.Context, mounted object.ID) (refs []packedrefs.Ref, head string, err error) {
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	s, list, err := l.store, l.refs, l.err
	if errors.Is(err, transport.ErrNoV2) {
		list, err = s.acquirer.listWithGit(ctx)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list refs: %w", err)
	}
	usable := s.history.usable(mounted)
	if tags := s.history.lackingTags(list, usable); len(tags) > 0 {
		if err := s.history.fetchTags(ctx, tags); err != nil {
			// the error is only logged, because the tags are fetched again with the history
			s.log.Debug("fetch annotated tags", zap.Error(err))
		}
	}
	def := list.Unborn
	for _, r := range list.List {
		if r.Name == "HEAD" {
			def = r.Target
		} else if usable(tipOf(r)) && s.history.has(r.ID) {
			refs = append(refs, packedrefs.Ref{Name: r.Name, ID: r.ID, Peeled: r.Peeled})
		}
	}
	if slices.ContainsFunc(refs, func(r packedrefs.Ref) bool { return r.Name == def }) {
		head = def
	}
	return refs, head, s.history.add(refs)
}

// tipOf returns the object to which a ref points; for an annotated tag, the object to which the tag points.
func tipOf(r transport.Ref) object.ID {
	if !r.Peeled.IsZero() {
		return r.Peeled
	}
	return r.ID
}

// lackingTags returns the annotated tags that the store lacks, and whose commits are usable.
func (h *history) lackingTags(refs transport.Refs, usable func(object.ID) bool) (tags []transport.Ref) {
	for _, r := range refs.List {
		if len(tags) < maxTags && !r.Peeled.IsZero() && usable(r.Peeled) && !h.has(r.ID) {
			tags = append(tags, r)
		}
	}
	return tags
}

// recent returns the list for a fetch of the history. It returns false if l is nil, if the list has not arrived, or if
// the remote must be asked again, because the list is old or the refs of the store were changed after it. changed is
// the time of the last such change.
func (l *Listing) recent(changed time.Time) (transport.Refs, bool) {
	if l == nil {
		return transport.Refs{}, false
	}
	select {
	case <-l.done:
		return l.refs, l.err == nil && time.Since(l.asked) < listingAge && changed.Before(l.asked)
	default:
		return transport.Refs{}, false
	}
}

// has reports whether the store has an object, which stock git may have fetched from a plain file server as a loose
// object.
func (h *history) has(id object.ID) bool {
	if h.storage.objects.Has(id) {
		return true
	}
	_, _, err := odb.NewLoose(h.repo.Objects(), id.Format()).Size(id)
	return err == nil
}

// usable returns a function that reports whether git can use a commit before the history is fetched: the commit and its
// parents are on this host, or it is part of the boundary. mounted is a commit that is known to be usable.
func (h *history) usable(mounted object.ID) func(object.ID) bool {
	boundary := h.repo.Boundary()
	return func(id object.ID) bool {
		return id == mounted || h.storage.objects.Has(id) &&
			(len(boundary) == 0 || slices.Contains(boundary, id) || h.storage.hasParents(id))
	}
}

// fetchTags fetches annotated tags whose commits are on this host.
func (h *history) fetchTags(ctx context.Context, tags []transport.Ref) error {
	req := transport.FetchRequest{Once: true}
	for _, t := range tags {
		req.Wants = append(req.Wants, t.ID)
		if !slices.Contains(req.Haves, t.Peeled) {
			req.Haves = append(req.Haves, t.Peeled)
		}
	}
	caps, err := h.fetcher.remote.Capabilities(ctx)
	// an error is possible, for example, if stock git fetches from this remote and has fetched the tags with the commit
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
	return h.fetcher.ingest(ctx, resp.Pack, nil)
}
