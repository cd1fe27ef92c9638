package transport

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// met returns a Remote that has read the capabilities of the server, so that it has one connection.
func met(t *testing.T, url string) *Remote {
	t.Helper()
	r := openRemote(t, url, Options{})
	if _, err := r.Capabilities(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// hold starts a fetch and leaves its response unread until the end of the test, so that its connection stays in use.
func hold(t *testing.T, r *Remote, fx fixture) {
	t.Helper()
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.blobs["noise"]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Pack.Close() })
}

// readFile fetches one small blob completely.
func readFile(t *testing.T, r *Remote, fx fixture) error {
	t.Helper()
	res, err := r.Fetch(t.Context(), FetchRequest{Wants: []object.ID{fx.blobs["dir/file1"]}})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Pack)
	return errors.Join(err, res.Pack.Close())
}

func dialerOf(r *Remote) *webDialer { return r.carrier.(*web).dialer }

// ready waits until the spare connection is open, and returns it.
func ready(t *testing.T, r *Remote) net.Conn {
	t.Helper()
	d := dialerOf(r)
	var c net.Conn
	await.Until(t, "the spare connection is open", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.ahead != nil {
			c = d.ahead.conn
		}
		return c != nil
	})
	return c
}

func TestSpareIsUsed(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		r := openRemote(t, base+"/r", Options{})
		r.OpenSpare()
		if n := r.Stats().Connections; n != 0 {
			t.Errorf("connections before the first command: got %d", n)
		}
		if _, err := r.Capabilities(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := r.Stats()
		for range 3 {
			r.OpenSpare()
		}
		hold(t, r, fx)
		if err := readFile(t, r, fx); err != nil {
			t.Fatal(err)
		}
		hold(t, r, fx)
		after := r.Stats()
		if after.Connections != 2 || after.Requests != before.Requests+3 || after.RoundTrips != after.Requests+2 {
			t.Errorf("statistics changed from %+v to %+v, want one connection and one spare", before, after)
		}
		// The spare connection was used, so the next command opens a connection.
		if err := readFile(t, r, fx); err != nil || r.Stats().Connections != 3 {
			t.Errorf("fetch without a spare: got %v, %+v", err, r.Stats())
		}
	})
}

// TestSpareSavesRoundTrips checks, with a long round-trip time, that a command that needs a connection while the spare
// one is being opened waits for the spare one.
func TestSpareSavesRoundTrips(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r.git"), object.SHA1)
	for name, serve := range map[string]func(gittest.ServerOptions) (*gittest.Server, error){"http": gittest.Serve,
		"git": gittest.ServeGitDaemon} {
		t.Run(name, func(t *testing.T) {
			s, err := serve(gittest.ServerOptions{Root: root, RTT: 50 * time.Millisecond, Cheap: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r := met(t, s.URL(fx.dir))
			defer r.Close()
			r.OpenSpare()
			hold(t, r, fx) // when the response arrives, the spare connection has been open for a long time
			before := s.Log().Connections()
			if err := readFile(t, r, fx); err != nil {
				t.Fatal(err)
			}
			if n := s.Log().Connections(); before != 2 || n != 2 || r.Stats().Connections != 2 {
				t.Errorf("connections: got %d before the second fetch, %d after; statistics %+v", before, n, r.Stats())
			}
			hold(t, r, fx)
			r.OpenSpare()
			if err := readFile(t, r, fx); err != nil || r.Stats().Connections != 3 {
				t.Errorf("fetch while the spare is being opened: got %v, %+v", err, r.Stats())
			}
		})
	}
}

func TestSpareDiesUnused(t *testing.T) {
	s, fx := webRepo(t)
	r := met(t, s.URL+"/r")
	r.OpenSpare()
	c := ready(t, r)
	s.CloseClientConnections()
	await.Until(t, "the client notices the end of the connection", func() bool { return !alive(c) })
	if err := readFile(t, r, fx); err != nil || r.Stats().LastError != "" {
		t.Errorf("fetch after the server closed the spare: got %v, %+v", err, r.Stats())
	}
	// After the spare connection was closed, another one can be opened.
	r.OpenSpare()
	c = ready(t, r)
	s.CloseClientConnections()
	await.Until(t, "the client notices the end of the connection", func() bool { return !alive(c) })
	before := r.Stats().Connections
	r.OpenSpare()
	if fresh := ready(t, r); fresh == c || !alive(fresh) || r.Stats().Connections != before+1 {
		t.Error("the closed spare was not replaced")
	}
}

// TestSpareDiesInUse checks the case that the server closes the spare connection when it is used.
func TestSpareDiesInUse(t *testing.T) {
	for _, c := range []struct {
		name   string
		said   string // response of the server before it closes the connection
		times  int
		fails  bool
		asked  int64
		opened int64 // expected number of connections that the request opens
	}{
		{"once", "", 1, false, 2, 1},
		{"always", "", 2, true, 2, 1},
		{"in its answer", "HTTP/1.1 200", 1, true, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, fx := webRepo(t)
			r := met(t, s.URL+"/r")
			hold(t, r, fx)
			r.OpenSpare()
			ready(t, r)
			n := 0
			s.set(func(w http.ResponseWriter, req *http.Request, h http.Handler) {
				if n++; n > c.times {
					h.ServeHTTP(w, req)
					return
				}
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(conn, c.said)
				conn.Close()
			})
			before := r.Stats()
			err := readFile(t, r, fx)
			if (err != nil) != c.fails || c.fails && !errors.Is(err, ErrUnreachable) {
				t.Errorf("fetch failed: %v", err)
			}
			after := r.Stats()
			if asked, opened := after.Requests-before.Requests, after.Connections-before.Connections; asked != c.asked ||
				opened != c.opened {
				t.Errorf("got %d requests and %d new connections, want %d and %d", asked, opened, c.asked, c.opened)
			}
		})
	}
}

func TestOldSpareIsClosed(t *testing.T) {
	s, fx := webRepo(t)
	r := met(t, s.URL+"/r")
	hold(t, r, fx)
	d := dialerOf(r)
	d.mu.Lock()
	d.age = time.Millisecond
	d.mu.Unlock()
	r.OpenSpare()
	await.Until(t, "the server notices that the spare was closed",
		func() bool { all, open := s.accepts(); return all == 2 && open == 1 })
	if err := readFile(t, r, fx); err != nil || r.Stats().Connections != 3 {
		t.Errorf("fetch after the spare expired: got %v, %+v", err, r.Stats())
	}
}

func TestSpareCannotBeOpened(t *testing.T) {
	s, fx := webRepo(t)
	r := met(t, s.URL+"/r")
	s.Listener.Close()
	r.OpenSpare()
	d := dialerOf(r)
	await.Until(t, "the attempt to open a spare has ended", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.ahead == nil
	})
	if err := readFile(t, r, fx); err != nil {
		t.Errorf("fetch on the kept connection: %v", err)
	}
	if got := r.Stats(); got.Connections != 1 || got.LastError != "" {
		t.Errorf("Stats = %+v", got)
	}
}

func TestSpareWithTLS(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	s := serveWeb(t, root, true)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_SSL_CAINFO", ca)
	r := met(t, s.URL+"/r")
	hold(t, r, fx)
	r.OpenSpare()
	c := ready(t, r)
	if state := c.(*tls.Conn).ConnectionState(); !state.HandshakeComplete || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("the TLS handshake of the spare is not complete: %+v", state)
	}
	if err := readFile(t, r, fx); err != nil || r.Stats().Connections != 2 {
		t.Errorf("fetch on the spare: got %v, %+v", err, r.Stats())
	}
	if all, _ := s.accepts(); all != 2 {
		t.Errorf("the server accepted %d connections, want 2", all)
	}
}

// TestAliveBehindTicket checks that a connection with an unread TLS session ticket counts as alive, and that its end is
// noticed nevertheless.
func TestAliveBehindTicket(t *testing.T) {
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	// A server that requests a certificate sends its tickets after the client has finished its handshake.
	conf := &tls.Config{Certificates: secure.TLS.Certificates, ClientAuth: tls.RequestClientCert}
	addr, accepted := silentServer(t)
	d := &webDialer{tcp: net.Dialer{Timeout: time.Minute},
		tls: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1)}, stats: &counters{}}
	var peer *tls.Conn
	shaken := make(chan error, 1)
	go func() {
		peer = tls.Server(<-accepted, conf)
		shaken <- peer.Handshake()
	}()
	c, err := d.open(t.Context(), place{addr: addr, secure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	raw, err := socketOf(c).Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "a session ticket has arrived", func() (is bool) {
		raw.Control(func(fd uintptr) {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			is = n == 1
		})
		return is
	})
	if !alive(c) {
		t.Error("a connection with an unread ticket counts as dead")
	}
	peer.Close()
	await.Until(t, "the client notices the end of the connection", func() bool { return !alive(c) })
}

// silentServer starts a server that accepts connections and sends nothing.
func silentServer(t *testing.T) (addr string, accepted <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 8)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-over
		for len(conns) > 0 {
			(<-conns).Close()
		}
	})
	return l.Addr().String(), conns
}

func TestWaitForSpareMayBeGivenUp(t *testing.T) {
	addr, accepted := silentServer(t)
	at := place{addr: addr, secure: true}
	d := &webDialer{tcp: net.Dialer{Timeout: time.Minute}, tls: &tls.Config{InsecureSkipVerify: true}, stats: &counters{},
		age: time.Minute, last: at}
	defer d.close()
	open := d.reserve()
	if d.reserve() != nil {
		t.Error("a second spare is opened while one is being opened")
	}
	opened := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { opened <- open(ctx) }()
	peer := <-accepted
	defer peer.Close()
	if _, err := peer.Read(make([]byte, 4<<10)); err != nil { // reads the ClientHello message
		t.Fatal(err)
	}

	waiter, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := d.dial(waiter, at); !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled caller: got %v", err)
	}
	cancel()
	if err := <-opened; err == nil {
		t.Error("the handshake with a silent server succeeded")
	}
	if _, err := peer.Read(make([]byte, 4<<10)); err == nil {
		t.Error("the connection of the cancelled caller is still open")
	}
	if n := d.stats.connections.Load(); n != 1 || len(accepted) != 0 {
		t.Errorf("open connections: got %d", n)
	}
}

func TestCloseEndsSpare(t *testing.T) {
	root := t.TempDir()
	fx := makeRepo(t, filepath.Join(root, "r"), object.SHA1)
	forEachCarrier(t, root, func(t *testing.T, base string) {
		before := runtime.NumGoroutine()
		for _, wait := range []bool{true, false} {
			r := met(t, base+"/r")
			r.OpenSpare()
			if wait {
				await.Until(t, "the spare connection is open", func() bool { return r.Stats().Connections == 2 })
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			r.OpenSpare()
			if err := readFile(t, r, fx); !errors.Is(err, errClosed) {
				t.Errorf("fetch after Close: got %v", err)
			}
		}
		await.Until(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	})
}

// TestCloseEndsHandshake checks that Close does not wait for a server that does not answer.
func TestCloseEndsHandshake(t *testing.T) {
	s, _ := webRepo(t)
	r := met(t, s.URL+"/r")
	addr, accepted := silentServer(t)
	d := dialerOf(r)
	d.mu.Lock()
	d.last = place{addr: addr, secure: true}
	d.mu.Unlock()
	r.OpenSpare()
	peer := <-accepted
	defer peer.Close()
	begun := time.Now()
	r.Close()
	if d := time.Since(begun); d > defaultConnect/2 {
		t.Errorf("Close took %v", d)
	}
	if _, err := io.Copy(io.Discard, peer); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}
