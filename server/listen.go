package server

import (
	"net"
	"sync"
)

// maxConnections is the maximum number of connections of clients at one time. Further clients wait in the queue of the socket.
const maxConnections = 8192

// limitedListener accepts at most maxConnections connections at one time.
type limitedListener struct {
	net.Listener
	room   chan struct{} // semaphore: has one element for each connection
	closed chan struct{}
	once   sync.Once
}

func limit(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, room: make(chan struct{}, n), closed: make(chan struct{})}
}

// Accept waits until there is room, and then for a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.room })}, nil
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
