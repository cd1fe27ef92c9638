package filter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// maxLines is the maximum number of lines in a list, so that a program cannot send an endless one.
const maxLines = 10 * maxBatch

// errProtocol means that a program violated the protocol.
var errProtocol = errors.New("protocol error")

// packetReader reads a program's packets (gitprotocol-common(5)).
type packetReader struct{ *pktline.Reader }

// newPacketReader reads packets of at most pktline.MaxPacket bytes from r.
func newPacketReader(r io.Reader) packetReader {
	return packetReader{pktline.NewReader(r, pktline.MaxPacket)}
}

// next returns a packet's data, valid until the next call; nil for a flush packet and, as in git, for an empty packet.
func (p packetReader) next() ([]byte, error) {
	kind, data, err := p.Next()
	switch {
	case errors.Is(err, pktline.ErrLength):
		return nil, fmt.Errorf("%w: %w", errProtocol, err)
	case err != nil:
		return nil, err
	case kind == pktline.Flush || kind == pktline.Data && len(data) == 0:
		return nil, nil
	case kind != pktline.Data:
		return nil, fmt.Errorf("%w: %v", errProtocol, kind)
	}
	return data, nil
}

// lines calls take for each line up to a flush packet.
func (p packetReader) lines(take func(line string) error) error {
	for range maxLines {
		content, err := p.next()
		if err != nil || content == nil {
			return err
		}
		if err := take(strings.TrimSuffix(string(content), "\n")); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: endless list", errProtocol)
}

// status reads lines up to a flush packet, and returns the last status among them, or before if there is none.
func (p packetReader) status(before string) (string, error) {
	status := before
	err := p.lines(func(line string) error {
		if text, ok := strings.CutPrefix(line, "status="); ok {
			status = text
		}
		return nil
	})
	return status, err
}

// copyTo writes the packets of one file to w. If w fails, it returns errOutput but still reads the remaining packets, so
// that the program can be used further.
func (p packetReader) copyTo(w io.Writer) error {
	var failed error
	for {
		content, err := p.next()
		if err != nil {
			return err
		}
		if content == nil {
			return failed
		}
		if failed == nil {
			if _, err := w.Write(content); err != nil {
				failed = fmt.Errorf("%w: %w", errOutput, err)
			}
		}
	}
}

// errOutput means that the filtered content could not be written; the program is not the cause.
var errOutput = errors.New("write filtered content")

// packetWriter writes buffered packets. flush returns the first write error.
type packetWriter struct {
	w *bufio.Writer
}

// line writes a packet with one line.
func (p packetWriter) line(text string) { p.packet([]byte(text + "\n")) }

// packet writes a packet with at most pktline.MaxData bytes.
func (p packetWriter) packet(content []byte) {
	p.w.Write(pktline.AppendHeader(p.w.AvailableBuffer(), len(content)))
	p.w.Write(content)
}

// content writes all of r as packets. It returns read errors of r; flush returns write errors.
func (p packetWriter) content(r io.Reader) error {
	buf := make([]byte, pktline.MaxData)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			p.packet(buf[:n])
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// end writes a flush packet.
func (p packetWriter) end() { p.w.Write(pktline.AppendFlush(p.w.AvailableBuffer())) }

// flush writes the buffered packets to the program.
func (p packetWriter) flush() error { return p.w.Flush() }
