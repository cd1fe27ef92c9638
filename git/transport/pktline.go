package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// bufSize is the size in bytes of the read buffer of a connection. Packs are read through this buffer.
const bufSize = 128 << 10

// pktReader reads packets from a server. An invalid packet length is reported as errProtocol.
type pktReader struct{ *pktline.Reader }

// newPktReader returns a reader of the packets of r.
func newPktReader(r io.Reader) *pktReader { return &pktReader{pktline.NewReader(r, bufSize)} }

// header calls Header and reports an invalid length as errProtocol.
func (p *pktReader) header() (pktline.Kind, int, error) {
	kind, n, err := p.Header()
	return kind, n, invalid(err)
}

// packet calls Next and reports an invalid length as errProtocol.
func (p *pktReader) packet() (pktline.Kind, []byte, error) {
	kind, b, err := p.Next()
	return kind, b, invalid(err)
}

// invalid wraps an error about an invalid length in errProtocol, and returns other errors unchanged.
func invalid(err error) error {
	if errors.Is(err, pktline.ErrLength) {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return err
}

// line returns the next packet as a line, without the optional line feed. If the packet is an error message ("ERR
// ..."), line returns that message as an error.
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

// cut returns io.ErrUnexpectedEOF for io.EOF, for callers that read the middle of a message. It returns other errors
// unchanged.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
