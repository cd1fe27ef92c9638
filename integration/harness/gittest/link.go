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
	// maximum number of bytes that are under way in one direction of a connection; then the sender waits
	inFlight  = 16 << 20
	chunkSize = 64 << 10               // maximum size in bytes of a piece that is sent at once
	catchUp   = 5 * time.Millisecond   // delays of timers up to this duration are compensated
	lingering = 500 * time.Millisecond // time during which a closed connection still reads the bytes of the client
)

// link is a listener whose connections have the latency and bandwidth of a network line between client and server.
//
// On a real line, the times are as follows, counted from the client's first SYN: connect returns after one RTT, and the
// client's first byte reaches the server half an RTT later, at the same time as the server notices the connection. Here
// the kernel connects immediately. So the client's bytes count as sent after one RTT, and the server's bytes after one
// and a half RTT. After that, every byte needs half an RTT, no matter how many bytes are under way. So a client that
// connects in advance waits as little as on a real line.
//
// The bandwidth limits each direction separately. Connections share it: they take turns, one chunk at a time.
type link struct {
	// connects to the real server; conn is the number of the connection, counted from 1
	dial      func(conn int) (net.Conn, error)
	opened    func() int   // counts a new connection and returns its number
	rtt       atomic.Int64 // round-trip time (RTT) in nanoseconds
	bandwidth atomic.Int64 // bytes per second in each direction; 0 for no limit

	wg sync.WaitGroup

	mu       sync.Mutex
	addr     string
	listener net.Listener // nil while the link is down
	// connections that fill the queue of the socket held, so that the kernel does not answer other clients
	stuffing []net.Conn
	held     int // socket that reserves the port while the link is down; -1 if there is none
	closed   bool
	conns    map[net.Conn]func() // function that ends each connection
	up, down time.Time           // for each direction, the time from which the line is free again
}

// open starts to listen on addr, a host and a port. Port 0 selects a free port, which the link keeps until it is
// closed.
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
	l.releasePort()
	l.listener, l.addr = ln, ln.Addr().String()
	l.wg.Go(func() { l.accept(ln) })
	return nil
}

// newListener starts to listen at the port. After a call of silence, it uses the socket that reserves the port, because
// two sockets cannot listen at one port, and another process could use the port if it were free for a moment.
func (l *link) newListener() (net.Listener, error) {
	if len(l.stuffing) == 0 {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // multipath sockets do not support the socket filters that lose uses
		return plain.Listen(context.Background(), "tcp", l.addr)
	}
	if err := syscall.Listen(l.held, syscall.SOMAXCONN); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(l.held), "listener")
	defer f.Close() // the listener has a duplicate of the descriptor
	l.held = -1
	return net.FileListener(f)
}

// hold reserves the port while no process listens at it. Otherwise another server could get the port, or a client could
// use it as its local port and connect to itself. The kernel refuses connections to a socket that is bound and does not
// listen.
func (l *link) hold() {
	at, err := netip.ParseAddrPort(l.addr)
	if err != nil || !at.Addr().Is4() {
		return
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	// required, because the later listener uses this option too
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	// Binding is repeated, because for a moment a connection may use the port of a closed listener as its local port.
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

// silence closes all connections like cut. After that, clients get no answer, because the port has a queue for one
// connection, and the queue is full.
func (l *link) silence() error {
	l.cut()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held < 0 {
		return fmt.Errorf("silence %s: port is not reserved", l.addr)
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

// queueFull is the time without an answer after which silence concludes that the queue is full.
const queueFull = 200 * time.Millisecond

// releasePort closes the sockets with which hold and silence reserve the port.
func (l *link) releasePort() {
	if l.held >= 0 {
		syscall.Close(l.held)
	}
	for _, c := range l.stuffing {
		c.Close()
	}
	l.stuffing = nil
	l.held = -1
}

// cut stops to listen and closes every connection. New connections are refused.
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

// close closes the port and all connections, and waits until all goroutines of the link have ended.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cut()
	l.mu.Lock()
	l.releasePort()
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *link) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // the process has no free descriptors, or the client has disconnected before it was accepted
			time.Sleep(time.Millisecond)
			continue
		}
		at := time.Now()
		l.wg.Go(func() { l.carry(c.(*net.TCPConn), at) })
	}
}

// carry connects a client with the server and copies bytes until both directions have ended. at is the time at which
// the client has connected.
func (l *link) carry(client *net.TCPConn, at time.Time) {
	defer client.Close()
	gone := make(chan struct{})
	l.mu.Lock()
	if l.listener == nil { // the connection was accepted just before the port was closed
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
		// If bytes of the client are unread, closing the connection would make the kernel reset it and discard bytes
		// that the client has not read yet. So close only the writing half, and wait until the client closes its half.
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

// closeWrite closes the writing half of a connection, or the whole connection if halves cannot be closed separately.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

// way copies bytes in one direction until src ends or an error occurs. Bytes that arrive before the time start count as
// sent at start, because on a real line the sender would not know of the connection before. free is the time from which
// the line is free in this direction.
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
				// a piece takes about 2 ms, so that other connections get their turn
				size = min(max(int(bw/500), 512), chunkSize)
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
	// Without this, a goroutine that sends to a reader which has ended would wait forever.
	q.abandon()
	src.SetReadDeadline(time.Now().Add(lingering))
	sender.Wait()
}

func (l *link) half() time.Duration { return time.Duration(l.rtt.Load()) / 2 }

// occupy reserves the line for the duration d after all earlier reservations, and returns the end of the reservation.
func (l *link) occupy(free *time.Time, d time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if late := time.Now().Add(-catchUp); free.Before(late) {
		*free = late
	}
	*free = free.Add(d)
	return *free
}

// sleepUntil waits until the time t. It returns false if gone is closed before.
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
