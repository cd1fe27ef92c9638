package gittest

import (
	"errors"
	"fmt"
	"syscall"
)

// lose makes the kernel drop all packets of clients, with socket filters that let no byte pass. The kernel applies the
// filters before TCP, so the sender gets no acknowledgement.
func (l *link) lose() (end func(), err error) {
	nothing := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K, K: 0}}
	lost := func(fd uintptr) error {
		//lint:ignore SA1019 this package knows the standard library only
		return syscall.AttachLsf(int(fd), nothing)
	}
	if err := l.eachSocket(lost); err != nil {
		return nil, fmt.Errorf("lose packets to %s: %w", l.addr, err)
	}
	return func() {
		_ = l.eachSocket(func(fd uintptr) error {
			return syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_DETACH_FILTER, 0)
		})
	}, nil
}

// eachSocket calls f with the listener and with the connection of every client.
func (l *link) eachSocket(f func(fd uintptr) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []syscall.Conn
	if s, ok := l.listener.(syscall.Conn); ok {
		all = append(all, s)
	}
	for c := range l.conns {
		if s, ok := c.(syscall.Conn); ok {
			all = append(all, s)
		}
	}
	var failed error
	for _, s := range all {
		raw, err := s.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { failed = errors.Join(failed, f(fd)) })
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
