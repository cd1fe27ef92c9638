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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// Remote reads and changes the refs of one session on a session remote. If the session uses a container, it reads refs
// and objects from the container and pushes them to it. Otherwise it passes all calls to the transport.Remote. Its
// methods may be called concurrently, except that only one push at a time may be between OpenPush and Send.
//
// Locks: loading is held during network and disk operations and is acquired before mu. No other lock is acquired while
// mu is held.
type Remote struct {
	*transport.Remote
	session string // name of the session; "": all calls are passed to the transport.Remote
	log     *zap.Logger

	loading sync.Mutex // held while the container is read or replaced

	mu sync.Mutex // protects the fields below
	// directory of the state and of extracted containers; "": a temporary directory is created
	dir           string
	own           bool               // whether dir is a temporary directory, which Close removes
	usesContainer bool               // whether the session uses a container, even if none was pushed yet
	tip           object.ID          // commit of the container; zero if no container is known
	manifest      manifest           // manifest of the container at tip
	unpacked      *unpacked          // extracted container; nil if no container was fetched
	metas         map[object.ID]bool // objects to which the listed ordinary refs point
	unreadable    bool               // whether the session remote has refused the readable branch
	keepOld       bool               // whether the session remote refuses a container without the old one as parent
}

// New returns a Remote for the refs of the session called name. If name is empty, the Remote passes all calls to
// remote.
func New(remote *transport.Remote, name string, log *zap.Logger) *Remote {
	if log == nil {
		log = zap.NewNop()
	}
	return &Remote{Remote: remote, session: name, log: log, metas: map[object.ID]bool{}}
}

// Keep sets the directory that stores the state of the container, so that a later process need not fetch the container
// again. The directory is created when it is needed. Keep must be called before all other methods. It removes
// unfinished containers of killed processes, so no other Remote may use the directory.
func (r *Remote) Keep(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dir = dir
	entries, _ := os.ReadDir(dir) // if the directory does not exist or cannot be read, there is nothing to remove
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), nextPrefix) {
			os.RemoveAll(join(dir, e.Name()))
		}
	}
}

// UseContainer makes the session use a container from now on, even if none was pushed yet.
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

// Base returns the URL of the mounted repository and the commits to which the session's container refers, or the zero
// Base if no container was read yet.
func (r *Remote) Base() Base {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Base{URL: r.manifest.Base.URL, Commits: slices.Clone(r.manifest.Base.Commits)}
}

// Close closes the connection to the session remote and removes extracted containers and temporary directories.
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

// Listing contains the refs that the session remote has listed. If the session has a container, it is read only when
// the method Refs is called.
type Listing struct {
	remote   *Remote
	format   object.Format
	list     []transport.Ref // refs that the session remote has listed
	prefixes []string        // prefixes of the requested refs; empty: all refs
}

// ListAhead sends the request of the next call of List already now, together with the request for the capabilities of
// the server.
func (r *Remote) ListAhead(ctx context.Context, prefixes []string) {
	r.RefsAhead(ctx, r.withContainerRefs(prefixes))
}

// List requests the refs of the session that begin with one of the prefixes, or all refs if there are no prefixes.
func (r *Remote) List(ctx context.Context, prefixes []string) (*Listing, error) {
	caps, err := r.Capabilities(ctx)
	if err != nil {
		return nil, err
	}
	refs, err := r.Remote.Refs(ctx, r.withContainerRefs(prefixes))
	r.mu.Lock()
	for _, ref := range refs.List {
		if direct(ref.Name, r.session) {
			r.metas[ref.ID] = true
		}
	}
	r.mu.Unlock()
	return &Listing{r, caps.Format, refs.List, prefixes}, err
}

// Has returns the object id of the ordinary ref with the given name, or the zero id if the listing does not contain it.
// The result more is true if the listing contains a container, lanes or pins of the session.
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

// Refs returns the listed refs of the session. If the session uses a container, Refs reads it and returns the refs in
// it, too.
func (l *Listing) Refs(ctx context.Context) ([]transport.Ref, error) {
	refs, _, _, err := l.remote.view(ctx, l.format, l.list, l.prefixes)
	return refs, err
}

// withContainerRefs returns prefixes with the refs of the container and of the readable branch appended, because each
// listing has to show whether the session uses a container.
func (r *Remote) withContainerRefs(prefixes []string) []string {
	if len(prefixes) == 0 {
		return nil
	}
	return append(slices.Clone(prefixes), Ref(r.session), ReadableRef(r.session))
}

// view returns the refs of the session that begin with one of the prefixes, whether the session uses a container, and
// the commit of the container. The parameter list contains the refs that the session remote has listed.
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
	// Add the refs in the container to the result, in which they look like ordinary refs.
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

// owner returns the ref session.OwnerRef with the object that makes this session the owner of branch names without a
// prefix. With a container, the session always owns these names.
func (r *Remote) owner(f object.Format) (transport.Ref, error) {
	blob, err := session.OwnerBlob(f, r.session)
	return transport.Ref{Name: session.OwnerRef, ID: blob.ID}, err
}

// wanted returns the refs that begin with one of the prefixes, or all refs if there are no prefixes.
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

// Fetch fetches objects of the session. If the wanted objects are in a container, it returns a pack of all objects of
// the container, and ignores depth, filter and haves of the request: the container was extracted on this host already,
// and contains only objects that were created in the session.
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
		// If the wants are not in the container, send the request to the session remote. An example is an ordinary ref that
		// was updated after it was listed. A container that was pushed from this host was never extracted, because this host
		// has all of its objects.
		return r.Remote.Fetch(ctx, req)
	}
	for _, id := range req.Wants {
		if !u.objects.Has(id) {
			return nil, fmt.Errorf("fetch from container of session %s: %w", r.session, transport.NotOurRef{ID: id})
		}
	}
	return &transport.FetchResponse{Pack: u.stream(ctx)}, nil
}

// stateDir returns the directory of the state, and creates it if it does not exist. The caller must not hold r.mu.
func (r *Remote) stateDir() (string, error) {
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

// IsEmpty reports whether the session remote has no branches of users and no sessions without a container. It ignores
// the refs of session metadata, annotations, containers with their readable branches, deleted sessions, and those for
// which session.NeedsNoSession returns true.
func (r *Remote) IsEmpty(ctx context.Context) (bool, error) {
	refs, err := r.Remote.Refs(ctx, nil)
	if err != nil {
		return false, err
	}
	readable := map[string]bool{}
	for _, ref := range refs.List {
		if name, ok := strings.CutPrefix(ref.Name, Prefix); ok {
			readable[ReadableRef(name)] = true
		}
		// The readable branch of a deleted session stays if it is the default branch.
		if deleted, ok := strings.CutPrefix(ref.Name, TrashPrefix); ok {
			name, _, _ := strings.Cut(deleted, "/")
			readable[ReadableRef(name)] = true
		}
	}
	return !slices.ContainsFunc(refs.List, func(ref transport.Ref) bool {
		if ref.Name == "HEAD" || readable[ref.Name] {
			return false
		}
		return !session.NeedsNoSession(ref.Name) &&
			!slices.ContainsFunc(noBasePrefixes, func(prefix string) bool { return strings.HasPrefix(ref.Name, prefix) })
	}), nil
}

// nextPrefix is the prefix of the names of the directories in which containers are built.
const nextPrefix = "next-"

// noBasePrefixes lists the prefixes of the refs from which no object of a mounted repository is reachable.
var noBasePrefixes = []string{session.Prefix + "meta/", session.AnnotationsRef(""), Prefix, TrashPrefix}

// stream is a reader of a pack that a goroutine writes.
type stream struct {
	*io.PipeReader
	ended chan struct{} // closed when the writer has ended
}

// Close stops the goroutine that writes the pack, and waits for its end.
func (s *stream) Close() error {
	err := s.PipeReader.Close()
	<-s.ended
	return err
}

// join returns the path of parts below dir.
func join(dir string, parts ...string) string {
	return filepath.Join(append([]string{dir}, parts...)...)
}
