// Package endpoint describes how a remote is reached: its URL, the user's git configuration for that URL, and the
// environment in which the user's git, ssh and credential helpers run. It does not use the network.
package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
)

// Scheme is the kind of connection by which a remote is reached.
type Scheme uint8

const (
	Local Scheme = iota // a path, or file://
	HTTP                // http, https
	SSH                 // ssh://, or host:path
	Git                 // git://
)

// URL is the parsed URL of a remote. Secret is the password in it, which must never be printed.
type URL struct {
	Scheme    Scheme
	Display   string   // URL without secrets
	Raw       string   // URL as the user typed it, for Settings.Rewrite; may contain the secret
	Base      *url.URL // for HTTP only: the URL without user and password
	User      string
	Secret    string
	HasSecret bool   // whether the URL has a password, which may be empty
	Host      string // host without the port, unescaped
	Port      string // "" stands for the default port of the scheme
	Path      string // path of the repository, unescaped; "" for HTTP
}

// String returns the URL without secrets.
func (e *URL) String() string { return e.Display }

// ErrURL means that a remote URL could not be parsed.
var ErrURL = errors.New("malformed remote URL")

// Malformed is the error for a URL that cannot be parsed. Its text contains no part of the URL that may be a secret.
type Malformed string

// Error returns the reason. It does not contain the URL.
func (m Malformed) Error() string { return "parse remote URL: " + string(m) }

// Is reports whether target is ErrURL.
func (m Malformed) Is(target error) bool { return target == ErrURL }

// SameHost reports whether two URLs have the same scheme, host and port, so that a secret for one remote may be sent to
// the other.
func SameHost(a, b string) bool {
	ua, errA := url.Parse(a)
	ub, errB := url.Parse(b)
	return errA == nil && errB == nil && ua.Host != "" && ua.Scheme == ub.Scheme && ua.Host == ub.Host
}

// Parse parses the URL of a remote by the rules of git's connect.c: a string with "://" is a URL, a string with a colon
// before the first slash is host:path over ssh, and any other string is a local path. Errors do not contain the URL,
// because it may contain a secret.
func Parse(raw string) (*URL, error) {
	if raw == "" {
		return nil, Malformed("empty")
	}
	if strings.ContainsFunc(raw, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, Malformed("control character")
	}
	name, rest, isURL := strings.Cut(raw, "://")
	if isURL && isSchemeName(name) {
		switch strings.ToLower(name) {
		case "http", "https":
			return parseHTTP(raw)
		case "ssh", "git+ssh", "ssh+git":
			return parseAuthority(SSH, raw, rest)
		case "git":
			return parseAuthority(Git, raw, rest)
		case "file":
			return parseFile(raw, rest)
		}
		return nil, Malformed(fmt.Sprintf("unknown scheme %q", name))
	}
	colon, slash := strings.IndexByte(raw, ':'), strings.IndexByte(raw, '/')
	if host, rest, ok := scpBracket(raw); ok {
		return newSSH(raw, host, rest)
	}
	if colon > 0 && (slash < 0 || colon < slash) {
		// The user has probably forgotten the scheme. Interpreted as host:path, the user name would be the host, and the
		// password would be a part of the path, which ssh would get as an argument that every process can read.
		if first, _, _ := strings.Cut(raw[colon+1:], "/"); strings.Contains(first, "@") &&
			!strings.Contains(raw[:colon], "@") {
			return nil, Malformed("USER:PASSWORD@HOST needs a scheme")
		}
		return newSSH(raw, raw[:colon], raw[colon+1:])
	}
	return newLocal(raw, raw)
}

// isSchemeName reports whether s has the syntax of a URL scheme (RFC 3986, 3.1).
func isSchemeName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')
	})
}

// scpBracket splits "[host:port]:path" and "[::1]:path", with or without "user@" before the bracket.
func scpBracket(raw string) (host, path string, ok bool) {
	user := ""
	if at := strings.Index(raw, "@["); at > 0 && !strings.ContainsAny(raw[:at], "/:[") {
		user, raw = raw[:at+1], raw[at+1:]
	}
	end := strings.Index(raw, "]:")
	if !strings.HasPrefix(raw, "[") || end < 0 || strings.Contains(raw[:end], "/") {
		return "", "", false
	}
	return user + raw[:end+1], raw[end+2:], true
}

// newLocal returns the URL of the repository at path. The path is made absolute, because git runs in another directory.
func newLocal(raw, path string) (*URL, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("parse remote path: %w", err)
	}
	return &URL{Scheme: Local, Display: abs, Raw: raw, Path: abs}, nil
}

// parseFile parses the part of a URL after file://, which is in the parameter rest. The host in rest must be empty or
// localhost.
func parseFile(raw, rest string) (*URL, error) {
	host, path, ok := strings.Cut(rest, "/")
	if !ok || host != "" && host != "localhost" {
		return nil, Malformed("file URL without an absolute local path")
	}
	path, err := url.PathUnescape("/" + path)
	if err != nil || strings.IndexByte(path, 0) >= 0 {
		return nil, Malformed("invalid escape in path")
	}
	ep, err := newLocal(raw, path)
	if err == nil {
		ep.Display = (&url.URL{Scheme: "file", Path: ep.Path}).String()
	}
	return ep, err
}

// parseHTTP parses an http or https URL and separates user and password from it.
func parseHTTP(raw string) (*URL, error) {
	u, err := url.Parse(raw)
	if err != nil { // do not return err, because it contains parts of the URL
		return nil, Malformed("malformed")
	}
	if u.Hostname() == "" {
		return nil, Malformed("host is missing")
	}
	ep := &URL{Scheme: HTTP, Raw: raw, Host: u.Hostname(), Port: u.Port()}
	ep.User = u.User.Username()
	ep.Secret, ep.HasSecret = u.User.Password()
	if strings.ContainsFunc(ep.User+ep.Secret+u.Path+u.Host, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, Malformed("control character") // a control character would add lines to git's credential protocol
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	shown := *u
	shown.RawQuery, shown.ForceQuery = "", false
	ep.Base, ep.Display = u, shown.String()
	return ep, nil
}

// parseAuthority parses rest, the part of an ssh or git URL after "://": user@host:port/path.
func parseAuthority(s Scheme, raw, rest string) (*URL, error) {
	authority, path, ok := strings.Cut(rest, "/")
	if !ok {
		return nil, Malformed("path is missing")
	}
	path, err := url.PathUnescape("/" + path)
	if err != nil {
		return nil, Malformed("invalid escape in path")
	}
	if authority, err = url.PathUnescape(authority); err != nil {
		return nil, Malformed("invalid escape in host")
	}
	if strings.HasPrefix(path, "/~") { // the path is below a home directory, as in git
		path = path[1:]
	}
	return newHosted(s, raw, authority, path)
}

// newSSH returns the URL for the scp-like syntax user@host:path, split at the colon.
func newSSH(raw, authority, path string) (*URL, error) {
	user, host := "", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, host = authority[:at+1], authority[at+1:]
	}
	// "[host:port]:path" is git's scp-like syntax with a port; "[::1]:path" is an address.
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.Count(inner, ":") == 1 {
		authority = user + strings.TrimSuffix(inner, "]")
	}
	// Without a user name, the URL contains no secret, so show it as the user typed it.
	ep, err := newHosted(SSH, raw, authority, path)
	if err == nil && ep.User == "" {
		ep.Display = raw
	}
	return ep, err
}

// newHosted returns the URL of a repository on another host. The parameter authority has the form
// [user[:password]@]host[:port].
func newHosted(s Scheme, raw, authority, path string) (*URL, error) {
	ep := &URL{Scheme: s, Raw: raw, Path: path, Host: authority}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		ep.User, ep.Host = authority[:at], authority[at+1:]
		ep.User, ep.Secret, ep.HasSecret = strings.Cut(ep.User, ":")
	}
	if strings.HasPrefix(ep.Host, "[") {
		end := strings.IndexByte(ep.Host, ']')
		if end < 0 || end+1 < len(ep.Host) && ep.Host[end+1] != ':' {
			return nil, Malformed("invalid host")
		}
		ep.Host, ep.Port = ep.Host[1:end], strings.TrimPrefix(ep.Host[end+1:], ":")
	} else {
		ep.Host, ep.Port, _ = strings.Cut(ep.Host, ":")
	}
	// If the host, user or path begins with '-', ssh or git-upload-pack would interpret it as an option
	// (CVE-2017-1000117). A control character could end a line of the git:// request.
	all := ep.User + ep.Host + ep.Port + path
	switch {
	case ep.Host == "":
		return nil, Malformed("host is missing")
	case path == "" || path == "/":
		return nil, Malformed("path is missing")
	case ep.Host[0] == '-' || strings.HasPrefix(ep.User, "-") || path[0] == '-':
		return nil, Malformed("host, user or path begins with '-'")
	case strings.ContainsFunc(all, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return nil, Malformed("control character")
	case strings.Trim(ep.Port, "0123456789") != "" || len(ep.Port) > 5:
		return nil, Malformed("invalid port")
	case ep.User == "" && ep.HasSecret, strings.ContainsAny(ep.Host, " /@"):
		return nil, Malformed("invalid host")
	}
	ep.Display = ep.spell()
	return ep, nil
}

// spell returns the URL in its long form, without the password.
func (e *URL) spell() string {
	u := url.URL{Scheme: "ssh", Host: e.Host, Path: e.Path}
	if e.Scheme == Git {
		u.Scheme = "git"
	}
	if e.Port != "" {
		u.Host = net.JoinHostPort(e.Host, e.Port)
	} else if strings.Contains(e.Host, ":") {
		u.Host = "[" + e.Host + "]"
	}
	if e.User != "" && e.Scheme == SSH { // keep a login name such as "git", which is not a secret
		u.User = url.User(e.User)
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u.String()
}
