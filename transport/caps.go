package transport

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/object"
)

// Limits and names of the capability exchange.
const (
	maxCapabilities = 1000
	agent           = "artifactfs/1"
)

// parseCapabilities reads a server's first message. Over HTTP a "# service" header and a flush may
// precede it. It returns ErrNoV2 for a message that is not of protocol version 2: version 0 starts
// with a ref or, if there is none, a flush.
func parseCapabilities(p *pktReader) (Capabilities, error) {
	var c Capabilities
	// The service header precedes the capabilities only in answers of smart HTTP.
	kind, line, err := p.line()
	if err == nil && kind == pktline.Data && bytes.Equal(line, []byte("# service=git-upload-pack")) {
		if kind, _, err = p.line(); err == nil && kind != pktline.Flush {
			return c, fmt.Errorf("%w: %v behind the service header", errProtocol, kind)
		}
		kind, line, err = p.line()
	}
	if err != nil {
		return c, err
	}
	if kind != pktline.Data || !bytes.Equal(line, []byte("version 2")) {
		return c, ErrNoV2
	}
	// A usable server offers both ls-refs and fetch.
	var refs, fetch bool
	for n := 0; ; n++ {
		kind, line, err := p.line()
		if err != nil {
			return c, cut(err)
		}
		if kind == pktline.Flush {
			break
		}
		if kind != pktline.Data || n >= maxCapabilities {
			return c, fmt.Errorf("%w: %v as capability %d", errProtocol, kind, n)
		}
		key, value, _ := strings.Cut(string(line), "=")
		if !isCapability(key, value) {
			return c, fmt.Errorf("%w: capability %.80q", errProtocol, line)
		}
		// Capabilities that are not listed are ignored, as the protocol requires.
		switch key {
		case "agent":
			c.Agent = value
		case "ls-refs":
			refs = true
			c.unborn = hasWord(value, "unborn")
		case "fetch":
			fetch = true
			c.Shallow, c.Filter, c.RefInWant = hasWord(value, "shallow"), hasWord(value, "filter"), hasWord(value, "ref-in-want")
		case "object-info":
			c.ObjectInfo = true
		case "object-format":
			if c.Format, err = object.ParseFormat(value); err != nil {
				return c, fmt.Errorf("%w: %w", errProtocol, err)
			}
		}
	}
	if !refs || !fetch {
		return c, fmt.Errorf("%w: server offers no ls-refs or no fetch", errProtocol)
	}
	return c, nil
}

// isCapability reports whether key and value follow gitprotocol-v2: letters, digits, '-' and '_' in
// the key, no control characters in the value.
func isCapability(key, value string) bool {
	if key == "" {
		return false
	}
	for i := 0; i < len(key); i++ {
		c := key[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	for i := 0; i < len(value); i++ {
		if value[i] < ' ' || value[i] == 0x7f {
			return false
		}
	}
	return true
}

// hasWord reports whether s, a list of words, contains word.
func hasWord(s, word string) bool {
	for f := range strings.FieldsSeq(s) {
		if f == word {
			return true
		}
	}
	return false
}

// command begins a request: the command, the client's agent, and the object format.
func command(caps Capabilities, name string, room int) []byte {
	b := pktline.AppendLine(make([]byte, 0, 256+room), "command="+name)
	// The agent may be sent only to servers that state theirs (gitprotocol-v2, "agent").
	if caps.Agent != "" {
		b = pktline.AppendLine(b, "agent="+agent)
	}
	return pktline.AppendDelim(pktline.AppendLine(b, "object-format="+caps.Format.String()))
}
