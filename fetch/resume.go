package fetch

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// Base describes a snapshot that is to be acquired again.
type Base struct {
	Ref    string // full name; "" for a commit given by id
	Commit object.ID
	Tree   object.ID // both zero for an unborn branch
	Time   time.Time
	Format object.Format
	// Shown is the tree that is mounted, if it is not the commit's but one of a session.
	Shown object.ID
}

// shows replaces the commit's tree in a snapshot by the tree that is mounted (b.Shown).
func (b Base) shows(s *Snapshot) *Snapshot {
	s.Ref = b.Ref
	if !b.Shown.IsZero() {
		s.Tree, s.Time = b.Shown, b.Time
	}
	return s
}

// resume returns the snapshot of an earlier mount. It sends no request if the commit is in the
// store. An unborn branch stays unborn, even if the remote has the branch by now.
func (a *acquirer) resume(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		// The store may have been deleted. Only the history, which is fetched later, needs its git
		// directory.
		if err := a.storage.prepare(ctx, b.Format, a.repo.Partial()); err != nil {
			return nil, err
		}
		snap := newSnapshot(target{name: b.Ref}, b.Format, time.Now())
		// The branch counts as unborn with the time of the earlier mount, so that files keep their
		// timestamps.
		snap.Time, snap.Local = b.Time, true
		snap.finish(nil)
		return b.shows(snap), nil
	}
	snap, ok := a.localSnapshot(b.Commit, time.Now())
	if !ok {
		var err error
		if snap, err = a.acquire(ctx, b.Commit.String()); err != nil {
			return nil, err
		}
	}
	return b.shows(snap), nil
}

// connect opens a connection to the remote in the background, before a request. The first request
// then does not wait for the name lookup, TCP and TLS.
func (a *acquirer) connect() {
	a.tasks.start(func(ctx context.Context) {
		if _, err := a.fetcher.remote.Capabilities(ctx); err != nil {
			a.log.Debug("approach remote", zap.Error(err)) // the request itself will return the error
		}
	})
}

// connectFor connects as connect does, before a commit is acquired. If the store is empty, it also sends the request for the
// commit.
func (a *acquirer) connectFor(commit object.ID) {
	if _, ok := a.repo.Format(); ok || commit.IsZero() { // the store may have the commit, or other commits to send as haves
		a.connect()
		return
	}
	a.tasks.start(func(ctx context.Context) {
		// The filter is set although the remote's capabilities are not known yet.
		a.fetcher.remote.FetchAhead(ctx, transport.FetchRequest{Wants: []object.ID{commit}, Depth: acquireDepth, Filter: "blob:none"})
		if _, err := a.fetcher.remote.Capabilities(ctx); err != nil {
			a.log.Debug("approach remote", zap.Error(err)) // the request itself will return the error
		}
	})
}

// errIncomplete means that trees were being fetched when the previous process ended.
var errIncomplete = errors.New("some trees were not fetched")

// reopen returns the snapshot of a mount that this process takes over. It sends no request: if
// trees are missing, Wait returns errIncomplete, and acquiring the commit again fetches them.
func (a *acquirer) reopen(ctx context.Context, b Base) (*Snapshot, error) {
	if b.Commit.IsZero() {
		return a.resume(ctx, b)
	}
	if err := a.storage.prepare(ctx, b.Format, a.repo.Partial()); err != nil {
		return nil, err
	}
	snap, ok := a.localSnapshot(b.Commit, time.Now())
	if !ok {
		snap = newSnapshot(target{want: b.Commit, commit: b.Commit}, b.Format, time.Now())
		// The id of the tree is known from the earlier mount, even if trees below it are missing.
		snap.Tree, snap.Partial = b.Tree, a.repo.Partial()
		snap.finish(errIncomplete)
	}
	snap.Time = b.Time
	return b.shows(snap), nil
}

// localSnapshot returns the snapshot of a commit in the store or in a Local.
func (a *acquirer) localSnapshot(commit object.ID, start time.Time) (*Snapshot, bool) {
	// An id of another object format than the store's cannot name a commit in it.
	if f, ok := a.repo.Format(); !ok || f != commit.Format() || a.storage.openObjects(f) != nil {
		return nil, false
	}
	snap := newSnapshot(target{want: commit, commit: commit}, commit.Format(), start)
	if !readSnapshot(snap, a.storage.get) {
		return nil, false
	}
	snap.Local, snap.Partial = true, a.repo.Partial()
	snap.shallow = a.repo.Boundary()
	snap.finish(nil)
	return snap, true
}

// resolveCommit returns the commit that ref names on the remote ("" is its HEAD); the zero id is an
// unborn branch.
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
	t, err := a.resolve(ctx, ref)
	return t.commit, err
}
