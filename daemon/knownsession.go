package daemon

import (
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// knownSession is a session whose metadata was read to find out which repository is to be mounted.
type knownSession struct {
	*resume.Known
	at    string // session remote; it may hold a secret
	login *login
	taken bool // a mount closes the connection
}

// knowSession reads the metadata of a session from the session remote of a request. The caller closes it.
func (d *Daemon) knowSession(ctx context.Context, r control.MountRequest) (_ *knownSession, err error) {
	remote, login, kind, err := d.openSessionRemote(r)
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
	k.at, _ = sessionURL(r)
	return k, k.ReadMeta(ctx, d.state)
}

// take returns the session remote for a mount that asks the same one with the same login, and closes it later; nil: it does not.
func (k *knownSession) take(at string, g given) *thin.Remote {
	if k == nil || k.taken || k.at != at || k.login.given != g {
		return nil
	}
	k.taken = true
	return k.Remote
}

func (k *knownSession) close() {
	if k != nil && !k.taken {
		k.Remote.Close()
	}
}

// knownBase returns the commit that the mount's session began with, if the metadata of the session was read before the mount
// began; false: it was not. The zero id is that of an unborn branch.
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
