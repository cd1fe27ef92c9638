package gittest

import (
	"net"
	"time"
)

// Line is a proxy in front of a server of another program. It adds latency.
type Line struct{ link link }

// NewLine listens on addr and forwards connections to the server at target, with the round-trip time rtt.
func NewLine(addr, target string, rtt time.Duration) (*Line, error) {
	l := &Line{}
	conns := 0
	l.link.opened = func() int { conns++; return conns } // needs no lock, because only the accepting goroutine calls it
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

// Close closes the port and all connections.
func (l *Line) Close() { l.link.close() }
