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

	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/git/transport/tokenfile"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// loginSource is the source of a login.
type loginSource uint8

const (
	fromURL    loginSource = iota // the password in the remote's URL
	fromToken                     // the token in Options.Login
	fromHelper                    // git credential, which asks the user's credential helpers
	fromHeader                    // http.extraHeader in the user's git configuration
)

// login is one way to authenticate. It holds a secret and must never be printed.
type login struct {
	header string // value of the Authorization header
	source loginSource
	user   string // "" if the header is not Basic
	secret string // password or token
	bearer bool   // whether the token is sent as Bearer and not as a password
	answer []byte // output of git credential fill, which approve and reject need as input
}

// authenticator finds logins for one server. It tries, in this order, the password in the URL, the token in
// Options.Login, and git credential. The password and the token are used only if the field own is true, which means
// that the user named this server. They are not sent to a server that the remote redirects to.
type authenticator struct {
	remote      *Remote
	url         *url.URL // URL of the server, without user
	user        string
	secret      string
	pass        bool          // whether the URL has a password, which may be empty
	own         bool          // whether the user named this server; false if the remote redirected to it
	helperToken chan struct{} // contains one element while a goroutine runs credential helpers

	mu sync.Mutex
	// mu protects the fields below.
	current  *login // the login that is sent now, or nil
	approved bool   // git credential was informed that current works
	renewed  int    // number of calls of Login.Renew that the method known has taken into account
}

// newAuthenticator returns the authenticator for the server whose base URL is in the parameter at. The parameter own
// reports whether the user named this server. If own is false, the user and the password in the remote's URL are not
// used.
func newAuthenticator(r *Remote, ep *endpoint.URL, at *url.URL, own bool) *authenticator {
	a := &authenticator{
		remote: r, url: at, user: ep.User, secret: ep.Secret, pass: ep.HasSecret, own: own,
		helperToken: make(chan struct{}, 1),
	}
	if !own {
		a.user, a.secret, a.pass = "", "", false
	}
	return a
}

// first returns the login to send with the first request, before the server demands a login, which saves a round trip.
// It returns nil if no login is known. Such a login is sent only over https, because http would send it in clear text.
func (a *authenticator) first() (*login, error) {
	current, _ := a.known()
	if current != nil || !a.own || a.url.Scheme != "https" {
		return current, nil
	}
	l, err := a.userLogin(false)
	if errors.Is(err, tokenfile.ErrNone) { // the remote may be public, so the missing token is not an error yet
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Another goroutine may have found a login since known was called. Use that login, so that all goroutines send the
	// same one.
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		a.current = l
	}
	return a.current, nil
}

// known returns the login that was found last, or nil if none was found. If the field own is true and the user has
// renewed the token since the last call, or the token expires soon, known discards the login and returns nil and true.
// In all other cases the result again is false.
func (a *authenticator) known() (current *login, again bool) {
	_, _, renewed := a.remote.opts.Login.Given()
	a.mu.Lock()
	defer a.mu.Unlock()
	// The counter increases with each call of Login.Renew, so a changed value means that the user has replaced the token
	// since current was found. A token that a program has made is replaced before it expires.
	expired := a.current != nil && a.current.source == fromToken && a.remote.opts.Login.program().Old(a.current.secret)
	if again = a.own && (renewed != a.renewed || expired); again {
		a.current, a.renewed = nil, renewed
	}
	return a.current, again
}

// userLogin returns the login from the URL or, if the URL has none, from the token. It returns nil if neither exists. A
// renewed token takes precedence over the URL. The parameter bearer selects the form in which a token is sent.
func (a *authenticator) userLogin(bearer bool) (*login, error) {
	if !a.own {
		return nil, nil
	}
	if _, _, renewed := a.remote.opts.Login.Given(); a.pass && renewed == 0 {
		return &login{header: basic(a.user, a.secret), source: fromURL, user: a.user, secret: a.secret}, nil
	}
	return a.token(bearer)
}

// token returns the login from Options.Login, or nil if Options.Login has no token. The token is sent as Bearer, or as
// a password if bearer is false.
func (a *authenticator) token(bearer bool) (*login, error) {
	token, err := a.remote.opts.Login.Token(a.remote.opts.Env)
	if err != nil || token == "" || !a.own {
		return nil, err
	}
	l := &login{source: fromToken, secret: token, bearer: bearer}
	if l.header = "Bearer " + token; !bearer {
		l.user = a.user
		if l.user == "" {
			l.user = "x-access-token" // hosting services that accept a token as the password ignore the user name
		}
		l.header = basic(l.user, token)
	}
	return l, nil
}

// basic returns the value of an Authorization header with the scheme Basic.
func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// next returns the login to try after the server has answered 401. The parameter tried is the login of the refused
// request, or nil if the request had no login; challenges holds the WWW-Authenticate values of the answer. next returns
// ErrAuth when no login is left.
func (a *authenticator) next(ctx context.Context, tried *login, challenges []string) (*login, error) {
	select {
	case a.helperToken <- struct{}{}:
		defer func() { <-a.helperToken }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	current, again := a.known()
	if current != nil && current != tried { // another request was refused before this one and has already found a login
		return current, nil
	}
	bearer := onlyBearer(challenges)
	var l *login
	var err error
	switch {
	case tried == nil || again:
		l, err = a.userLogin(bearer)
		if none := errors.Is(err, tokenfile.ErrNone); err == nil && l == nil || none {
			var fillErr error
			if l, fillErr = a.fill(ctx, challenges, mayPrompt()); !none || fillErr == nil {
				err = fillErr
			}
		}
	// The server has refused the login of a credential helper: git credential must forget that login, because it would
	// return the same login again.
	case tried.source == fromHelper:
		a.report(ctx, "reject", tried)
		if l, err = a.fill(ctx, challenges, mayPrompt()); err == nil && l.secret == tried.secret {
			err = fmt.Errorf("%w: %s rejected the credentials from git's credential helper", ErrAuth, a.url.Host)
		}
	// The server refused the password in the URL, or the token in the form in which it was sent. The token may be
	// accepted in the other form (Bearer or password).
	default:
		a.remote.opts.Login.program().Refused(tried.secret)
		if l, err = a.token(bearer); err == nil && (l == nil || l.secret == tried.secret && l.bearer == tried.bearer) {
			err = fmt.Errorf("%w: %s rejected the user's token or password", ErrAuth, a.url.Host)
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

// accepted reports to git credential, in the background, that the server accepted the login l, so that credential
// helpers may store l. It does nothing if l has another source or was reported before.
func (a *authenticator) accepted(l *login) {
	if l == nil || l.source != fromHelper {
		return
	}
	a.mu.Lock()
	news := a.current == l && !a.approved
	a.approved = a.approved || news
	a.mu.Unlock()
	if !news || a.remote.tasks.begin() != nil {
		return
	}
	go func() {
		defer a.remote.tasks.done()
		ctx, cancel := context.WithTimeout(context.Background(), defaultConnect)
		defer cancel()
		a.report(ctx, "approve", l)
	}()
}

// onlyBearer reports whether the server accepts tokens only with the scheme Bearer, not as passwords.
func onlyBearer(challenges []string) bool {
	return offers(challenges, "bearer") && !offers(challenges, "basic")
}

// mayPrompt reports whether standard input is a terminal, where a user may answer a prompt.
func mayPrompt() bool {
	_, err := unix.IoctlGetTermios(0, unix.TCGETS)
	return err == nil
}

// fill runs git credential fill and returns the login that git prints. The parameter prompt allows git to prompt the
// user. The error is ErrAuth if git has no login.
func (a *authenticator) fill(ctx context.Context, challenges []string, prompt bool) (*login, error) {
	var in bytes.Buffer
	// The input has the format of git-credential(1). The key wwwauth[] passes the server's challenges to the credential
	// helpers, some of which use the challenges.
	fmt.Fprintf(&in, "capability[]=authtype\nprotocol=%s\nhost=%s\npath=%s\n", a.url.Scheme, a.url.Host,
		strings.TrimPrefix(a.url.Path, "/"))
	if a.user != "" {
		fmt.Fprintf(&in, "username=%s\n", a.user)
	}
	for _, c := range challenges {
		// A line feed in a challenge would let the server add lines to the input of git credential.
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
	if err != nil { // the new error does not quote the helper's output, which may contain a secret
		return nil, fmt.Errorf("%w: %s requires credentials, and git's credential helper has none for this host",
			ErrAuth, a.url.Host)
	}
	l := parseCredential(out)
	if l == nil {
		return nil, fmt.Errorf("%w: git's credential helper returned no password for %s", ErrAuth, a.url.Host)
	}
	return l, nil
}

// parseCredential parses the "key=value" lines that git credential fill prints. It returns nil if the lines contain no
// secret.
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
	return &login{header: basic(v["username"], v["password"]), source: fromHelper, user: v["username"],
		secret: v["password"], answer: out}
}

// report informs git credential whether a login was accepted: the parameter verb is "approve" or "reject". An error is
// only logged, because its only consequence is that git may ask the user for the login again.
func (a *authenticator) report(ctx context.Context, verb string, l *login) {
	cmd := a.remote.opts.Env.Git(ctx, "credential", verb)
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0")
	cmd.Stdin = bytes.NewReader(l.answer)
	if err := cmd.Run(); err != nil {
		a.remote.log.Debug("run git credential", zap.String("verb", verb), zap.Error(err))
	}
}

// offers reports whether the WWW-Authenticate values contain a challenge with the given scheme. One value may list
// several challenges.
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
