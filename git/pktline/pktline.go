// Package pktline reads and writes pkt-lines, the packets of which the messages in git's protocols consist. The format
// is that of gitprotocol-common(5): four hexadecimal digits with the length of the packet, including the digits, and
// then the data. The lengths 0 to 2 stand for packets without data, whose meaning is defined by gitprotocol-v2(5).
//
// The package imports nothing that is slow to initialize, because it is used by a program that git starts for every
// command.
package pktline

import (
	"errors"
	"io"
	"strconv"
)

const (
	// MaxPacket is the maximum length of a packet in bytes, including the four digits.
	MaxPacket = 65520
	// MaxData is the maximum length of the data in a packet, in bytes.
	MaxData = MaxPacket - headerSize

	headerSize = 4
)

// Kind distinguishes packets with data from the three kinds without data.
type Kind uint8

const (
	Data  Kind = iota
	Flush      // 0000: end of a message
	Delim      // 0001: end of a section
	End        // 0002: end of a response, in stateless connections
)

// String returns the name of the kind, for error messages.
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

// ErrLength means that a packet does not begin with a valid length: the stream does not consist of packets.
var ErrLength = errors.New("invalid packet length")

// lengthError is an error that matches ErrLength and contains the bytes that were read in place of a length.
type lengthError [headerSize]byte

// Error returns a message with these bytes.
func (e lengthError) Error() string { return "packet length " + strconv.Quote(string(e[:])) }

// Is reports whether target is ErrLength.
func (e lengthError) Is(target error) bool { return target == ErrLength }

// length returns the value of the four hexadecimal digits at the start of b. It returns false if they are not a valid
// length. Like git, it accepts letters of both cases.
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

// Reader divides a stream into packets. It reads ahead, so no other code may read the stream. A Reader must be used by
// one goroutine at a time.
type Reader struct {
	r          io.Reader
	buf        []byte
	start, end int   // buf[start:end] was read but not consumed
	err        error // error of the stream; returned when the buffered bytes are used up
}

// NewReader returns a Reader for r whose buffer has size bytes. The buffer grows if a packet is larger.
func NewReader(r io.Reader, size int) *Reader {
	return &Reader{r: r, buf: make([]byte, max(size, headerSize))}
}

// SetSource replaces the stream by r. Bytes of the old stream that are still buffered are consumed first.
func (p *Reader) SetSource(r io.Reader) { p.r = r }

// Err returns the error with which the stream has ended, or nil if it has not ended. There may still be buffered bytes.
func (p *Reader) Err() error { return p.err }

// Buffered returns the bytes that were read from the stream but not consumed. They are valid until the next call of a
// method that reads.
func (p *Reader) Buffered() []byte { return p.buf[p.start:p.end] }

// Discard consumes n buffered bytes.
func (p *Reader) Discard(n int) { p.start += n }

// Fill reads until at least n bytes are buffered. If the stream ends before that, Fill returns io.EOF if no bytes are
// buffered, and io.ErrUnexpectedEOF otherwise.
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

// Header consumes the length of a packet and returns the kind of the packet and the number of bytes of data that
// follow. It returns io.EOF only if the stream ends between two packets, and ErrLength if the length is invalid.
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

// Ready reports whether a whole packet with data is buffered, so that Next would return it without reading the stream.
func (p *Reader) Ready() bool {
	if p.end-p.start < headerSize {
		return false
	}
	n, ok := length(p.buf[p.start:])
	return ok && n > headerSize && n <= p.end-p.start
}

// Next reads one packet and returns its kind and its data. The data are valid until the next call of a method that
// reads. For a data packet without bytes, the data are empty but not nil. Next returns the errors of Header, and
// io.ErrUnexpectedEOF if the stream ends within the packet.
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

// AppendHeader appends the length of a packet with n bytes of data. The caller appends or writes the data next. n must
// be at most MaxData; the same limit applies to Append and, with the line feed, to AppendLine.
func AppendHeader(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	n += headerSize
	return append(b, digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15])
}

// Append appends a packet with this data.
func Append[T string | []byte](b []byte, data T) []byte {
	return append(AppendHeader(b, len(data)), data...)
}

// AppendLine appends a packet with a line of text, followed by a line feed, as git writes it.
func AppendLine(b []byte, text string) []byte {
	b = append(AppendHeader(b, len(text)+1), text...)
	return append(b, '\n')
}

// AppendFlush appends a flush packet, which ends a message.
func AppendFlush(b []byte) []byte { return append(b, "0000"...) }

// AppendDelim appends a delimiter packet, which ends a section of a message.
func AppendDelim(b []byte) []byte { return append(b, "0001"...) }
