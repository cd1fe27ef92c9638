package receive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/records"
)

// maxCommands is the maximum size, in bytes, of the part of a push before the pack. It suffices for about 100,000 refs.
const maxCommands = 16 << 20

// ErrRequest means that the body of a request is not a push.
var ErrRequest = errors.New("body of the request is not a valid push")

// Commands is the first part of a push (gitprotocol-pack(5), "Reference Update Request").
type Commands struct {
	Updates []records.RefUpdate
	Atomic  bool

	report, sideBand bool // whether the client reads a report, and in packets of side-band-64k
}

// Failure returns a report in the form of receive-pack that nothing was unpacked because of a text; nil if the client
// reads none.
func (c Commands) Failure(text string) []byte {
	if !c.report {
		return nil
	}
	report := pktline.AppendLine(nil, "unpack "+text)
	for _, u := range c.Updates {
		report = pktline.AppendLine(report, "ng "+u.Name+" unpacker error")
	}
	report = pktline.AppendFlush(report)
	if !c.sideBand {
		return report
	}
	var bands []byte
	for part := range slices.Chunk(report, pktline.MaxData-1) {
		bands = append(append(pktline.AppendHeader(bands, len(part)+1), 1), part...)
	}
	return pktline.AppendFlush(bands)
}

// OnlyRemovals reports whether all updates remove refs, so that the push contains no objects.
func (c Commands) OnlyRemovals() bool {
	return !slices.ContainsFunc(c.Updates, func(u records.RefUpdate) bool { return !u.Removes() })
}

// ReadCommands reads the commands of a push from its body. It returns a reader of the whole body, including the
// commands.
func ReadCommands(body io.Reader) (Commands, io.Reader, error) {
	var c Commands
	var raw bytes.Buffer
	packets := pktline.NewReader(io.TeeReader(body, &raw), 4096)
	for size := 0; ; {
		kind, data, err := packets.Next()
		switch {
		case errors.Is(err, pktline.ErrLength), err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
			return c, nil, fmt.Errorf("%w: %v", ErrRequest, err)
		case err != nil:
			return c, nil, err
		case kind == pktline.Flush:
			return c, io.MultiReader(&raw, body), nil
		case kind != pktline.Data:
			return c, nil, fmt.Errorf("%w: unexpected %v between commands", ErrRequest, kind)
		}
		if size += len(data); size > maxCommands {
			return c, nil, fmt.Errorf("%w: commands have more than %d bytes", ErrRequest, maxCommands)
		}
		if bytes.HasPrefix(data, []byte("shallow ")) {
			continue
		}
		line, capabilities, first := strings.Cut(string(data), "\x00")
		u, err := parseCommand(line)
		if err != nil {
			return c, nil, err
		}
		if first && len(c.Updates) == 0 {
			for name := range strings.FieldsSeq(capabilities) {
				c.Atomic = c.Atomic || name == "atomic"
				c.report = c.report || name == "report-status" || name == "report-status-v2"
				c.sideBand = c.sideBand || name == "side-band-64k"
			}
		}
		c.Updates = append(c.Updates, u)
	}
}

// parseCommand parses "OLD NEW REF".
func parseCommand(line string) (records.RefUpdate, error) {
	line = strings.TrimSuffix(line, "\n")
	old, rest, _ := strings.Cut(line, " ")
	id, name, _ := strings.Cut(rest, " ")
	if !object.ValidID(old) || !object.ValidID(id) || len(old) != len(id) || name == "" {
		return records.RefUpdate{}, fmt.Errorf("%w: command %.100q", ErrRequest, line)
	}
	return records.RefUpdate{Name: name, Old: old, New: id}, nil
}
