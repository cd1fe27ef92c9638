package promisor

import (
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/internal/pktline"
)

// errProtocol reports bytes that are not git's protocol.
var errProtocol = errors.New("not git's protocol")

// bufSize is the size in bytes of the buffers that requests and answers are read through.
const bufSize = 4 << 10

// readPacket is Next with errProtocol for packets that this protocol does not have.
func readPacket(r *pktline.Reader) (pktline.Kind, []byte, error) {
	kind, data, err := r.Next()
	switch {
	case errors.Is(err, pktline.ErrLength):
		return 0, nil, fmt.Errorf("%w: %w", errProtocol, err)
	case err == nil && kind == pktline.End:
		return 0, nil, fmt.Errorf("%w: %v", errProtocol, kind)
	}
	return kind, data, err
}

// errorPacket makes git fail with a text.
func errorPacket(text string) []byte {
	text = "ERR artifactfs: " + text
	if len(text) > 1000 {
		text = text[:1000]
	}
	return pktline.Append(nil, text)
}
