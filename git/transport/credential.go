package transport

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// Question is a request for a login, with the fields of git's credential protocol (git-credential(1)).
type Question struct {
	Protocol, Host, Path string
	User                 string   // user for whom a login is requested; "" means any user
	Challenges           []string // values of the WWW-Authenticate headers
	Schemes              bool     // whether the caller can use Credential.Scheme and Credential.Value
}

// Credential is the answer to a Question: either a user name and a password, or the scheme and the value of an
// Authorization header. It holds a secret and must never be printed.
type Credential struct {
	User, Password string
	Scheme, Value  string
}

// Credential returns the login of this remote, for a program that sends its own requests to the same server. Credential
// itself sends no request to the server. It returns false if there is no login, or if the server in the question is
// another server.
func (r *Remote) Credential(ctx context.Context, q Question) (Credential, bool, error) {
	a, headers, err := r.loginsFor(ctx, q)
	if a == nil || err != nil {
		return Credential{}, false, err
	}
	l, err := a.forOthers(ctx, q, headers)
	// A token is not bound to a user name, so it answers a question that names any user.
	if l == nil || err != nil || q.User != "" && l.user != "" && l.user != q.User && l.source != fromToken {
		return Credential{}, false, err
	}
	return l.credential(q)
}

// Refused records that the server refused a secret that Credential had returned. The next request looks for another
// login.
func (r *Remote) Refused(ctx context.Context, q Question, secret string) {
	a, _, err := r.loginsFor(ctx, q)
	if a == nil || err != nil {
		return
	}
	a.mu.Lock()
	refused := a.current
	if refused != nil && refused.secret == secret {
		a.current, a.approved = nil, false
	} else {
		refused = nil
	}
	a.mu.Unlock()
	if refused != nil && refused.source == fromHelper {
		a.report(ctx, "reject", refused)
	}
}

// Accepted records that the server accepted a secret that Credential had returned, so that credential helpers may store
// it.
func (r *Remote) Accepted(ctx context.Context, q Question, secret string) {
	a, _, err := r.loginsFor(ctx, q)
	if a == nil || err != nil {
		return
	}
	if l, _ := a.known(); l != nil && l.secret == secret {
		a.accepted(l)
	}
}

// Logins returns the URLs, without secrets, for which Credential has answers: the remote's own URL and, if the user's
// git configuration rewrites that URL, the rewritten URL. The result first is true if the user named a login for this
// remote; that login takes precedence over credential helpers.
func (r *Remote) Logins(ctx context.Context) (urls []string, first bool, err error) {
	if r.endpoint.Scheme != endpoint.HTTP {
		return nil, false, nil
	}
	urls = []string{r.endpoint.Display}
	c, err := r.carrierFor(ctx)
	if err != nil {
		return urls, false, err
	}
	h, ok := c.(*web)
	if !ok {
		return urls, false, nil
	}
	if other := h.endpoint.Display; other != urls[0] {
		urls = append(urls, other)
	}
	token, file, renewed := r.opts.Login.Given()
	first = token != "" || file != "" || renewed == 0 && h.endpoint.HasSecret
	for _, line := range h.set.Headers {
		name, _, _ := strings.Cut(line, ":")
		first = first || strings.EqualFold(strings.TrimSpace(name), "Authorization")
	}
	return urls, first, nil
}

// loginsFor returns the authenticator for the server in a question, and the extra headers that the user has configured
// for that server. It returns nil if the question is about another server, or if this remote is not reached over HTTP.
func (r *Remote) loginsFor(ctx context.Context, q Question) (*authenticator, []string, error) {
	if r.endpoint.Scheme != endpoint.HTTP {
		return nil, nil, nil
	}
	c, err := r.carrierFor(ctx)
	if err != nil {
		return nil, nil, err
	}
	h, ok := c.(*web)
	asked := &url.URL{Scheme: q.Protocol, Host: q.Host}
	// URLs are compared by scheme, host and port, because a login for one port must not be sent to a service on another
	// port.
	same := func(u *url.URL) bool {
		return u.Scheme == asked.Scheme && strings.EqualFold(u.Hostname(), asked.Hostname()) &&
			endpoint.PortOf(u) == endpoint.PortOf(asked)
	}
	if !ok || !same(h.endpoint.Base) && !same(r.endpoint.Base) {
		return nil, nil, nil
	}
	at, a := h.at()
	if !same(at) { // the remote was redirected, and the authenticator a belongs to the new host
		a = newAuthenticator(r, h.endpoint, h.endpoint.Base, true)
	}
	return a, h.set.Headers, nil
}

// forOthers returns a login for a program outside this package. The order of precedence is: the login that the user
// named for this remote, an Authorization header in the git configuration, the login that this remote uses, the
// credential helpers.
func (a *authenticator) forOthers(ctx context.Context, q Question, headers []string) (*login, error) {
	l, givenErr := a.userLogin(onlyBearer(q.Challenges) && q.Schemes)
	if l != nil {
		return l, nil
	}
	for _, line := range headers {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(name), "Authorization") {
			return headerLogin(strings.TrimSpace(value)), nil
		}
	}
	if l, _ = a.known(); l != nil {
		return l, nil
	}
	l, err := a.fill(ctx, q.Challenges, false)
	if err != nil { // do not return err, because the program that asked may have a login of its own
		return nil, givenErr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Store the login for the next request, which would otherwise run the helper again.
	if a.current == nil {
		a.current, a.approved = l, false
	}
	return l, nil
}

// headerLogin returns the login in value, an Authorization header from the user's git configuration.
func headerLogin(value string) *login {
	scheme, rest, _ := strings.Cut(value, " ")
	l := &login{header: value, source: fromHeader, secret: strings.TrimSpace(rest)}
	if !strings.EqualFold(scheme, "basic") {
		return l
	}
	text, err := base64.StdEncoding.DecodeString(l.secret)
	if user, password, ok := strings.Cut(string(text), ":"); err == nil && ok {
		l.user, l.secret = user, password
	}
	return l
}

// credential converts the login into a Credential. It returns false if the caller does not support the scheme of the
// login, or if the login contains control characters that would corrupt the credential protocol.
func (l *login) credential(q Question) (Credential, bool, error) {
	scheme, value, _ := strings.Cut(l.header, " ")
	c := Credential{User: l.user, Password: l.secret}
	if !strings.EqualFold(scheme, "basic") {
		if !q.Schemes {
			return Credential{}, false, nil
		}
		c = Credential{Scheme: scheme, Value: strings.TrimSpace(value)}
	}
	// these bytes would add lines to the credential protocol
	if strings.ContainsAny(c.User+c.Password+c.Scheme+c.Value, "\r\n\x00") {
		return Credential{}, false, nil
	}
	return c, true, nil
}
