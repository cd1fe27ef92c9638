package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// A mount can begin with a point instead of a commit's tree: a session that goes on here and was worked in elsewhere, a
// fork of another one, or one point that is looked at. The tree of the point is the base tree of such a mount, its overlay
// is empty, and its git directory is made from the point's State. What the session owns comes first, without contents, into
// the session's repository in the home:
//
//	from another home    its packs are linked, in no time, whatever there is
//	from a session remote    refs, meta, then points with their trees, then the small files of the State: four requests
//
// All else is the mounted remote's, and is as for other mounts. Contents that the session made and that are not here come
// from the session remote when they are read (fetch.Local.From).

// origin says that a mount is to begin with a point of a session of this host.
type origin struct {
	home    string // of that session, or of a mount that shows a point of it
	session string
	record  statedir.Record
	point   session.Point
	carried control.SessionOptions
}

// local returns the checkpoint as package resume sees it. remote is the session remote of the mount that begins with it; nil:
// none.
func (o origin) local(remote *thin.Remote) resume.Local {
	l := resume.Local{RepoDir: filepath.Join(o.home, statedir.SessionRepoName), Session: o.session, Checkpoint: o.point, Ref: o.record.Ref}
	switch at := o.carried.Remote; at {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		if o.record.Point != nil {
			l.ContentsFrom = o.record.Point.From
		}
	default:
		if remote == nil || remote.URL() != statedir.WithoutSecrets(at) {
			l.ContentsFrom = statedir.WithoutSecrets(at)
		}
	}
	return l
}

func (m *mount) sessionRepoDir() string { return filepath.Join(m.home.Dir, statedir.SessionRepoName) }

// sessionObjects is where the objects lie that the session owns.
func (m *mount) sessionObjects() string { return filepath.Join(m.sessionRepoDir(), "objects") }

// lend has the store read what the mount's git directory and its session have, here and on the session remote.
func (m *mount) lend() error {
	m.local = m.store.OpenLocal(filepath.Join(m.gitPath(), "objects"))
	m.owned = m.store.OpenLocal(m.sessionObjects())
	if m.session == "" && m.request.At == "" {
		return nil
	}
	r := m.requestNow()
	r.SessionOptions = m.agent.Options()
	r.Session = cmp.Or(m.session, r.Session)
	var second *thin.Remote
	m.daemon.mu.Lock()
	if at, _ := sessionURL(r); at != "" {
		if second = m.known.take(at, sessionGiven(r, at)); second != nil {
			m.sessionLogin = m.known.login
		} else {
			m.known = nil
			m.sessionLogin = m.daemon.loginFor(sessionGiven(r, at))
		}
	}
	m.daemon.mu.Unlock()
	if second == nil {
		var err error
		if second, _, err = m.daemon.sessionRemote(r); err != nil {
			return err
		}
	}
	if second != nil {
		second.Keep(thinDir(m.sessionRepoDir()))
		m.second = second
		m.owned.SetSessionRemote(second)
	}
	if p := m.record.Point; p != nil && p.From != "" {
		return m.lendElder(p.From)
	}
	return nil
}

// lendElder has the store ask the session remote of the session that this one was forked from, too.
func (m *mount) lendElder(at string) error {
	r := m.requestNow()
	if own, _ := sessionURL(r); !sameHost(at, own) {
		r.SessionToken, r.SessionTokenFile = "", ""
	}
	r.SessionOptions.Remote = at
	elder, _, err := m.daemon.sessionRemote(r)
	if err != nil || elder == nil {
		return err
	}
	m.forkRemote, m.forkObjects = elder, m.store.OpenLocal(m.sessionObjects())
	m.forkObjects.SetSessionRemote(elder)
	return nil
}

// takeBack is the reverse of lend.
func (m *mount) takeBack() (err error) {
	for _, l := range []*fetch.Local{m.local, m.owned, m.forkObjects} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	for _, r := range []*thin.Remote{m.second, m.forkRemote} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	m.local, m.owned, m.forkObjects, m.second, m.forkRemote = nil, nil, nil, nil, nil
	return err
}

// acquirePoint makes the mount begin with a point, if it is to; false: it is not.
func (m *mount) acquirePoint(ctx context.Context, progress func(control.Progress)) (bool, error) {
	var s *resume.Start
	var err error
	begins := func() { progress(control.Progress{Phase: "session"}) }
	switch {
	case m.base != nil && m.base.Point == nil:
		return false, nil
	case m.from != nil:
		s, err = m.target().Link(ctx, m.from.local(m.second))
	case m.far != nil:
		begins()
		s, err = m.target().Fork(ctx, m.far.Parent, m.far.at)
	case m.request.At != "":
		if s, err = m.resumeSession(ctx, m.request.Session, begins); err == nil && s == nil {
			err = statedir.ErrNoSession
		}
		if err != nil {
			err = explainResume(m.request, err)
		}
	case m.session == "":
		return false, nil
	default:
		s, err = m.resumeSession(ctx, m.session, begins)
	}
	if err != nil || s == nil {
		return false, err
	}
	return true, m.beginAt(ctx, s)
}

// target returns the mount as package resume sees it. Its home is locked, and lend was called.
func (m *mount) target() *resume.Target {
	return &resume.Target{
		Session: m.session, Mounted: m.store.URL(), RepoDir: m.sessionRepoDir(), Remote: m.second, Since: m.since, RepoOptions: m.repoOptions,
		Objects: m.owned, Store: m.store, Claims: m.agent,
	}
}

// resumeSession fetches a session from the session remote; nil: it is not there, or has no checkpoint.
func (m *mount) resumeSession(ctx context.Context, name string, begins func()) (*resume.Start, error) {
	var known *resume.Known
	if m.known != nil {
		known = m.known.Known
	}
	m.known = nil // it is used once: the listing is old afterwards
	return m.target().Resume(ctx, name, m.request.At, known, begins)
}

// beginAt writes into the record what the mount begins with, and acquires the rest of it.
func (m *mount) beginAt(ctx context.Context, a *resume.Start) error {
	if a.Snapshot == nil {
		if err := m.target().Acquire(ctx, a); err != nil {
			return err
		}
	}
	snap := a.Snapshot
	m.newer, m.moved = a.Newer, a.Own
	m.record.Ref, m.record.Format = a.Ref, snap.Format.String()
	if !snap.Commit.IsZero() {
		m.record.Commit, m.record.Tree = snap.Commit.String(), snap.Tree.String()
	}
	m.record.Time = pointTime(a.Checkpoint, m.since)
	m.record.Point = &statedir.Checkpoint{
		ID: string(a.Checkpoint.ID), Commit: a.Checkpoint.Commit.String(), Tree: a.Checkpoint.Tree.String(), State: a.Checkpoint.State.String(), Time: a.Checkpoint.Time,
	}
	switch p := m.record.Point; {
	case m.far != nil:
		p.Parent, p.ParentRemote = m.far.Session, m.far.Remote.URL()
	case m.from != nil && m.from.record.Session != m.from.session: // of a mount that shows a point
		p.Parent, p.ParentRemote = m.from.session, m.from.record.Point.ParentRemote
	case m.from != nil:
		p.Parent, p.ParentRemote = m.from.session, statedir.ShownRemote(m.from.carried.Remote, m.from.home, m.from.record)
	case m.request.At != "" && m.second != nil:
		p.Parent, p.ParentRemote = m.request.Session, m.second.URL()
	}
	if a.ContentsFrom != "" {
		m.record.Point.From = statedir.WithoutSecrets(a.ContentsFrom)
		if err := m.lendElder(a.ContentsFrom); err != nil {
			return err
		}
	}
	snap.Ref, snap.Tree, snap.Time = a.Ref, a.Checkpoint.Tree, m.record.Time
	m.snap = snap
	return nil
}

// repoOptions are those of the session's repository of the mount.
func (m *mount) repoOptions(f object.Format, name string) session.RepoOptions {
	return session.RepoOptions{
		Format: f, Session: name, Remote: m.store.URL(), Borrow: []string{filepath.Join(m.store.GitDir(), "objects")},
		Log: m.daemon.log.With(zap.String("session", name)),
	}
}

// pointTime is when files of a point that nobody changed were changed last.
func pointTime(p session.Point, since time.Time) time.Time {
	if latest := since.Add(-settled); p.Time.After(latest) {
		return latest
	}
	return p.Time
}

// cameFromElsewhere says whether the mount began here with a session that was worked in elsewhere.
func (m *mount) cameFromElsewhere() bool {
	return !m.resumed && m.session != "" && m.from == nil && m.far == nil && m.record.Point != nil && m.second != nil
}

// shownPoint tells that a mount shows one point of a session.
func (m *mount) shownPoint() []string {
	if m.request.At == "" || m.record.Point == nil {
		return nil
	}
	return []string{fmt.Sprintf("shows checkpoint %s of session %s", m.record.Point.ID, m.request.Session)}
}
