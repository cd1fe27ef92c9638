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

// login is what a remote is logged in to with. Mounts that were given the same for the same host share one, so that a new
// token reaches all of them, their stores, submodules and session remotes at once. Its fields are guarded by Daemon.mu.
type login struct {
	*transport.Login
	given given
}

// given is what the user gave for a host.
type given struct {
	place          string // scheme and host of the remote
	user, password string // of the remote's URL
	token, file    string
}

// environment is what the remotes of a request are reached with.
func environment(r control.MountRequest) transport.Environment {
	if len(r.Environment) == 0 {
		return nil
	}
	return transport.Environment(r.Environment)
}

// givenFor returns what a URL, a token and a token file amount to.
func givenFor(remote, token, file string) given {
	g := given{token: token, file: file}
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		g.place = strings.ToLower(u.Scheme + "://" + u.Host)
		g.user = u.User.Username()
		g.password, _ = u.User.Password()
	}
	return g
}

// loginFor returns the login that mounts of this daemon have already for what was given, or a new one. It needs mu.
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

// sessionGiven returns what was given for the session remote of a request at a URL: a token of its own, or that of the mounted
// remote if it is on the same host.
func sessionGiven(r control.MountRequest, at string) given {
	token, file := string(r.SessionToken), r.SessionTokenFile
	if token == "" && file == "" && sameHost(at, r.Remote) {
		token, file = string(r.Token), r.TokenFile
	}
	return givenFor(at, token, file)
}

// likeUser returns a URL with the user and password of another one on the same host, unless it has a user of its own.
func likeUser(remote, other string) string {
	u, err := url.Parse(remote)
	o, otherErr := url.Parse(other)
	if err != nil || otherErr != nil || u.User != nil || o.User == nil || !sameHost(remote, other) {
		return remote
	}
	u.User = o.User
	return u.String()
}

// requestNow is the mount's request with the tokens that count now.
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

// withoutPassword is a URL whose password has been replaced by a token.
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

// withUser is a URL with a user and no password.
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

// stockCredential is what stock git logs in with, where it stands in for our own transport.
func stockCredential(g given, l *transport.Login) func() fetch.Credential {
	return func() fetch.Credential {
		if _, _, renewed := l.Given(); g.password != "" && renewed == 0 {
			return fetch.Credential{User: g.user, Secret: g.password}
		}
		token, err := l.Token()
		if err != nil { // the remote may be public; if it is not, git says so
			return fetch.Credential{}
		}
		user := g.user
		if user == "" {
			user = "x-access-token"
		}
		return fetch.Credential{User: user, Secret: token}
	}
}

// logins are the remotes that git commands in the mount may log in to.
type logins struct{ mount *mount }

func (l logins) remotes() []*transport.Remote {
	all := []*transport.Remote{l.mount.store.Remote()}
	if l.mount.second != nil {
		all = append(all, l.mount.second.Remote)
	}
	return all
}

// Credential implements credential.Source: the first remote at the place that is asked about answers.
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

func (l logins) Refused(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Refused(ctx, q, secret)
	}
}

func (l logins) Accepted(ctx context.Context, q transport.Question, secret string) {
	for _, r := range l.remotes() {
		r.Accepted(ctx, q, secret)
	}
}

// helped lists the remotes for which git commands in the mount are to ask us for a login.
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
