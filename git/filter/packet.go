package filter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// maxLines is the maximum number of lines in a list, so that a program cannot send an endless list.
const maxLines = 10 * maxBatch

// errProtocol means that a program has violated the long-running filter protocol.
var errProtocol = errors.New("filter program violated the filter protocol")

// packetReader reads the packets (gitprotocol-common(5)) that a program sends.
type packetReader struct{ *pktline.Reader }

// newPacketReader returns a reader of packets from r, of at most pktline.MaxPacket bytes each.
func newPacketReader(r io.Reader) packetReader {
	return packetReader{pktline.NewReader(r, pktline.MaxPacket)}
}

// next returns the data of the next packet; the data are valid until the next call. It returns nil for a flush packet
// and, like git, for an empty packet.
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
		return nil, fmt.Errorf("%w: unexpected %v", errProtocol, kind)
	}
	return data, nil
}

// lines calls the function take for each line up to the next flush packet, without the line end. It returns the first
// error of take.
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
	return fmt.Errorf("%w: list has more than %d lines", errProtocol, maxLines)
}

// status reads lines up to the next flush packet. It returns the last status among these lines. If no line is a status,
// it returns the status in the parameter before.
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

// copyTo copies the data of packets to w up to the next flush packet. If w fails, the error wraps errOutput; copyTo
// still reads the remaining packets, so that the program can be used for other files.
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

// errOutput means that the filtered contents could not be written to File.Out, which is not a fault of the program.
var errOutput = errors.New("write filtered contents")

// packetWriter writes packets to a program, through a buffer. Only the method flush returns an error of a write: the
// first error since the packetWriter was created.
type packetWriter struct {
	w *bufio.Writer
}

// line writes a packet that contains one line.
func (p packetWriter) line(text string) { p.packet([]byte(text + "\n")) }

// packet writes a packet with the given data, at most pktline.MaxData bytes.
func (p packetWriter) packet(content []byte) {
	p.w.Write(pktline.AppendHeader(p.w.AvailableBuffer(), len(content)))
	p.w.Write(content)
}

// content reads r to its end and writes the contents as packets. It returns an error of r. An error of a write is
// returned by flush.
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
