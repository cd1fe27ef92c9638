package gittest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// spawn starts a server program for one connection, like inetd: the connection is the standard input and output of the
// program. So the program needs no port, and no process runs without a connection.
func (s *Server) spawn(conn int, cmd *exec.Cmd) (*childConn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, s.stderr
	if !s.enter() {
		ours.Close()
		return nil, net.ErrClosed
	}
	if err := s.group.start(cmd); err != nil {
		s.wg.Done()
		ours.Close()
		return nil, err
	}
	go func() {
		defer s.wg.Done()
		s.group.wait(cmd)
	}()
	gone := make(chan struct{})
	c := &childConn{Conn: ours, leave: sync.OnceFunc(func() { close(gone) })}
	c.gates = gates{faults: s.faultsFor(Request{Conn: conn, Command: Connection}, ""), closed: gone}
	return c, nil
}

// socketPair returns the two ends of a new connection.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	defer ours.Close() // FileConn has duplicated the descriptor
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	return conn, theirs, nil
}

// childConn is the link's end of a connection to a server program. It applies faults to the program's output.
type childConn struct {
	net.Conn
	gates gates
	leave func() // tells the gates that the client has disconnected
	// called with the client's bytes before the program receives them; nil if they are not recorded
	fromClient func(p []byte)
	// called with the program's bytes before the client receives them; nil if they are not recorded
	fromServer func(p []byte)
	ends       func() // called at the end of the connection; may be nil
}

func (c *childConn) Read(p []byte) (int, error) {
	allowed, err := c.gates.allow(len(p))
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p[:allowed])
	c.gates.sent += int64(n)
	if n > 0 && c.fromServer != nil {
		c.fromServer(p[:n])
	}
	return n, err
}

func (c *childConn) Write(p []byte) (int, error) {
	if c.fromClient != nil {
		c.fromClient(p)
	}
	return c.Conn.Write(p)
}

// CloseWrite ends the program's input. It also ends a stall, because no git client closes its half of the connection
// and then waits for more bytes of the answer.
func (c *childConn) CloseWrite() error {
	c.leave()
	return c.Conn.(*net.UnixConn).CloseWrite()
}

func (c *childConn) Close() error {
	c.leave()
	err := c.Conn.Close()
	if c.ends != nil {
		c.ends()
	}
	return err
}
