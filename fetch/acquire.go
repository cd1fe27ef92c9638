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
	"github.com/artifactfs/artifactfs/fetch/notices"
	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/fetch/tasks"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
)

// acquireDepth is the depth of the first fetch, in commits. A depth of one would suffice to read the tree, but then
// `git show HEAD` would lack the parent commit to compare with, and would read every blob. The second commit adds
// hardly any bytes to the fetch.
const acquireDepth = 2

// unfilteredNotice is the notice about a remote that sends contents with a commit.
const unfilteredNotice = "the remote cannot leave out file contents (no filter): the files of this commit are downloaded at once"

// Snapshot is one fetched commit. Acquire returns it as soon as the commit has been read, while its trees may still be
// in flight.
type Snapshot struct {
	Ref     string    // full name of the branch or tag; "" if the caller passed the id of a commit
	Commit  object.ID // zero for an unborn branch
	Tree    object.ID // zero for an unborn branch, whose tree is empty
	Time    time.Time // time of the commit; for an unborn branch, the time at which Acquire was called
	Format  object.Format
	Connect time.Duration // time from the call of Acquire until the commit's id was known
	Local   bool          // true if the commit was on this host, so that nothing was fetched
	Partial bool          // true if the remote supports filters, so that the commit was fetched without blobs

	start time.Time
	// took is the time from the call of Acquire until all trees were fetched. The field does not change after the channel
	// done is closed.
	took time.Duration
	// shallow lists the commits whose parents the remote did not send.
	shallow []object.ID
	objects atomic.Int64 // number of objects that have arrived
	bytes   atomic.Int64

	ready chan struct{} // closed when Commit and Tree are known, or when err is set
	done  chan struct{} // closed when the fetch has ended
	once  sync.Once     // runs the function that closes the channel ready
	// err is the error that ended the fetch. The field does not change after the channel done is closed. If err is set and
	// Tree is zero, not even the commit was fetched.
	err error
}

// Wait blocks until all trees are on this host. It returns the error that ended the fetch, or the error of ctx.
func (s *Snapshot) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Arrived returns the numbers of objects and of pack bytes that have arrived so far.
func (s *Snapshot) Arrived() (objects, bytes int64) { return s.objects.Load(), s.bytes.Load() }

// Took returns the time from the call of Acquire to the arrival of the last tree. The caller must call Wait first.
func (s *Snapshot) Took() time.Duration { return s.took }

// Shallow returns the commits whose parents are not on this host. The caller must call Wait first.
func (s *Snapshot) Shallow() []object.ID { return s.shallow }

// acquirer resolves refs, and fetches commits with their trees: for new mounts, for mounts that follow a branch, and
// for mounts that are resumed. All fields of an acquirer are parts of the Store.
type acquirer struct {
	repo    *bare.Repo
	storage *storage
	fetcher *fetcher
	trees   *trees
	history *history
	tasks   *tasks.Group
	notices *notices.List
	log     *zap.Logger
	printed printed
}

// acquire resolves the name ref ("" stands for the remote's HEAD) to a commit, and fetches the commit and its trees,
// without blobs if the remote supports filters. acquire returns as soon as the commit has been read. The trees continue
// to arrive in the background. If ctx ends before the commit has been read, nothing is stored.
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
	target, err := remoteref.Resolve(ctx, a.fetcher.remote, a.storage.objects.Format(), ref)
	if err != nil {
		return nil, err
	}
	snap := newSnapshot(target, caps.Format, start)
	snap.Partial = caps.Filter
	if target.Unborn() {
		if ref == "" && target.Others {
			a.notices.Add(fmt.Sprintf("HEAD of the remote names %s, which does not exist: no files are shown; mount a branch with --ref",
				target.Name))
		}
		snap.finish(nil)
		return snap, nil
	}
	if a.haveSnapshot(snap) {
		snap.Local = true
		snap.shallow = a.repo.Boundary()
		snap.finish(nil)
		return snap, nil
	}
	if snap.Partial && readSnapshot(snap, a.storage.host.Get) {
		// make the commit available before its trees are copied, because readers find the trees on the host already
		snap.once.Do(func() { close(snap.ready) })
	}
	if err := a.stream(ctx, caps, target, snap); err != nil {
		return nil, err
	}
	return snap, nil
}

// newSnapshot returns the snapshot of the target t, whose commit and trees have not been read yet. start is the time at
// which Acquire was called.
func newSnapshot(t remoteref.Target, f object.Format, start time.Time) *Snapshot {
	return &Snapshot{
		Ref: t.Name, Commit: t.Commit, Format: f, Connect: time.Since(start), Time: time.Now(), start: start,
		ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// finish records that the fetch of a snapshot has ended, and wakes all goroutines that wait for the snapshot. err is
// nil, or the error that ended the fetch. finish must be called exactly once.
func (s *Snapshot) finish(err error) {
	s.err, s.took = err, time.Since(s.start)
	s.once.Do(func() { close(s.ready) })
	close(s.done)
}

// haveSnapshot reads the commit of snap and sets its tree and time. It returns false if the store lacks the commit.
// Packs are stored as a whole, so the trees of a stored commit are stored too.
func (a *acquirer) haveSnapshot(snap *Snapshot) bool {
	return readSnapshot(snap, a.storage.objects.Get)
}

// readSnapshot reads the commit and the root tree of snap with the function get, and sets snap.Tree and snap.Time. It
// returns false if get cannot read the commit or the tree.
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

// stream starts the fetch of the target t and returns when the commit has been read. The trees continue to arrive
// afterwards. If the fetch fails before the commit has been read, stream returns the error.
func (a *acquirer) stream(ctx context.Context, caps transport.Capabilities, t remoteref.Target, snap *Snapshot) error {
	req := transport.FetchRequest{Wants: []object.ID{t.Want}, Haves: a.repo.CompleteTips(), Tags: true}
	// the request has a depth even if it contains haves, because the remote may not have any of those commits
	if caps.Shallow {
		req.Depth = acquireDepth
	}
	if caps.Filter {
		req.Filter = "blob:none"
	} else {
		a.notices.Add(unfilteredNotice)
		req.Depth = min(req.Depth, 1) // without a filter, the remote would also send the contents of the parent commit
	}
	// If ctx ends before the commit can be read, the fetch must be canceled. If ctx ends later, the fetch must continue.
	// Therefore the fetch has a separate context.
	streamCtx, cancel := context.WithCancel(context.Background())
	stopWatching := context.AfterFunc(ctx, cancel)
	a.trees.streamBegins()
	started := a.tasks.Start(func(closing context.Context) {
		defer cancel()
		defer context.AfterFunc(closing, cancel)()
		err := a.receiveFromHost(streamCtx, snap)
		if err != nil {
			err = a.fetcher.pipe.Refusals().Request(streamCtx, t.Want, func() error { return a.receive(streamCtx, req, snap) })
		}
		a.trees.streamEnds()
		if err != nil {
			a.log.Warn("fetch of a commit failed", zap.Stringer("commit", snap.Commit), zap.Error(err))
		}
		snap.finish(err)
	})
	if !started {
		a.trees.streamEnds()
		cancel()
		return ErrClosed
	}
	// receive closes snap.ready when the commit arrives; finish closes it if the pack ends without the commit
	<-snap.ready
	stopWatching() // after this call the end of ctx does not cancel the fetch; only Store.Close does
	if snap.Tree.IsZero() {
		<-snap.done
		if snap.err == nil {
			return fmt.Errorf("fetch commit %s: %w", snap.Commit, ErrNotFound)
		}
		return snap.err
	}
	return nil
}

// receive sends the request for a commit and stores the pack of the answer.
func (a *acquirer) receive(ctx context.Context, req transport.FetchRequest, snap *Snapshot) error {
	// This fetch occupies the open connection, so a second connection is opened for the first reader of contents.
	a.fetcher.remote.OpenSpare()
	resp, err := a.fetcher.request(ctx, req)
	if err != nil {
		return err
	}
	if resp.Unfiltered {
		snap.Partial = false
		a.notices.Add(unfilteredNotice)
	}
	broken, err := a.store(ctx, resp, snap)
	if broken && resp.Relayed && ctx.Err() == nil {
		// send the request again, now to the git server, because the failure has made the remote bypass the relay for a
		// while
		return a.receive(ctx, req, snap)
	}
	return err
}

// receiveFromHost copies the commit and its trees from the directory of the host. It returns an error if the host lacks
// a part of them or a part is damaged.
func (a *acquirer) receiveFromHost(ctx context.Context, snap *Snapshot) error {
	if snap.Tree.IsZero() {
		return ErrNotFound // the host does not have the commit
	}
	resp, err := a.storage.host.Fetch(ctx, snap.Commit, acquireDepth)
	if err == nil {
		_, err = a.store(ctx, resp, snap)
	}
	if err != nil {
		a.notices.Add(fmt.Sprintf("commit %s is fetched from the remote: %v", snap.Commit, err))
	}
	return err
}

// store stores the pack of an answer. Each object can be read as soon as it has arrived. broken is true if the pack is
// incomplete or invalid.
func (a *acquirer) store(ctx context.Context, resp *transport.FetchResponse, snap *Snapshot) (broken bool, err error) {
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
		case t == object.Commit && id == snap.Commit && snap.Tree.IsZero():
			info, err := object.ParseCommit(snap.Format, content)
			if err != nil {
				refused = fmt.Errorf("read commit %s: %w", id, err)
				return
			}
			// git sends the commit as the first object of a pack, so the mount can be created while the trees are still in
			// flight.
			snap.Tree, snap.Time = info.Tree, info.Committed
			snap.once.Do(func() { close(snap.ready) })
		}
	})
	if err != nil {
		return true, err
	}
	if refused == nil {
		refused = a.repo.AddBoundary(resp.Shallow, a.storage.hasParents)
	}
	return false, refused
}

// Whole reports whether all trees have been fetched. It does not wait.
func (s *Snapshot) Whole() bool {
	select {
	case <-s.done:
		return s.err == nil
	default:
		return false
	}
}
