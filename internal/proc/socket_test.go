package proc

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestSocketOwner(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("listen on %s: %v", at, err)
			continue
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		own, peer := netip.MustParseAddrPort(client.LocalAddr().String()), netip.MustParseAddrPort(l.Addr().String())
		if uid, ok := SocketOwner(own, peer); !ok || int(uid) != os.Getuid() {
			t.Errorf("owner of a socket at %s: got %d, %v, want %d", at, uid, ok, os.Getuid())
		}
		if _, ok := SocketOwner(own, netip.AddrPortFrom(peer.Addr(), peer.Port()+1)); ok {
			t.Errorf("owner of a socket at %s that does not exist: got one", at)
		}
	}
}

func TestSocketOwnerOfOtherUser(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 4 30 10 -1
   2: 0000000000000000FFFF00000100007F:C351 0000000000000000FFFF00000100007F:1F90 01 0:0 0:0 0  1002 0 3
   3: xyz 1
   4: 01:1 zz:1 01 0:0 0:0 0 5 0 3
`
	for from, want := range map[string]uint32{"127.0.0.1:50000": 1001, "127.0.0.1:50001": 1002} {
		uid, ok := socketOwner(bufio.NewScanner(strings.NewReader(table)), netip.MustParseAddrPort(from),
			netip.MustParseAddrPort("127.0.0.1:8080"))
		if !ok || uid != want {
			t.Errorf("owner of the socket at %s: got %d, %v, want %d", from, uid, ok, want)
		}
	}
}
