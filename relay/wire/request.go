// Package wire reads and writes the messages of git's protocol version 2 that a relay has to understand: requests of
// clients, answers of git servers to them, and packs in the side bands of answers. The formats are those of git's
// Documentation/gitprotocol-v2.txt and gitprotocol-pack.txt. Both sides are untrusted.
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// errFormat means that a message is not one of protocol version 2.
var errFormat = errors.New("invalid message of git's protocol version 2")

// Request is the request of a client.
type Request struct {
	Command string        // name of the command, such as "fetch"
	Format  object.Format // object format of the repository

	// The fields below belong to the command fetch. Wants has the requested objects, each once.
	Wants  []object.ID // each once
	Depth  int         // number of generations of history; 0: all
	Filter string      // filter of objects; "": none
	// Shallow reports whether the client has named commits whose parents it lacks. The answer then has a list of such
	// commits.
	Shallow bool
	// Plain is true if the answer depends only on the fields above. It is false if the client states objects that it
	// has, negotiates, or wants refs by their names.
	Plain bool

	Sizes []object.ID // for the command object-info: the objects whose sizes are requested
	Size  bool        // for the command object-info: true if the request asks for the sizes of objects and nothing else

	wanted map[object.ID]bool
}

// ParseRequest parses a request. It also returns an error for a request in another version of the protocol; a relay
// passes such a request to the git server unchanged.
func ParseRequest(body []byte) (Request, error) {
	r := Request{Plain: true, Size: true, wanted: map[object.ID]bool{}}
	p := pktline.NewReader(bytes.NewReader(body), pktline.MaxPacket)
	done, arguments, size := false, false, false
	for n := 0; ; n++ {
		kind, data, err := p.Next()
		if err != nil {
			return r, fmt.Errorf("%w: %w", errFormat, noEOF(err))
		}
		switch kind {
		case pktline.Flush:
			r.Plain = r.Plain && done
			r.Size = r.Size && size
			if r.Command == "" {
				return r, fmt.Errorf("%w: request has no command", errFormat)
			}
			return r, nil
		case pktline.Delim:
			if arguments {
				return r, fmt.Errorf("%w: request has a second delimiter", errFormat)
			}
			arguments = true
			continue
		case pktline.Data:
		default:
			return r, fmt.Errorf("%w: unexpected %v", errFormat, kind)
		}
		line := strings.TrimSuffix(string(data), "\n")
		if !arguments {
			if err := r.capability(n, line); err != nil {
				return r, err
			}
			continue
		}
		switch {
		case line == "done":
			done = true
		case r.Command == "object-info" && line == "size":
			size = true
		default:
			if err := r.argument(line); err != nil {
				return r, err
			}
		}
	}
}

// capability parses line n of a request, which is before the delimiter.
func (r *Request) capability(n int, line string) error {
	key, value, _ := strings.Cut(line, "=")
	switch {
	case n == 0 && key != "command", n > 0 && key == "command":
		return fmt.Errorf("%w: invalid line %d: %.40q", errFormat, n, line)
	case key == "command":
		r.Command = value
	case key == "object-format":
		f, err := object.ParseFormat(value)
		if err != nil {
			return fmt.Errorf("%w: %w", errFormat, err)
		}
		r.Format = f
	}
	return nil
}

// argument parses an argument of the commands fetch and object-info.
func (r *Request) argument(line string) error {
	verb, value, _ := strings.Cut(line, " ")
	var err error
	switch {
	case r.Command == "object-info" && verb == "oid":
		var id object.ID
		id, err = object.ParseIDOf(r.Format, value)
		r.Sizes = append(r.Sizes, id)
	case r.Command == "object-info":
		r.Size = false
	case r.Command != "fetch":
	case verb == "want":
		var id object.ID
		// ignore duplicates, because git names a commit once for each ref that points to it
		if id, err = object.ParseIDOf(r.Format, value); !r.wanted[id] {
			r.Wants = append(r.Wants, id)
			r.wanted[id] = true
		}
	case verb == "deepen":
		r.Depth, err = strconv.Atoi(value)
		r.Plain = r.Plain && r.Depth > 0
	case verb == "shallow":
		r.Shallow = true
	case verb == "filter":
		r.Filter = value
	// These arguments permit a server to send fewer bytes, or more objects. The server may ignore them.
	case line == "thin-pack", line == "ofs-delta", line == "no-progress", line == "include-tag":
	default:
		r.Plain = false
	}
	if err != nil {
		return fmt.Errorf("%w: argument %.80q", errFormat, line)
	}
	return nil
}

// noEOF returns io.ErrUnexpectedEOF in place of io.EOF, because every message ends with a flush packet.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// begin returns the start of a request, up to its arguments.
func begin(command string, f object.Format, room int) []byte {
	b := pktline.AppendLine(make([]byte, 0, 256+room), "command="+command)
	return pktline.AppendDelim(pktline.AppendLine(b, "object-format="+f.String()))
}

// Fetch returns the request for a pack of the wants, without negotiation. depth is 0 for all commits, and filter is ""
// for no filter.
func Fetch(f object.Format, wants []object.ID, depth int, filter string) []byte {
	b := begin("fetch", f, len(wants)*(2*f.Size()+10))
	b = pktline.AppendLine(b, "no-progress")
	b = pktline.AppendLine(b, "ofs-delta")
	if filter != "" {
		b = pktline.AppendLine(b, "filter "+filter)
	}
	if depth > 0 {
		b = pktline.AppendLine(b, "deepen "+strconv.Itoa(depth))
	}
	for _, id := range wants {
		b = pktline.AppendLine(b, "want "+id.String())
	}
	return pktline.AppendFlush(pktline.AppendLine(b, "done"))
}

// ObjectInfo returns the request for the sizes of objects.
func ObjectInfo(f object.Format, ids []object.ID) []byte {
	b := pktline.AppendLine(begin("object-info", f, len(ids)*(2*f.Size()+10)), "size")
	for _, id := range ids {
		b = pktline.AppendLine(b, "oid "+id.String())
	}
	return pktline.AppendFlush(b)
}
