package daemon

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// sessionRemote opens the session remote of a mount. remote is nil if the session has no other session remote than the
// embedded one. kind is one of the constants of package control, or "" for a URL. The token of the mounted remote is
// sent only to the host of the mounted remote.
func (d *Daemon) sessionRemote(r control.MountRequest) (remote *thin.Remote, kind string, err error) {
	remote, _, kind, err = d.openSessionRemote(r)
	return remote, kind, err
}

// openSessionRemote is sessionRemote, and also returns the login that the session remote is opened with.
func (d *Daemon) openSessionRemote(r control.MountRequest) (remote *thin.Remote, l *login, kind string, err error) {
	at, kind := sessionURL(r)
	if at == "" {
		return nil, nil, kind, nil
	}
	patience := r.Timeout
	if patience == 0 {
		patience = DefaultDeadline
	}
	d.mu.Lock()
	l = d.loginFor(sessionGiven(r, at))
	d.mu.Unlock()
	o := transport.Options{Login: l.Login, Env: environment(r), Retries: retries, Log: d.log,
		Stall: r.Timeout, Patience: patience, Ahead: &d.ahead}
	far, err := transport.Open(at, o)
	if err != nil {
		return nil, nil, kind, fmt.Errorf("open session remote: %w", err)
	}
	return thin.New(far, r.Session, d.log), l, kind, nil
}

// sessionURL returns the URL of the session remote that a request names, and its kind: one of the constants of package
// control, or "" for a URL. The URL is "" for the embedded session remote and for none.
func sessionURL(r control.MountRequest) (at, kind string) {
	switch r.SessionOptions.Remote {
	case "", control.RemoteEmbedded:
		return "", control.RemoteEmbedded
	case control.RemoteNone:
		return "", control.RemoteNone
	case control.RemoteOrigin:
		return r.Remote, control.RemoteOrigin
	}
	// Without a token of its own, a session remote on the host of the mounted remote gets the user and password of that
	// URL.
	if r.SessionToken == "" && r.SessionTokenFile == "" {
		return likeUser(r.SessionOptions.Remote, r.Remote), ""
	}
	return r.SessionOptions.Remote, ""
}

// expect registers the blobs in which the checkpoint that the mount starts from differs from the base commit, so that
// the store does not ask the mounted remote for them. It waits until the trees are fetched.
func (m *mount) expect(ctx context.Context) {
	base, err := m.record.Base()
	if err != nil || base.Shown.IsZero() || m.second == nil && m.forkRemote == nil {
		return
	}
	var ids []object.ID
	err = diffTrees(ctx, m.store.Tree, base.Tree, base.Shown, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err != nil {
		m.daemon.log.Debug("look for contents of the session", zap.String("dir", m.dir), zap.Error(err))
	}
	// Only missing blobs matter; those on this host are never requested.
	ids = m.owned.Missing(ids)
	m.owned.Expect(ids)
	if m.forkObjects != nil {
		m.forkObjects.Expect(ids)
	}
}
