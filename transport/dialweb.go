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
)

const (
	maxIdleConns = 8
	idleConn     = 2 * time.Minute // servers usually close earlier, which is noticed
	connBuffer   = 64 << 10
)

func (r *Remote) newTransport(set webSettings) (*http.Transport, *webDialer, error) {
	proxy, err := proxyFunc(set)
	if err != nil {
		return nil, nil, err
	}
	conf, err := tlsConfig(set)
	if err != nil {
		return nil, nil, err
	}
	d := &webDialer{
		tcp: net.Dialer{Timeout: r.opts.Connect, KeepAlive: 15 * time.Second, Control: r.sendAgainSoon},
		tls: conf, stats: &r.stats, age: spareAge,
	}
	return &http.Transport{
		Proxy: proxy,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.dial(ctx, place{addr: addr})
		},
		DialTLSContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return d.dial(ctx, place{addr: addr, secure: true})
		},
		TLSClientConfig:     conf, // for what lies behind a proxy
		TLSHandshakeTimeout: r.opts.Connect,
		DisableCompression:  true, // packs are compressed
		MaxIdleConns:        maxIdleConns,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleConn,
		ReadBufferSize:      connBuffer,
		WriteBufferSize:     connBuffer,
	}, d, nil
}

// proxyFunc: http.proxy before the environment, whose no_proxy holds for both.
func proxyFunc(set webSettings) (func(*http.Request) (*url.URL, error), error) {
	if !set.proxySet {
		choose := set.env.proxy()
		return func(req *http.Request) (*url.URL, error) {
			u, err := choose(req)
			if err != nil { // the cause quotes the proxy's URL, which may hold a password
				return nil, errProxyURL
			}
			return u, nil
		}, nil
	}
	if set.proxy == "" {
		return nil, nil
	}
	if !strings.Contains(set.proxy, "://") {
		set.proxy = "http://" + set.proxy
	}
	u, err := url.Parse(set.proxy)
	if err != nil || u.Host == "" {
		return nil, errProxyURL
	}
	except := set.env.get("no_proxy")
	if except == "" {
		except = set.env.get("NO_PROXY")
	}
	return func(req *http.Request) (*url.URL, error) {
		if excepted(except, req.URL.Hostname()) {
			return nil, nil
		}
		return u, nil
	}, nil
}

var errProxyURL = errors.New("proxy URL is malformed")

// excepted follows curl's no_proxy: a list of hosts and domains, or "*".
func excepted(list, host string) bool {
	host = strings.ToLower(host)
	for name := range strings.SplitSeq(list, ",") {
		name = strings.ToLower(strings.TrimPrefix(strings.TrimSpace(name), "."))
		if name == "*" || name != "" && (host == name || strings.HasSuffix(host, "."+name)) {
			return true
		}
	}
	return false
}

func tlsConfig(set webSettings) (*tls.Config, error) {
	conf := &tls.Config{
		InsecureSkipVerify: set.insecure,
		NextProtos:         []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(maxIdleConns), // the second connection saves a round trip
	}
	if set.caFile != "" || set.caDir != "" {
		pool, err := certPool(set.caFile, set.caDir)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	if set.certFile != "" {
		key := set.keyFile
		if key == "" {
			key = set.certFile
		}
		pair, err := tls.LoadX509KeyPair(set.certFile, key)
		if err != nil {
			return nil, fmt.Errorf("load client certificate %s: %w", set.certFile, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// certPool holds a bundle and every certificate of a directory, in place of the system's.
func certPool(file, dir string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read certificates: none in %s", file)
		}
	}
	if dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
		for _, e := range entries {
			if pem, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && strings.Contains(string(pem), "BEGIN CERT") {
				pool.AppendCertsFromPEM(pem)
			}
		}
	}
	return pool, nil
}
