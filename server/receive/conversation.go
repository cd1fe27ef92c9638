package receive

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/records"
)

// converse speaks with receive-pack in place of the hook proc-receive, by the protocol of githooks(5). The function
// decide returns an error for each update that is refused, with a text for the user of git. Push options are not
// requested, because they have no effect.
func converse(r io.Reader, w io.Writer, decide func(updates []records.RefUpdate, atomic bool) []error) error {
	packets := pktline.NewReader(r, 4096)
	atomic, err := readVersion(packets)
	if err != nil {
		return err
	}
	answer := "version=1"
	if atomic {
		answer += "\x00atomic"
	}
	if _, err := w.Write(pktline.AppendFlush(pktline.AppendLine(nil, answer))); err != nil {
		return fmt.Errorf("answer receive-pack in place of the hook: %w", err)
	}
	var updates []records.RefUpdate
	for {
		kind, data, err := packets.Next()
		if err != nil {
			return fmt.Errorf("read commands of receive-pack: %w", noEOF(err))
		}
		if kind == pktline.Flush {
			break
		}
		u, err := parseCommand(string(data))
		if err != nil {
			return fmt.Errorf("read commands of receive-pack: %w", err)
		}
		updates = append(updates, u)
	}
	var report []byte
	for i, err := range decide(updates, atomic) {
		if err == nil {
			report = pktline.AppendLine(report, "ok "+updates[i].Name)
		} else {
			report = pktline.AppendLine(report, "ng "+updates[i].Name+" "+oneLine(err.Error()))
		}
	}
	if _, err := w.Write(pktline.AppendFlush(report)); err != nil {
		return fmt.Errorf("report results to receive-pack: %w", err)
	}
	return nil
}

// readVersion reads the first message of receive-pack: "version=1", a zero byte, and the features that receive-pack
// supports. atomic is true if it supports atomic pushes.
func readVersion(packets *pktline.Reader) (atomic bool, err error) {
	_, data, err := packets.Next()
	if err != nil {
		return false, fmt.Errorf("read version of receive-pack: %w", noEOF(err))
	}
	version, features, _ := strings.Cut(strings.TrimSuffix(string(data), "\n"), "\x00")
	if version != "version=1" {
		return false, fmt.Errorf("read version of receive-pack: %.100q is not supported", version)
	}
	for name := range strings.FieldsSeq(features) {
		atomic = atomic || name == "atomic"
	}
	for {
		kind, _, err := packets.Next()
		if err != nil {
			return false, fmt.Errorf("read version of receive-pack: %w", noEOF(err))
		}
		if kind == pktline.Flush {
			return atomic, nil
		}
	}
}

// noEOF returns io.ErrUnexpectedEOF for io.EOF, and every other error unchanged.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// oneLine returns a text without control characters, cut to the maximum length that git shows.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return text[:min(len(text), 500)]
}
