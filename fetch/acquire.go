package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// acquireDepth is how many commits deep the first fetch goes. One would do for the tree, but then `git show
// HEAD` would compare with nothing and want every blob; the second costs no measurable bytes.
const acquireDepth = 2

// Snapshot is one acquired commit. It exists as soon as the commit is read; trees may still be on their way.
type Snapshot struct {
	Ref     string    // full name of the branch or tag; "" for a commit given by id
	Commit  object.ID // zero for an unborn branch
	Tree    object.ID // zero for an unborn branch: the tree is empty
	Time    time.Time // commit time; of an unborn branch the time of acquisition
	Format  object.Format
	Connect time.Duration // from the start to the ref's id
	Local   bool          // everything was here already
	Partial bool          // blobs were left out

	start   time.Time
	took    time.Duration // until all trees were here; frozen once done is closed
	shallow []object.ID
	objects atomic.Int64 // arrived
	bytes   atomic.Int64

	ready chan struct{} // closed when Commit and Tree are known or err is set
	done  chan struct{} // closed when the stream has ended
	once  sync.Once     // closes ready
	err   error         // frozen once done is closed; before ready it says why there is no snapshot
}

// Wait blocks until all trees are here.
func (s *Snapshot) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Arrived counts the objects and pack bytes that have come so far.
func (s *Snapshot) Arrived() (objects, bytes int64) { return s.objects.Load(), s.bytes.Load() }

// Took is how long it was from the start until all trees were here; Wait has returned before.
func (s *Snapshot) Took() time.Duration { return s.took }

// Shallow lists the commits whose parents are not here; it is complete once Wait has returned.
func (s *Snapshot) Shallow() []object.ID { return s.shallow }

// Acquire resolves ref ("" is the remote's HEAD) and fetches its commit and trees, without blobs where the
// remote can leave them out. It returns when the commit is known; trees stream in behind it.
// Cancelling ctx before that leaves nothing behind.
func (s *Store) Acquire(ctx context.Context, ref string) (*Snapshot, error) {
	start := time.Now()
	caps, err := s.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		return s.acquireWithGit(ctx, ref, start)
	}
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, caps.Format, true); err != nil {
		return nil, err
	}
	target, err := s.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	snap := newSnapshot(target, caps.Format, start)
	snap.Partial = caps.Filter
	if target.unborn() {
		snap.finish(nil)
		return snap, nil
	}
	if s.haveSnapshot(snap) {
		snap.Local = true
		snap.shallow = s.Boundary()
		snap.finish(nil)
		return snap, nil
	}
	if err := s.stream(ctx, caps, target, snap); err != nil {
		return nil, err
	}
	return snap, nil
}

func newSnapshot(t target, f object.Format, start time.Time) *Snapshot {
	return &Snapshot{
		Ref: t.name, Commit: t.commit, Format: f, Connect: time.Since(start), Time: time.Now(), start: start,
		ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// finish ends the stream's part of a snapshot.
func (s *Snapshot) finish(err error) {
	s.err, s.took = err, time.Since(s.start)
	s.once.Do(func() { close(s.ready) })
	close(s.done)
}

// haveSnapshot fills in a commit that is here. A commit never comes without its trees: packs arrive whole.
func (s *Store) haveSnapshot(snap *Snapshot) bool {
	return readSnapshot(snap, s.objects.Get)
}

// readSnapshot reads commit and root tree of a snapshot with get; false: get does not have them.
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

// stream starts the acquisition and returns when the commit has been read from it.
func (s *Store) stream(ctx context.Context, caps transport.Capabilities, t target, snap *Snapshot) error {
	req := transport.FetchRequest{Wants: []object.ID{t.want}, Haves: s.completeTips()}
	if caps.Shallow { // also beside haves, of which the remote may know none
		req.Depth = acquireDepth
	}
	if caps.Filter {
		req.Filter = "blob:none"
	} else {
		s.notice("the remote cannot leave out file contents (no filter): the files of this commit are downloaded at once")
		req.Depth = min(req.Depth, 1) // contents of the parent commit would come along
	}
	streamCtx, cancel := context.WithCancel(context.Background())
	stopWatching := context.AfterFunc(ctx, cancel)
	s.streamBegins()
	started := s.background(func(closing context.Context) {
		defer cancel()
		defer context.AfterFunc(closing, cancel)()
		err := s.refusing(streamCtx, t.want, func() error { return s.receive(streamCtx, req, snap) })
		s.streamEnds()
		if err != nil {
			s.log.Warn("acquisition ended early", zap.Stringer("commit", snap.Commit), zap.Error(err))
		}
		snap.finish(err)
	})
	if !started {
		s.streamEnds()
		cancel()
		return ErrClosed
	}
	<-snap.ready
	stopWatching() // from here on the stream belongs to the store
	if snap.Tree.IsZero() {
		<-snap.done
		if snap.err == nil {
			return fmt.Errorf("fetch commit %s: %w", snap.Commit, ErrNotFound)
		}
		return snap.err
	}
	return nil
}

// receive reads the pack of an acquisition, making each object readable as it comes.
func (s *Store) receive(ctx context.Context, req transport.FetchRequest, snap *Snapshot) error {
	s.remote.OpenSpare() // the stream keeps the connection there is; the first reader shall not have to open one
	resp, err := s.request(ctx, req)
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
	err = s.ingest(ctx, counted, func(id object.ID, t object.Type, content []byte) {
		snap.objects.Add(1)
		switch {
		case t == object.Tree:
			s.announce(id)
		case t == object.Commit && id == snap.Commit:
			info, err := object.ParseCommit(snap.Format, content)
			if err != nil {
				refused = fmt.Errorf("read commit %s: %w", id, err)
				return
			}
			snap.Tree, snap.Time = info.Tree, info.Committed
			snap.once.Do(func() { close(snap.ready) })
		}
	})
	if err == nil {
		err = refused
	}
	if err == nil {
		err = s.addBoundary(resp.Shallow)
	}
	return err
}

// Whole says whether the snapshot's stream has ended well.
func (s *Snapshot) Whole() bool {
	select {
	case <-s.done:
		return s.err == nil
	default:
		return false
	}
}
