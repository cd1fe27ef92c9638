package mount

import (
	"context"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/remotes"
)

// requestNow returns the mount request with the current credentials. SetCredential may have replaced the credentials of the
// original request; if the token was replaced, the password is removed from the URL. The caller must not hold m.mu.
func (m *Mount) requestNow() control.MountRequest {
	r := m.Request
	m.mu.Lock()
	main, of := m.login, m.sessionLogin
	m.mu.Unlock()
	if token, file, renewed := main.Given(); renewed > 0 {
		r.Token, r.TokenFile, r.Remote = control.Secret(token), file, remotes.WithoutPassword(r.Remote)
	}
	if of == nil {
		return r
	}
	if token, file, renewed := of.Given(); renewed > 0 {
		r.SessionOptions.Remote = remotes.WithoutPassword(r.SessionOptions.Remote)
		if of != main {
			r.SessionToken, r.SessionTokenFile = control.Secret(token), file
		}
	}
	return r
}

// HoldLogin makes the mount use the login (the credentials for one host) that all mounts of its remote share. The registry
// calls HoldLogin when it adds the mount, and calls Drop of package remotes when it removes the mount.
func (m *Mount) HoldLogin() {
	m.login = m.host.Remotes.Hold(m, remotes.GivenFor(m.Request.Remote, string(m.Request.Token), m.Request.TokenFile))
}

// LoginOf returns the URL and the login of the mounted remote, or, if session is true, those of the session remote. If session
// is true and the mount has no session remote, the URL is "" and the login is nil. The URL may contain a secret.
func (m *Mount) LoginOf(session bool) (at string, l *remotes.Login) {
	if !session {
		return m.Request.Remote, m.login
	}
	m.mu.Lock()
	l = m.sessionLogin
	m.mu.Unlock()
	if l == nil || m.objects.sessionRemote == nil {
		return "", nil
	}
	return m.objects.sessionRemote.URL(), l
}

// UseNewLogin makes the mount use the new credentials of its logins. It stores them in the state for a successor, updates the git
// directory, and repeats background work that has failed.
func (m *Mount) UseNewLogin(ctx context.Context) {
	now := m.requestNow()
	// A successor must have the new credentials when it takes over the mount.
	m.handover.Update(func(h *takeover.State) {
		h.Request.Remote, h.Request.Token, h.Request.TokenFile = now.Remote, now.Token, now.TokenFile
		h.Request.SessionOptions.Remote, h.Request.SessionToken, h.Request.SessionTokenFile =
			now.SessionOptions.Remote, now.SessionToken, now.SessionTokenFile
	})
	if err := m.Git().WriteLogins(ctx); err != nil {
		m.host.Log.Warn("set up logins of git", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.work.Retry() // the work may have failed because of the old token
	m.agent.Retry()
}
