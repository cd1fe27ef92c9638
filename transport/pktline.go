package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// bufSize is the size in bytes of the buffer of a connection. A pack is read through it.
const bufSize = 128 << 10

// pktReader reads packets of a server. A packet with an invalid length is errProtocol.
type pktReader struct{ *pktline.Reader }

// newPktReader returns a reader of the packets of r.
func newPktReader(r io.Reader) *pktReader { return &pktReader{pktline.NewReader(r, bufSize)} }

// header is Header with errProtocol for an invalid length.
func (p *pktReader) header() (pktline.Kind, int, error) {
	kind, n, err := p.Header()
	return kind, n, invalid(err)
}

// packet is Next with errProtocol for an invalid length.
func (p *pktReader) packet() (pktline.Kind, []byte, error) {
	kind, b, err := p.Next()
	return kind, b, invalid(err)
}

// invalid marks an invalid length as errProtocol.
func invalid(err error) error {
	if errors.Is(err, pktline.ErrLength) {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return err
}

// line returns the next packet as a line, without the optional line feed. A line with which the
// server reports an error becomes that error.
func (p *pktReader) line() (pktline.Kind, []byte, error) {
	kind, b, err := p.packet()
	if err != nil || kind != pktline.Data {
		return kind, nil, err
	}
	if text, ok := bytes.CutPrefix(b, []byte("ERR ")); ok {
		return 0, nil, parseRemoteError(text)
	}
	return kind, bytes.TrimSuffix(b, []byte("\n")), nil
}

// cut returns io.ErrUnexpectedEOF for io.EOF, where the end of the stream is inside a message. It returns other errors
// as they are.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
