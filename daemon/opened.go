package daemon

import (
	"context"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
)

// opened is a session that something is asked of, mounted or not. It is to be closed.
type opened struct {
	session string
	record  statedir.Record
	home    string
	mount   *mount        // nil: it is not mounted
	repo    *session.Repo // nil: nothing was carried yet
	queue   *writeback.Queue
	far     *mirror.Mirror // that the repository is of; nil: it is of this host

	pins    map[session.PointID][]string
	release func()

	acknowledged func(session.Point) bool
}

func (o *opened) close() {
	if o.release != nil {
		o.release()
	}
}

// layout returns under which names branches of the session are on its session remote; false: it has none, or that cannot be
// told.
func (o *opened) layout() (session.Layout, bool) {
	if o.far != nil {
		m, ok := o.far.Meta(o.session)
		layout, err := session.LayoutOf(m, o.far.Refs())
		return layout, ok && err == nil
	}
	far := o.record.SessionRemoteURL()
	switch {
	case o.repo == nil || o.record.Carried.Remote == control.RemoteNone:
		return session.Layout{}, false
	case far == "":
		return session.Layout{Session: o.session, Own: true}, true
	case o.queue != nil:
		return o.queue.Status().Layout, true
	}
	st, err := writeback.Look(o.repo, far)
	return st.Layout, err == nil
}

// openSession finds a session by the directory where it is, or was last, mounted, or by its name. With write its repository
// can be changed; of a session that is not mounted nobody else can use it then.
func (d *Daemon) openSession(ctx context.Context, of string, write bool) (*opened, error) {
	if m, err := d.mounted(ctx, of); err != nil {
		return nil, err
	} else if m != nil {
		if m.agent.Active() && statedir.HasSessionRepo(m.home.Dir) { // who took the mount over may not have come to it yet
			if _, err := m.agent.Open(ctx); err != nil && write {
				return nil, err
			}
		}
		return m.openedSession()
	}
	id, err := d.homes.IDOf(of)
	if err != nil {
		return nil, err
	}
	t, err := d.homes.WaitExisting(ctx, id)
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

// mounted finds the mount of a session; nil: there is none.
func (d *Daemon) mounted(ctx context.Context, of string) (*mount, error) {
	var m *mount
	if filepath.IsAbs(of) {
		m, _ = d.find(of)
	} else {
		for _, other := range d.list() {
			if other.session == of && other.writable() {
				m = other
			}
		}
	}
	if m == nil {
		return nil, nil
	}
	if err := m.awaitTakeover(ctx); err != nil {
		return nil, err
	}
	if !m.served() || m.isGone() {
		return nil, nil
	}
	if m.session == "" {
		return nil, statedir.ErrNoSession
	}
	return m, nil
}

// openedSession returns the session of the mount.
func (m *mount) openedSession() (*opened, error) {
	o := &opened{session: m.session, record: m.record, home: m.home.Dir, mount: m}
	o.repo, o.queue = m.agent.Repo()
	if o.repo == nil { // the mount is not written to, and somebody may be working in it elsewhere; or it cannot be written to now
		if !statedir.HasSessionRepo(o.home) {
			return o, nil
		}
		repo, err := m.daemon.homes.OpenSessionRepo(o.home, o.record, false)
		if err != nil {
			return nil, err
		}
		o.repo, o.release = repo, func() { repo.Close() }
	}
	return o, o.read()
}

// openHome opens the session of a home that is not mounted, of which we hold the lock.
func openHome(t *statedir.Home, write bool) (*opened, error) {
	r, err := statedir.ReadRecord(t.Dir)
	if err != nil {
		return nil, err
	}
	o := &opened{session: r.Session, record: r, home: t.Dir, release: t.Unlock}
	if !statedir.HasSessionRepo(t.Dir) {
		return o, nil
	}
	repo, err := t.Homes.OpenSessionRepo(t.Dir, r, write)
	if err != nil {
		return nil, err
	}
	o.repo, o.release = repo, func() {
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

// read gets what is told of points beside themselves.
func (o *opened) read() (err error) {
	if o.repo == nil {
		return nil
	}
	o.pins, err = o.repo.Pins()
	embedded := o.record.Carried.Remote == control.RemoteEmbedded || o.record.Carried.Remote == ""
	switch {
	case embedded:
		o.acknowledged = func(session.Point) bool { return true }
	case o.queue != nil:
		o.acknowledged = o.queue.Has
	}
	return err
}
