package transport

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// spareAge is the time for which a spare HTTP connection is kept. It is short, because servers soon close connections
// that carry no request, and the address of the host may change.
const spareAge = 10 * time.Second

// OpenSpare opens a connection in the background, for the next exchange that would have to open one. An exchange that
// needs the spare connection while it is being opened waits for it. OpenSpare does nothing if the capabilities are not
// known yet, if a spare connection is ready or is being opened, or if the remote is reached over HTTP through a proxy.
// After an exchange has taken the spare connection, the next call of OpenSpare opens another one. Failures are only
// logged.
//
// Over HTTP the TLS handshake of the spare connection is completed, and the connection is closed if it is not used
// within ten seconds. On other carriers the spare connection leads to upload-pack, and is kept as long as other idle
// connections.
func (r *Remote) OpenSpare() {
	c, caps, err := r.known()
	if err != nil || caps == nil || r.tasks.begin() != nil {
		return
	}
	open := c.spare()
	if open == nil {
		r.tasks.done()
		return
	}
	go func() {
		defer r.tasks.done()
		ctx, cancel := context.WithTimeout(context.Background(), r.opts.Connect+r.opts.Stall)
		defer cancel()
		w := r.watches.add(ctx, 0, cancel) // the watch lets Remote.Close end the attempt
		defer w.release()
		if err := open(ctx); err != nil {
			r.log.Debug("open spare connection", zap.String("remote", r.URL()), zap.Error(err))
		}
	}()
}

// place is the server to which a connection leads.
type place struct {
	addr   string // address in the form host:port
	secure bool   // whether the connection uses TLS
}

// webDialer opens the connections of a web carrier, including spare ones.
type webDialer struct {
	tcp   net.Dialer
	tls   *tls.Config
	stats *counters
	age   time.Duration // time for which a spare connection is kept

	mu sync.Mutex
	// mu protects the fields below. The field last is the server of the last connection; the next spare connection is
	// opened to this server.
	last   place
	ahead  *spareConn // the spare connection; nil if there is none, or if an exchange has taken it
	closed bool
}

// spareConn is a spare connection, or the attempt to open one. It is stored in webDialer.ahead until an exchange takes
// it.
type spareConn struct {
	at     place
	opened chan struct{} // closed when the attempt to open the connection has succeeded or failed

	// webDialer.mu protects the fields below. After the channel opened was closed, the field conn does not change.
	conn    net.Conn    // nil if the connection is not open yet, or the attempt failed
	dropped bool        // whether no exchange will take the connection, so that it is closed as soon as it is open
	expiry  *time.Timer // closes the connection after webDialer.age; nil until the connection is open
}

// dial returns the spare connection if it leads to the server in the parameter at, and a new connection otherwise.
func (d *webDialer) dial(ctx context.Context, at place) (net.Conn, error) {
	d.mu.Lock()
	d.last = at
	s := d.ahead
	// Leave a spare connection to another server for a later request, and open a new connection for this request.
	if s != nil && s.at == at {
		d.ahead = nil
		if s.expiry != nil {
			s.expiry.Stop()
		}
	} else {
		s = nil
	}
	d.mu.Unlock()
	if s != nil {
		select {
		case <-s.opened:
		case <-ctx.Done():
			d.drop(s)
			return nil, ctx.Err()
		}
		// Use the spare connection only if it is alive, because the server may have closed it since it was opened.
		if s.conn != nil && alive(s.conn) {
			return s.conn, nil
		}
		d.drop(s)
	}
	return d.open(ctx, at)
}

// open opens a TCP connection to the server in the parameter at, and makes the TLS handshake if at.secure is set.
func (d *webDialer) open(ctx context.Context, at place) (net.Conn, error) {
	c, err := d.tcp.DialContext(ctx, "tcp", at.addr)
	if err != nil {
		return nil, err
	}
	d.stats.connections.Add(1)
	s := &socket{Conn: c, stats: d.stats}
	if !at.secure {
		return s, nil
	}
	conf := d.tls.Clone() // the copy shares the session cache
	if conf.ServerName, _, err = net.SplitHostPort(at.addr); err != nil {
		c.Close()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.tcp.Timeout)
	defer cancel()
	t := tls.Client(s, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// used reports whether a connection was opened, so that reserve can open another one.
func (d *webDialer) used() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.addr != ""
}

// reserve registers a spare connection to the server of the last connection, and returns the function that opens the
// connection. It returns nil if a spare connection to that server already exists.
func (d *webDialer) reserve() func(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.ahead
	if d.closed || d.last.addr == "" || old != nil && old.at == d.last && (old.conn == nil || alive(old.conn)) {
		return nil
	}
	s := &spareConn{at: d.last, opened: make(chan struct{})}
	d.ahead = s
	return func(ctx context.Context) error {
		if old != nil {
			d.drop(old)
		}
		c, err := d.open(ctx, s.at)
		if c != nil {
			socketOf(c).spare = true
		}
		d.mu.Lock()
		s.conn = c
		switch {
		case d.ahead != s:
		case c == nil:
			d.ahead = nil
		default:
			s.expiry = time.AfterFunc(d.age, func() { d.expire(s) })
		}
		dropped := s.dropped
		close(s.opened)
		d.mu.Unlock()
		if dropped && c != nil {
			c.Close()
		}
		return err
	}
}

// expire closes a spare connection that no exchange has taken within webDialer.age.
func (d *webDialer) expire(s *spareConn) {
	d.mu.Lock()
	waits := d.ahead == s
	if waits {
		d.ahead = nil
	}
	d.mu.Unlock()
	if waits {
		d.drop(s)
	}
}

// drop closes a spare connection that was removed from webDialer.ahead. If the connection is still being opened, it is
// closed as soon as it is open.
func (d *webDialer) drop(s *spareConn) {
	d.mu.Lock()
	s.dropped = true
	c := s.conn
	if s.expiry != nil {
		s.expiry.Stop()
	}
	d.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// close closes the spare connection. From then on no spare connection is opened.
func (d *webDialer) close() {
	d.mu.Lock()
	d.closed = true
	s := d.ahead
	d.ahead = nil
	d.mu.Unlock()
	if s != nil {
		d.drop(s)
	}
}

// socketOf returns the socket below the TLS layers of the connection c. There are two layers if the proxy is also
// reached over TLS.
func socketOf(c net.Conn) *socket {
	for {
		switch layer := c.(type) {
		case *socket:
			return layer
		case *tls.Conn:
			c = layer.NetConn()
		default:
			return &socket{Conn: c}
		}
	}
}

// alive reports whether the peer has not closed c, a connection on which no request was sent. It neither waits nor
// consumes bytes.
func alive(c net.Conn) bool {
	sc, ok := socketOf(c).Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	_, secure := c.(*tls.Conn)
	quiet := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		// A server that sends data without a request is closing the connection (status 408). With TLS 1.3, data may also
		// be a session ticket, which can arrive at any time. Peeking would then find data and not the end of the stream,
		// but POLLRDHUP reports the end in either case.
		quiet = err == nil && (n == 0 || secure && p[0].Revents == unix.POLLIN)
	})
	return err == nil && quiet
}

// spare returns a function that opens one more connection, because the caller is about to use the idle connections. It
// returns nil if a spare connection is idle or is being opened.
func (s *lanes) spare() func(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.opening != nil {
		return nil
	}
	for _, l := range s.idle {
		if l.spare {
			return nil
		}
	}
	opened := make(chan struct{})
	s.opening = opened
	return func(ctx context.Context) error {
		l, _, err := s.open(ctx)
		if err == nil {
			l.spare = true
			s.put(l)
		}
		s.mu.Lock()
		if s.opening == opened {
			s.opening = nil
		}
		s.mu.Unlock()
		close(opened)
		return err
	}
}

// awaitSpare waits for the spare connection that is being opened. It returns false at once if no spare connection is
// being opened, or if another exchange is already waiting for it.
func (s *lanes) awaitSpare(ctx context.Context) (bool, error) {
	s.mu.Lock()
	opened := s.opening
	s.opening = nil
	s.mu.Unlock()
	if opened == nil {
		return false, nil
	}
	select {
	case <-opened:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
