package filter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// maxLines bounds the lines of a list, so that a program cannot talk for ever.
const maxLines = 10 * maxBatch

var errProtocol = errors.New("protocol error")

// packetReader reads the packets of a program.
type packetReader struct{ *pktline.Reader }

func newPacketReader(r io.Reader) packetReader {
	return packetReader{pktline.NewReader(r, pktline.MaxPacket)}
}

// next returns a packet's data until the following call; nil is a flush, and so is, as in git, an empty packet.
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

// lines returns each line to take, up to a flush.
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

// status reads lines up to a flush; the last status among them replaces the one before.
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

// copyTo writes a content's packets to w. what w refuses is errOutput; the rest is read all the same, so that the
// program can go on.
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

// errOutput says that the content could not be kept; it is not the program's fault.
var errOutput = errors.New("write filtered content")

// packetWriter writes packets through a buffer that flush empties. The first error stays.
type packetWriter struct {
	w *bufio.Writer
}

func (p packetWriter) line(text string) { p.packet([]byte(text + "\n")) }

func (p packetWriter) packet(content []byte) {
	p.w.Write(pktline.AppendHeader(p.w.AvailableBuffer(), len(content)))
	p.w.Write(content)
}

// content writes all of r; an error of r is returned, those of the program show at the end.
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

func (p packetWriter) end() { p.w.Write(pktline.AppendFlush(p.w.AvailableBuffer())) }

func (p packetWriter) flush() error { return p.w.Flush() }
