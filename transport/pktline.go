package transport

import (
	"bytes"
	"fmt"
	"io"
)

const (
	maxPacket = 65520 // a whole packet, with its four digits (gitprotocol-common)
	bufSize   = 128 << 10
)

// packetKind tells a data packet from the three that carry none.
type packetKind uint8

const (
	packetData  packetKind = iota
	packetFlush            // 0000: end of a message
	packetDelim            // 0001: end of a section
	packetEnd              // 0002: end of a response, for stateless connections
)

func (k packetKind) String() string {
	switch k {
	case packetData:
		return "data packet"
	case packetFlush:
		return "flush packet"
	case packetDelim:
		return "delimiter packet"
	case packetEnd:
		return "response end packet"
	}
	return fmt.Sprintf("packet kind %d", uint8(k))
}

// pktReader cuts a stream into packets. It reads far ahead, so nobody else may read the stream.
type pktReader struct {
	r          io.Reader
	buf        []byte
	start, end int // unread bytes in buf
	err        error
}

func newPktReader(r io.Reader) *pktReader { return &pktReader{r: r, buf: make([]byte, bufSize)} }

func (p *pktReader) buffered() int { return p.end - p.start }

// fill reads until n bytes are buffered; n is at most len(buf). The error of a stream that ends between
// two packets is io.EOF only if nothing is buffered.
func (p *pktReader) fill(n int) error {
	if p.buffered() >= n {
		return nil
	}
	if p.start > 0 {
		copy(p.buf, p.buf[p.start:p.end])
		p.start, p.end = 0, p.end-p.start
	}
	for empty := 0; p.end < n; {
		if p.err != nil {
			if p.err == io.EOF && p.end > 0 {
				return io.ErrUnexpectedEOF
			}
			return p.err
		}
		var got int
		got, p.err = p.r.Read(p.buf[p.end:])
		p.end += got
		if got > 0 {
			empty = 0
		} else if empty++; empty > 100 && p.err == nil {
			p.err = io.ErrNoProgress
		}
	}
	return nil
}

// header reads a packet's four digits and returns how many bytes follow them.
func (p *pktReader) header() (packetKind, int, error) {
	if err := p.fill(4); err != nil {
		return 0, 0, err
	}
	n, ok := packetLength(p.buf[p.start : p.start+4])
	if !ok {
		return 0, 0, fmt.Errorf("%w: packet length %q", errProtocol, p.buf[p.start:p.start+4])
	}
	if n == 3 || n > maxPacket {
		return 0, 0, fmt.Errorf("%w: packet length %d", errProtocol, n)
	}
	p.start += 4
	if n < 3 {
		return packetFlush + packetKind(n), 0, nil
	}
	return packetData, n - 4, nil
}

// packetLength reads four hexadecimal digits.
func packetLength(b []byte) (int, bool) {
	n := 0
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int(c-'a'+10)
		case c >= 'A' && c <= 'F':
			n = n<<4 | int(c-'A'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// ready says whether a whole data packet is buffered, so that reading it waits for nothing.
func (p *pktReader) ready() bool {
	if p.buffered() < 4 {
		return false
	}
	n, ok := packetLength(p.buf[p.start : p.start+4])
	return ok && n > 4 && n <= p.buffered()
}

// packet reads a whole packet. The bytes are valid until the next call.
func (p *pktReader) packet() (packetKind, []byte, error) {
	kind, n, err := p.header()
	if err != nil || kind != packetData {
		return kind, nil, err
	}
	if err := p.fill(n); err != nil {
		return 0, nil, cut(err)
	}
	b := p.buf[p.start : p.start+n]
	p.start += n
	return packetData, b, nil
}

// line is packet for textual ones: the line feed at the end, which is optional, is cut off, and a line by
// which the server reports an error becomes that error.
func (p *pktReader) line() (packetKind, []byte, error) {
	kind, b, err := p.packet()
	if err != nil || kind != packetData {
		return kind, nil, err
	}
	if text, ok := bytes.CutPrefix(b, []byte("ERR ")); ok {
		return 0, nil, parseRemoteError(text)
	}
	return kind, bytes.TrimSuffix(b, []byte("\n")), nil
}

// cut marks the end of a stream where more had to come.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendLine adds a textual packet. The callers' lines are far below maxPacket.
func appendLine(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	n := len(s) + 5
	b = append(b, digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15])
	b = append(b, s...)
	return append(b, '\n')
}

func appendDelim(b []byte) []byte { return append(b, "0001"...) }
func appendFlush(b []byte) []byte { return append(b, "0000"...) }
