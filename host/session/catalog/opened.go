package catalog

import (
	"context"
	"errors"
	"io/fs"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// opened is a session that a request reads or changes. The caller must close it.
type opened struct {
	Session string          // name of the session
	record  statedir.Record // record of the session
	home    string          // home of the session
	mount   *Mounted        // mount of the session; nil if it is not mounted
	Repo    *session.Repo   // repository with the checkpoints; nil if there is none yet
	// queue pushes the refs of the session. It is nil unless the session has a mount that can be written to.
	queue *writeback.Queue
	far   *mirror.Mirror       // mirror of the session remote that Repo belongs to; nil if Repo is on this host
	asked control.MountRequest // mount request with which far was opened

	// pins has the names under which users have pinned checkpoints.
	pins map[session.CheckpointID][]string
	// release closes everything that was opened for this request, and unlocks the home of the session. It is nil if
	// nothing was opened.
	release func()

	// acknowledged reports whether a checkpoint is known to be on the session remote. It is nil if this host does not
	// know what was pushed.
	acknowledged func(session.Checkpoint) bool
}

// Close closes the session repository and unlocks the home of the session, if they were opened for this request.
func (o *opened) Close() {
	if o.release != nil {
		o.release()
	}
}

// layout returns the names that the session's branches have on the session remote. It returns false if the session has
// no session remote, or if the refs of the session remote cannot be read.
func (o *opened) layout() (session.Layout, bool) {
	if o.far != nil {
		// The refs of the session remote were fetched when the mirror was opened.
		m, ok := o.far.Meta(o.Session)
		layout, err := session.LayoutOf(m, o.far.Refs())
		return layout, ok && err == nil
	}
	far := o.record.SessionRemoteURL()
	switch {
	case o.Repo == nil || o.record.Carried.Remote == control.RemoteNone:
		return session.Layout{}, false
	case far == "":
		// The embedded session remote is the session's repository, where branches keep their names.
		return session.Layout{Session: o.Session, Own: true}, true
	case o.queue != nil:
		return o.queue.Status().Layout, true
	}
	// Without a queue, the layout is read from the recorded result of the last push.
	st, err := writeback.Look(o.Repo, far)
	return st.Layout, err == nil
}

// openSession opens a session of this host. The parameter of is the session's name, or the directory where it is or was
// last mounted. If write is set, the repository can be changed, and the home of a session that is not mounted is locked
// until Close. If another command reads the home, openSession waits for it; if a mount uses the home, it returns
// statedir.ErrBusySession.
func (all *Catalog) openSession(ctx context.Context, of string, write bool) (*opened, error) {
	if m, err := all.Mounts.Mounted(ctx, of); err != nil {
		return nil, err
	} else if m != nil {
		// After a takeover, the agent of the new worker may not have opened the repository yet.
		if m.Agent.Active() && statedir.HasSessionRepo(m.Home) {
			if _, err := m.Agent.Open(ctx); err != nil && write {
				return nil, err
			}
		}
		return all.OpenMount(m)
	}
	id, err := all.Homes.IDOf(of)
	if err != nil {
		return nil, err
	}
	t, err := all.Homes.WaitExisting(ctx, id)
	if err != nil {
		return nil, err
	}
	o, err := openHome(t, write)
	if err != nil {
		t.Unlock()
		return nil, err
	}
	return o, nil
}

// openHome opens the session in the locked home t, which is not mounted. The result owns the lock. If openHome returns
// an error, the caller still owns the lock. write states that the repository can be changed.
func openHome(t *statedir.Home, write bool) (*opened, error) {
	r, err := statedir.ReadRecord(t.Dir)
	if err != nil {
		return nil, err
	}
	o := &opened{Session: r.Session, record: r, home: t.Dir, release: t.Unlock}
	if !statedir.HasSessionRepo(t.Dir) {
		return o, nil
	}
	repo, err := t.Homes.OpenSessionRepo(t.Dir, r, write)
	if !write && errors.Is(err, fs.ErrNotExist) { // a process was killed while it created the repository
		return o, nil
	}
	if err != nil {
		return nil, err
	}
	o.Repo, o.release = repo, func() {
		if err := repo.Close(); err != nil {
			t.Homes.Log.Warn("close session", zap.String("home", t.Dir), zap.Error(err))
		}
		t.Unlock()
	}
	if err := o.read(); err != nil {
		repo.Close()
		return nil, err
	}
	return o, nil
}

// read sets the fields pins and acknowledged from the session repository.
func (o *opened) read() (err error) {
	if o.Repo == nil {
		return nil
	}
	o.pins, err = o.Repo.Pins()
	// The embedded session remote and the session's repository are the same repository, so every checkpoint counts as
	// pushed.
	embedded := o.record.Carried.Remote == control.RemoteEmbedded || o.record.Carried.Remote == ""
	switch {
	case embedded:
		o.acknowledged = func(session.Checkpoint) bool { return true }
	case o.queue != nil:
		o.acknowledged = o.queue.Has
	}
	return err
}
