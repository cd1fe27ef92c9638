package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func TestPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "140.82.112.3": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true, "172.32.0.1": true,
		"192.169.0.1": true,
		"127.0.0.1":   false, "127.255.0.1": false, "::1": false, "::": false, "0.0.0.0": false, "0.1.2.3": false,
		"10.0.0.1":   false,
		"172.16.5.4": false, "192.168.1.1": false, "169.254.169.254": false, "fd00:ec2::254": false, "fe80::1": false,
		"fe80::1%eth0": false,
		"100.64.0.1":   false, "198.18.0.1": false, "224.0.0.1": false, "255.255.255.255": false, "ff02::1": false,
		"::ffff:127.0.0.1": false,
		"::ffff:10.0.0.1":  false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "::7f00:1": false, "2001:db8::1": false,
		"240.0.0.1": false,
		"2001::1":   false, "192.0.0.170": false,
	} {
		if got := Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("Public(%s) = %v, want %v", text, got, want)
		}
	}
}

func FuzzPublic(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add(netip.MustParseAddr("::ffff:10.0.0.1").AsSlice())
	f.Fuzz(func(t *testing.T, b []byte) {
		ip, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		if mapped := netip.AddrFrom16(ip.As16()); Public(ip) != Public(mapped) {
			t.Errorf("%s is public: %v, %s: %v", ip, Public(ip), mapped, Public(mapped))
		}
		if Public(ip) && (ip.IsPrivate() || ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast()) {
			t.Errorf("%s is public", ip)
		}
	})
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		if _, err := (Dialer{}).DialContext(t.Context(), "tcp", host+":"+port); !errors.Is(err, ErrPrivate) {
			t.Errorf("connect to %s: got %v, want ErrPrivate", host, err)
		}
		conn, err := Dialer{AllowPrivate: true}.DialContext(t.Context(), "tcp", host+":"+port)
		if err != nil {
			t.Errorf("connect to %s where it is allowed: %v", host, err)
			continue
		}
		conn.Close()
	}
	client := http.Client{Transport: Dialer{}.Transport()}
	if _, err := client.Get(server.URL); !errors.Is(err, ErrPrivate) {
		t.Errorf("GET of a private address: got %v, want ErrPrivate", err)
	}
}

// through returns an HTTP client that uses the proxy at the address proxy.
func through(t *testing.T, proxy string) *http.Client {
	t.Helper()
	u, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
}

func start(t *testing.T, d Dialer, limit int64) *Proxy {
	t.Helper()
	p, err := StartProxy(d, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestAProxyPassesOn(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "" {
			t.Error("the server receives the password of the proxy")
		}
		io.Copy(w, r.Body)
	})
	plain, secure := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	defer plain.Close()
	defer secure.Close()
	p := start(t, Dialer{AllowPrivate: true}, 0)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, server := range []string{plain.URL, secure.URL} {
		before := p.Received()
		answer, err := through(t, p.URL).Post(server, "text/plain", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: received %d bytes (%v), want %d", server, len(got), err, len(sent))
		}
		if n := p.Received() - before; n < int64(len(sent)) {
			t.Errorf("%s: %d bytes were counted", server, n)
		}
	}
	if p.Err() != nil {
		t.Errorf("error %v", p.Err())
	}
	wrong := strings.Replace(p.URL, "git:", "git:x", 1)
	if answer, err := through(t, wrong).Get(plain.URL); err != nil || answer.StatusCode != 407 {
		t.Errorf("with a wrong password: %v, %v", answer, err)
	}
	if _, err := through(t, wrong).Get(secure.URL); err == nil {
		t.Error("a tunnel was opened with a wrong password")
	}
}

func TestAProxyRefusesPrivateAddresses(t *testing.T) {
	hit := false
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hit = true })
	plain, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer plain.Close()
	defer secure.Close()
	p := start(t, Dialer{}, 0)
	if answer, err := through(t, p.URL).Get(plain.URL); err != nil || answer.StatusCode != 403 {
		t.Errorf("http: %v, %v", answer, err)
	}
	if _, err := through(t, p.URL).Get(secure.URL); err == nil {
		t.Error("a tunnel to a private address was opened")
	}
	if hit {
		t.Error("the private server was reached")
	}
}

func TestAProxyLimitsBytes(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	plain, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer plain.Close()
	defer secure.Close()
	for _, server := range []string{plain.URL, secure.URL} {
		p := start(t, Dialer{AllowPrivate: true}, 1<<20)
		answer, err := through(t, p.URL).Get(server)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err == nil || n > 2<<20 || !errors.Is(p.Err(), ErrTooMuch) {
			t.Errorf("%s: received %d bytes, %v, %v", server, n, err, p.Err())
		}
	}
}

func TestCloseEndsTunnels(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	secure :=
		httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			http.NewResponseController(w).Flush()
			<-hold
		}))
	defer func() { go secure.Close() }()
	p := start(t, Dialer{AllowPrivate: true}, 0)
	answer, err := through(t, p.URL).Get(secure.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	done := make(chan error, 1)
	go func() { _, err := io.ReadAll(answer.Body); done <- err }()
	p.Close()
	if err := await.Receive(t, done); err == nil {
		t.Error("a tunnel is open after Close")
	}
}
