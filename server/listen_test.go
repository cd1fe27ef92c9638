package server

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// TestConnectionsOfOneAddress checks that the number of connections of one address is limited, unless the address is
// exempt.
func TestConnectionsOfOneAddress(t *testing.T) {
	for _, exempt := range []bool{false, true} {
		real, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := limit(real, 10, 2, func(netip.Addr) bool { return exempt })
		t.Cleanup(func() { l.Close() })
		accepted := make(chan net.Conn, 10)
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				accepted <- c
			}
		}()
		dial := func() net.Conn {
			t.Helper()
			c, err := net.Dial("tcp", real.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		var served []net.Conn
		for range 2 {
			dial()
			served = append(served, await.Receive(t, accepted))
		}
		third := dial()
		if exempt {
			await.Receive(t, accepted).Close()
			continue
		}
		third.SetReadDeadline(time.Now().Add(await.Patience))
		if _, err := third.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("third connection: got %v, want its end", err)
		}
		served[0].Close()
		served[0].Close() // closing a connection twice counts once
		dial()
		await.Receive(t, accepted)
	}
}

func TestClientsBehindProxies(t *testing.T) {
	var p Proxies
	if err := p.Set("10.0.0.0/8, 192.0.2.1,2001:db8::/32"); err != nil {
		t.Fatal(err)
	}
	if got, want := p.String(), "10.0.0.0/8,192.0.2.1/32,2001:db8::/32"; got != want {
		t.Errorf("value of the flag: got %s, want %s", got, want)
	}
	for _, bad := range []string{"", "proxy", "10.0.0.0/33", "10.0.0.1,", "fe80::1%eth0"} {
		if err := new(Proxies).Set(bad); err == nil {
			t.Errorf("proxy %q is accepted", bad)
		}
	}
	for _, test := range []struct {
		connection string
		forwarded  []string
		want       string
	}{
		{"10.1.2.3:5", nil, "10.1.2.3"},
		{"10.1.2.3:5", []string{"203.0.113.9"}, "203.0.113.9"},
		{"[::ffff:10.1.2.3]:5", []string{"203.0.113.9"}, "203.0.113.9"},
		// The client is not a proxy, so the header is ignored.
		{"203.0.113.9:5", []string{"198.51.100.1"}, "203.0.113.9"},
		// The first address was written by the client.
		{"10.1.2.3:5", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"},
		{"10.1.2.3:5", []string{"198.51.100.1", "203.0.113.9, 192.0.2.1"}, "203.0.113.9"}, // two proxies
		{"10.1.2.3:5", []string{"10.9.9.9"}, "10.9.9.9"},
		{"10.1.2.3:5", []string{"unknown"}, "10.1.2.3"},
		{"10.1.2.3:5", []string{"203.0.113.9, unknown"}, "10.1.2.3"},
		{"10.1.2.3:5", []string{"203.0.113.9:77"}, "203.0.113.9"},
		{"[2001:db8::1]:5", []string{"[2001:db9::2]:77"}, "2001:db9::2"},
		{"[2001:db8::1]:5", []string{"2001:db9::2"}, "2001:db9::2"},
	} {
		r := &http.Request{RemoteAddr: test.connection, Header: http.Header{"X-Forwarded-For": test.forwarded}}
		if got, err := p.client(r); err != nil || got.String() != test.want {
			t.Errorf("client of %s with %q: got %s, %v, want %s", test.connection, test.forwarded, got, err, test.want)
		}
	}
}
