package transport

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// maxCapabilities is the maximum number of capabilities in a server's message; agent is the name that this client
// sends.
const (
	maxCapabilities = 1000
	agent           = "artifactfs/1"
)

// parseCapabilities parses the first message of a server. In an answer over HTTP, a "# service" header and a flush
// packet may precede the capabilities. It returns ErrNoV2 if the message is not one of protocol version 2: a version 0
// message starts with a ref or, in an empty repository, with a flush packet.
func parseCapabilities(p *pktReader) (Capabilities, error) {
	var c Capabilities
	// Only answers over smart HTTP start with a service header.
	kind, line, err := p.line()
	if err == nil && kind == pktline.Data && bytes.Equal(line, []byte("# service=git-upload-pack")) {
		if kind, _, err = p.line(); err == nil && kind != pktline.Flush {
			return c, fmt.Errorf("%w: unexpected %v after the service header", errProtocol, kind)
		}
		kind, line, err = p.line()
	}
	if err != nil {
		return c, err
	}
	if kind != pktline.Data || !bytes.Equal(line, []byte("version 2")) {
		return c, ErrNoV2
	}
	// A usable server supports both ls-refs and fetch.
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
			return c, fmt.Errorf("%w: unexpected %v in place of capability %d", errProtocol, kind, n)
		}
		key, value, _ := strings.Cut(string(line), "=")
		if !isCapability(key, value) {
			return c, fmt.Errorf("%w: invalid capability %.80q", errProtocol, line)
		}
		// Unknown capabilities are ignored, as the protocol requires.
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
		return c, fmt.Errorf("%w: server does not offer both ls-refs and fetch", errProtocol)
	}
	return c, nil
}

// isCapability reports whether key and value have the syntax of gitprotocol-v2: letters, digits, '-' and '_' in the
// key, no control characters in the value.
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

// hasWord reports whether word is one of the words of s, which are separated by spaces.
func hasWord(s, word string) bool {
	for f := range strings.FieldsSeq(s) {
		if f == word {
			return true
		}
	}
	return false
}

// command returns the start of a request: the command name, the agent of this client if the server named its own agent,
// and the object format. The slice has capacity for room more bytes, which the caller will append.
func command(caps Capabilities, name string, room int) []byte {
	b := pktline.AppendLine(make([]byte, 0, 256+room), "command="+name)
	// The agent may be sent only to servers that send their agent (gitprotocol-v2, "agent").
	if caps.Agent != "" {
		b = pktline.AppendLine(b, "agent="+agent)
	}
	return pktline.AppendDelim(pktline.AppendLine(b, "object-format="+caps.Format.String()))
}
