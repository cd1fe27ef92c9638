package egress

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"
)

// ErrTooMuch means that hosts have sent more bytes than the limit of StartProxy.
var ErrTooMuch = errors.New("the other server has sent too many bytes")

// stallTime is the time after which a connection through a Proxy is closed if no byte was sent in either direction.
const stallTime = 2 * time.Minute

// Proxy is an HTTP proxy on the loopback address for one program that this process has started. It forwards requests of
// http, and opens tunnels for https, whose contents are encrypted. It counts the bytes that the program receives, and
// closes all connections when their number exceeds the limit.
type Proxy struct {
	URL      string // URL of the proxy with its password, which only the program may know
	received atomic.Int64
	limit    int64
	dialer   Dialer
	header   string // value that the header Proxy-Authorization of the program's requests must have
	server   *http.Server
	ctx      context.Context // ends when the proxy is closed
	cancel   context.CancelCauseFunc
	done     chan struct{}
}

// StartProxy starts a proxy that runs until Close. limit is the maximum number of received bytes; 0 means no limit.
func StartProxy(d Dialer, limit int64) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	p := &Proxy{
		URL:   (&url.URL{Scheme: "http", User: url.UserPassword("git", password), Host: l.Addr().String()}).String(),
		limit: limit, dialer: d,
		header: "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+password)), done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: connectTime, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(p.done)
		p.server.Serve(l)
	}()
	return p, nil
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	p.cancel(net.ErrClosed)
	err := p.server.Close()
	<-p.done
	return err
}

// Received returns the number of bytes that the program has received.
func (p *Proxy) Received() int64 { return p.received.Load() }

// Err returns ErrTooMuch if the limit was exceeded, and nil otherwise.
func (p *Proxy) Err() error {
	if err := context.Cause(p.ctx); errors.Is(err, ErrTooMuch) {
		return err
	}
	return nil
}

// count counts received bytes.
func (p *Proxy) count(n int) error {
	if sum := p.received.Add(int64(n)); p.limit > 0 && sum > p.limit {
		p.cancel(ErrTooMuch)
		return ErrTooMuch
	}
	return nil
}

// ServeHTTP forwards one request, or opens a tunnel.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Proxy-Authorization")), []byte(p.header)) != 1 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="egress"`)
		http.Error(w, "password of the proxy is wrong", http.StatusProxyAuthRequired)
		return
	}
	if r.Method == http.MethodConnect {
		p.tunnel(w, r)
		return
	}
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		http.Error(w, "only tunnels and http are passed on", http.StatusBadRequest)
		return
	}
	transport := p.dialer.Transport()
	transport.ResponseHeaderTimeout = stallTime
	transport.DisableKeepAlives = true
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Host = r.In.Host
			r.Out.Header.Del("Proxy-Authorization")
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ModifyResponse: func(a *http.Response) error { a.Body = counted{a.Body, p}; return nil },
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, err error) { refuse(w, err) },
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	pass.ServeHTTP(w, r.WithContext(ctx))
}

// refuse answers with an error that says that the host cannot be reached.
func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrPrivate) {
		http.Error(w, ErrPrivate.Error(), http.StatusForbidden)
		return
	}
	http.Error(w, "the host does not answer", http.StatusBadGateway)
}

// counted is the body of an answer whose bytes the proxy counts.
type counted struct {
	io.ReadCloser
	p *Proxy
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if over := c.p.count(n); over != nil {
		return 0, over
	}
	return n, err
}

// tunnel passes bytes between the program and a host.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	far, err := p.dialer.DialContext(p.ctx, "tcp", r.Host)
	if err != nil {
		refuse(w, err)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, err)
		return
	}
	defer near.Close()
	defer context.AfterFunc(p.ctx, func() { near.Close(); far.Close() })()
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.pass(far, buffered, near, far, false)
		if c, ok := far.(*net.TCPConn); ok {
			c.CloseWrite()
		}
	}()
	p.pass(near, far, near, far, true)
	near.Close()
	far.Close()
	<-ended
}

// pass copies bytes from one connection of a tunnel to the other until the end, an error, or the time stallTime without
// a byte on both.
func (p *Proxy) pass(to io.Writer, from io.Reader, near, far net.Conn, count bool) {
	buffer := make([]byte, 64<<10)
	for {
		deadline := time.Now().Add(stallTime)
		near.SetDeadline(deadline)
		far.SetDeadline(deadline)
		n, err := from.Read(buffer)
		if n > 0 {
			if count && p.count(n) != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
