package gittest

import (
	"net"
	"os/exec"
)

// ServeGitDaemon starts a server for git:// that runs git daemon. The server refuses pushes.
func ServeGitDaemon(o ServerOptions) (*Server, error) {
	path, err := program("git-daemon")
	if err != nil {
		return nil, err
	}
	s, err := newServer("git", o)
	if err != nil {
		return nil, err
	}
	s.link.dial = func(conn int) (net.Conn, error) {
		cmd := exec.Command(path, "--inetd", "--export-all", "--base-path="+s.root, s.root)
		cmd.Dir, cmd.Env = s.root, s.env()
		c, err := s.spawn(conn, cmd)
		if err != nil {
			return nil, err
		}
		d := newDialogue(s, conn, true)
		c.fromClient, c.fromServer, c.ends = d.fromClient, d.fromServer, d.end
		return c, nil
	}
	if err := s.open(o.Addr); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
