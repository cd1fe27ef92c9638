package transport

import (
	"context"
	"encoding/base64"
	"net/url"
	"strings"

	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// Question is a request for a login in git's credential protocol (git-credential(1)).
type Question struct {
	Protocol, Host, Path string
	User                 string   // "": any
	Challenges           []string // values of WWW-Authenticate
	Schemes              bool     // the caller accepts a Scheme and Value
}

// Credential is the answer to a Question: a user name and a password, or the scheme and value of an
// Authorization header. It holds a secret and must never be printed.
type Credential struct {
	User, Password string
	Scheme, Value  string
}

// Credential returns the login of this remote, for a program that sends requests to the same
// server. It sends none itself. It returns false if there is no login, or the question is about
// another server.
func (r *Remote) Credential(ctx context.Context, q Question) (Credential, bool, error) {
	a, headers, err := r.loginsFor(ctx, q)
	if a == nil || err != nil {
		return Credential{}, false, err
	}
	l, err := a.forOthers(ctx, q, headers)
	// A token belongs to no user name, so it also answers a question about a certain user.
	if l == nil || err != nil || q.User != "" && l.user != "" && l.user != q.User && l.source != fromToken {
		return Credential{}, false, err
	}
	return l.credential(q)
}

// Refused records that the server refused a secret that Credential returned. It is looked up again
// before the next use.
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

// Accepted records that the server accepted a secret that Credential returned.
func (r *Remote) Accepted(ctx context.Context, q Question, secret string) {
	a, _, err := r.loginsFor(ctx, q)
	if a == nil || err != nil {
		return
	}
	if l, _ := a.known(); l != nil && l.secret == secret {
		a.accepted(l)
	}
}

// Logins returns the URLs, without secrets, for which Credential has answers: the remote's own, and
// the one by which the user's settings replace it. first is true if the user named a login for this
// remote, which then takes precedence over credential helpers.
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

// loginsFor returns the logins for the server of a question, and the headers that the user has set
// for it. It returns nil for another server, or one that is not reached by HTTP.
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
	// URLs are compared by scheme, host and port: a login for one port must not be sent to a service on another.
	same := func(u *url.URL) bool {
		return u.Scheme == asked.Scheme && strings.EqualFold(u.Hostname(), asked.Hostname()) && endpoint.PortOf(u) == endpoint.PortOf(asked)
	}
	if !ok || !same(h.endpoint.Base) && !same(r.endpoint.Base) {
		return nil, nil, nil
	}
	at, a := h.at()
	if !same(at) { // the server has redirected to another host, and those logins are for that host
		a = newAuthenticator(r, h.endpoint, h.endpoint.Base, true)
	}
	return a, h.set.Headers, nil
}

// forOthers returns a login by precedence: the one that the user named for this remote, the headers
// of the settings, then credential helpers.
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
	if err != nil { // no helper has one, but the caller may
		return nil, givenErr
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// The login is remembered for the next exchange, which would otherwise run the helper again.
	if a.current == nil {
		a.current, a.approved = l, false
	}
	return l, nil
}

// headerLogin returns the login in an Authorization header of the user's settings.
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

// credential returns a login in git's terms. It returns false if the caller could not use it.
func (l *login) credential(q Question) (Credential, bool, error) {
	scheme, value, _ := strings.Cut(l.header, " ")
	c := Credential{User: l.user, Password: l.secret}
	if !strings.EqualFold(scheme, "basic") {
		if !q.Schemes {
			return Credential{}, false, nil
		}
		c = Credential{Scheme: scheme, Value: strings.TrimSpace(value)}
	}
	if strings.ContainsAny(c.User+c.Password+c.Scheme+c.Value, "\r\n\x00") { // it would forge lines of the protocol
		return Credential{}, false, nil
	}
	return c, true, nil
}
