package wire

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
)

// maxShallow is the maximum number of shallow commits in an answer.
const maxShallow = 1 << 20

// Refused is an error message that a git server has sent.
type Refused struct{ Text string }

// Error returns the message, as one line.
func (e Refused) Error() string { return fmt.Sprintf("git server reported %.200q", e.Text) }

// FetchAnswer is the answer to a fetch without negotiation. Reading from it returns the bytes of the pack.
type FetchAnswer struct {
	Shallow  []object.ID // commits whose parents the answer does not contain
	Deepened bool        // whether the answer has a list of shallow commits; the list may be empty

	p    *pktline.Reader
	left int // number of bytes of the current packet that were not read yet
	err  error
}

// ReadFetch reads an answer up to the start of its pack. The error is a Refused if the git server has refused the
// request.
func ReadFetch(r io.Reader, f object.Format) (*FetchAnswer, error) {
	a := &FetchAnswer{p: pktline.NewReader(r, 2*pktline.MaxPacket)}
	for {
		kind, data, err := a.p.Next()
		if err != nil {
			return nil, fmt.Errorf("read answer: %w", noEOF(err))
		}
		line := strings.TrimSuffix(string(data), "\n")
		if text, ok := strings.CutPrefix(line, "ERR "); ok {
			return nil, Refused{text}
		}
		switch {
		case kind == pktline.Data && line == "packfile":
			return a, nil
		case kind == pktline.Data && line == "shallow-info" && !a.Deepened:
			a.Deepened = true
			if err := a.readShallow(f); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%w: section %.40q", errFormat, line)
		}
	}
}

// readShallow reads the lines of the section shallow-info, up to the delimiter packet.
func (a *FetchAnswer) readShallow(f object.Format) error {
	for {
		kind, data, err := a.p.Next()
		if err != nil {
			return fmt.Errorf("read answer: %w", noEOF(err))
		}
		if kind == pktline.Delim {
			return nil
		}
		text, ok := strings.CutPrefix(strings.TrimSuffix(string(data), "\n"), "shallow ")
		id, err := object.ParseIDOf(f, text)
		if kind != pktline.Data || !ok || err != nil || len(a.Shallow) == maxShallow {
			return fmt.Errorf("%w: invalid line %.80q in shallow-info", errFormat, data)
		}
		a.Shallow = append(a.Shallow, id)
	}
}

// Bands of side-band-64k.
const (
	bandData     = 1
	bandProgress = 2
	bandError    = 3
)

// Read implements io.Reader. It returns io.EOF after the flush packet that ends the answer.
func (a *FetchAnswer) Read(b []byte) (int, error) {
	for a.err == nil && a.left == 0 {
		a.err = a.step()
	}
	if a.err != nil || len(b) == 0 {
		return 0, a.err
	}
	if len(a.p.Buffered()) == 0 {
		if err := a.p.Fill(1); err != nil {
			a.err = noEOF(err)
			return 0, a.err
		}
	}
	have := a.p.Buffered()
	n := copy(b, have[:min(len(have), a.left)])
	a.p.Discard(n)
	a.left -= n
	return n, nil
}

// step reads the header of the next packet, and the whole packet if it contains no bytes of the pack.
func (a *FetchAnswer) step() error {
	kind, n, err := a.p.Header()
	switch {
	case err != nil:
		return noEOF(err)
	case kind == pktline.Flush:
		return io.EOF
	case kind != pktline.Data || n == 0:
		return fmt.Errorf("%w: unexpected %v in a pack", errFormat, kind)
	}
	if err := a.p.Fill(1); err != nil {
		return noEOF(err)
	}
	band := a.p.Buffered()[0]
	a.p.Discard(1)
	if n--; band == bandData {
		a.left = n
		return nil
	}
	if err := a.p.Fill(n); err != nil {
		return noEOF(err)
	}
	text := string(a.p.Buffered()[:n])
	a.p.Discard(n)
	switch band {
	case bandProgress:
		return nil
	case bandError:
		return Refused{text}
	}
	return fmt.Errorf("%w: unknown side band %d", errFormat, band)
}

// ReadSizes reads the answer to an object-info request for the sizes of ids, and returns them in bytes. A size is -1 if
// the server does not have the object.
func ReadSizes(r io.Reader, f object.Format, ids []object.ID) ([]int64, error) {
	at := make(map[object.ID]int, len(ids))
	sizes := make([]int64, len(ids))
	for i, id := range ids {
		at[id], sizes[i] = i, -1
	}
	p := pktline.NewReader(r, pktline.MaxPacket)
	for n := 0; ; n++ {
		kind, data, err := p.Next()
		if err != nil {
			return nil, fmt.Errorf("read sizes: %w", noEOF(err))
		}
		line := strings.TrimSuffix(string(data), "\n")
		if text, ok := strings.CutPrefix(line, "ERR "); ok {
			return nil, Refused{text}
		}
		switch {
		case kind == pktline.Flush:
			return sizes, nil
		case kind == pktline.Data && n == 0 && line == "size":
		case kind == pktline.Data && n > 0 && n <= len(ids):
			text, size, _ := strings.Cut(line, " ")
			id, err := object.ParseIDOf(f, text)
			i, known := at[id]
			if err != nil || !known {
				return nil, fmt.Errorf("%w: no size for object in line %.80q", errFormat, line)
			}
			if size == "" {
				continue
			}
			if sizes[i], err = strconv.ParseInt(size, 10, 64); err != nil || sizes[i] < 0 {
				return nil, fmt.Errorf("%w: invalid size in line %.80q", errFormat, line)
			}
		default:
			return nil, fmt.Errorf("%w: line %.80q in place of a size", errFormat, line)
		}
	}
}

// AppendSizes appends the answer to an object-info request for ids. The function size returns the size of an object in
// bytes.
func AppendSizes(b []byte, ids []object.ID, size func(object.ID) (int64, bool)) []byte {
	b = pktline.AppendLine(b, "size")
	for _, id := range ids {
		text := ""
		if n, ok := size(id); ok {
			text = strconv.FormatInt(n, 10)
		}
		b = pktline.AppendLine(b, id.String()+" "+text)
	}
	return pktline.AppendFlush(b)
}

// ReadRefs calls each with the ids in the answer to an ls-refs command, including those of peeled tags. It skips
// invalid lines, because the client checks the answer. It returns an error if the answer is an error message or is
// incomplete.
func ReadRefs(r io.Reader, f object.Format, each func(object.ID)) error {
	p := pktline.NewReader(r, pktline.MaxPacket)
	for {
		kind, data, err := p.Next()
		switch {
		case err != nil:
			return noEOF(err)
		case kind == pktline.Flush:
			return nil
		case strings.HasPrefix(string(data), "ERR "):
			return Refused{strings.TrimSuffix(string(data[4:]), "\n")}
		}
		for i, word := range strings.Fields(string(data)) {
			if text, peeled := strings.CutPrefix(word, "peeled:"); i == 0 || peeled && i > 1 {
				if id, err := object.ParseIDOf(f, text); err == nil {
					each(id)
				}
			}
		}
	}
}

// ReadCapabilities reads the first message of a server of protocol version 2, and returns the values of its
// capabilities by their names. The error is a Refused if the server refuses access.
func ReadCapabilities(r io.Reader) (map[string]string, error) {
	p := pktline.NewReader(r, pktline.MaxPacket)
	caps := map[string]string{}
	for n, version := 0, false; n < 1000; n++ {
		kind, data, err := p.Next()
		if err != nil {
			return nil, noEOF(err)
		}
		line := strings.TrimSuffix(string(data), "\n")
		if text, ok := strings.CutPrefix(line, "ERR "); ok {
			return nil, Refused{text}
		}
		switch {
		case kind == pktline.Flush && version:
			return caps, nil
		case n == 0 && strings.HasPrefix(line, "# service="), n == 1 && kind == pktline.Flush:
		case kind == pktline.Data && !version && line == "version 2":
			version = true
		case kind == pktline.Data && version:
			key, value, _ := strings.Cut(line, "=")
			caps[key] = value
		default:
			return nil, fmt.Errorf("%w: invalid capability %.40q", errFormat, line)
		}
	}
	return nil, fmt.Errorf("%w: too many capabilities", errFormat)
}

// maxBand is the maximum number of bytes of a pack in one packet.
const maxBand = pktline.MaxData - 1

// FetchWriter writes the answer to a fetch. Write writes bytes of the pack. KeepAlive may be called by another
// goroutine at the same time.
//
// Locks: mu is held while a packet is written, so that packets are not mixed.
type FetchWriter struct {
	mu    sync.Mutex
	w     *bufio.Writer
	flush func()
	pack  bool // true between the start and the end of the pack, when empty packets are allowed
	fresh bool // true if bytes were written since the last KeepAlive
	err   error
}

// NewFetchWriter returns a FetchWriter that writes to w. It calls flush to send the bytes that w has buffered.
func NewFetchWriter(w io.Writer, flush func()) *FetchWriter {
	return &FetchWriter{w: bufio.NewWriterSize(w, pktline.MaxPacket), flush: flush}
}

// Begin writes the start of an answer: the shallow commits, if deepened is set, and the header of the pack.
func (a *FetchWriter) Begin(deepened bool, shallow []object.ID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b []byte
	if deepened {
		b = pktline.AppendLine(b, "shallow-info")
		for _, id := range shallow {
			b = pktline.AppendLine(b, "shallow "+id.String())
		}
		b = pktline.AppendDelim(b)
	}
	if a.pack = true; a.err == nil {
		_, a.err = a.w.Write(pktline.AppendLine(b, "packfile"))
	}
	return a.err
}

// Write implements io.Writer.
func (a *FetchWriter) Write(b []byte) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var head [8]byte
	for len(b) > 0 && a.err == nil {
		part := b[:min(len(b), maxBand)]
		_, a.err = a.w.Write(append(pktline.AppendHeader(head[:0], 1+len(part)), bandData))
		if a.err == nil {
			_, a.err = a.w.Write(part)
		}
		n, b = n+len(part), b[len(part):]
	}
	a.fresh = true
	return n, a.err
}

// Flush sends all bytes that were written so far.
func (a *FetchWriter) Flush() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.send()
}

// send sends all bytes that were written so far. The caller holds a.mu.
func (a *FetchWriter) send() error {
	if a.err == nil {
		a.err = a.w.Flush()
	}
	if a.err == nil {
		a.flush()
	}
	return a.err
}

// KeepAlive sends all bytes that were written so far. If nothing was written since the last call, it sends an empty
// packet, so that the client knows that the relay works on the answer, as git's own server does. KeepAlive does nothing
// before and after the pack.
func (a *FetchWriter) KeepAlive() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.pack || a.err != nil {
		return
	}
	if !a.fresh {
		_, a.err = a.w.Write([]byte{'0', '0', '0', '5', bandData})
	}
	a.fresh = false
	a.send() // send bytes that were written, because they may still be buffered
}

// End writes the end of the answer.
func (a *FetchWriter) End() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pack = false
	if a.err == nil {
		_, a.err = a.w.Write(pktline.AppendFlush(nil))
	}
	return a.send()
}

// Copy copies the answer of a git server, packet by packet, and returns the number of bytes. It returns an error if the
// answer is incomplete.
func (a *FetchWriter) Copy(r io.Reader) (bytes int64, err error) {
	p := pktline.NewReader(r, 2*pktline.MaxPacket)
	for {
		if !p.Ready() {
			if err := a.Flush(); err != nil {
				return bytes, err
			}
		}
		kind, data, err := p.Next()
		if err != nil {
			if err == io.EOF {
				return bytes, nil
			}
			return bytes, err
		}
		n, err := a.packet(kind, data)
		if bytes += int64(n); err != nil {
			return bytes, err
		}
	}
}

// packet writes a packet.
func (a *FetchWriter) packet(kind pktline.Kind, data []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	head := []byte("0000")
	switch kind {
	case pktline.Data:
		head = pktline.AppendHeader(head[:0], len(data))
		a.pack = a.pack || string(data) == "packfile\n" || string(data) == "packfile"
	case pktline.Delim:
		head[3] = '1'
	case pktline.End:
		head[3] = '2'
	case pktline.Flush:
		a.pack = false
	}
	if a.err == nil {
		_, a.err = a.w.Write(head)
	}
	if a.err == nil {
		_, a.err = a.w.Write(data)
	}
	a.fresh = true
	return len(head) + len(data), a.err
}
