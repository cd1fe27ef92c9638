package proc

import (
	"bufio"
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// SocketOwner returns the user ID of the owner of a TCP socket with the given local and remote address (/proc/net/tcp,
// proc_pid_net(5)). It returns false if this network namespace has no such socket.
func SocketOwner(local, remote netip.AddrPort) (uid uint32, ok bool) {
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(string(Self) + "/net/" + table)
		if err != nil {
			continue
		}
		uid, ok = socketOwner(bufio.NewScanner(f), local, remote)
		f.Close()
		if ok {
			return uid, true
		}
	}
	return 0, false
}

func socketOwner(lines *bufio.Scanner, local, remote netip.AddrPort) (uid uint32, ok bool) {
	for lines.Scan() {
		// sl, local_address, rem_address, st, tx_queue:rx_queue, tr:tm->when, retrnsmt, uid
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 {
			continue
		}
		if at, ok := socketAddress(fields[1]); !ok || at != local {
			continue
		}
		if to, ok := socketAddress(fields[2]); !ok || to != remote {
			continue
		}
		n, err := strconv.ParseUint(fields[7], 10, 32)
		return uint32(n), err == nil
	}
	return 0, false
}

// socketAddress parses ADDRESS:PORT in the format of /proc/net/tcp. The address consists of hexadecimal words of 4
// bytes in the byte order of the processor, which is little-endian on all processors that artifactfs supports. An IPv4
// address that is mapped into IPv6 is returned as an IPv4 address.
func socketAddress(text string) (netip.AddrPort, bool) {
	word, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(word)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(bytes)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(bytes); i += 4 {
		bytes[i], bytes[i+1], bytes[i+2], bytes[i+3] = bytes[i+3], bytes[i+2], bytes[i+1], bytes[i]
	}
	addr, ok := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}
