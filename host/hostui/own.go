package hostui

import (
	"net"
	"net/netip"
	"os"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// ownListener accepts connections over the loopback device only from processes of the same user or of root: another
// user of the host could learn the cookie of the browser, which browsers send to all ports of a host.
type ownListener struct {
	net.Listener
	log *zap.Logger
}

// Accept returns the next connection, which comes from a process of the same user or of root, or from another host.
func (l ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, known := clientOf(c); known && uid != 0 && int(uid) != os.Getuid() {
			l.log.Warn("refuse connection of another user", zap.Uint32("uid", uid))
			c.Close()
			continue
		}
		return c, nil
	}
}

// clientOf returns the user ID of the process at the other end of a connection within this host. It returns false for
// connections from other hosts, and if the client has closed the connection.
func clientOf(c net.Conn) (uid uint32, ok bool) {
	own, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return 0, false
	}
	client, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !client.IP.IsLoopback() {
		return 0, false
	}
	plain := func(a *net.TCPAddr) netip.AddrPort {
		at := a.AddrPort()
		return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	}
	return proc.SocketOwner(plain(client), plain(own))
}
