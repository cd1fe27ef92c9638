package endpoint

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// ProxyFunc returns the function that chooses the proxy of a request, for http.Transport.Proxy. http.proxy takes
// precedence over the proxies in the environment; no_proxy applies to both.
func (w HTTPSettings) ProxyFunc() (func(*http.Request) (*url.URL, error), error) {
	if !w.ProxySet {
		choose := w.Env.ProxyFunc()
		return func(req *http.Request) (*url.URL, error) {
			u, err := choose(req)
			if err != nil { // do not return err, because it quotes the proxy's URL, which may contain a password
				return nil, errProxyURL
			}
			return u, nil
		}, nil
	}
	// An empty http.proxy switches proxies off, as in git.
	if w.Proxy == "" {
		return nil, nil
	}
	// git interprets a proxy without a scheme as host:port.
	proxy := w.Proxy
	if !strings.Contains(proxy, "://") {
		proxy = "http://" + proxy
	}
	u, err := url.Parse(proxy)
	if err != nil || u.Host == "" {
		return nil, errProxyURL
	}
	// git's configuration has no list of hosts that are exempt from http.proxy, so use the list in the environment.
	except := w.Env.Get("no_proxy")
	if except == "" {
		except = w.Env.Get("NO_PROXY")
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

// excepted reports whether host matches an entry of list, which has the format of no_proxy in curl: hosts and domains
// separated by commas, or "*".
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

// TLS returns the TLS configuration that corresponds to git's http.ssl* settings. Its cache has room for the given
// number of sessions.
func (w HTTPSettings) TLS(sessions int) (*tls.Config, error) {
	conf := &tls.Config{
		InsecureSkipVerify: w.Insecure,
		NextProtos:         []string{"http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(sessions), // resumed sessions save a round trip
	}
	if w.CAFile != "" || w.CADir != "" {
		pool, err := certPool(w.CAFile, w.CADir)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = pool
	}
	// As in git, the key may be in the same file as the certificate.
	if w.CertFile != "" {
		key := w.KeyFile
		if key == "" {
			key = w.CertFile
		}
		pair, err := tls.LoadX509KeyPair(w.CertFile, key)
		if err != nil {
			return nil, fmt.Errorf("load client certificate %s: %w", w.CertFile, err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// certPool returns the certificates in a file and in a directory, which replace the system's certificates. Either
// argument may be empty.
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
		// A directory of certificates may also contain other files, such as revocation lists. Skip files without a
		// certificate.
		for _, e := range entries {
			if pem, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && strings.Contains(string(pem), "BEGIN CERT") {
				pool.AppendCertsFromPEM(pem)
			}
		}
	}
	return pool, nil
}
