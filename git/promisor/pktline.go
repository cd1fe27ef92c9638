package promisor

import (
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/git/pktline"
)

// errProtocol means that bytes do not follow git's protocol.
var errProtocol = errors.New("invalid git protocol data")

// bufSize is the size in bytes of the read buffers.
const bufSize = 4 << 10

// readPacket returns the next packet. It returns errProtocol for an invalid length and for response-end packets, which
// this part of the protocol does not use.
func readPacket(r *pktline.Reader) (pktline.Kind, []byte, error) {
	kind, data, err := r.Next()
	switch {
	case errors.Is(err, pktline.ErrLength):
		return 0, nil, fmt.Errorf("%w: %w", errProtocol, err)
	case err == nil && kind == pktline.End:
		return 0, nil, fmt.Errorf("%w: unexpected %v", errProtocol, kind)
	}
	return kind, data, err
}

// errorPacket returns a packet that makes git fail with this text. It shortens the text to at most 1000 bytes.
func errorPacket(text string) []byte {
	text = "ERR artifactfs: " + text
	if len(text) > 1000 {
		text = text[:1000]
	}
	return pktline.Append(nil, text)
}
