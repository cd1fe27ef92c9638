package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/relay/grants"
	"github.com/artifactfs/artifactfs/relay/wire"
)

const (
	connectTime = 10 * time.Second
	// firstTime is the maximum time until a git server begins to answer. Some servers compute for minutes before they
	// send a large pack.
	firstTime = 10 * time.Minute
	// stallTime is the maximum time between two parts of an answer.
	stallTime = 60 * time.Second

	requestType = "application/x-git-upload-pack-request"
	resultType  = "application/x-git-upload-pack-result"
	refsType    = "application/x-git-upload-pack-advertisement"

	// PatientHeader is the header by which a client announces that it accepts informational answers (status 102) and
	// empty packets in packs as signs of life, and that it goes to the git server if the relay sends nothing for some
	// time.
	PatientHeader = "Artifactfs-Relay"
)

// upstream sends requests to git servers.
type upstream struct {
	client *http.Client
	counts *counts
}

// newUpstream returns an upstream that trusts the certificates in roots, or those of the system if roots is nil.
func newUpstream(roots *x509.CertPool, c *counts) *upstream {
	dialer := &net.Dialer{Timeout: connectTime, KeepAlive: 15 * time.Second}
	return &upstream{counts: c, client: &http.Client{
		// A redirect is passed to the client, which decides whether it sends its credential to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: roots},
			TLSHandshakeTimeout: connectTime, ResponseHeaderTimeout: firstTime, DisableCompression: true,
			MaxIdleConns: 256, MaxIdleConnsPerHost: 32, IdleConnTimeout: 90 * time.Second,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
		},
	}}
}

// hopHeaders are headers that concern one connection, or the relay itself. They are not passed.
var hopHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding",
	"Upgrade", "Expect", "Accept-Encoding", PatientHeader,
}

// neutralHeaders are headers that do not depend on the sender of a request, so they are not part of its identity.
var neutralHeaders = []string{
	"Accept", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Length", "Content-Type", "Git-Protocol",
	"Pragma", "User-Agent",
}

// caller is the sender of a request, with everything by which a git server may distinguish senders.
type caller struct {
	// headers of all requests on behalf of the caller: the login, and headers that the relay does not know
	headers http.Header
	agent   string
	reader  grants.Reader
}

// callerOf returns the sender of a request, as a caller of the remote.
func callerOf(r *http.Request, remote *url.URL) caller {
	c := caller{headers: http.Header{}, agent: r.UserAgent()}
	hop := hopHeaders
	for _, names := range r.Header.Values("Connection") {
		for name := range strings.SplitSeq(names, ",") {
			hop = append(slices.Clip(hop), http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", remote.String())
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if slices.Contains(hop, name) || slices.Contains(neutralHeaders, name) {
			continue
		}
		c.headers[name] = r.Header[name]
		fmt.Fprintf(h, "%q %q\n", name, r.Header[name])
	}
	h.Sum(c.reader[:0])
	return c
}

// statusError means that a git server has answered with an HTTP status or content type that is not an answer of
// upload-pack.
type statusError struct{ status int }

// Error returns a message with the HTTP status.
func (e statusError) Error() string {
	return fmt.Sprintf("git server answered with status %d", e.status)
}

// post sends a command of protocol version 2 on behalf of a caller, and returns the body of the answer, which the
// caller must close.
func (u *upstream) post(ctx context.Context, remote *url.URL, c caller, command []byte) (io.ReadCloser, error) {
	req, err := http.NewRequest(http.MethodPost, below(remote, "/git-upload-pack", ""), bytes.NewReader(command))
	if err != nil {
		return nil, err
	}
	for name, values := range c.headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", requestType)
	req.Header.Set("Accept", resultType)
	req.Header.Set("Git-Protocol", "version=2")
	req.Header.Set("User-Agent", c.agent)
	// allows net/http to repeat the request on another connection; the empty value means that the header is not sent
	req.Header["Idempotency-Key"] = []string{}
	res, err := u.do(ctx, req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK || typeOf(res) != resultType {
		res.Body.Close()
		return nil, statusError{res.StatusCode}
	}
	return res.Body, nil
}

// typeOf returns the content type of an answer, without parameters.
func typeOf(res *http.Response) string {
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(kind)
}

// do sends a request. Reading the body of the answer fails if the git server sends nothing for stallTime.
func (u *upstream) do(ctx context.Context, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.counts.upstream.Add(1)
	res, err := u.client.Do(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		var e *url.Error
		if errors.As(err, &e) { // drop the text of this error, because it contains the URL, whose query may be a secret
			err = e.Err
		}
		return nil, fmt.Errorf("send request to git server: %w", err)
	}
	body := &guarded{ReadCloser: res.Body, cancel: cancel, counts: u.counts}
	body.timer = time.AfterFunc(stallTime, func() { cancel(errStalled) })
	body.timer.Stop()
	res.Body = body
	return res, nil
}

// errStalled means that a git server has sent nothing for stallTime.
var errStalled = fmt.Errorf("git server sent nothing for %s", stallTime)

// guarded is the body of an answer. It counts the bytes, and cancels the request if a read takes too long.
type guarded struct {
	io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
	counts *counts
}

// Read implements io.Reader.
func (g *guarded) Read(p []byte) (int, error) {
	g.timer.Reset(stallTime)
	n, err := g.ReadCloser.Read(p)
	g.timer.Stop()
	g.counts.upstreamBytes.Add(int64(n))
	return n, err
}

// Close ends the request.
func (g *guarded) Close() error {
	g.timer.Stop()
	err := g.ReadCloser.Close()
	g.cancel(nil)
	return err
}

// below returns the URL of a service of a remote: path and query are added to the URL of the remote.
func below(remote *url.URL, path, query string) string {
	u := *remote
	u.Path += path
	if u.RawPath != "" {
		u.RawPath += path
	}
	switch {
	case query == "":
	case u.RawQuery == "":
		u.RawQuery = query
	default:
		u.RawQuery += "&" + query
	}
	return u.String()
}

// fetch sends a request for a pack and reads the answer up to the start of the pack. The caller must close the body.
func (u *upstream) fetch(ctx context.Context, remote *url.URL, c caller,
	req wire.Request) (*wire.FetchAnswer, io.Closer, error) {
	body, err := u.post(ctx, remote, c, wire.Fetch(req.Format, req.Wants, req.Depth, req.Filter))
	if err != nil {
		return nil, nil, err
	}
	a, err := wire.ReadFetch(body, req.Format)
	if err != nil {
		body.Close()
		return nil, nil, err
	}
	return a, body, nil
}
