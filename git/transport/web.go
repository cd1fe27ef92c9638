package transport

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/transport/endpoint"
	"github.com/artifactfs/artifactfs/git/transport/via"
)

// Limits and names of smart HTTP.
const (
	gzipOver     = 1 << 10                 // requests that are longer than this number of bytes are compressed
	maxHops      = 20                      // maximum number of redirects that are followed, as in git
	maxLogins    = 4                       // number of refused logins after which an exchange fails
	drainGrace   = 250 * time.Millisecond  // time limit for reading the rest of a body after its last packet
	userAgent    = "git/2.40 (artifactfs)" // some forges serve only clients whose names begin with "git/"
	servicePath  = "/info/refs"
	maxRetryWait = 24 * time.Hour // maximum pause in Retry-After; longer pauses are shortened to this value
)

// web is the carrier over smart HTTP. It uses HTTP/1.1, with which each exchange has its own connection, so that a
// small answer gets a fair share of the network beside bulk transfers. With HTTP/2, all exchanges would be streams of
// one connection, and the small answer would get a smaller share.
type web struct {
	remote    *Remote
	endpoint  *endpoint.URL
	transport *http.Transport
	dialer    *webDialer
	set       endpoint.HTTPSettings
	front     *web // carrier of the same remote through a relay; nil if there is none (see newFront)
	// the way through the relay if this carrier is a front; nil if this carrier leads to the git server
	relay *via.Route

	// mu protects the fields below.
	mu   sync.Mutex
	base *url.URL // URL to which the discovery was redirected, or the URL that the user named
	auth *authenticator
	// receiver holds the server's capabilities for pushes, without refs. It is set if the server has so many refs that
	// listing them again would be slow.
	receiver *Receiver
}

var _ carrier = (*web)(nil)

// newWeb returns the carrier for the URL ep, with the user's settings for that URL.
func (r *Remote) newWeb(ep *endpoint.URL, set endpoint.Settings) (*web, error) {
	ws, err := set.HTTP(ep.Base, ep.User, r.opts.Env)
	if err != nil {
		return nil, err
	}
	t, d, err := r.connector.newTransport(ws)
	if err != nil {
		return nil, err
	}
	// Remove slashes at the end of the URL, which git ignores.
	base := *ep.Base
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawPath = strings.TrimRight(base.RawPath, "/")
	h := &web{remote: r, endpoint: ep, transport: t, dialer: d, set: ws, base: &base,
		auth: newAuthenticator(r, ep, &base, true)}
	if r.opts.Via != nil {
		h.front, err = h.newFront(set)
	}
	return h, err
}

// close closes the spare and all idle connections.
func (h *web) close() {
	if h.front != nil {
		h.front.close()
	}
	h.dialer.close()
	h.transport.CloseIdleConnections()
}

// spare returns the function that opens a spare connection, as described at the interface carrier. It returns nil if
// the remote is reached through a proxy, because then only the proxy decides whether an open connection saves time.
func (h *web) spare() func(context.Context) error {
	if h.front != nil && h.front.dialer.used() {
		return h.front.spare()
	}
	if h.transport.Proxy != nil {
		base, _ := h.at()
		if via, err := h.transport.Proxy(&http.Request{URL: base}); via != nil || err != nil {
			return nil
		}
	}
	return h.dialer.reserve()
}

// at returns the current base URL and the authenticator for it.
func (h *web) at() (*url.URL, *authenticator) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.base, h.auth
}

// move sets another base URL. It keeps the authenticator if the new URL may receive the same secrets as the old URL,
// and otherwise creates a new one.
func (h *web) move(base *url.URL) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.base
	h.base = base
	if !samePlace(old, base) {
		h.auth = newAuthenticator(h.remote, h.endpoint, base, samePlace(h.endpoint.Base, base))
	}
}

// samePlace reports whether the URL b may receive secrets that are meant for the URL a. This is true if scheme, host
// and port are equal, or if b is the https service of the same host.
func samePlace(a, b *url.URL) bool {
	if !strings.EqualFold(a.Hostname(), b.Hostname()) {
		return false
	}
	if a.Scheme == b.Scheme {
		return endpoint.PortOf(a) == endpoint.PortOf(b)
	}
	return b.Scheme == "https" && endpoint.PortOf(a) == "80" && endpoint.PortOf(b) == "443"
}

// below returns the URL of a service: the URL base with path appended to its path. Like git, below keeps the query of
// base.
func below(base *url.URL, path, query string) *url.URL {
	u := *base
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	if u.RawQuery != "" && query != "" {
		query = u.RawQuery + "&" + query
	} else if query == "" {
		query = u.RawQuery
	}
	u.RawQuery = query
	return &u
}

// moved is the error for a redirect to another URL.
type moved struct{ to *url.URL }

// Error names only the host, because the rest of the URL may contain a token.
func (m moved) Error() string { return "server redirects to " + m.to.Host }

// discover requests the capabilities of upload-pack.
func (h *web) discover(ctx context.Context) (caps Capabilities, err error) {
	if f := h.nearest(); f != nil {
		caps, err = f.discover(ctx)
		if f.report(err); err == nil || ctx.Err() != nil {
			return caps, err
		}
	}
	err = h.advertisement(ctx, uploadPack, func(p *pktReader) (err error) {
		caps, err = parseCapabilities(p)
		return err
	})
	return caps, err
}

// advertisement calls read with the first message of a service. It follows redirects.
func (h *web) advertisement(ctx context.Context, s service, read func(*pktReader) error) error {
	for hop := 0; ; hop++ {
		// A redirect changes the base URL, so read the base URL again in each round.
		base, _ := h.at()
		a, err := h.send(ctx, call{method: http.MethodGet, service: s,
			url: below(base, servicePath, "service="+string(s)), kind: "advertisement"})
		var m moved
		if errors.As(err, &m) {
			if hop >= maxHops || !h.set.FollowRedirects {
				return err
			}
			next, err := rebase(m.to, s)
			if err != nil {
				return err
			}
			// A redirect to plain HTTP would make the client send the login and the contents in clear text.
			if base.Scheme == "https" && next.Scheme != "https" {
				return fmt.Errorf("%w: %w by unencrypted HTTP", ErrUnreachable, m)
			}
			h.move(next)
			continue
		}
		if err != nil {
			return err
		}
		if err := read(a.pktReader); err != nil {
			a.abort()
			var said remoteError
			if errors.As(err, &said) {
				return fmt.Errorf("%w: %w", ErrNotFound, err)
			}
			return streamFault(err)
		}
		a.finish()
		return nil
	}
}

// rebase returns the URL of a repository. The parameter to is the URL to which the discovery of this repository was
// redirected. rebase returns an error if that URL is not the discovery URL of a repository.
func rebase(to *url.URL, s service) (*url.URL, error) {
	u := *to
	path, ok := strings.CutSuffix(u.Path, servicePath)
	if !ok || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%w: server redirects to a URL on %s that is not a git repository", ErrNotFound, u.Host)
	}
	u.Path, u.RawPath = path, strings.TrimSuffix(u.RawPath, servicePath)
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	q := strings.TrimSuffix(u.RawQuery, "service="+string(s))
	u.RawQuery = strings.TrimSuffix(q, "&")
	return &u, nil
}

// exchange sends the command as one POST request, through the relay if there is one.
func (h *web) exchange(ctx context.Context, _ commandKind, message []byte) (*answer, error) {
	if f := h.nearest(); f != nil {
		a, err := f.post(ctx, message)
		if err == nil {
			a.front = f
			return a, nil
		}
		if f.report(err); ctx.Err() != nil {
			return nil, err
		}
	}
	return h.post(ctx, message)
}

// post sends the command to the server of this carrier.
func (h *web) post(ctx context.Context, message []byte) (*answer, error) {
	c := call{method: http.MethodPost, service: uploadPack, kind: "result", body: message}
	// A request for many objects consists mostly of hexadecimal ids; compression halves their size.
	if len(message) > gzipOver {
		var err error
		if c.body, err = compress(message); err != nil {
			return nil, err
		}
		c.gzip = true
	}
	base, _ := h.at()
	c.url = below(base, c.service.path(), "")
	a, err := h.send(ctx, c)
	// The server redirects because the repository has moved since the discovery. Repeat the discovery, starting at the URL
	// that the user named.
	var m moved
	if errors.As(err, &m) && h.set.FollowRedirects {
		start := *h.endpoint.Base
		start.Path, start.RawPath = strings.TrimRight(start.Path, "/"), strings.TrimRight(start.RawPath, "/")
		h.move(&start)
		if _, err := h.discover(ctx); err != nil {
			return nil, err
		}
		base, _ = h.at()
		c.url = below(base, c.service.path(), "")
		a, err = h.send(ctx, c)
	}
	return a, err
}

// gzipWriters holds idle writers for reuse, because each of them has large tables.
var gzipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // hexadecimal ids shrink to half their size at any level
	return z
}}

// compress returns message in gzip format.
func compress(message []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(&b)
	_, err := z.Write(message)
	if err2 := z.Close(); err == nil {
		err = err2
	}
	return b.Bytes(), err
}

// call is one HTTP request. If the server refuses the login, the call is sent again with another login.
type call struct {
	method  string
	service service
	url     *url.URL
	body    []byte
	gzip    bool
	// open returns the body and its length, or -1 if the length is unknown; if open is nil, body is used.
	open func() (io.ReadCloser, int64, error)
	kind string // last word of the expected content type, such as "result"
	json bool   // whether a JSON document is expected instead of a message of the git protocol
}

// contentType returns the content type of a request or an answer of the given kind.
func (c call) contentType(kind string) string {
	return "application/x-" + string(c.service) + "-" + kind
}

// answerType returns the content type of the expected answer.
func (c call) answerType() string {
	if c.json {
		return "application/json"
	}
	return c.contentType(c.kind)
}

// changes reports whether the request changes the server, so that it must not be repeated after a fault.
func (c call) changes() bool { return c.service == receivePack && c.method == http.MethodPost }

// send sends the request. After each status 401 it repeats the request with the next login, until the server accepts a
// login or none is left.
func (h *web) send(ctx context.Context, c call) (*answer, error) {
	_, auth := h.at()
	l, err := auth.first()
	if err != nil {
		return nil, err
	}
	for tries, renewed := 0, false; ; tries++ {
		a, res, err := h.once(ctx, c, l)
		// If the spare connection was dead, repeat the request, unless it is a push, which the server may have received.
		if errors.Is(err, errHungUp) && !c.changes() {
			a, res, err = h.once(ctx, c, l)
		}
		if err != nil {
			return nil, err
		}
		// Servers of the Artifacts API answer 403 if a token has expired or was revoked.
		expired := res.StatusCode == http.StatusForbidden && !renewed && l != nil && l.source == fromToken &&
			h.remote.opts.Login.program().Refused(l.secret)
		renewed = renewed || expired
		if res.StatusCode == http.StatusUnauthorized || expired {
			challenges := res.Header.Values("WWW-Authenticate")
			a.finish()
			if tries >= maxLogins {
				return nil, fmt.Errorf("%w: %s rejected every login", ErrAuth, c.url.Host)
			}
			// The server demands a login or has refused the current login, so try the next login.
			if l, err = auth.next(ctx, l, challenges); err != nil {
				return nil, err
			}
			continue
		}
		if err := h.judge(c, res); err != nil {
			a.finish()
			return nil, err
		}
		auth.accepted(l)
		return a, nil
	}
}

// once sends the request one time and does not check the status of the answer. It returns errHungUp if the request was
// sent on a spare connection that was dead.
func (h *web) once(ctx context.Context, c call, l *login) (_ *answer, _ *http.Response, err error) {
	// The context of the request also applies to the response body, so call cancel only after the answer has ended.
	callCtx, cancel := context.WithCancel(ctx)
	stall := h.remote.opts.Stall
	if c.changes() {
		stall *= pushPatience
	}
	if h.relay != nil {
		stall = via.Silence
	}
	w := h.remote.watches.add(ctx, stall, cancel)
	w.since.Store(time.Now().UnixNano()) // the time for opening the connection also counts as a wait in Stats.Quiet
	// While the connection is being opened, the time limits of the dialer apply. The stall clock runs only after that,
	// except for a relay.
	if h.relay != nil {
		w.tick = via.Tick
		w.arm()
	}
	onSpare, answered := false, atomic.Bool{}
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			onSpare = !info.Reused && socketOf(info.Conn).spare
			w.arm()
		},
		WroteHeaders:         func() { h.remote.stats.requests.Add(1) },
		GotFirstResponseByte: func() { answered.Store(true) },
	}
	if h.relay != nil { // Informational answers (status 1xx) count as signs of life of the relay.
		trace.Got1xxResponse = func(int, textproto.MIMEHeader) error { w.arm(); return nil }
	}
	var content io.Reader = bytes.NewReader(c.body)
	length := int64(len(c.body))
	if c.open != nil {
		var body io.ReadCloser
		if body, length, err = c.open(); err != nil {
			w.release()
			cancel()
			return nil, nil, err
		}
		content = pacedBody{body, w}
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(callCtx, trace), c.method, c.url.String(), content)
	if err != nil {
		w.release()
		cancel()
		return nil, nil, errors.New("make request: malformed URL")
	}
	req.ContentLength = length
	h.setHeaders(req, c, l)
	res, err := h.transport.RoundTrip(req)
	w.disarm()
	if err != nil {
		// If a request fails on a connection that net/http has kept, net/http itself repeats the request. But it treats a
		// spare connection as a new connection and does not repeat the request, so report errHungUp.
		if onSpare && !answered.Load() && w.ended() == nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errHungUp, err)
		}
		err = w.explain(unreachable(err))
		w.release()
		cancel()
		return nil, nil, err
	}
	body := &watched{r: res.Body, w: w}
	return &answer{
		pktReader: newPktReader(body),
		body:      body,
		keep: func() {
			// Read the body to its end, because only then can the connection be used again. The end has usually arrived together
			// with the last packet.
			w.ticks.Store(0)
			w.timer.Reset(min(drainGrace, w.stall))
			io.CopyN(io.Discard, res.Body, drainMost)
			res.Body.Close()
			w.release()
			cancel()
		},
		drop: func() {
			w.end(errAborted)
			res.Body.Close()
			w.release()
		},
	}, res, nil
}

// drainMost is the maximum number of bytes that are read from the rest of a body, such as an error page, so that the
// connection can be used again. The connection of a longer body is closed.
const drainMost = 64 << 10

// setHeaders sets the headers of a request: the protocol version, the headers that the user has configured, and the
// login.
func (h *web) setHeaders(req *http.Request, c call, l *login) {
	req.Header.Set("User-Agent", userAgent)
	if c.service == uploadPack {
		req.Header.Set("Git-Protocol", "version=2")
	}
	req.Header.Set("Accept", c.answerType())
	if h.relay != nil {
		req.Header.Set(via.Header, "1")
	}
	// The user's headers may contain secrets, so they are not sent to another host.
	if h.relay != nil || samePlace(h.endpoint.Base, c.url) {
		for _, line := range h.set.Headers {
			if name, value, ok := strings.Cut(line, ":"); ok {
				req.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
			}
		}
	}
	if l != nil {
		req.Header.Set("Authorization", l.header)
	}
	// A GET request must not have a body.
	if c.method == http.MethodGet {
		req.Body, req.GetBody = nil, nil
		return
	}
	req.Header.Set("Content-Type", c.contentType("request"))
	if c.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	if c.changes() {
		return
	}
	// A request that only reads can be repeated. If the header has the key Idempotency-Key, net/http repeats the request
	// on a new connection after it was sent on a kept connection that was dead. The list of values is empty, so net/http
	// sends no such header to the server.
	req.Header["Idempotency-Key"] = []string{}
}
