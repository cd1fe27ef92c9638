package transport

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
)

// scheme is how a remote is reached.
type scheme uint8

const (
	schemeLocal scheme = iota // path, or file://
	schemeHTTP                // http, https
	schemeSSH                 // ssh://, or host:path
	schemeGit                 // git://
)

// endpoint is a remote's URL taken apart. secret is the password of the URL; nothing prints it.
type endpoint struct {
	scheme  scheme
	display string   // secret-free
	raw     string   // as given, for url.<base>.insteadOf; may hold the secret
	base    *url.URL // http only, without user
	user    string
	secret  string
	hasPass bool
	host    string // without port, decoded
	port    string // "" for the scheme's own
	path    string // decoded; for lanes
}

func (e *endpoint) String() string { return e.display }

// malformed is an error about the way a remote is written, of which it repeats nothing that may be a secret.
type malformed string

func (m malformed) Error() string        { return "parse remote URL: " + string(m) }
func (m malformed) Is(target error) bool { return target == ErrURL }

// parseURL follows git's connect.c: what has "://" is a URL, what has a colon before the first slash is
// host:path over ssh, everything else is a local path. No error repeats the URL, which may hold a secret.
func parseURL(raw string) (*endpoint, error) {
	if raw == "" {
		return nil, malformed("empty")
	}
	if strings.ContainsFunc(raw, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, malformed("control character")
	}
	name, rest, isURL := strings.Cut(raw, "://")
	if isURL && isSchemeName(name) {
		switch strings.ToLower(name) {
		case "http", "https":
			return parseHTTP(raw)
		case "ssh", "git+ssh", "ssh+git":
			return parseAuthority(schemeSSH, raw, rest)
		case "git":
			return parseAuthority(schemeGit, raw, rest)
		case "file":
			return parseFile(raw, rest)
		}
		return nil, malformed(fmt.Sprintf("unknown scheme %q", name))
	}
	colon, slash := strings.IndexByte(raw, ':'), strings.IndexByte(raw, '/')
	if host, rest, ok := scpBracket(raw); ok {
		return newSSH(raw, host, rest)
	}
	if colon > 0 && (slash < 0 || colon < slash) {
		// What is meant is a URL; to ssh the user would be a host, and the password a path that everybody may see.
		if first, _, _ := strings.Cut(raw[colon+1:], "/"); strings.Contains(first, "@") && !strings.Contains(raw[:colon], "@") {
			return nil, malformed("USER:PASSWORD@HOST without a scheme")
		}
		return newSSH(raw, raw[:colon], raw[colon+1:])
	}
	return newLocal(raw, raw)
}

func isSchemeName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')
	})
}

// scpBracket takes "[host:port]:path", "[::1]:path" and either behind "user@" apart.
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

func newLocal(raw, path string) (*endpoint, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("parse remote path: %w", err)
	}
	return &endpoint{scheme: schemeLocal, display: abs, raw: raw, path: abs}, nil
}

func parseFile(raw, rest string) (*endpoint, error) {
	host, path, ok := strings.Cut(rest, "/")
	if !ok || host != "" && host != "localhost" {
		return nil, malformed("file URL without an absolute local path")
	}
	path, err := url.PathUnescape("/" + path)
	if err != nil || strings.IndexByte(path, 0) >= 0 {
		return nil, malformed("bad escape in path")
	}
	ep, err := newLocal(raw, path)
	if err == nil {
		ep.display = (&url.URL{Scheme: "file", Path: ep.path}).String()
	}
	return ep, err
}

func parseHTTP(raw string) (*endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil { // the cause quotes parts of the URL
		return nil, malformed("malformed")
	}
	if u.Hostname() == "" {
		return nil, malformed("no host")
	}
	ep := &endpoint{scheme: schemeHTTP, raw: raw, host: u.Hostname(), port: u.Port()}
	ep.user = u.User.Username()
	ep.secret, ep.hasPass = u.User.Password()
	if strings.ContainsFunc(ep.user+ep.secret+u.Path+u.Host, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, malformed("control character") // would forge lines of git's credential protocol
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	shown := *u
	shown.RawQuery, shown.ForceQuery = "", false
	ep.base, ep.display = u, shown.String()
	return ep, nil
}

// parseAuthority reads user@host:port/path of ssh and git URLs.
func parseAuthority(s scheme, raw, rest string) (*endpoint, error) {
	authority, path, ok := strings.Cut(rest, "/")
	if !ok {
		return nil, malformed("no path")
	}
	path, err := url.PathUnescape("/" + path)
	if err != nil {
		return nil, malformed("bad escape in path")
	}
	if authority, err = url.PathUnescape(authority); err != nil {
		return nil, malformed("bad escape in host")
	}
	if strings.HasPrefix(path, "/~") { // a home directory, as git has it
		path = path[1:]
	}
	return newHosted(s, raw, authority, path)
}

func newSSH(raw, authority, path string) (*endpoint, error) {
	user, host := "", authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, host = authority[:at+1], authority[at+1:]
	}
	// "[host:port]:path" is git's way to give scp-like spelling a port; "[::1]:path" is a plain address.
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.Count(inner, ":") == 1 {
		authority = user + strings.TrimSuffix(inner, "]")
	}
	ep, err := newHosted(schemeSSH, raw, authority, path)
	if err == nil && ep.user == "" {
		ep.display = raw
	}
	return ep, err
}

func newHosted(s scheme, raw, authority, path string) (*endpoint, error) {
	ep := &endpoint{scheme: s, raw: raw, path: path, host: authority}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		ep.user, ep.host = authority[:at], authority[at+1:]
		ep.user, ep.secret, ep.hasPass = strings.Cut(ep.user, ":")
	}
	if strings.HasPrefix(ep.host, "[") {
		end := strings.IndexByte(ep.host, ']')
		if end < 0 || end+1 < len(ep.host) && ep.host[end+1] != ':' {
			return nil, malformed("bad host")
		}
		ep.host, ep.port = ep.host[1:end], strings.TrimPrefix(ep.host[end+1:], ":")
	} else {
		ep.host, ep.port, _ = strings.Cut(ep.host, ":")
	}
	// A host, user or path that begins with '-' would be taken for an option by ssh or git-upload-pack
	// (CVE-2017-1000117); control characters would end a line of the git:// request.
	all := ep.user + ep.host + ep.port + path
	switch {
	case ep.host == "":
		return nil, malformed("no host")
	case path == "" || path == "/":
		return nil, malformed("no path")
	case ep.host[0] == '-' || strings.HasPrefix(ep.user, "-") || path[0] == '-':
		return nil, malformed("host, user or path begins with '-'")
	case strings.ContainsFunc(all, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return nil, malformed("control character")
	case strings.Trim(ep.port, "0123456789") != "" || len(ep.port) > 5:
		return nil, malformed("bad port")
	case ep.user == "" && ep.hasPass, strings.ContainsAny(ep.host, " /@"):
		return nil, malformed("bad host")
	}
	ep.display = ep.spell()
	return ep, nil
}

func (e *endpoint) spell() string {
	u := url.URL{Scheme: "ssh", Host: e.host, Path: e.path}
	if e.scheme == schemeGit {
		u.Scheme = "git"
	}
	if e.port != "" {
		u.Host = net.JoinHostPort(e.host, e.port)
	} else if strings.Contains(e.host, ":") {
		u.Host = "[" + e.host + "]"
	}
	if e.user != "" && e.scheme == schemeSSH { // a login name such as git@, no secret
		u.User = url.User(e.user)
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u.String()
}
