package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// Limits of the connections that net/http keeps open.
const (
	maxIdleConns = 8
	idleConn     = 2 * time.Minute // most servers close an idle connection earlier, and net/http then drops it
	connBuffer   = 64 << 10
)

// newTransport returns the HTTP client of a remote and the dialer that the client uses. This dialer takes the place of net/http's
// own, so that a connection can be opened before it is needed.
func (n *connector) newTransport(set endpoint.HTTPSettings) (*http.Transport, *webDialer, error) {
	proxy, err := proxyFunc(set)
	if err != nil {
		return nil, nil, err
	}
	conf, err := tlsConfig(set)
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

// proxyFunc returns the function that chooses the proxy of a request, for http.Transport.Proxy. http.proxy takes
// precedence over the proxies in the environment; no_proxy applies to both.
func proxyFunc(set endpoint.HTTPSettings) (func(*http.Request) (*url.URL, error), error) {
	if !set.ProxySet {
		choose := set.Env.ProxyFunc()
		return func(req *http.Request) (*url.URL, error) {
			u, err := choose(req)
			if err != nil { // do not return err, because it quotes the proxy's URL, which may contain a password
				return nil, errProxyURL
			}
			return u, nil
		}, nil
	}
	// An empty http.proxy switches proxies off, as in git.
	if set.Proxy == "" {
		return nil, nil
	}
	// git interprets a proxy without a scheme as host:port.
	if !strings.Contains(set.Proxy, "://") {
		set.Proxy = "http://" + set.Proxy
	}
	u, err := url.Parse(set.Proxy)
	if err != nil || u.Host == "" {
		return nil, errProxyURL
	}
	// git's configuration has no list of hosts that are exempt from http.proxy, so use the list in the environment.
	except := set.Env.Get("no_proxy")
	if except == "" {
		except = set.Env.Get("NO_PROXY")
	}
	return func(req *http.Request) (*url.URL, error) {
		if excepted(except, req.URL.Hostname()) {
			return nil, nil
		}
		return u, nil
	}, nil
}

// errProxyURL reports an invalid proxy URL. It does not contain the URL, which may contain a password.
var errProxyURL = errors.New("malformed proxy URL")

// excepted reports whether host matches an entry of list, which has the format of no_proxy in curl: hosts and domains separated
// by commas, or "*".
func excepted(list, host string) bool {
	// Compare host names without regard to case.
	host = strings.ToLower(host)
	for name := range strings.SplitSeq(list, ",") {
		name = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(name), "."))
		if name == "*" || name != "" && (host == name || strings.HasSuffix(host, "."+name)) {
			return true
		}
	}
	return false
}

// tlsConfig returns the TLS configuration that corresponds to git's http.ssl* settings.
func tlsConfig(set endpoint.HTTPSettings) (*tls.Config, error) {
	conf := &tls.Config{
		InsecureSkipVerify: set.Insecure,
		NextProtos:         []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(maxIdleConns), // resumed sessions save a round trip
	}
	if set.CAFile != "" || set.CADir != "" {
		pool, err := certPool(set.CAFile, set.CADir)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	// As in git, the key may be in the same file as the certificate.
	if set.CertFile != "" {
		key := set.KeyFile
		if key == "" {
			key = set.CertFile
		}
		pair, err := tls.LoadX509KeyPair(set.CertFile, key)
		if err != nil {
			return nil, fmt.Errorf("load client certificate %s: %w", set.CertFile, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// certPool returns the certificates in a file and in a directory, which replace the system's certificates. Either argument may be
// empty.
func certPool(file, dir string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read certificate authorities: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read certificate authorities: no certificate in %s", file)
		}
	}
	if dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("read certificate authorities: %w", err)
		}
		// A directory of certificates may also contain other files, such as revocation lists. Skip files without a certificate.
		for _, e := range entries {
			if pem, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && strings.Contains(string(pem), "BEGIN CERT") {
				pool.AppendCertsFromPEM(pem)
			}
		}
	}
	return pool, nil
}
