package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// knownSession is a session whose metadata was read from its session remote before the mount was registered, because the request
// does not name the repository to mount. The connection to the session remote stays open, so that the mount can use it.
type knownSession struct {
	*resume.Known
	at    string         // URL of the session remote; it may hold a secret
	login *remotes.Login // credentials that the connection was opened with
	taken bool           // a mount owns the connection and closes it
}

// knowSession reads the metadata of a session from the session remote that the request names. It returns statedir.ErrNoSession
// if the request names no URL of a session remote, or if the session remote does not have the session. The caller calls close on
// the result.
func (d *Daemon) knowSession(ctx context.Context, r control.MountRequest) (_ *knownSession, err error) {
	remote, login, kind, err := d.remotes.SessionLogin(r)
	if err != nil {
		return nil, err
	}
	if remote == nil {
		return nil, statedir.ErrNoSession
	}
	defer func() {
		if err != nil {
			remote.Close()
		}
	}()
	if kind != "" {
		return nil, statedir.ErrNoSession
	}
	k := &knownSession{login: login}
	if k.Known, err = resume.List(ctx, remote, r.Session); err != nil {
		return nil, err
	}
	if k.MetaID.IsZero() {
		return nil, statedir.ErrNoSession
	}
	k.at, _ = remotes.SessionURL(r)
	return k, k.ReadMeta(ctx, d.state)
}

// take returns the open connection to the session remote, and the caller closes it later. It returns nil if k is nil, if the
// connection was taken before, or if it was opened with another URL than the parameter at or with other credentials than g.
func (k *knownSession) take(all *remotes.Remotes, at string, g remotes.Given) *thin.Remote {
	if k == nil || k.taken || k.at != at || !all.Matches(k.login, g) {
		return nil
	}
	k.taken = true
	return k.Remote
}

// close closes the connection unless take has returned it. k may be nil.
func (k *knownSession) close() {
	if k != nil && !k.taken {
		k.Remote.Close()
	}
}

// knownBase returns the base commit of the mount's session, and true, if the metadata of the session was read before the mount
// was created. The zero id means that the session was started on an unborn branch.
func (m *mount) knownBase() (object.ID, bool) {
	var base string
	switch {
	case m.far != nil:
		base = m.far.Meta.Base
	case m.known != nil:
		base = m.known.Meta.Base
	default:
		return object.ID{}, false
	}
	id, err := object.ParseID(base)
	return id, err == nil || base == ""
}
