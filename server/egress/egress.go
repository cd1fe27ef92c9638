// Package egress connects to hosts that users of the server have chosen, which are those of imported repositories and
// of webhooks. Unless Dialer.AllowPrivate is set, it refuses addresses that are not public, so that users cannot reach
// services in the network of the server, such as databases or the metadata service of a cloud (server-side request
// forgery).
//
// The address is checked when the connection is made, after the name was resolved. So the check cannot be avoided by a
// redirection, or by a name that has a public address first and another address later. A program that makes its own
// connections, such as git, uses a Proxy.
package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// ErrPrivate means that an address is not public.
var ErrPrivate = errors.New("address is not public")

const (
	connectTime = 15 * time.Second
	tlsTime     = 15 * time.Second
	idleTime    = 30 * time.Second
)

// special are the ranges that are not public, in addition to those that package netip reports: the ranges for special
// purposes that IANA lists, and IPv6 prefixes whose addresses contain an IPv4 address.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // addresses behind the address translation of a provider (RFC 6598)
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("5f00::/16"),
	netip.MustParsePrefix("fec0::/10"),
}

// Public reports whether an address can belong to a host in the public internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
		return false
	}
	for _, p := range special {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}

// Dialer connects to hosts whose addresses are allowed.
type Dialer struct {
	AllowPrivate bool           // also connect to addresses that are not public
	Roots        *x509.CertPool // certificates to trust instead of those of the system; nil: those of the system
}

// DialContext connects to an address. It returns ErrPrivate if all addresses of the host are private.
func (d Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	n := net.Dialer{Timeout: connectTime}
	if !d.AllowPrivate {
		n.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !Public(to.Addr()) {
				return ErrPrivate
			}
			return nil
		}
	}
	conn, err := n.DialContext(ctx, network, address)
	if errors.Is(err, ErrPrivate) {
		// Errors of package net contain the address, which the user must not learn.
		return nil, fmt.Errorf("connect to %.256q: %w", address, ErrPrivate)
	}
	return conn, err
}

// Transport returns a transport that connects through the dialer. It ignores the proxy of the environment, because a
// proxy would resolve the names.
func (d Dialer) Transport() *http.Transport {
	return &http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: tlsTime, ResponseHeaderTimeout: idleTime, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 2, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: d.Roots, MinVersion: tls.VersionTLS12},
	}
}
