package transport

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// maxShallow is the maximum number of shallow commits that a server may list.
const maxShallow = 1 << 20

// fetchMessage returns a request for a pack without negotiation: the request ends with "done", so the server sends the
// pack at once and does not report which of the haves it knows. The request does not allow a thin pack, because the
// bases of its deltas may be missing on this host, and it suppresses progress messages.
func fetchMessage(caps Capabilities, req FetchRequest) ([]byte, error) {
	switch {
	case len(req.Wants) == 0:
		return nil, errors.New("fetch request contains no object IDs")
	case req.Filter != "" && !caps.Filter:
		// Without support for filters, the server would ignore the filter and send all contents.
		return nil, errors.New("server does not support filters")
	case req.Depth < 0, req.Depth > 0 && !caps.Shallow:
		return nil, fmt.Errorf("server does not support fetches with depth %d", req.Depth)
	case len(req.Filter) > 1000 || strings.ContainsAny(req.Filter, "\n\x00"):
		return nil, fmt.Errorf("invalid filter %.80q", req.Filter)
	}
	b := command(caps, "fetch", len(req.Wants)*(2*caps.Format.Size()+10))
	b = pktline.AppendLine(b, "no-progress")
	b = pktline.AppendLine(b, "ofs-delta")
	if req.Tags {
		b = pktline.AppendLine(b, "include-tag")
	}
	if req.Filter != "" {
		b = pktline.AppendLine(b, "filter "+req.Filter)
	}
	if req.Depth > 0 {
		b = pktline.AppendLine(b, "deepen "+strconv.Itoa(req.Depth))
	}
	// A repository has one hash format, so the ids must have the hash format of the server.
	for _, id := range req.Wants {
		if id.IsZero() || id.Format() != caps.Format {
			return nil, fmt.Errorf("object ID %q is not in the server's hash format %v", id, caps.Format)
		}
		b = pktline.AppendLine(b, "want "+id.String())
	}
	for _, id := range req.Haves {
		b = pktline.AppendLine(b, "have "+id.String())
	}
	return pktline.AppendFlush(pktline.AppendLine(b, "done")), nil
}

// parseFetch reads the sections of an answer up to the first packet of the packfile section. It returns the ids of the
// shallow-info section.
func parseFetch(p *pktReader, f object.Format) (shallow []object.ID, err error) {
	for {
		kind, line, err := p.line()
		if err != nil {
			return nil, cut(err)
		}
		if kind != pktline.Data {
			return nil, fmt.Errorf("%w: unexpected %v in place of a section header", errProtocol, kind)
		}
		switch string(line) {
		case "packfile":
			return shallow, nil
		case "shallow-info":
			if shallow, err = parseShallow(p, f); err != nil {
				return nil, err
			}
		default: // acknowledgments, wanted-refs and packfile-uris were not requested
			return nil, fmt.Errorf("%w: unexpected section %.80q in the fetch response", errProtocol, line)
		}
	}
}

// parseShallow reads "shallow <id>" lines up to the delimiter packet.
func parseShallow(p *pktReader, f object.Format) ([]object.ID, error) {
	var ids []object.ID
	for n := 0; ; n++ {
		kind, line, err := p.line()
		if err != nil {
			return nil, cut(err)
		}
		if kind == pktline.Delim {
			return ids, nil
		}
		name, ok := strings.CutPrefix(string(line), "shallow ")
		if kind != pktline.Data || !ok || n >= maxShallow {
			return nil, fmt.Errorf("%w: invalid shallow line %d: %v %.80q", errProtocol, n, kind, line)
		}
		id, err := parseID(f, name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
}

// startPack reads an answer up to the first byte of its pack, so that a failure before that byte can be retried.
func (r *Remote) startPack(a *answer, f object.Format) (*FetchResponse, error) {
	shallow, err := parseFetch(a.pktReader, f)
	if err != nil {
		return nil, err
	}
	// p.left becomes greater than zero when the header of a packet with pack data was read.
	p := &pack{a: a, remote: r}
	for p.left == 0 {
		if err := p.step(); err != nil {
			return nil, cut(err) // the end of the input is an error, because a pack is never empty
		}
	}
	return &FetchResponse{Shallow: shallow, Relayed: a.front != nil, Pack: p}, nil
}

// Bands of side-band-64k (gitprotocol-pack). The first byte of each packet names the band.
const (
	bandData     = 1
	bandProgress = 2
	bandError    = 3
)

// pack reads the pack from band 1 of an answer. Only one goroutine may call Read at a time; Close may be called by
// another goroutine during a Read.
type pack struct {
	a      *answer
	remote *Remote
	left   int   // bytes of the current packet that are still to be read
	err    error // why the pack ended: io.EOF after a complete pack
}

// step reads the header of the next packet. If the packet contains no pack data, step also reads its body. It returns
// io.EOF at the regular end of the answer.
func (p *pack) step() error {
	kind, n, err := p.a.header()
	if err != nil {
		return cut(err)
	}
	if kind == pktline.Flush {
		return io.EOF
	}
	if kind != pktline.Data || n == 0 {
		return fmt.Errorf("%w: unexpected %v of %d bytes in a pack", errProtocol, kind, n)
	}
	if err := p.a.Fill(1); err != nil {
		return cut(err)
	}
	// The first byte of the packet names the band.
	band := p.a.Buffered()[0]
	p.a.Discard(1)
	n--
	switch band {
	case bandData:
		p.left = n
		return nil
	case bandProgress, bandError:
		if err := p.a.Fill(n); err != nil {
			return cut(err)
		}
		// The text remains valid until the next read from the buffer.
		text := p.a.Buffered()[:n]
		p.a.Discard(n)
		if band == bandError {
			return parseRemoteError(text)
		}
		return nil
	}
	return fmt.Errorf("%w: unknown side band %d", errProtocol, band)
}

// Read copies the data of all packets that have arrived, so that small packets do not need one call each. It blocks
// only if no data has arrived.
func (p *pack) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && p.err == nil {
		// Continue only if more bytes are buffered, because a call that has already copied data must not block.
		if p.left == 0 {
			if n > 0 && !p.a.Ready() {
				break
			}
			if err := p.step(); err != nil {
				p.end(err)
			}
			continue
		}
		if len(p.a.Buffered()) == 0 {
			if n > 0 {
				break
			}
			if err := p.a.Fill(1); err != nil {
				p.end(cut(err))
				continue
			}
		}
		rest := p.a.Buffered()
		m := copy(b[n:], rest[:min(len(rest), p.left)])
		p.a.Discard(m)
		p.left -= m
		n += m
	}
	if n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, p.err
}

// end records err as the reason why the pack has ended. After a complete pack (io.EOF) the connection can be used
// again; in every other case the connection is dropped.
func (p *pack) end(err error) {
	p.a.front.report(err)
	if err == io.EOF {
		p.a.finish()
		p.err = err
		return
	}
	p.a.abort()
	p.err = fmt.Errorf("read pack from %s: %w", p.remote.URL(), streamFault(err))
	// Stats.LastError records only faults of the network, no error messages of the server.
	if isFault(err) || errors.Is(p.err, io.ErrUnexpectedEOF) {
		p.remote.stats.fail(p.err)
	}
}

// Close drops the connection if the pack has not been read to its end. A Read that is blocked in another goroutine then
// returns.
func (p *pack) Close() error {
	p.a.abort()
	return nil
}
