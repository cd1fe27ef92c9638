package transport

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/transport/endpoint"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// loginSource is the origin of a login.
type loginSource uint8

const (
	fromURL loginSource = iota
	fromToken
	fromHelper
	fromHeader // from http.extraHeader
)

// login is one way to authenticate. It holds a secret and must never be printed.
type login struct {
	header string // value of the Authorization header
	source loginSource
	user   string // "" if the header is not Basic
	secret string // password or token
	bearer bool   // whether the token is sent as Bearer and not as a password
	answer []byte // output of git credential fill, for approve and reject
}

// authenticator finds logins for one origin, in this order: the URL's own password, the token, git
// credential. The first two are used only for the host that the user named (own).
type authenticator struct {
	remote      *Remote
	url         *url.URL // without user
	user        string
	secret      string
	pass        bool // the URL has a password
	own         bool
	helperToken chan struct{} // token: one goroutine at a time runs credential helpers

	mu       sync.Mutex
	current  *login
	approved bool
	renewed  int // number of renewals of Options.Login when current was found
}

// newAuthenticator returns the authenticator for the origin at. own reports whether that is the host that the user
// named; otherwise the login of the URL is not used.
func newAuthenticator(r *Remote, ep *endpoint.URL, at *url.URL, own bool) *authenticator {
	a := &authenticator{
		remote: r, url: at, user: ep.User, secret: ep.Secret, pass: ep.HasSecret, own: own, helperToken: make(chan struct{}, 1),
	}
	if !own {
		a.user, a.secret, a.pass = "", "", false
	}
	return a
}

// first returns the login to send before the server demands one, nil for none: a known secret saves
// a round trip. Secrets are not sent in clear text.
func (a *authenticator) first() (*login, error) {
	current, _ := a.known()
	if current != nil || !a.own || a.url.Scheme != "https" {
		return current, nil
	}
	l, err := a.userLogin(false)
	if errors.Is(err, errNoToken) { // the remote may be public
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Another goroutine may have found a login meanwhile; all use the same one.
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		a.current = l
	}
	return a.current, nil
}

// known returns the last login that was found, nil for none. It forgets a login from before the
// token was renewed; again is then true once.
func (a *authenticator) known() (current *login, again bool) {
	_, _, renewed := a.remote.opts.Login.Given()
	a.mu.Lock()
	defer a.mu.Unlock()
	// Renew counts up, so a changed number means that the user has replaced the token since current was found.
	if again = a.own && renewed != a.renewed; again {
		a.current, a.renewed = nil, renewed
	}
	return a.current, again
}

// userLogin returns the login from URL or token, nil if there is neither.
func (a *authenticator) userLogin(bearer bool) (*login, error) {
	if !a.own {
		return nil, nil
	}
	if _, _, renewed := a.remote.opts.Login.Given(); a.pass && renewed == 0 {
		return &login{header: basic(a.user, a.secret), source: fromURL, user: a.user, secret: a.secret}, nil
	}
	return a.token(bearer)
}

// token returns the login from Options.Login.
func (a *authenticator) token(bearer bool) (*login, error) {
	token, err := a.remote.opts.Login.Token()
	if err != nil || token == "" || !a.own {
		return nil, err
	}
	l := &login{source: fromToken, secret: token, bearer: bearer}
	if l.header = "Bearer " + token; !bearer {
		l.user = a.user
		if l.user == "" {
			l.user = "x-access-token" // hosting services check only the token
		}
		l.header = basic(l.user, token)
	}
	return l, nil
}

// basic returns the value of a Basic Authorization header.
func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// next returns the login to try after a 401 to an exchange that used tried (nil: none). It returns
// ErrAuth when no login is left.
func (a *authenticator) next(ctx context.Context, tried *login, challenges []string) (*login, error) {
	select {
	case a.helperToken <- struct{}{}:
		defer func() { <-a.helperToken }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	current, again := a.known()
	if current != nil && current != tried { // another exchange was refused earlier and has found a login
		return current, nil
	}
	bearer := onlyBearer(challenges)
	var l *login
	var err error
	switch {
	case tried == nil || again:
		l, err = a.userLogin(bearer)
		if none := errors.Is(err, errNoToken); err == nil && l == nil || none {
			var fillErr error
			if l, fillErr = a.fill(ctx, challenges, mayPrompt()); !none || fillErr == nil {
				err = fillErr
			}
		}
	// A helper's login was refused: git credential must forget it, or it would return the same one again.
	case tried.source == fromHelper:
		a.report(ctx, "reject", tried)
		if l, err = a.fill(ctx, challenges, mayPrompt()); err == nil && l.secret == tried.secret {
			err = fmt.Errorf("%w: the credentials git has for %s were refused", ErrAuth, a.url.Host)
		}
	// The password of the URL was refused, or a token in the form in which it was sent; the token in another form may
	// be accepted.
	default:
		if l, err = a.token(bearer); err == nil && (l == nil || l.secret == tried.secret && l.bearer == tried.bearer) {
			err = fmt.Errorf("%w: %s refused the token or password of the user", ErrAuth, a.url.Host)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.approved = false
	if err != nil {
		a.current = nil
		return nil, err
	}
	a.current = l
	return l, nil
}

// accepted reports to git credential, in the background, that a login works, so that helpers may
// store it.
func (a *authenticator) accepted(l *login) {
	if l == nil || l.source != fromHelper {
		return
	}
	a.mu.Lock()
	news := a.current == l && !a.approved
	a.approved = a.approved || news
	a.mu.Unlock()
	if !news || a.remote.startTask() != nil {
		return
	}
	go func() {
		defer a.remote.tasks.Done()
		ctx, cancel := context.WithTimeout(context.Background(), defaultConnect)
		defer cancel()
		a.report(ctx, "approve", l)
	}()
}

// onlyBearer reports whether a server accepts tokens only as Bearer, not as passwords.
func onlyBearer(challenges []string) bool {
	return offers(challenges, "bearer") && !offers(challenges, "basic")
}

// mayPrompt reports whether a user may be at a terminal to answer.
func mayPrompt() bool {
	_, err := unix.IoctlGetTermios(0, unix.TCGETS)
	return err == nil
}

// fill runs git credential fill.
func (a *authenticator) fill(ctx context.Context, challenges []string, prompt bool) (*login, error) {
	var in bytes.Buffer
	// The input has the format of git-credential(1). wwwauth[] passes the challenges of the server on to helpers that
	// understand them.
	fmt.Fprintf(&in, "capability[]=authtype\nprotocol=%s\nhost=%s\npath=%s\n", a.url.Scheme, a.url.Host, strings.TrimPrefix(a.url.Path, "/"))
	if a.user != "" {
		fmt.Fprintf(&in, "username=%s\n", a.user)
	}
	for _, c := range challenges {
		// A line feed in a challenge would let the server write lines of the credential protocol.
		if !strings.ContainsAny(c, "\r\n\x00") {
			fmt.Fprintf(&in, "wwwauth[]=%s\n", c)
		}
	}
	cmd := a.remote.opts.Env.Git(ctx, "credential", "fill")
	if !prompt {
		cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0")
	}
	cmd.Stdin = &in
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil { // the helper's output is not repeated: it may contain anything
		return nil, fmt.Errorf("%w: %s wants credentials and git has none for it", ErrAuth, a.url.Host)
	}
	l := parseCredential(out)
	if l == nil {
		return nil, fmt.Errorf("%w: git's credentials for %s are incomplete", ErrAuth, a.url.Host)
	}
	return l, nil
}

// parseCredential reads "key=value" lines of git-credential. It returns nil if there is no secret
// among them.
func parseCredential(out []byte) *login {
	v := map[string]string{}
	for line := range bytes.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), "=")
		v[key] = value
	}
	// A carriage return would end the header line early.
	if strings.Contains(v["authtype"]+v["credential"], "\r") {
		return nil
	}
	if v["authtype"] != "" && v["credential"] != "" {
		return &login{header: v["authtype"] + " " + v["credential"], source: fromHelper, secret: v["credential"], answer: out}
	}
	if v["password"] == "" {
		return nil
	}
	return &login{header: basic(v["username"], v["password"]), source: fromHelper, user: v["username"], secret: v["password"], answer: out}
}

// report reports to git credential whether a login was accepted. A failure of the helper costs only
// a later question.
func (a *authenticator) report(ctx context.Context, verb string, l *login) {
	cmd := a.remote.opts.Env.Git(ctx, "credential", verb)
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0")
	cmd.Stdin = bytes.NewReader(l.answer)
	if err := cmd.Run(); err != nil {
		a.remote.log.Debug("git credential", zap.String("verb", verb), zap.Error(err))
	}
}

// offers reports whether WWW-Authenticate values contain a challenge of this scheme. One value may
// list several.
func offers(challenges []string, scheme string) bool {
	for _, c := range challenges {
		for part := range strings.SplitSeq(c, ",") {
			word, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			if strings.EqualFold(word, scheme) {
				return true
			}
		}
	}
	return false
}
