package transport

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// Limits of the connections that net/http keeps open.
const (
	maxIdleConns = 8
	idleConn     = 2 * time.Minute // most servers close an idle connection earlier, and net/http then drops it
	connBuffer   = 64 << 10
)

// newTransport returns the HTTP client of a remote and the dialer that the client uses. This dialer takes the place of
// net/http's own, so that a connection can be opened before it is needed.
func (n *connector) newTransport(set endpoint.HTTPSettings) (*http.Transport, *webDialer, error) {
	proxy, err := set.ProxyFunc()
	if err != nil {
		return nil, nil, err
	}
	conf, err := set.TLS(maxIdleConns)
	if err != nil {
		return nil, nil, err
	}
	d := &webDialer{
		tcp: net.Dialer{Timeout: n.opts.Connect, KeepAlive: 15 * time.Second, Control: n.sendAgainSoon},
		tls: conf, stats: n.stats, age: spareAge,
	}
	return &http.Transport{
		Proxy: proxy,
		// net/http calls DialTLSContext for https and DialContext for http and for proxies.
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.dial(ctx, place{addr: addr})
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.dial(ctx, place{addr: addr, secure: true})
		},
		TLSClientConfig:     conf, // net/http uses this configuration for a server behind a proxy
		TLSHandshakeTimeout: n.opts.Connect,
		DisableCompression:  true, // packs are compressed already
		MaxIdleConns:        maxIdleConns,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleConn,
		ReadBufferSize:      connBuffer,
		WriteBufferSize:     connBuffer,
	}, d, nil
}
