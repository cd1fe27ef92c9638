package promisor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const maxPacket = 65520 // a whole packet, with its four digits (gitprotocol-common)

var errProtocol = errors.New("not git's protocol")

// packetKind tells a packet with data from those without.
type packetKind uint8

const (
	packetData  packetKind = iota
	packetFlush            // 0000: end of a message
	packetDelim            // 0001: end of a section
)

// readPacket reads one packet. Its end is io.EOF only between two packets.
func readPacket(r *bufio.Reader) (packetKind, string, error) {
	var digits [4]byte
	if _, err := io.ReadFull(r, digits[:]); err != nil {
		return 0, "", err
	}
	n, err := packetLength(digits)
	if err != nil {
		return 0, "", err
	}
	if n < 4 {
		return packetFlush + packetKind(n), "", nil
	}
	data := make([]byte, n-4)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, "", fmt.Errorf("%w: cut off in a packet", errProtocol)
	}
	if len(data) > 0 && data[len(data)-1] == '\n' { // the line feed is optional
		data = data[:len(data)-1]
	}
	return packetData, string(data), nil
}

// packetLength reads the head of a packet; a length below 4 is one without data.
func packetLength(digits [4]byte) (int, error) {
	n, err := strconv.ParseUint(string(digits[:]), 16, 16)
	if err != nil || n == 2 || n == 3 || n > maxPacket {
		return 0, fmt.Errorf("%w: packet length %q", errProtocol, digits[:])
	}
	return int(n), nil
}

// appendLine adds a packet with a line of text.
func appendLine(b []byte, s string) []byte { return fmt.Appendf(b, "%04x%s\n", len(s)+5, s) }

func appendFlush(b []byte) []byte { return append(b, "0000"...) }

// errorPacket makes git fail with a text.
func errorPacket(text string) []byte {
	text = "ERR artifactfs: " + text
	if len(text) > 1000 {
		text = text[:1000]
	}
	return fmt.Appendf(nil, "%04x%s", len(text)+4, text)
}
