package promisor

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// maxWants is the maximum number of objects in one request.
const maxWants = 1 << 20

// request is one command of git, such as fetch, with its arguments.
type request struct {
	command string
	wants   []object.ID
	done    bool
}

// advertisement returns the first message of the server, which states its capabilities.
func advertisement(f object.Format) []byte {
	b := pktline.AppendLine(nil, "version 2")
	b = pktline.AppendLine(b, "agent=artifactfs")
	b = pktline.AppendLine(b, "ls-refs")
	b = pktline.AppendLine(b, "fetch=shallow filter")
	b = pktline.AppendLine(b, "object-format="+f.String())
	return pktline.AppendFlush(b)
}

// readRequest reads one command. It returns io.EOF when git has ended the conversation.
func readRequest(r *pktline.Reader, f object.Format) (request, error) {
	var q request
	for first := true; ; first = false {
		kind, data, err := readPacket(r)
		switch {
		case err == io.EOF && first, err == nil && kind == pktline.Flush && first:
			return q, io.EOF
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return q, fmt.Errorf("%w: request is truncated", errProtocol)
		case err != nil:
			return q, err
		case kind == pktline.Flush:
			return q, nil
		case kind == pktline.Delim:
			continue
		}
		line := strings.TrimSuffix(string(data), "\n") // the line feed is optional
		key, value, _ := strings.Cut(line, " ")
		switch {
		case first:
			var ok bool
			if q.command, ok = strings.CutPrefix(line, "command="); !ok {
				return q, fmt.Errorf("%w: request begins with %.80q, want a command", errProtocol, line)
			}
		case key == "want":
			id, err := object.ParseID(value)
			if err != nil || id.Format() != f || len(q.wants) == maxWants {
				return q, fmt.Errorf("%w: invalid want %.80q", errProtocol, value)
			}
			q.wants = append(q.wants, id)
		case line == "done":
			q.done = true
		}
		// Ignore the other arguments. They describe the format of the pack, which is irrelevant because the requested objects
		// are not sent in the pack, or the objects that git has, which this process can read.
	}
}

// nothingPack returns a packfile section with a pack that contains only the empty blob. The requested objects are not
// in the pack, because they are in the object directories that git uses. git stores the pack, always under the same
// name. A pack without objects would also be valid, but the geometric repack of git 2.55 expects each pack to contain
// objects.
func nothingPack(f object.Format, done bool) []byte {
	var b []byte
	if !done {
		b = pktline.AppendLine(b, "acknowledgments")
		b = pktline.AppendLine(b, "ready")
		b = pktline.AppendDelim(b)
	}
	b = pktline.AppendLine(b, "packfile")
	content := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01" + // version 2, one entry:
		"\x30" + "\x78\x9c\x03\x00\x00\x00\x00\x01") // a blob of size 0, and its deflated contents
	sum := f.New()
	sum.Write(content)
	pack := sum.Sum(append([]byte{1}, content...)) // 1 is the side band for pack data
	return pktline.AppendFlush(pktline.Append(b, pack))
}
