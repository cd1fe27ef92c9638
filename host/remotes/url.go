package remotes

import (
	"net/url"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// Environment returns the environment variables that a mount request sets for connections to its remotes, or nil if it
// sets none.
func Environment(r control.MountRequest) transport.Environment {
	if len(r.Environment) == 0 {
		return nil
	}
	return transport.Environment(r.Environment)
}

// SessionURL returns the URL of the session remote of a mount request, and its kind, which is one of the constants of
// package control, or "" if the request names a URL. The URL is "" if the session has no session remote, or the
// embedded one.
func SessionURL(r control.MountRequest) (at, kind string) {
	switch r.SessionOptions.Remote {
	case "", control.RemoteEmbedded:
		return "", control.RemoteEmbedded
	case control.RemoteNone:
		return "", control.RemoteNone
	case control.RemoteOrigin:
		return r.Remote, control.RemoteOrigin
	}
	// If the request has no session token, and the session remote is on the host of the mounted remote, the session remote
	// is accessed with the user and password in the URL of the mounted remote.
	if r.SessionToken == "" && r.SessionTokenFile == "" {
		return LikeUser(r.SessionOptions.Remote, r.Remote), ""
	}
	return r.SessionOptions.Remote, ""
}

// WithSessionRemote returns the request r with the session remote at, which is a URL, a path, or one of the constants
// of package control. The result has the session token of r only if both session remotes are on the same host. Every
// function that opens a further remote with the request of a mount uses WithSessionRemote, so that no host receives the
// token of another one.
func WithSessionRemote(r control.MountRequest, at string) control.MountRequest {
	if own, _ := SessionURL(r); !endpoint.SameHost(own, at) {
		r.SessionToken, r.SessionTokenFile = "", ""
	}
	r.SessionOptions.Remote = at
	return r
}

// LikeUser returns the URL remote with the user and password of the URL other, if both URLs have the same host and
// remote has no user. Otherwise it returns remote unchanged.
func LikeUser(remote, other string) string {
	u, err := url.Parse(remote)
	o, otherErr := url.Parse(other)
	if err != nil || otherErr != nil || u.User != nil || o.User == nil || !endpoint.SameHost(remote, other) {
		return remote
	}
	u.User = o.User
	return u.String()
}

// WithoutPassword returns the URL of a remote without its password. The result keeps the user name.
func WithoutPassword(remote string) string {
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

// WithUser returns the URL of a remote with the given user name, or with no user name if user is "". The result has no
// password.
func WithUser(remote, user string) string {
	u, err := url.Parse(remote)
	if err != nil {
		return remote
	}
	if u.User = nil; user != "" {
		u.User = url.User(user)
	}
	return u.String()
}

// IsLocal reports whether a remote is a path or a file URL. Callers use it to refuse a local submodule in a repository
// that is not local, as git does.
func IsLocal(remote string) bool {
	// As in git-clone(1), a remote without a scheme and host is a local path.
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		return strings.EqualFold(scheme, "file")
	}
	colon, slash := strings.IndexByte(remote, ':'), strings.IndexByte(remote, '/')
	return colon < 0 || slash >= 0 && slash < colon
}

// Readable returns remote unchanged if other machines can probably read the repository by the same URL: for the schemes
// http, https, ssh and git, and for addresses such as host:path. Otherwise it returns "", because a local path may be
// another directory on another machine.
func Readable(remote string) string {
	if scheme, _, ok := strings.Cut(remote, "://"); ok {
		switch strings.ToLower(scheme) {
		case "http", "https", "ssh", "git":
			return remote
		}
		return ""
	}
	// The address may have the form HOST:PATH. In a local path, a slash precedes the colon.
	host, path, ok := strings.Cut(remote, ":")
	if ok && host != "" && path != "" && !strings.Contains(host, "/") {
		return remote
	}
	return ""
}
