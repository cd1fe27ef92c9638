package transport

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// infoMessage returns the object-info request for the sizes of ids. All ids must have the server's hash format.
func infoMessage(caps Capabilities, ids []object.ID) ([]byte, error) {
	if !caps.ObjectInfo {
		return nil, errors.New("server does not support object-info requests")
	}
	b := pktline.AppendLine(command(caps, "object-info", len(ids)*(2*caps.Format.Size()+9)), "size")
	for _, id := range ids {
		if id.IsZero() || id.Format() != caps.Format {
			return nil, fmt.Errorf("object ID %q is not in the server's hash format %v", id, caps.Format)
		}
		b = pktline.AppendLine(b, "oid "+id.String())
	}
	return pktline.AppendFlush(b), nil
}

// parseInfo parses an answer to object-info: the word "size", then a line "<id> <size>" for each object. If the server
// does not have an object, the size in its line is empty and the returned size is -1. git answers in the order of the
// request. If a server answers in another order, parseInfo builds a map from ids to positions.
func parseInfo(p *pktReader, f object.Format, ids []object.ID) ([]int64, error) {
	kind, line, err := p.line()
	if err != nil {
		return nil, cut(err)
	}
	sizes := make([]int64, len(ids))
	for i := range sizes {
		sizes[i] = -1
	}
	if kind == pktline.Flush { // the server knows none of the objects
		return sizes, nil
	}
	if kind != pktline.Data || string(line) != "size" {
		return nil, fmt.Errorf("%w: object-info response starts with %v %.80q, want \"size\"", errProtocol, kind, line)
	}
	// The map at contains, for each id, its position in ids. It is built only if the server answers in another order.
	var at map[object.ID]int
	for n := 0; ; n++ {
		kind, line, err := p.line()
		if err != nil {
			return nil, cut(err)
		}
		if kind == pktline.Flush {
			return sizes, nil
		}
		// A server must not send more lines than the request has ids.
		if kind != pktline.Data || n >= len(ids) {
			return nil, fmt.Errorf("%w: unexpected %v in place of object-info line %d", errProtocol, kind, n)
		}
		id, size, err := parseInfoLine(f, string(line))
		if err != nil {
			return nil, err
		}
		i := n
		if ids[n] != id {
			if at == nil {
				at = make(map[object.ID]int, len(ids))
				for i, id := range ids {
					at[id] = i
				}
			}
			var ok bool
			if i, ok = at[id]; !ok {
				return nil, fmt.Errorf("%w: object-info response has the size of object %s, which was not requested",
					errProtocol, id)
			}
		}
		sizes[i] = size
	}
}

// parseInfoLine parses one line "<id> <size>". The size is -1 if the server does not have the object.
func parseInfoLine(f object.Format, line string) (object.ID, int64, error) {
	name, digits, _ := strings.Cut(line, " ")
	id, err := parseID(f, name)
	if err != nil || digits == "" {
		return id, -1, err
	}
	size, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return id, -1, fmt.Errorf("%w: invalid object-info line %.120q", errProtocol, line)
	}
	return id, int64(size), nil
}
