package server

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// maxConnections is the maximum number of connections of clients at one time. Further clients wait in the queue of the
	// socket.
	maxConnections = 8192
	// maxOfAddress is the maximum number of those of one address, so that one client cannot take all. Further ones are
	// closed.
	maxOfAddress = maxConnections / 4
)

// limitedListener limits the connections at one time: all of them, and those of each address.
//
// Locks: mu is a leaf.
type limitedListener struct {
	net.Listener
	room chan struct{} // semaphore: has one element for each connection
	each int           // maximum number of connections of one address
	// addresses for many clients, such as those of proxies; only the limit of all applies to them
	exempt func(netip.Addr) bool
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	of map[netip.Prefix]int // connections by source
}

func limit(l net.Listener, all, each int, exempt func(netip.Addr) bool) *limitedListener {
	return &limitedListener{
		Listener: l, room: make(chan struct{}, all), each: each, exempt: exempt, closed: make(chan struct{}),
		of: map[netip.Prefix]int{},
	}
}

// Accept waits until there is room, and then for a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.room
			return nil, err
		}
		if leave, ok := l.enter(c.RemoteAddr()); ok {
			return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { leave(); <-l.room })}, nil
		}
		c.Close()
	}
}

// enter counts a connection of an address until release is called, unless the address has its maximum.
func (l *limitedListener) enter(remote net.Addr) (leave func(), ok bool) {
	at, err := netip.ParseAddrPort(remote.String())
	a := at.Addr().Unmap()
	if err != nil || l.exempt(a) {
		return func() {}, true
	}
	bits := a.BitLen()
	if a.Is6() {
		bits = 64 // usually all of these are addresses of one client
	}
	source, _ := a.WithZone("").Prefix(bits) // fails only if there are too many bits
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[source] >= l.each {
		return nil, false
	}
	l.of[source]++
	return func() { l.release(source) }, true
}

func (l *limitedListener) release(source netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[source]--; l.of[source] == 0 {
		delete(l.of, source)
	}
}

// Close makes Accept return, even if Accept waits for room.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn is a connection that makes room in its listener when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
