package imports

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/server/egress"
)

const (
	checkTime    = 30 * time.Second
	checkBytes   = 128 << 20 // maximum size of an answer with refs in bytes
	maxURL       = 2048
	maxRedirects = 5
	maxDepth     = 1_000_000
	infoRefs     = "/info/refs"
)

// valid returns the URL of a request, or an error if the request is invalid.
func (i *Importer) valid(r Request) (*url.URL, error) {
	u, err := parseURL(r.URL, i.o.AllowHTTP)
	switch {
	case err != nil:
		return nil, err
	case r.Branch != "" && (!refname.Valid(headsPrefix+r.Branch) || strings.ContainsAny(r.Branch, "*\x00\n")):
		return nil, fmt.Errorf("%w: %.200q is not a valid name of a branch", ErrBranch, r.Branch)
	case r.Depth < 0 || r.Depth > maxDepth:
		return nil, ErrDepth
	}
	return u, nil
}

// parseURL returns the URL of a repository without a slash at the end. If allowHTTP is true, http is allowed for the
// loopback address.
func parseURL(text string, allowHTTP bool) (*url.URL, error) {
	if len(text) > maxURL || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) {
		return nil, ErrScheme
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" ||
		u.Opaque != "" {
		// the error of package url is not used, because it contains the URL, which may contain a password
		return nil, ErrScheme
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !allowHTTP || !isLoopback(u.Hostname())) {
		return nil, ErrScheme
	}
	// git and servers resolve such components, so another repository would be imported than the one whose path was
	// compared with a secret.
	if slices.ContainsFunc(strings.Split(u.Path, "/"), func(c string) bool { return c == "." || c == ".." }) {
		return nil, ErrScheme
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// client returns a client for the first request to another server. It follows redirections; the response contains the
// last URL. Each request gets the credentials that the secret has for its URL: package http alone would also send those
// of the first request to other ports, subdomains and paths.
func (i *Importer) client(s secret) *http.Client {
	t := i.dialer().Transport()
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects || !strings.HasSuffix(r.URL.Path, infoRefs) {
			return ErrNotGit
		}
		base := *r.URL
		base.RawQuery = ""
		if _, err := parseURL(base.String(), i.o.AllowHTTP); err != nil {
			return ErrNotGit
		}
		s.authorize(r)
		return nil
	}}
}

func (i *Importer) dialer() egress.Dialer {
	return egress.Dialer{AllowPrivate: i.o.AllowPrivate, Roots: i.roots}
}

// found is the result of the first request to another server.
type found struct {
	Remote
	url    *url.URL // URL of the repository after redirections
	branch bool     // whether the requested branch exists
}

// look requests the refs of another server, as git does, and reads them up to the requested branch. It uses version 0
// or 1 of the protocol, in which the first answer contains the refs. All problems with a URL should be found here,
// because git reports failures only as text.
func (i *Importer) look(ctx context.Context, u *url.URL, s secret, branch string) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	to := u.JoinPath() // JoinPath copies the URL, which is changed below
	to.Path, to.RawPath = u.Path+infoRefs, ""
	to.RawQuery = "service=git-upload-pack"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return found{}, ErrScheme
	}
	// some servers send a web page to clients whose name does not begin with git
	r.Header.Set("User-Agent", "git/2.45.0 artifactfs")
	r.Header.Set("Accept", "*/*")
	s.authorize(r)
	answer, err := i.client(s).Do(r)
	if err != nil {
		return found{}, unreachable(err)
	}
	defer answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return found{}, ErrAuth
	case code == http.StatusTooManyRequests || code >= 500:
		return found{}, fmt.Errorf("%w: status %d", ErrUnavailable, code)
	case code != http.StatusOK:
		return found{}, fmt.Errorf("%w: status %d", ErrNotGit, code)
	case answer.Header.Get("Content-Type") != "application/x-git-upload-pack-advertisement":
		return found{}, fmt.Errorf("%w: answer has another content type", ErrNotGit)
	}
	f, err := readRefs(io.LimitReader(answer.Body, checkBytes), branch)
	if err != nil {
		return found{}, err
	}
	f.url = answer.Request.URL
	f.url.Path, f.url.RawPath, f.url.RawQuery = strings.TrimSuffix(f.url.Path, infoRefs), "", ""
	if branch != "" && !f.branch {
		return found{}, fmt.Errorf("%w: %.200q", ErrBranch, branch)
	}
	return f, nil
}

// unreachable returns the error for a server that did not answer. It does not contain the text of err, which may name
// addresses in the network of this server.
func unreachable(err error) error {
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.Is(err, egress.ErrPrivate):
		return fmt.Errorf("%w: %w", ErrNotGit, egress.ErrPrivate)
	case errors.Is(err, ErrNotGit):
		return fmt.Errorf("%w: server redirects to another host or too often", ErrNotGit)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: server did not answer in time", ErrUnavailable)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("%w: host was not found", ErrNotGit)
	case errors.As(err, &unknown), errors.As(err, &name):
		return fmt.Errorf("%w: certificate is not valid", ErrUnavailable)
	}
	return fmt.Errorf("%w: connection failed", ErrUnavailable)
}

// readRefs reads the refs of a server in the format of gitprotocol-pack(5), version 0 or 1, with the header of
// gitprotocol-http(5) before it. It stops when it has found the default branch and the requested branch.
func readRefs(in io.Reader, branch string) (f found, err error) {
	f.ObjectFormat = object.SHA1.String()
	p := pktline.NewReader(in, 8<<10)
	broken := fmt.Errorf("%w: invalid list of refs", ErrNotGit)
	kind, line, err := p.Next()
	if err != nil || kind != pktline.Data || strings.TrimSpace(string(line)) != "# service=git-upload-pack" {
		return found{}, broken
	}
	if kind, _, err := p.Next(); err != nil || kind != pktline.Flush {
		return found{}, broken
	}
	for first := true; ; {
		kind, line, err := p.Next()
		if err != nil {
			return found{}, broken
		}
		if kind != pktline.Data {
			return f, nil
		}
		text := strings.TrimSuffix(string(line), "\n")
		if first && text == "version 1" {
			continue
		}
		if message, bad := strings.CutPrefix(text, "ERR "); bad {
			return found{}, fmt.Errorf("%w: %s", ErrNotGit, printable(message))
		}
		_, name, ok := strings.Cut(text, " ")
		if !ok {
			if strings.HasPrefix(text, "shallow ") {
				continue
			}
			return found{}, broken
		}
		if first {
			var capabilities string
			name, capabilities, ok = strings.Cut(name, "\x00")
			if !ok {
				return found{}, broken
			}
			if err := f.capabilities(capabilities); err != nil {
				return found{}, err
			}
			first = false
		}
		f.branch = f.branch || branch != "" && name == headsPrefix+branch
		if branch == "" || f.branch {
			return f, nil
		}
	}
}

func (f *found) capabilities(list string) error {
	for c := range strings.FieldsSeq(list) {
		if target, ok := strings.CutPrefix(c, "symref=HEAD:"+headsPrefix); ok && refname.Valid(headsPrefix+target) {
			f.DefaultBranch = target
		}
		if name, ok := strings.CutPrefix(c, "object-format="); ok {
			format, err := object.ParseFormat(name)
			if err != nil {
				return fmt.Errorf("%w: unknown object format", ErrNotGit)
			}
			f.ObjectFormat = format.String()
		}
	}
	return nil
}

// printable returns the first 200 characters of a text from another server, without control characters.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xFFFD || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "..."
	}
	return strings.TrimSpace(text)
}
