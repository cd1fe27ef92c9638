package catalog

import (
	"cmp"
	"context"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Approvals, annotations and cache entries are not written through the queue of a session, but directly to its session
// remote. All of them find the session remote, its credentials and the name of the user by the functions of this file.

// requestAt returns a mount request that names the session remote with the URL at, and the session called name.
func requestAt(name, at string) control.MountRequest {
	return control.MountRequest{Session: name, SessionOptions: control.SessionOptions{Remote: at}}
}

// remoteRequest returns a mount request that opens the session remote of the session. If the session is read from a
// session remote, it is the request of the caller; otherwise it has the options of the session and the credentials of
// its mount.
func (o *opened) remoteRequest() control.MountRequest {
	switch {
	case o.far != nil:
		return o.asked
	case o.mount != nil:
		return o.mount.remoteRequest(o.Session)
	}
	return control.MountRequest{Remote: o.record.Remote, Session: o.Session, SessionOptions: o.record.Carried}
}

// remoteRequest returns a mount request that opens the session remote of the mount with the mount's credentials, for
// the session called name.
func (m *Mounted) remoteRequest(name string) control.MountRequest {
	r := m.Request()
	present := r.SessionOptions.Remote // lacks the password if a token has replaced the password
	r.Session, r.SessionOptions = name, m.Agent.Options()
	if present == remotes.WithoutPassword(r.SessionOptions.Remote) {
		r.SessionOptions.Remote = present
	}
	return r
}

// openRemote opens the session remote of a mount request. The result is nil for the embedded session remote. If the
// request names no session remote, the error is fault.ErrNoSessionRemote. The caller closes the result.
func (all *Catalog) openRemote(r control.MountRequest) (*thin.Remote, error) {
	remote, kind, err := all.Remotes.Session(r)
	if err == nil && kind == control.RemoteNone {
		err = fault.ErrNoSessionRemote
	}
	return remote, err
}

// userOf returns the user in whose name a request writes to a session remote: the user of the token, if the server of
// the session remote knows the token, and otherwise sent, the user that the client has sent. remote is nil for the
// embedded session remote.
func userOf(ctx context.Context, remote *transport.Remote, sent string) (transport.Identity, error) {
	if remote != nil {
		if who, known, err := remote.Identity(ctx); err != nil || known {
			return who, err
		}
	}
	return transport.Identity{Actor: cmp.Or(sent, session.Actor())}, nil
}
