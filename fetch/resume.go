package fetch

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Base describes the snapshot of an earlier mount, which is to be opened again.
type Base struct {
	Ref    string // full name of the branch or tag; "" if the user passed the id of a commit
	Commit object.ID
	Tree   object.ID // root tree of Commit; Commit and Tree are zero for an unborn branch
	Time   time.Time
	Format object.Format
	// Shown is the tree of the session that the mount showed; zero if the mount showed the tree of Commit.
	Shown object.ID
	// Own contains the object directories of the mount. The commit may be in one of them instead of in the store.
	Own []*Local
}

// shows sets the ref of the snapshot s and returns s. If the earlier mount showed the tree of a session (b.Shown),
// shows also sets the tree and the time of s to those of the earlier mount.
func (b Base) shows(s *Snapshot) *Snapshot {
	s.Ref = b.Ref
	if !b.Shown.IsZero() {
		s.Tree, s.Time = b.Shown, b.Time
	}
	return s
}

// resume returns the snapshot of an earlier mount. It sends no request if the commit is on this host. If the branch was
// unborn, the snapshot is that of an unborn branch, even if the branch exists on the remote by now.
//
// A commit that is only in the object directory of another mount is fetched: git in this mount does not find that
// directory, and the commit is lost when the other mount ends. If it cannot be fetched, the other mount's copy is used.
func (a *acquirer) resume(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		// The store may have been deleted since the earlier mount. For an unborn branch, the git directory of the store is
		// needed when the history is fetched later.
		if err := a.storage.prepare(ctx, b.Format, a.repo.Partial()); err != nil {
			return nil, err
		}
		snap := newSnapshot(remoteref.Target{Name: b.Ref}, b.Format, time.Now())
		// The snapshot has the time of the earlier mount's snapshot, so that files keep their timestamps.
		snap.Time, snap.Local = b.Time, true
		snap.finish(nil)
		return b.shows(snap), nil
	}
	snap, ok := a.localSnapshot(b.Commit, time.Now(), func(id object.ID, limit int64) (object.Type, []byte, error) {
		return a.storage.getFrom(b.Own, id, limit)
	})
	if !ok {
		var err error
		if snap, err = a.acquire(ctx, b.Commit.String()); err != nil {
			if snap, ok = a.localSnapshot(b.Commit, time.Now(), a.storage.get); !ok {
				return nil, err
			}
		}
	}
	return b.shows(snap), nil
}

// connect opens a connection to the remote in the background, so that the next request does not have to wait for the
// name lookup, TCP and TLS.
func (a *acquirer) connect() {
	a.tasks.Start(func(ctx context.Context) {
		if _, err := a.fetcher.remote.Capabilities(ctx); err != nil {
			// the error is only logged, because the caller of the next request will get it
			a.log.Debug("connect to remote", zap.Error(err))
		}
	})
}

// connectFor opens a connection in the background, as connect does. It is called before the commit is acquired or
// resumed. If the store is empty, connectFor also sends the request for the commit.
func (a *acquirer) connectFor(commit object.ID) {
	// A store that exists may have the commit already, or other commits that the request must contain as haves.
	if _, ok := a.repo.Format(); ok || commit.IsZero() {
		a.connect()
		return
	}
	a.tasks.Start(func(ctx context.Context) {
		// The request contains a filter although it is not known yet whether the remote supports filters, because
		// finding that out would take one more round trip.
		a.fetcher.remote.FetchAhead(ctx, transport.FetchRequest{Wants: []object.ID{commit}, Depth: acquireDepth,
			Filter: "blob:none", Tags: true})
		if _, err := a.fetcher.remote.Capabilities(ctx); err != nil {
			// the error is only logged, because the caller of the next request will get it
			a.log.Debug("connect to remote", zap.Error(err))
		}
	})
}

// errIncomplete means that trees of a commit are missing because the previous process ended while it fetched them.
var errIncomplete = errors.New("trees of the commit are missing, because their fetch was interrupted")

// reopen returns the snapshot of a mount that this process takes over from another process. It sends no request. If
// trees are missing, Snapshot.Wait returns errIncomplete, and the caller can fetch the trees by calling acquire with
// the same commit.
func (a *acquirer) reopen(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		return a.resume(ctx, b)
	}
	if err := a.storage.prepare(ctx, b.Format, a.repo.Partial()); err != nil {
		return nil, err
	}
	snap, ok := a.localSnapshot(b.Commit, time.Now(), a.storage.get)
	if !ok {
		snap = newSnapshot(remoteref.Target{Want: b.Commit, Commit: b.Commit}, b.Format, time.Now())
		// The id of the root tree is known from the earlier mount, even if trees below it are missing.
		snap.Tree, snap.Partial = b.Tree, a.repo.Partial()
		snap.finish(errIncomplete)
	}
	snap.Time = b.Time
	return b.shows(snap), nil
}

// localSnapshot returns the snapshot of a commit on this host, which it reads with the function get. It returns false
// if get cannot read the commit or its root tree.
func (a *acquirer) localSnapshot(commit object.ID, start time.Time,
	get func(object.ID, int64) (object.Type, []byte, error)) (*Snapshot, bool) {
	// A store contains objects of one object format, so it cannot contain a commit of another format.
	if f, ok := a.repo.Format(); !ok || f != commit.Format() || a.storage.openObjects(f) != nil {
		return nil, false
	}
	snap := newSnapshot(remoteref.Target{Want: commit, Commit: commit}, commit.Format(), start)
	if !readSnapshot(snap, get) {
		return nil, false
	}
	snap.Local, snap.Partial = true, a.repo.Partial()
	snap.shallow = a.repo.Boundary()
	snap.finish(nil)
	return snap, true
}

// resolveCommit returns the id of the commit to which the name ref points on the remote ("" stands for the remote's
// HEAD). It returns the zero id for a branch without a commit.
func (a *acquirer) resolveCommit(ctx context.Context, ref string) (object.ID, error) {
	caps, err := a.fetcher.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		_, id, _, err := a.resolveWithGit(ctx, ref)
		return id, err
	}
	if err != nil {
		return object.ID{}, err
	}
	if err := a.storage.prepare(ctx, caps.Format, true); err != nil {
		return object.ID{}, err
	}
	t, err := remoteref.Resolve(ctx, a.fetcher.remote, a.storage.objects.Format(), ref)
	return t.Commit, err
}
