package gittest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	inFlight  = 16 << 20               // bytes one way of a connection may hold before its sender has to wait
	chunkSize = 64 << 10               // largest piece carried at once, in bytes
	catchUp   = 5 * time.Millisecond   // how far the line may make up for a timer that fired late
	lingering = 500 * time.Millisecond // how long a closed connection still swallows what the client sends
)

// link is a listener whose connections behave as if a long and narrow line lay between client and server.
//
// Time on a real line, counted from the client's first SYN: its connect returns after one RTT, its first byte is at
// the server half an RTT later, and the server learns of the connection at the same moment. Here the kernel connects
// at once, so nothing the client sends counts as sent before one RTT has passed, nothing the server sends before one
// and a half; after that every byte travels for half an RTT, however many are under way. A client that connects ahead
// of need therefore pays as little as it would on the line.
//
// Bandwidth is that of the line, each way: connections share it chunk by chunk, in turn.
type link struct {
	dial      func(conn int) (net.Conn, error) // reaches the server behind; conn counts from 1
	opened    func() int                       // counts a connection
	rtt       atomic.Int64                     // nanoseconds
	bandwidth atomic.Int64                     // bytes per second each way; 0: unlimited

	wg sync.WaitGroup

	mu       sync.Mutex
	addr     string
	listener net.Listener // nil while down
	stuffing []net.Conn   // fills the queue of held, so that the kernel drops who else comes
	held     int          // a socket that keeps the port while down; -1: there is none
	closed   bool
	conns    map[net.Conn]func() // what ends each
	up, down time.Time           // when the line is free again, per direction
}

// open listens on addr, a host and port; port 0 becomes a free one and stays the same while the link lives.
func (l *link) open(addr string) error {
	l.addr, l.held = addr, -1
	l.conns = map[net.Conn]func(){}
	return l.listen()
}

func (l *link) listen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.listener != nil {
		return nil
	}
	ln, err := l.newListener()
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.addr, err)
	}
	l.letGo()
	l.listener, l.addr = ln, ln.Addr().String()
	l.wg.Go(func() { l.accept(ln) })
	return nil
}

// newListener listens at the port. After silence it is the socket that kept the port: two cannot listen at one, and a port
// that is free for a moment may be taken by others.
func (l *link) newListener() (net.Listener, error) {
	if len(l.stuffing) == 0 {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // which takes no socket filter, see lose
		return plain.Listen(context.Background(), "tcp", l.addr)
	}
	if err := syscall.Listen(l.held, syscall.SOMAXCONN); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(l.held), "listener")
	defer f.Close() // the listener has a copy
	l.held = -1
	return net.FileListener(f)
}

// hold keeps the port while no process listens at it: another server would be given it, or a client that comes from the very
// port it asks for, which is then connected to itself. Connections to a socket that is bound alone are refused.
func (l *link) hold() {
	at, err := netip.ParseAddrPort(l.addr)
	if err != nil || !at.Addr().Is4() {
		return
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) // who listens later does so with it, too
	// The port of a listener that was just closed may be the local port of a connection for a moment.
	for tries := 0; err == nil; tries++ {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
		if !errors.Is(err, syscall.EADDRINUSE) || tries == 100 {
			break
		}
		err = nil
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		syscall.Close(fd)
		return
	}
	l.held = fd
}

// silence is cut, after which who connects gets no answer: the port has a queue of one, and that is full.
func (l *link) silence() error {
	l.cut()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held < 0 {
		return fmt.Errorf("silence %s: the port is not held", l.addr)
	}
	if err := syscall.Listen(l.held, 0); err != nil {
		return fmt.Errorf("silence %s: %w", l.addr, err)
	}
	for {
		c, err := net.DialTimeout("tcp", l.addr, queueFull)
		if err != nil {
			return nil
		}
		l.stuffing = append(l.stuffing, c)
	}
}

// queueFull is how long a connection of this host must go unanswered to say that the queue is full.
const queueFull = 200 * time.Millisecond

// letGo ends hold.
func (l *link) letGo() {
	if l.held >= 0 {
		syscall.Close(l.held)
	}
	for _, c := range l.stuffing {
		c.Close()
	}
	l.stuffing = nil
	l.held = -1
}

// cut closes the port and every connection: the next one is refused.
func (l *link) cut() {
	l.mu.Lock()
	if l.listener != nil {
		l.listener.Close()
		l.listener = nil
		l.hold()
	}
	ends := make([]func(), 0, len(l.conns))
	for _, end := range l.conns {
		ends = append(ends, end)
	}
	l.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// close ends all and waits for every goroutine of the link.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cut()
	l.mu.Lock()
	l.letGo()
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *link) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or the client left before it was accepted
			time.Sleep(time.Millisecond)
			continue
		}
		at := time.Now()
		l.wg.Go(func() { l.carry(c.(*net.TCPConn), at) })
	}
}

// carry connects a client with the server until both directions have ended.
func (l *link) carry(client *net.TCPConn, at time.Time) {
	defer client.Close()
	gone := make(chan struct{})
	l.mu.Lock()
	if l.listener == nil { // accepted just before the port was closed
		l.mu.Unlock()
		return
	}
	l.conns[client] = sync.OnceFunc(func() { close(gone) })
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.conns, client)
		l.mu.Unlock()
	}()
	server, err := l.dial(l.opened())
	if err != nil {
		return
	}
	defer server.Close()
	rtt := time.Duration(l.rtt.Load())
	var both, watch sync.WaitGroup
	both.Go(func() {
		l.way(server, client, &l.up, at.Add(rtt), gone)
		closeWrite(server)
	})
	both.Go(func() {
		l.way(client, server, &l.down, at.Add(rtt*3/2), gone)
		// Closing while bytes of the client are unread would make the kernel reset the connection and take what the
		// client has not read yet with it: end our half, and let the client end its own.
		client.CloseWrite()
		client.SetReadDeadline(time.Now().Add(lingering))
	})
	stop := make(chan struct{})
	watch.Go(func() {
		select {
		case <-gone:
			client.Close()
			server.Close()
		case <-stop:
		}
	})
	both.Wait()
	close(stop)
	watch.Wait()
}

// closeWrite ends one half where the connection has halves, else all of it.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

// way carries bytes one way until src ends or either side fails. What the sender says before it could know of the
// connection counts as said at start. free is when the direction's line is free again.
func (l *link) way(dst io.Writer, src net.Conn, free *time.Time, start time.Time, gone <-chan struct{}) {
	q := newQueue(inFlight)
	var sender sync.WaitGroup
	sender.Go(func() {
		defer func() { q.end(time.Now().Add(l.half())) }()
		if !sleepUntil(start, gone) {
			return
		}
		buf := make([]byte, chunkSize)
		for {
			size, bw := chunkSize, l.bandwidth.Load()
			if bw > 0 {
				size = min(max(int(bw/500), 512), chunkSize) // about 2 ms on the line, so that others get their turn
			}
			n, err := src.Read(buf[:size])
			if n > 0 {
				if bw > 0 && !sleepUntil(l.occupy(free, time.Duration(n)*time.Second/time.Duration(bw)), gone) {
					return
				}
				if !q.push(append([]byte(nil), buf[:n]...), time.Now().Add(l.half())) {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for {
		p, at, ok := q.pop()
		if !sleepUntil(at, gone) || !ok {
			break
		}
		if _, err := dst.Write(p); err != nil {
			break
		}
	}
	// A process that sends into a direction that is read no more would wait for ever.
	q.abandon()
	src.SetReadDeadline(time.Now().Add(lingering))
	sender.Wait()
}

func (l *link) half() time.Duration { return time.Duration(l.rtt.Load()) / 2 }

// occupy reserves the line for a duration, after earlier reservations, and returns when the reservation ends.
func (l *link) occupy(free *time.Time, d time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if late := time.Now().Add(-catchUp); free.Before(late) {
		*free = late
	}
	*free = free.Add(d)
	return *free
}

// sleepUntil reports whether it slept until then; false means that the connection was closed.
func sleepUntil(t time.Time, gone <-chan struct{}) bool {
	d := time.Until(t)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-gone:
		return false
	}
}
