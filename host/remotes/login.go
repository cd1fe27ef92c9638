package remotes

import (
	"net/url"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// Login has the credentials for the remotes on one host. Mounts with equal credentials for the same host share one
// Login, so that these mounts, their stores, submodules and session remotes all use a new token at once.
type Login struct {
	*transport.Login       // the present credentials; has its own lock
	given            Given // protected by Remotes.mu, except place and user, which do not change
}

// User returns the user name in the URL of the remote, or "" if the URL has none.
func (l *Login) User() string { return l.given.user }

// IsWeb reports whether the login is for remotes with http or https URLs. Only these remotes accept tokens.
func (l *Login) IsWeb() bool {
	return strings.HasPrefix(l.given.place, "http://") || strings.HasPrefix(l.given.place, "https://")
}

// Given has the credentials that a user has specified for one host. Mounts with equal values of this type share a
// Login.
type Given struct {
	// scheme and host of the remote in lower case; "" for an address such as host:path, and for a path
	place          string
	user, password string // from the URL of the remote
	token, file    string // a token, or the path of a file with a token
}

// GivenFor returns the credentials in the URL of the remote, together with the given token and token file.
func GivenFor(remote, token, file string) Given {
	g := Given{token: token, file: file}
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		g.place = strings.ToLower(u.Scheme + "://" + u.Host)
		g.user = u.User.Username()
		g.password, _ = u.User.Password()
	}
	return g
}

// GivenForSession returns the credentials for the session remote with the URL at: the session token of the request r
// or, if r has none and the session remote is on the host of the mounted remote, the token of the mounted remote. The
// token of the mounted remote is never sent to another host.
func GivenForSession(r control.MountRequest, at string) Given {
	token, file := string(r.SessionToken), r.SessionTokenFile
	if token == "" && file == "" && (r.Remote == "" || endpoint.SameHost(at, r.Remote)) {
		token, file = string(r.Token), r.TokenFile
	}
	return GivenFor(at, token, file)
}

// Token returns the token that the user has specified, or "" if the user has specified none.
func (g Given) Token() string { return g.token }

// Secrets returns the token and the password that the user has specified. Either may be "".
func (g Given) Secrets() []string { return []string{g.token, g.password} }

// gitCredentials returns a function that returns the current credentials of g and l for stock git, which the store runs
// for remotes that package transport does not support. A password in the URL is used until the token is replaced.
func (g Given) gitCredentials(l *transport.Login, env transport.Environment) func() fetch.Credential {
	return func() fetch.Credential {
		if _, _, renewed := l.Given(); g.password != "" && renewed == 0 {
			return fetch.Credential{User: g.user, Secret: g.password}
		}
		token, err := l.Token(env)
		// the error is ignored: a public remote needs no token, and for other remotes git reports the missing login
		if err != nil {
			return fetch.Credential{}
		}
		user := g.user
		if user == "" {
			user = "x-access-token"
		}
		return fetch.Credential{User: user, Secret: token}
	}
}

// Login returns the login that mounts use for the credentials g, or a new login if no mount uses these credentials.
func (r *Remotes) Login(g Given) *Login {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.login(g)
}

// login returns the login for the credentials g, as Login does. The caller holds r.mu.
func (r *Remotes) login(g Given) *Login {
	for _, logins := range r.held {
		for _, l := range logins {
			if l.given == g {
				return l
			}
		}
	}
	return &Login{transport.NewLogin(g.token, g.file), g}
}

// Hold returns the login for the credentials g, and records that holder, a mount or its request, uses it. Until Drop is
// called for holder, mounts with the same credentials get the same login.
func (r *Remotes) Hold(holder any, g Given) *Login {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.login(g)
	r.held[holder] = append(r.held[holder], l)
	return l
}

// HoldLogin records that holder, a mount or its request, uses the login l. It replaces Hold if the caller already has
// the login.
func (r *Remotes) HoldLogin(holder any, l *Login) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[holder] = append(r.held[holder], l)
}

// Drop records that holder, a mount or its request, uses no logins any more.
func (r *Remotes) Drop(holder any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, holder)
}

// Renew replaces the credentials of the login l by a new token or token file. Mounts that are created later with the
// new token share this login. The function uses reports whether a holder was using the login when Renew was called.
func (r *Remotes) Renew(l *Login, token, file string) (uses func(holder any) bool) {
	l.Renew(token, file)
	r.mu.Lock()
	defer r.mu.Unlock()
	l.given.token, l.given.file, l.given.password = token, file, ""
	users := map[any]bool{}
	for holder, logins := range r.held {
		users[holder] = slices.Contains(logins, l)
	}
	return func(holder any) bool { return users[holder] }
}

// Matches reports whether l is the login for the credentials g.
func (r *Remotes) Matches(l *Login, g Given) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.given == g
}
