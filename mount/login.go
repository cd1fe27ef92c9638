package mount

import (
	"context"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/transport"
)

// requestNow returns the mount request with the current credentials, which SetCredential may have replaced. If the token was
// replaced, the password is removed from the URL. The caller must not hold m.mu.
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

// HoldLogin sets the login of the mount to the one that all mounts of its remote share. The registry calls it when it adds the
// mount, and calls Drop of package remotes when it removes the mount.
func (m *Mount) HoldLogin() {
	m.login = m.host.Remotes.Hold(m, remotes.GivenFor(m.Request.Remote, string(m.Request.Token), m.Request.TokenFile))
}

// LoginOf returns the credentials for the mounted remote and its URL, or, if session is set, those for the session remote. It
// returns nil if there is no such remote. The URL may hold a secret.
func (m *Mount) LoginOf(session bool) (at string, l *remotes.Login) {
	if !session {
		return m.Request.Remote, m.login
	}
	m.mu.Lock()
	l = m.sessionLogin
	m.mu.Unlock()
	if l == nil || m.sessionRemote == nil {
		return "", nil
	}
	return m.sessionRemote.URL(), l
}

// UseNewLogin makes the mount use the new credentials of its logins: it stores them in the takeover state, updates the git directory
// and repeats failed work.
func (m *Mount) UseNewLogin(ctx context.Context) {
	now := m.requestNow()
	// A successor must start with the new credentials.
	m.handover.Update(func(h *takeover.State) {
		h.Request.Remote, h.Request.Token, h.Request.TokenFile = now.Remote, now.Token, now.TokenFile
		h.Request.SessionOptions.Remote, h.Request.SessionToken, h.Request.SessionTokenFile =
			now.SessionOptions.Remote, now.SessionToken, now.SessionTokenFile
	})
	if err := m.writeLogins(ctx); err != nil {
		m.host.Log.Warn("set up logins of git", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.work.Retry() // work that failed with the old token
	m.agent.Retry()
}

// writeLogins rewrites the part of the git configuration that lists the URLs for which git commands request a login from this
// daemon. It does nothing if the git directory does not exist yet.
func (m *Mount) writeLogins(ctx context.Context) error {
	m.mu.Lock()
	ready := m.gitReady
	m.mu.Unlock()
	if !ready {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return gitdir.Options{Helper: program, Inside: m.inside.Wanted(), Logins: logins{m}.helped(ctx)}.SetLogins(m.gitPath())
}

// logins answers git commands in a mount that request a login. It implements credential.Source.
type logins struct{ mount *Mount }

// remotes returns the remotes that git commands may log in to: the mounted remote and the session remote.
func (l logins) remotes() []*transport.Remote {
	all := []*transport.Remote{l.mount.store.Remote()}
	if l.mount.sessionRemote != nil {
		all = append(all, l.mount.sessionRemote.Remote)
	}
	return all
}

// Credential returns the login of the first remote that is on the server of the question q. If no remote has a login for that
// server, it returns false and the first error.
func (l logins) Credential(ctx context.Context, q transport.Question) (transport.Credential, bool, error) {
	var first error
	for _, r := range l.remotes() {
		c, ok, err := r.Credential(ctx, q)
		if ok {
			return c, true, nil
		}
		if first == nil {
			first = err
		}
	}
	return transport.Credential{}, false, first
}

// Refused records that a server refused a secret which Credential had returned.
func (l logins) Refused(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Refused(ctx, q, secret)
	}
}

// Accepted records that a server accepted a secret which Credential had returned.
func (l logins) Accepted(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Accepted(ctx, q, secret)
	}
}

// helped returns the URLs for which git commands in the mount request a login from this daemon. The caller writes them to the
// configuration of the git directory. Errors are logged.
func (l logins) helped(ctx context.Context) []gitdir.Login {
	var list []gitdir.Login
	for _, r := range l.remotes() {
		urls, first, err := r.Logins(ctx)
		if err != nil {
			l.mount.host.Log.Warn("read git's settings for logins", zap.String("dir", l.mount.Dir), zap.Error(err))
		}
		for _, u := range urls {
			list = append(list, gitdir.Login{URL: u, First: first})
		}
	}
	return list
}
