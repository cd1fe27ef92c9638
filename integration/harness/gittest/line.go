package gittest

import (
	"net"
	"time"
)

// Line forwards connections to a server of another program over a line with latency.
type Line struct{ link link }

// NewLine listens on addr and forwards connections to the server at target, with the round-trip time rtt.
func NewLine(addr, target string, rtt time.Duration) (*Line, error) {
	l := &Line{}
	conns := 0
	l.link.opened = func() int { conns++; return conns } // called by the goroutine that accepts
	l.link.dial = func(int) (net.Conn, error) { return net.Dial("tcp", target) }
	l.link.rtt.Store(int64(rtt))
	if err := l.link.open(addr); err != nil {
		return nil, err
	}
	return l, nil
}

// Addr returns the address at which the line listens.
func (l *Line) Addr() string {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	return l.link.addr
}

// Close ends all connections.
func (l *Line) Close() { l.link.close() }
