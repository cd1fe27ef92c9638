package daemon

import (
	"context"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/transport"
)

// requestNow returns the mount request with the current credentials, which SetCredential may have replaced. If the token was
// replaced, the password is removed from the URL. The caller must not hold m.mu.
func (m *mount) requestNow() control.MountRequest {
	r := m.request
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

// logins answers git commands in a mount that request a login. It implements credential.Source.
type logins struct{ mount *mount }

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
			l.mount.daemon.log.Warn("read git's settings for logins", zap.String("dir", l.mount.dir), zap.Error(err))
		}
		for _, u := range urls {
			list = append(list, gitdir.Login{URL: u, First: first})
		}
	}
	return list
}
