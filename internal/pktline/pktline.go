// Package pktline reads and writes pkt-lines, the packets that git's protocols consist of. The format is that of
// gitprotocol-common(5): four hexadecimal digits, which count themselves and the data behind them. The lengths 0 to 2 stand for
// packets without data, of which gitprotocol-v2(5) defines the meaning.
//
// The package imports nothing that is slow to initialize, since a program that git starts for every command uses it.
package pktline

import (
	"errors"
	"io"
	"strconv"
)

const (
	// MaxPacket is the largest packet in bytes, with its four digits.
	MaxPacket = 65520
	// MaxData is the largest amount of data in one packet, in bytes.
	MaxData = MaxPacket - headerSize

	headerSize = 4
)

// Kind distinguishes packets with data from the three that have none.
type Kind uint8

const (
	Data  Kind = iota
	Flush      // 0000: end of a message
	Delim      // 0001: end of a section
	End        // 0002: end of a response, for stateless connections
)

// String returns the name of a kind for error messages.
func (k Kind) String() string {
	switch k {
	case Data:
		return "data packet"
	case Flush:
		return "flush packet"
	case Delim:
		return "delimiter packet"
	case End:
		return "response end packet"
	}
	return "packet kind " + strconv.Itoa(int(k))
}

// ErrLength reports that a packet does not begin with a valid length: the stream does not consist of packets.
var ErrLength = errors.New("invalid packet length")

// lengthError is ErrLength with the bytes that were read in place of a length.
type lengthError [headerSize]byte

func (e lengthError) Error() string        { return "packet length " + strconv.Quote(string(e[:])) }
func (e lengthError) Is(target error) bool { return target == ErrLength }

// length parses the four digits at the beginning of b. Git accepts digits of both cases.
func length(b []byte) (int, bool) {
	n := 0
	for _, c := range b[:headerSize] {
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
	return n, n != 3 && n <= MaxPacket
}

// Reader divides a stream into packets. It reads ahead, so nothing else may read the stream. A Reader is for one goroutine.
type Reader struct {
	r          io.Reader
	buf        []byte
	start, end int   // unread bytes in buf
	err        error // of the stream; returned once the buffered bytes are used up
}

// NewReader returns a reader of r whose buffer has size bytes. The buffer grows if a packet needs more.
func NewReader(r io.Reader, size int) *Reader {
	return &Reader{r: r, buf: make([]byte, max(size, headerSize))}
}

// SetSource makes r the stream that is read when the buffered bytes are used up.
func (p *Reader) SetSource(r io.Reader) { p.r = r }

// Err returns the error that the stream ended with, or nil. Buffered bytes may still be unread.
func (p *Reader) Err() error { return p.err }

// Buffered returns the bytes that were read from the stream and not yet consumed. They are valid until the next call of a method
// that reads.
func (p *Reader) Buffered() []byte { return p.buf[p.start:p.end] }

// Discard consumes n buffered bytes.
func (p *Reader) Discard(n int) { p.start += n }

// Fill reads until at least n bytes are buffered. If the stream ends before, the error is io.EOF if nothing is buffered, and
// io.ErrUnexpectedEOF otherwise.
func (p *Reader) Fill(n int) error {
	if p.end-p.start >= n {
		return nil
	}
	if p.start > 0 {
		copy(p.buf, p.buf[p.start:p.end])
		p.start, p.end = 0, p.end-p.start
	}
	if n > len(p.buf) {
		p.buf = append(make([]byte, 0, n), p.buf[:p.end]...)[:n]
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

// Header consumes a packet's length and returns how many bytes of data follow. The error is io.EOF only at the end of the stream
// between two packets, and ErrLength if there is no valid length.
func (p *Reader) Header() (Kind, int, error) {
	if err := p.Fill(headerSize); err != nil {
		return 0, 0, err
	}
	head := p.buf[p.start : p.start+headerSize]
	n, ok := length(head)
	if !ok {
		return 0, 0, lengthError(head)
	}
	p.start += headerSize
	if n < headerSize {
		return Flush + Kind(n), 0, nil
	}
	return Data, n - headerSize, nil
}

// Ready reports whether a packet with data is buffered completely, so that Next returns it without reading the stream.
func (p *Reader) Ready() bool {
	if p.end-p.start < headerSize {
		return false
	}
	n, ok := length(p.buf[p.start:])
	return ok && n > headerSize && n <= p.end-p.start
}

// Next reads one packet. Its data is valid until the next call of a method that reads; it is empty, not nil, for a data packet
// without bytes. Errors are those of Header, and io.ErrUnexpectedEOF if the stream ends within the packet.
func (p *Reader) Next() (Kind, []byte, error) {
	kind, n, err := p.Header()
	if err != nil || kind != Data {
		return kind, nil, err
	}
	if err := p.Fill(n); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	b := p.buf[p.start : p.start+n]
	p.start += n
	return Data, b, nil
}

// AppendHeader appends the length of a packet with n bytes of data, which the caller appends or writes next. The caller ensures
// that n is at most MaxData; so it does for Append and AppendLine.
func AppendHeader(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	n += headerSize
	return append(b, digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15])
}

// Append appends a packet with data.
func Append[T string | []byte](b []byte, data T) []byte {
	return append(AppendHeader(b, len(data)), data...)
}

// AppendLine appends a packet with a line of text and the line feed that git writes behind it.
func AppendLine(b []byte, text string) []byte {
	b = append(AppendHeader(b, len(text)+1), text...)
	return append(b, '\n')
}

// AppendFlush appends the packet that ends a message.
func AppendFlush(b []byte) []byte { return append(b, "0000"...) }

// AppendDelim appends the packet that ends a section of a message.
func AppendDelim(b []byte) []byte { return append(b, "0001"...) }
