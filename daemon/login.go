package daemon

import (
	"context"
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/transport"
)

// login holds the credentials for the remotes of one host. Mounts with equal credentials for the same host share one login, so
// that a new token applies at once to all of them, their stores, submodules and session remotes. Daemon.mu guards given; Login
// has its own lock.
type login struct {
	*transport.Login
	given given
}

// given holds the credentials that the user named for a host, as a comparable value: mounts share a login if their values are
// equal.
type given struct {
	place          string // scheme and host of the remote, in lower case; "" for scp-like addresses and paths
	user, password string // from the URL of the remote
	token, file    string // token, or path of a file with a token
}

// environment returns the environment variables of a request for connections to its remotes; nil if the request has none.
func environment(r control.MountRequest) transport.Environment {
	if len(r.Environment) == 0 {
		return nil
	}
	return transport.Environment(r.Environment)
}

// givenFor returns the credentials in a URL together with a token and a token file.
func givenFor(remote, token, file string) given {
	g := given{token: token, file: file}
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		g.place = strings.ToLower(u.Scheme + "://" + u.Host)
		g.user = u.User.Username()
		g.password, _ = u.User.Password()
	}
	return g
}

// loginFor returns the login that a mount of this daemon already has for g, or a new one. The caller holds d.mu.
func (d *Daemon) loginFor(g given) *login {
	for _, m := range d.mounts {
		for _, l := range []*login{m.login, m.sessionLogin} {
			if l != nil && l.given == g {
				return l
			}
		}
	}
	return &login{transport.NewLogin(g.token, g.file), g}
}

// sessionGiven returns the credentials for the session remote of a request: its own token, or that of the mounted remote if
// both are on the same host. The token of the mounted remote is not sent to another host. at is the URL of the session remote.
func sessionGiven(r control.MountRequest, at string) given {
	token, file := string(r.SessionToken), r.SessionTokenFile
	if token == "" && file == "" && sameHost(at, r.Remote) {
		token, file = string(r.Token), r.TokenFile
	}
	return givenFor(at, token, file)
}

// likeUser returns the URL remote with the user and password of other, if both are on the same host and remote has no user of
// its own.
func likeUser(remote, other string) string {
	u, err := url.Parse(remote)
	o, otherErr := url.Parse(other)
	if err != nil || otherErr != nil || u.User != nil || o.User == nil || !sameHost(remote, other) {
		return remote
	}
	u.User = o.User
	return u.String()
}

// requestNow returns the request of the mount with its current credentials, which SetCredential may have replaced. A new token
// replaces the password in the URL, too. It acquires Daemon.mu.
func (m *mount) requestNow() control.MountRequest {
	r := m.request
	m.daemon.mu.Lock()
	main, of := m.login, m.sessionLogin
	m.daemon.mu.Unlock()
	if token, file, renewed := main.Given(); renewed > 0 {
		r.Token, r.TokenFile, r.Remote = control.Secret(token), file, withoutPassword(r.Remote)
	}
	if of == nil {
		return r
	}
	if token, file, renewed := of.Given(); renewed > 0 {
		r.SessionOptions.Remote = withoutPassword(r.SessionOptions.Remote)
		if of != main {
			r.SessionToken, r.SessionTokenFile = control.Secret(token), file
		}
	}
	return r
}

// withoutPassword returns a URL without its password. The user name stays.
func withoutPassword(remote string) string {
	u, err := url.Parse(remote)
	if err != nil || u.User == nil {
		return remote
	}
	if _, ok := u.User.Password(); !ok {
		return remote
	}
	u.User = url.User(u.User.Username())
	return u.String()
}

// withUser returns a URL with the given user name, "" for none, and without a password.
func withUser(remote, user string) string {
	u, err := url.Parse(remote)
	if err != nil {
		return remote
	}
	if u.User = nil; user != "" {
		u.User = url.User(user)
	}
	return u.String()
}

// stockCredential returns a function that returns the current credentials of g and l. They are for stock git, which the store
// runs where it cannot use package transport. A password in the URL applies until the token is renewed.
func stockCredential(g given, l *transport.Login) func() fetch.Credential {
	return func() fetch.Credential {
		if _, _, renewed := l.Given(); g.password != "" && renewed == 0 {
			return fetch.Credential{User: g.user, Secret: g.password}
		}
		token, err := l.Token()
		if err != nil { // a public remote needs no token; for others git reports the error
			return fetch.Credential{}
		}
		user := g.user
		if user == "" {
			user = "x-access-token"
		}
		return fetch.Credential{User: user, Secret: token}
	}
}

// logins answers git commands in a mount that request a login. It implements credential.Source.
type logins struct{ mount *mount }

// remotes returns the remotes that git commands may log in to: the mounted remote and the session remote.
func (l logins) remotes() []*transport.Remote {
	all := []*transport.Remote{l.mount.store.Remote()}
	if l.mount.second != nil {
		all = append(all, l.mount.second.Remote)
	}
	return all
}

// Credential returns the login of the first remote that is on the server of q. It returns false if no remote has a login for
// that server, with the first error of a remote.
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

// Refused records that a server refused a secret that Credential returned.
func (l logins) Refused(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Refused(ctx, q, secret)
	}
}

// Accepted records that a server accepted a secret that Credential returned.
func (l logins) Accepted(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Accepted(ctx, q, secret)
	}
}

// helped returns the URLs for which git commands in the mount request a login from this daemon. They are written to the
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
