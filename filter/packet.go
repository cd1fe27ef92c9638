package filter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	// maxPacket is the largest content of a packet in bytes, as git writes and takes it.
	maxPacket = 65520 - 4
	// maxLines bounds the lines of a list, so that a program cannot talk for ever.
	maxLines = 10 * maxBatch
)

var errProtocol = errors.New("protocol error")

// packetReader reads packets: four hexadecimal digits that count themselves and the content behind them.
type packetReader struct {
	r   *bufio.Reader
	buf [maxPacket]byte
}

// next gives a packet's content until the following call; nil is a flush, and so is, in git, an empty packet.
func (p *packetReader) next() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return nil, err
	}
	n := 0
	for _, c := range head {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int(c-'a'+10)
		case c >= 'A' && c <= 'F':
			n = n<<4 | int(c-'A'+10)
		default:
			return nil, fmt.Errorf("%w: packet of length %q", errProtocol, head)
		}
	}
	switch {
	case n == 0 || n == 4:
		return nil, nil
	case n < 4 || n-4 > maxPacket:
		return nil, fmt.Errorf("%w: packet of length %q", errProtocol, head)
	}
	content := p.buf[:n-4]
	if _, err := io.ReadFull(p.r, content); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return content, nil
}

// lines gives each line to take, up to a flush.
func (p *packetReader) lines(take func(line string) error) error {
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
func (p *packetReader) status(before string) (string, error) {
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
func (p *packetReader) copyTo(w io.Writer) error {
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
	fmt.Fprintf(p.w, "%04x", len(content)+4)
	p.w.Write(content)
}

// content writes all of r; an error of r is returned, those of the program show at the end.
func (p packetWriter) content(r io.Reader) error {
	buf := make([]byte, maxPacket)
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

func (p packetWriter) end() { io.WriteString(p.w, "0000") }

func (p packetWriter) flush() error { return p.w.Flush() }
