package gittest

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// packetKind is the kind of a packet in the pkt-line format (gitprotocol-common).
type packetKind uint8

const (
	dataPacket packetKind = iota
	flushPacket
	delimPacket
	endPacket // response-end packet
	// bytes that are not in pkt-lines: a pack without side-band, or another protocol; all later bytes are also of this
	// kind
	rawBytes
)

// packets splits a stream of bytes into packets while it passes, and calls each for each packet. The payload is valid
// only during this call.
type packets struct {
	each func(kind packetKind, payload []byte)
	held []byte // first bytes of an incomplete packet
	raw  bool
}

// maxPacket is the maximum length of a packet in bytes, including the four digits of the length (gitprotocol-common:
// 65520).
const maxPacket = 65520

// feed parses the next bytes of the stream, which may end inside a packet.
func (p *packets) feed(b []byte) {
	for len(b) > 0 {
		if p.raw {
			p.each(rawBytes, b)
			return
		}
		if len(p.held) == 0 {
			// Packets that are complete in b are not copied.
			n := p.cut(b)
			if b = b[n:]; n > 0 {
				continue
			}
		}
		want := 4
		if len(p.held) >= 4 {
			want, _ = packetLen(p.held)
		}
		take := min(want-len(p.held), len(b))
		p.held, b = append(p.held, b[:take]...), b[take:]
		if n := p.cut(p.held); n > 0 {
			p.held = p.held[:0]
		}
	}
}

// cut calls each for the packet at the start of b, and returns the length of the packet. It returns 0 if the packet is
// incomplete.
func (p *packets) cut(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	n, ok := packetLen(b)
	switch {
	case !ok:
		p.raw = true
		p.each(rawBytes, b)
		return len(b)
	case n < 4:
		p.each([]packetKind{flushPacket, delimPacket, endPacket}[n], nil)
		return 4
	case n > len(b):
		return 0
	}
	p.each(dataPacket, b[4:n])
	return n
}

// packetLen parses the four hexadecimal digits at the start of a packet. The values 0, 1 and 2 are special packets;
// other values are lengths that include the digits.
func packetLen(b []byte) (int, bool) {
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	if err != nil || n == 3 || n > maxPacket {
		return 0, false
	}
	return int(n), true
}

// appendPacket appends one data packet to b.
func appendPacket(b, payload []byte) []byte {
	const digits = "0123456789abcdef"
	n := len(payload) + 4
	b = append(b, digits[n>>12], digits[n>>8&15], digits[n>>4&15], digits[n&15])
	return append(b, payload...)
}

// ask is one request of a client, which consists of the lines up to a flush packet.
type ask struct {
	Request
	lines int
}

// line processes one line of a request in protocol v2, v1 or v0.
func (a *ask) line(payload []byte) {
	a.lines++
	line, _, _ := bytes.Cut(payload, []byte{0})
	key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	name, command, _ := strings.Cut(key, "=")
	switch {
	case a.lines == 1 && name == "command":
		a.Version = 2
		switch command {
		case "ls-refs":
			a.Command = LsRefs
		case "fetch":
			a.Command = Fetch
		case "object-info":
			a.Command = ObjectInfo
		default:
			a.Command = Other
		}
	case name == "object-format":
		a.format, _ = object.ParseFormat(command)
	case key == "want":
		if a.lines == 1 { // v0 and v1 have no command line; the capabilities follow the first want
			a.Command = Fetch
			value, _, _ = strings.Cut(value, " ")
		}
		a.want(value)
	case key == "oid":
		a.want(value)
	case key == "want-ref":
		a.WantRefs = append(a.WantRefs, value)
	case key == "ref-prefix":
		a.Prefixes = append(a.Prefixes, value)
	case key == "have":
		a.Haves++
	case key == "shallow":
		a.Shallow++
	case key == "deepen":
		a.Depth, _ = strconv.Atoi(value)
	case key == "filter":
		a.Filter = value
	}
}

func (a *ask) want(hex string) {
	if id, err := object.ParseID(hex); err == nil {
		a.Wants, a.format = append(a.Wants, id), id.Format()
	}
}

// parseAsk parses the whole body of a request to git-upload-pack.
func parseAsk(body []byte) Request {
	var a ask
	p := packets{each: func(kind packetKind, payload []byte) {
		if kind == dataPacket {
			a.line(payload)
		}
	}}
	p.feed(body)
	if a.Command == "" {
		a.Command = Other
	}
	return a.Request
}
