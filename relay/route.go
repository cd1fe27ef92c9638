package relay

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// service is the last part of the path of a request, which states how the client uses the repository.
type service uint8

const (
	discovery   service = iota // request for the capabilities of upload-pack
	uploadPack                 // a command of upload-pack
	receivePack                // a push
)

// errRoute is the reason why a path does not name a remote. Its text is the answer to the client.
var errRoute = errors.New("path must be /https/HOST/PATH or /http/HOST/PATH, as in http://RELAY/https/git.example.org/team/app.git")

// parseRoute returns the URL of the remote that a request names, and the service. The URL is the part of the path
// before the service, in which the first slash after the scheme stands for "://".
func parseRoute(r *http.Request) (remote *url.URL, s service, err error) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	query := r.URL.RawQuery
	switch rest, ok := strings.CutSuffix(path, "/info/refs"); {
	case ok:
		path = rest
		// If the user's URL of the remote has a query, git appends the service to the query instead of to the path.
		switch {
		case strings.HasSuffix(query, "service=git-upload-pack"):
			query = strings.TrimSuffix(query, "service=git-upload-pack")
		case strings.HasSuffix(query, "service=git-receive-pack"):
			s, query = receivePack, strings.TrimSuffix(query, "service=git-receive-pack")
		default:
			return nil, 0, errors.New("relay serves git's smart HTTP protocol only")
		}
		query = strings.TrimSuffix(query, "&")
	default:
		var name string
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			path, name = path[:i], path[i+1:]
		}
		switch name {
		case "git-upload-pack":
			s = uploadPack
		case "git-receive-pack":
			s = receivePack
		default:
			return nil, 0, errRoute
		}
	}
	scheme, rest, _ := strings.Cut(path, "/")
	host, dir, _ := strings.Cut(rest, "/")
	if scheme != "https" && scheme != "http" || host == "" || dir == "" {
		return nil, 0, errRoute
	}
	remote, err = url.Parse(scheme + "://" + host + "/" + dir)
	if err != nil || remote.User != nil || remote.Hostname() == "" {
		return nil, 0, errRoute
	}
	// Such parts are refused: a git server may resolve them, and would then serve another repository than the one that
	// was compared with --allow.
	for part := range strings.SplitSeq(remote.Path, "/") {
		if part == "." || part == ".." {
			return nil, 0, errRoute
		}
	}
	remote.Host = strings.ToLower(remote.Host)
	remote.RawQuery = query
	return remote, s, nil
}

// allowed is the list of the remotes that a relay serves.
type allowed struct {
	all  bool
	urls []*url.URL
}

// parseAllowed parses the values of --allow.
func parseAllowed(values []string) (a allowed, err error) {
	for _, v := range values {
		if v == "*" {
			a.all = true
			continue
		}
		u, err := url.Parse(v)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil ||
			u.RawQuery != "" {
			return a, fmt.Errorf("invalid URL %q for --allow: want https://HOST, https://HOST/PATH or '*'", v)
		}
		u.Host, u.Path = strings.ToLower(u.Host), strings.TrimRight(u.Path, "/")
		a.urls = append(a.urls, u)
	}
	return a, nil
}

// CheckAllowed returns an error if one of the values of --allow is invalid.
func CheckAllowed(values []string) error {
	_, err := parseAllowed(values)
	return err
}

// contains reports whether the URL of a remote is one of the allowed URLs, or is below one of them.
func (a allowed) contains(remote *url.URL) bool {
	return a.all || slices.ContainsFunc(a.urls, func(u *url.URL) bool {
		rest, below := strings.CutPrefix(remote.Path, u.Path)
		return u.Scheme == remote.Scheme && u.Host == remote.Host && below && (rest == "" || rest[0] == '/')
	})
}
