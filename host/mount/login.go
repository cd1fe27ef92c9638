package mount

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/remotes"
)

// Request is the request for a mount, with the logins (the credentials for one host) that the mount shares with others.
// The client may replace the credentials while the mount exists. Package remotes records the logins that a Request
// uses.
type Request struct {
	control.MountRequest // original request; Now returns it with the current credentials

	remotes *remotes.Remotes
	main    *remotes.Login // login for the mounted remote; set by HoldLogin, before other goroutines use the mount

	mu      sync.Mutex
	session *remotes.Login // login for the session remote; nil if there is no session remote; protected by mu
}

// Now returns the mount request with the current credentials. SetCredential may have replaced the credentials of the
// original request; if the token was replaced, the password is removed from the URL.
func (q *Request) Now() control.MountRequest {
	r, of := q.MountRequest, q.sessionLogin()
	if token, file, renewed := q.main.Given(); renewed > 0 {
		r.Token, r.TokenFile, r.Remote = control.Secret(token), file, remotes.WithoutPassword(r.Remote)
	}
	if of == nil {
		return r
	}
	if token, file, renewed := of.Given(); renewed > 0 {
		r.SessionOptions.Remote = remotes.WithoutPassword(r.SessionOptions.Remote)
		if of != q.main {
			r.SessionToken, r.SessionTokenFile = control.Secret(token), file
		}
	}
	return r
}

// HoldLogin makes the mount use the login that all mounts of its remote share. The registry calls HoldLogin when it
// adds the mount, and remotes.Remotes.Drop when it removes the mount.
func (q *Request) HoldLogin() {
	q.main = q.remotes.Hold(q, remotes.GivenFor(q.Remote, string(q.Token), q.TokenFile))
}

// holdSessionLogin makes the mount use the login l for its session remote or, if l is nil, the login for the
// credentials g.
func (q *Request) holdSessionLogin(l *remotes.Login, g remotes.Given) {
	if l != nil {
		q.remotes.HoldLogin(q, l)
	} else {
		l = q.remotes.Hold(q, g)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.session = l
}

// sessionLogin returns the login for the session remote, or nil if the mount has not opened a session remote.
func (q *Request) sessionLogin() *remotes.Login {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.session
}

// LoginOf returns the URL and the login of the mounted remote or, if session is true, of the session remote. If the
// mount has no session remote, the URL is "" and the login is nil. The URL may contain a secret.
func (m *Mount) LoginOf(session bool) (at string, l *remotes.Login) {
	if !session {
		return m.Request.Remote, m.Request.main
	}
	if l = m.Request.sessionLogin(); l == nil || m.contents.Objects.SessionRemote == nil {
		return "", nil
	}
	return m.contents.Objects.SessionRemote.URL(), l
}

// UseNewLogin makes the mount use the new credentials of its logins. It stores them in the takeover state, updates the
// git directory, and repeats background work that has failed.
func (m *Mount) UseNewLogin(ctx context.Context) {
	now := m.Request.Now()
	// A successor must have the new credentials when it takes over the mount.
	m.succession.Update(func(h *takeover.State) {
		h.Request.Remote, h.Request.Token, h.Request.TokenFile = now.Remote, now.Token, now.TokenFile
		h.Request.SessionOptions.Remote, h.Request.SessionToken, h.Request.SessionTokenFile =
			now.SessionOptions.Remote, now.SessionToken, now.SessionTokenFile
	})
	if err := m.Git().WriteLogins(ctx); err != nil {
		m.host.Log.Warn("set up logins of git", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.activity.work.Retry() // the work may have failed because of the old token
	m.sessionSide.agent.Retry()
}
