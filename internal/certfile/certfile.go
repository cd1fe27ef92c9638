// Package certfile reads TLS certificates from files: the certificate of a server, and the certificates of authorities
// that a client trusts.
package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"
)

// Certificate is the certificate of a TLS server. Its method Get reads the files again when they have changed, so that
// a renewed certificate is used without a restart of the server.
type Certificate struct {
	cert, key string

	mu     sync.Mutex
	stamp  [2]time.Time // modification times of the two files when they were last read
	loaded *tls.Certificate
}

// Read reads the certificate and the key in two files.
func Read(cert, key string) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key}
	_, err := c.Get(nil)
	return c, err
}

// Get returns the certificate, for tls.Config.GetCertificate. If the files cannot be read or do not belong together,
// for example while they are being replaced, it returns the previous certificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var now [2]time.Time
	for i, path := range []string{c.cert, c.key} {
		if info, err := os.Stat(path); err == nil {
			now[i] = info.ModTime()
		}
	}
	if c.loaded != nil && now == c.stamp {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil && c.loaded == nil {
		return nil, err
	}
	if err == nil {
		c.loaded, c.stamp = &pair, now
	}
	return c.loaded, nil
}

// Roots returns the certificates in a file. A client trusts them instead of those of the operating system. If file is
// "", Roots returns nil.
func Roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read certificates: %s contains no certificate", file)
	}
	return roots, nil
}
