package server

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the addresses of proxies whose header X-Forwarded-For is believed. *Proxies is the value of a flag.
type Proxies []netip.Prefix

// Set implements pflag.Value. text has addresses and networks, separated by commas.
func (p *Proxies) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		network, err := netip.ParsePrefix(part)
		if err != nil {
			address, err := netip.ParseAddr(part)
			if err != nil || address.Zone() != "" {
				return fmt.Errorf("%q is no address such as 10.0.0.1, and no network such as 10.0.0.0/8", part)
			}
			network = netip.PrefixFrom(address, address.BitLen())
		}
		*p = append(*p, network)
	}
	return nil
}

// String implements pflag.Value.
func (p *Proxies) String() string {
	texts := make([]string, len(*p))
	for i, network := range *p {
		texts[i] = network.String()
	}
	return strings.Join(texts, ",")
}

// Type implements pflag.Value.
func (p *Proxies) Type() string { return "CIDR" }

func (p Proxies) contain(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(network netip.Prefix) bool { return network.Contains(a) })
}

// client returns the address of the client that has sent a request: of the addresses in X-Forwarded-For and the one of
// the connection, the last one that is not of a proxy. A client can write only addresses that stand before its own.
func (p Proxies) client(r *http.Request) (client netip.Addr, err error) {
	connection, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return client, err
	}
	client = connection.Addr().Unmap()
	passed := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(passed) {
		if !p.contain(client) {
			break
		}
		before, ok := parseForwarded(strings.TrimSpace(text))
		if !ok {
			break
		}
		client = before
	}
	return client, nil
}

// parseForwarded parses an address in X-Forwarded-For. Some proxies write the port too.
func parseForwarded(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		var port netip.AddrPort
		port, err = netip.ParseAddrPort(text)
		a = port.Addr()
	}
	return a.Unmap(), err == nil
}

// restore returns a handler that sets the address of each request to that of its client.
func (p Proxies) restore(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, err := p.client(r); err == nil {
			r = r.WithContext(r.Context())
			r.RemoteAddr = netip.AddrPortFrom(a, 0).String()
		}
		next.ServeHTTP(w, r)
	})
}
