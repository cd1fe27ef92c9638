package thin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

// Remote is a session remote with the refs of one session. If the session has a container, refs and
// objects are read from it and pushed to it; otherwise all calls are passed on. It is safe for
// concurrent use, except that OpenPush to Send must be called by one goroutine at a time.
//
// Locks: loading is held across network and disk, and acquired before mu. mu is a leaf.
type Remote struct {
	*transport.Remote
	session string
	log     *zap.Logger

	loading sync.Mutex

	mu            sync.Mutex
	dir           string // directory of the state and of unpacked containers; "": a temporary one, created when it is needed
	own           bool   // whether dir is temporary
	usesContainer bool   // whether the session uses a container, even if none was pushed yet
	tip           object.ID
	manifest      manifest // manifest of the container at tip
	unpacked      *unpacked
	metas         map[object.ID]bool // ids of the ordinary refs that were listed
	keepOld       bool               // the session remote refuses a container without its predecessor
}

// New returns the session remote with the refs of a session. An empty name passes everything on.
func New(remote *transport.Remote, name string, log *zap.Logger) *Remote {
	if log == nil {
		log = zap.NewNop()
	}
	return &Remote{Remote: remote, session: name, log: log, metas: map[object.ID]bool{}}
}

// Keep names a directory for the state of the container, so that it need not be fetched again. It
// is created when it is needed. Keep must be called before all other methods.
func (r *Remote) Keep(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dir = dir
}

// UseContainer makes the session use a container from now on.
func (r *Remote) UseContainer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usesContainer = true
}

// Thin reports whether the session is known to use a container.
func (r *Remote) Thin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.usesContainer
}

// Base returns the base of the session's container; the zero Base if none was read yet.
func (r *Remote) Base() Base {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Base{URL: r.manifest.Base.URL, Commits: slices.Clone(r.manifest.Base.Commits)}
}

// Close closes the session remote, and removes unpacked containers.
func (r *Remote) Close() error {
	r.loading.Lock()
	defer r.loading.Unlock()
	err := r.Remote.Close()
	r.mu.Lock()
	u, dir, own := r.unpacked, r.dir, r.own
	r.unpacked = nil
	r.mu.Unlock()
	if u != nil {
		err = errors.Join(err, u.close())
	}
	if own {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// Refs lists the refs of the session that begin with one of the prefixes.
func (r *Remote) Refs(ctx context.Context, prefixes []string) (transport.Refs, error) {
	if r.session == "" {
		return r.Remote.Refs(ctx, prefixes)
	}
	l, err := r.List(ctx, prefixes)
	if err != nil {
		return transport.Refs{}, err
	}
	refs, err := l.Refs(ctx)
	return transport.Refs{List: refs}, err
}

// Listing is a listing of a session remote's refs, before a container of the session is read.
type Listing struct {
	remote   *Remote
	format   object.Format
	list     []transport.Ref
	prefixes []string
}

// ListAhead sends the request of the first List ahead, at the same time as the request for capabilities.
func (r *Remote) ListAhead(ctx context.Context, prefixes []string) {
	r.RefsAhead(ctx, r.asked(prefixes))
}

// List requests from the session remote the refs of the session that begin with one of the prefixes.
func (r *Remote) List(ctx context.Context, prefixes []string) (*Listing, error) {
	caps, err := r.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	refs, err := r.Remote.Refs(ctx, r.asked(prefixes))
	r.mu.Lock()
	for _, ref := range refs.List {
		if direct(ref.Name, r.session) {
			r.metas[ref.ID] = true
		}
	}
	r.mu.Unlock()
	return &Listing{r, caps.Format, refs.List, prefixes}, err
}

// Has returns the id of an ordinary ref, and reports whether the session remote has other refs of the session.
func (l *Listing) Has(ordinary string) (id object.ID, more bool) {
	for _, ref := range l.list {
		switch {
		case ref.Name == ordinary:
			id = ref.ID
		case ref.Name == Ref(l.remote.session), strings.HasPrefix(ref.Name, session.LanePrefix(l.remote.session)),
			strings.HasPrefix(ref.Name, session.PinPrefix(l.remote.session)):
			more = true
		}
	}
	return id, more
}

// Refs returns the listed refs of the session. If the session uses a container, Refs loads it first.
func (l *Listing) Refs(ctx context.Context) ([]transport.Ref, error) {
	refs, _, _, err := l.remote.view(ctx, l.format, l.list, l.prefixes)
	return refs, err
}

// asked returns prefixes with the ref of the container, which is always requested too.
func (r *Remote) asked(prefixes []string) []string {
	if len(prefixes) == 0 {
		return nil
	}
	return append(slices.Clone(prefixes), Ref(r.session))
}

// view returns the refs of the session, whether it uses a container, and at which commit that is.
func (r *Remote) view(ctx context.Context, f object.Format, list []transport.Ref,
	prefixes []string) (refs []transport.Ref, thin bool, tip object.ID, err error) {
	for _, ref := range list {
		if ref.Name == Ref(r.session) {
			tip = ref.ID
		}
	}
	if thin = !tip.IsZero() || r.Thin(); !thin {
		return wanted(list, prefixes), false, tip, nil
	}
	r.loading.Lock()
	defer r.loading.Unlock()
	if err := r.load(ctx, tip); err != nil {
		return nil, true, tip, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usesContainer = true
	for _, ref := range list {
		if direct(ref.Name, r.session) {
			refs = append(refs, ref)
			r.metas[ref.ID] = true
		}
	}
	// The refs in the container appear to callers like ordinary refs.
	for name, id := range r.manifest.Refs {
		refs = append(refs, transport.Ref{Name: name, ID: id})
	}
	owner, err := r.owner(f)
	if err != nil {
		return nil, true, tip, err
	}
	refs = append(refs, owner)
	slices.SortFunc(refs, func(a, b transport.Ref) int { return strings.Compare(a.Name, b.Name) })
	return wanted(refs, prefixes), true, tip, nil
}

// owner returns the ref which states that the plain names of branches belong to the session. In a container they
// always do.
func (r *Remote) owner(f object.Format) (transport.Ref, error) {
	blob, err := session.OwnerBlob(f, r.session)
	return transport.Ref{Name: session.OwnerRef, ID: blob.ID}, err
}

// wanted returns the refs that begin with one of the prefixes; none: all.
func wanted(refs []transport.Ref, prefixes []string) []transport.Ref {
	if len(prefixes) == 0 {
		return refs
	}
	var some []transport.Ref
	for _, ref := range refs {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(ref.Name, p) }) {
			some = append(some, ref)
		}
	}
	return some
}

// Fetch returns objects of the session. Those of a container are returned all together, whatever
// depth, filters and haves the request has: they are on this host, and only what the session
// created.
func (r *Remote) Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error) {
	r.mu.Lock()
	tip := r.tip
	ordinary := !slices.ContainsFunc(req.Wants, func(id object.ID) bool { return !r.metas[id] })
	r.mu.Unlock()
	if tip.IsZero() || ordinary {
		return r.Remote.Fetch(ctx, req)
	}
	r.loading.Lock()
	defer r.loading.Unlock()
	r.mu.Lock()
	u := r.unpacked
	r.mu.Unlock()
	if u == nil || !slices.ContainsFunc(req.Wants, u.objects.Has) {
		// For example a ref outside of the container that has moved since it was listed. A
		// container that was sent from this host is not unpacked: all of its objects are on this
		// host.
		return r.Remote.Fetch(ctx, req)
	}
	for _, id := range req.Wants {
		if !u.objects.Has(id) {
			return nil, fmt.Errorf("fetch from container of session %s: %w", r.session, transport.NotOurRef{ID: id})
		}
	}
	pack, err := u.stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read container of session %s: %w", r.session, err)
	}
	return &transport.FetchResponse{Pack: pack}, nil
}

// place returns the directory for state, and creates it if necessary.
func (r *Remote) place() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir == "" {
		dir, err := os.MkdirTemp("", "artifactfs-thin-")
		if err != nil {
			return "", err
		}
		r.dir, r.own = dir, true
	}
	return r.dir, os.MkdirAll(r.dir, 0o700)
}

// IsEmpty reports whether the session remote has no refs except descriptions, containers and deleted sessions.
func (r *Remote) IsEmpty(ctx context.Context) (bool, error) {
	refs, err := r.Remote.Refs(ctx, nil)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(refs.List, func(ref transport.Ref) bool {
		return !slices.ContainsFunc(ofNothing, func(prefix string) bool { return strings.HasPrefix(ref.Name, prefix) })
	}), nil
}

// ofNothing are prefixes of refs that reach nothing of a mounted repository.
var ofNothing = []string{session.Prefix + "meta/", Prefix, TrashPrefix}

// stream is a pack that a command writes.
type stream struct {
	io.ReadCloser
	wait func() error
}

// Close ends the command and returns its error.
func (s *stream) Close() error { return errors.Join(s.ReadCloser.Close(), s.wait()) }

// join returns the path of parts below dir.
func join(dir string, parts ...string) string {
	return filepath.Join(append([]string{dir}, parts...)...)
}
