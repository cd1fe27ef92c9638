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

// spareAge is how long a spare connection is kept. Servers soon close connections without a
// request, and the host's address may change.
const spareAge = 10 * time.Second

// OpenSpare opens a connection in the background for the next exchange that would have to open one,
// unless one is ready or being opened. It does nothing before the first exchange, and over HTTP
// nothing behind a proxy. A spare that was taken is not replaced until the next call. An exchange
// waits for a spare that is being opened. Failures are not reported.
//
// Over HTTP the TLS handshake of the spare is done; it is closed after ten seconds if it was not
// used. On other carriers it is a lane, which is kept as long as any other.
func (r *Remote) OpenSpare() {
	c, caps, err := r.known()
	if err != nil || caps == nil || r.startTask() != nil {
		return
	}
	open := c.spare()
	if open == nil {
		r.tasks.Done()
		return
	}
	go func() {
		defer r.tasks.Done()
		ctx, cancel := context.WithTimeout(context.Background(), r.opts.Connect+r.opts.Stall)
		defer cancel()
		w := r.watches.add(ctx, 0, cancel) // so that Remote.Close ends it
		defer w.release()
		if err := open(ctx); err != nil {
			r.log.Debug("no spare connection", zap.String("remote", r.URL()), zap.Error(err))
		}
	}()
}

// place is the server end of a connection.
type place struct {
	addr   string // host:port
	secure bool   // TLS
}

// webDialer opens the connections of a web carrier, among them spares.
type webDialer struct {
	tcp   net.Dialer
	tls   *tls.Config
	stats *counters
	age   time.Duration // how long a spare is kept

	mu sync.Mutex
	// last is the server of the last request, to which a spare is opened.
	last   place
	ahead  *spareConn // nil: none, or taken
	closed bool
}

// spareConn is a spare connection. It is in webDialer.ahead, or belongs to the exchange that took
// it.
type spareConn struct {
	at     place
	opened chan struct{} // closed once the attempt is over

	// webDialer.mu guards the fields below; conn is constant once opened is closed.
	conn    net.Conn    // nil: not open yet, or it could not be opened
	dropped bool        // no exchange will take it: close it when it is open
	expiry  *time.Timer // nil before it is open
}

// dial returns the spare connection if it leads to the place, else a new one.
func (d *webDialer) dial(ctx context.Context, at place) (net.Conn, error) {
	d.mu.Lock()
	d.last = at
	s := d.ahead
	// A spare to another server stays for a later request; this request opens its own connection.
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
		// The server may have closed the spare meanwhile.
		if s.conn != nil && alive(s.conn) {
			return s.conn, nil
		}
		d.drop(s)
	}
	return d.open(ctx, at)
}

// open connects and, for TLS, makes the handshake.
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
	conf := d.tls.Clone() // the session cache remains shared
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

// reserve registers a spare to the place of the last connection and returns the function that opens
// it; nil if there is one already.
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

// expire closes a spare that was not taken.
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

// drop closes a spare that was removed from webDialer, now or when it has been opened.
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

// close closes the spare and opens none from now on.
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

// socketOf returns the socket below TLS; behind a proxy that uses TLS itself there are two layers.
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

// alive reports whether the peer still holds a connection on which no request was sent. It does not
// wait and consumes nothing.
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
		// A server that sends without a request is closing the connection (408). TLS 1.3 may send
		// session tickets at any time, which can hide the end of the stream from a peeking read,
		// but not from POLLRDHUP.
		quiet = err == nil && (n == 0 || secure && p[0].Revents == unix.POLLIN)
	})
	return err == nil && quiet
}

// spare returns a function that opens one more lane, since the caller is about to use the idle
// ones; nil while another is being opened.
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

// awaitSpare waits for a spare lane that is being opened, if no other exchange waits for it. It
// returns false if there is none.
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
