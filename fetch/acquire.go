package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// acquireDepth is the depth of the first fetch, in commits. A depth of one suffices to read the tree, but then `git show HEAD` would
// have no parent to compare with, and would read every blob. The second commit costs no measurable bytes.
const acquireDepth = 2

// Snapshot is one fetched commit. It exists as soon as the commit has been read; its trees may
// still be in flight.
type Snapshot struct {
	Ref     string    // full name of the branch or tag; "" for a commit given by id
	Commit  object.ID // zero for an unborn branch
	Tree    object.ID // zero for an unborn branch: the tree is empty
	Time    time.Time // commit time; for an unborn branch the time of the call
	Format  object.Format
	Connect time.Duration // from the call to the id of the ref
	Local   bool          // nothing had to be fetched
	Partial bool          // fetched without blobs

	start time.Time
	took  time.Duration // until all trees were fetched; constant once done is closed
	// shallow lists the commits whose parents the remote did not send.
	shallow []object.ID
	objects atomic.Int64 // that have arrived
	bytes   atomic.Int64

	ready chan struct{} // closed when Commit and Tree are known or err is set
	done  chan struct{} // closed when the stream has ended
	once  sync.Once     // closes ready
	err   error         // constant once done is closed; set without Tree, there is no snapshot
}

// Wait blocks until all trees are on this host. It returns the error that ended the fetch, or that
// of ctx.
func (s *Snapshot) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Arrived returns how many objects and bytes of packs have arrived so far.
func (s *Snapshot) Arrived() (objects, bytes int64) { return s.objects.Load(), s.bytes.Load() }

// Took returns the time from the call to the arrival of the last tree. Wait must have returned.
func (s *Snapshot) Took() time.Duration { return s.took }

// Shallow returns the commits without their parents on this host. Wait must have returned.
func (s *Snapshot) Shallow() []object.ID { return s.shallow }

// acquirer finds the commits that refs name, and fetches commits with their trees: for new mounts, for mounts that follow a branch,
// and for mounts that are resumed. It has no state of its own.
type acquirer struct {
	repo    *bare.Repo
	storage *storage
	fetcher *fetcher
	trees   *trees
	history *history
	tasks   *tasks
	notices *notices
	log     *zap.Logger
}

// acquire resolves ref ("" is the remote's HEAD) and fetches its commit and trees, without blobs if
// the remote supports filters. It returns as soon as the commit has been read; the trees follow in
// the background. If ctx ends before that, nothing of the commit is kept.
func (a *acquirer) acquire(ctx context.Context, ref string) (*Snapshot, error) {
	start := time.Now()
	caps, err := a.fetcher.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		return a.acquireWithGit(ctx, ref, start)
	}
	if err != nil {
		return nil, err
	}
	if err := a.storage.prepare(ctx, caps.Format, true); err != nil {
		return nil, err
	}
	target, err := a.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	snap := newSnapshot(target, caps.Format, start)
	snap.Partial = caps.Filter
	if target.unborn() {
		snap.finish(nil)
		return snap, nil
	}
	if a.haveSnapshot(snap) {
		snap.Local = true
		snap.shallow = a.repo.Boundary()
		snap.finish(nil)
		return snap, nil
	}
	if err := a.stream(ctx, caps, target, snap); err != nil {
		return nil, err
	}
	return snap, nil
}

// newSnapshot returns the snapshot of a target whose commit and trees have not been read. Connect
// is the time since start.
func newSnapshot(t target, f object.Format, start time.Time) *Snapshot {
	return &Snapshot{
		Ref: t.name, Commit: t.commit, Format: f, Connect: time.Since(start), Time: time.Now(), start: start,
		ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// finish ends the fetch of a snapshot. err is nil, or the error that ended the fetch. It must be
// called once.
func (s *Snapshot) finish(err error) {
	s.err, s.took = err, time.Since(s.start)
	s.once.Do(func() { close(s.ready) })
	close(s.done)
}

// haveSnapshot reads a commit that is on this host. Packs are stored whole, so a commit is never
// without its trees.
func (a *acquirer) haveSnapshot(snap *Snapshot) bool {
	return readSnapshot(snap, a.storage.objects.Get)
}

// readSnapshot reads the commit and the root tree of a snapshot with get. It returns false if get
// does not find them.
func readSnapshot(snap *Snapshot, get func(object.ID, int64) (object.Type, []byte, error)) bool {
	t, content, err := get(snap.Commit, object.MaxCommitSize)
	if err != nil || t != object.Commit {
		return false
	}
	info, err := object.ParseCommit(snap.Format, content)
	if err != nil {
		return false
	}
	if _, _, err := get(info.Tree, object.MaxTreeSize); err != nil {
		return false
	}
	snap.Tree, snap.Time = info.Tree, info.Committed
	return true
}

// stream starts the fetch and returns when the commit has been read.
func (a *acquirer) stream(ctx context.Context, caps transport.Capabilities, t target, snap *Snapshot) error {
	req := transport.FetchRequest{Wants: []object.ID{t.want}, Haves: a.repo.CompleteTips()}
	if caps.Shallow { // beside haves too: the remote may know none of them
		req.Depth = acquireDepth
	}
	if caps.Filter {
		req.Filter = "blob:none"
	} else {
		a.notices.add("the remote cannot leave out file contents (no filter): the files of this commit are downloaded at once")
		req.Depth = min(req.Depth, 1) // without a filter, the contents of the parent commit would be sent too
	}
	// Until the commit is readable, the end of ctx cancels the fetch. After that the fetch must continue when ctx ends, so it has a
	// separate context.
	streamCtx, cancel := context.WithCancel(context.Background())
	stopWatching := context.AfterFunc(ctx, cancel)
	a.trees.streamBegins()
	started := a.tasks.start(func(closing context.Context) {
		defer cancel()
		defer context.AfterFunc(closing, cancel)()
		err := a.fetcher.pipe.Refusals().Request(streamCtx, t.want, func() error { return a.receive(streamCtx, req, snap) })
		a.trees.streamEnds()
		if err != nil {
			a.log.Warn("acquisition ended early", zap.Stringer("commit", snap.Commit), zap.Error(err))
		}
		snap.finish(err)
	})
	if !started {
		a.trees.streamEnds()
		cancel()
		return ErrClosed
	}
	// receive or finish closes ready: a pack may end without the commit.
	<-snap.ready
	stopWatching() // the store owns the fetch from now on
	if snap.Tree.IsZero() {
		<-snap.done
		if snap.err == nil {
			return fmt.Errorf("fetch commit %s: %w", snap.Commit, ErrNotFound)
		}
		return snap.err
	}
	return nil
}

// receive reads the pack of an acquisition. Each object is readable as soon as it has arrived.
func (a *acquirer) receive(ctx context.Context, req transport.FetchRequest, snap *Snapshot) error {
	a.fetcher.remote.OpenSpare() // this fetch occupies the open connection: the first reader must not have to open another
	resp, err := a.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	snap.shallow = resp.Shallow
	var refused error
	counted := readerFunc(func(p []byte) (int, error) {
		n, err := resp.Pack.Read(p)
		snap.bytes.Add(int64(n))
		return n, err
	})
	err = a.fetcher.ingest(ctx, counted, func(id object.ID, t object.Type, content []byte) {
		snap.objects.Add(1)
		switch {
		case t == object.Tree:
			a.trees.announce(id)
		case t == object.Commit && id == snap.Commit:
			info, err := object.ParseCommit(snap.Format, content)
			if err != nil {
				refused = fmt.Errorf("read commit %s: %w", id, err)
				return
			}
			// The commit is the first object of a pack from git, so the mount can be created while
			// the trees are in flight.
			snap.Tree, snap.Time = info.Tree, info.Committed
			snap.once.Do(func() { close(snap.ready) })
		}
	})
	if err == nil {
		err = refused
	}
	if err == nil {
		err = a.repo.AddBoundary(resp.Shallow, a.storage.hasParents)
	}
	return err
}

// Whole reports whether all trees have been fetched.
func (s *Snapshot) Whole() bool {
	select {
	case <-s.done:
		return s.err == nil
	default:
		return false
	}
}
