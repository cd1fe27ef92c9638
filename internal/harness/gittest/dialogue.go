package gittest

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dialogue pairs the requests and answers of one connection that serves many, as git:// and ssh do. Protocol v2 has the
// server speak first, its capabilities, and then one answer for each request; all of them end in a flush packet. Before
// v2 there are the refs, one request, and one answer until the end. A push counts as one request.
type dialogue struct {
	s     *Server
	conn  int
	timed bool // the bytes are heard as they pass, so their times are those of the requests

	mu       sync.Mutex // taken before Log.mu, unlike the others
	repo     string
	version  int
	command  Command // Push, or empty
	started  bool
	over     bool
	up, down packets
	ask      ask // being read
	asked    int64
	since    time.Time
	waiting  []*tally // for answers, in order
}

func newDialogue(s *Server, conn int, timed bool) *dialogue {
	d := &dialogue{s: s, conn: conn, timed: timed}
	d.up.each, d.down.each = d.request, d.answer
	return d
}

// start records the service that the client connected for.
func (d *dialogue) start(service, repo, protocol string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startLocked(service, repo, protocol)
}

func (d *dialogue) startLocked(service, repo, protocol string) {
	d.started, d.repo = true, strings.TrimPrefix(repo, "/")
	for field := range strings.SplitSeq(protocol, ":") {
		if v, ok := strings.CutPrefix(field, "version="); ok {
			d.version, _ = strconv.Atoi(v)
		}
	}
	if d.timed {
		d.since = time.Now()
	}
	first := Request{Command: Capabilities}
	if service != "git-upload-pack" {
		d.command = Push
		first.Command = Push
	}
	d.begin(first)
}

// begin logs a request whose answer comes after those that are waited for.
func (d *dialogue) begin(r Request) {
	r.Conn, r.Repo, r.Version, r.At, r.BytesIn = d.conn, d.repo, d.version, d.since, d.asked
	d.waiting = append(d.waiting, d.s.newTally(d.s.log.begin(r), (&backend{s: d.s}).repoDir(d.repo)))
	d.ask, d.asked, d.since = ask{}, 0, time.Time{}
}

// asks hears the next bytes of the client.
func (d *dialogue) asks(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.up.feed(p)
	}
}

// says receives the next bytes of the server.
func (d *dialogue) says(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.down.feed(p)
	}
}

func (d *dialogue) request(kind packetKind, payload []byte) {
	n := int64(packetSize(kind, payload))
	switch {
	case d.over:
		return
	case !d.started && kind == dataPacket:
		d.preface(payload)
		return
	case !d.started: // no client of git; the server will hang up
		d.over = true
		return
	}
	if d.timed && d.since.IsZero() {
		d.since = time.Now()
	}
	// Haves come after the flush packet before v2: they belong to the request that is answered already.
	late := d.version < 2 && d.ask.lines == 0 && len(d.waiting) > 0 && d.waiting[0].e.Command == Fetch
	switch {
	case d.command == Push || late:
		if len(d.waiting) > 0 {
			have := kind == dataPacket && bytes.HasPrefix(payload, []byte("have "))
			d.s.log.update(d.waiting[0].e, func(e *entry) {
				e.BytesIn += n
				if have && late {
					e.Haves++
				}
			})
		}
	case kind == dataPacket:
		d.asked += n
		d.ask.line(payload)
	case kind == flushPacket && d.ask.lines == 0: // has nothing more to ask
		d.since = time.Time{}
	case kind == flushPacket:
		d.asked += n
		r := d.ask.Request
		if r.Command == "" {
			r.Command = Other
		}
		d.begin(r)
	default:
		d.asked += n
	}
}

// preface is the first packet on git:// (gitprotocol-pack): what a client connects for, and beyond it the host and,
// after an empty field, the protocol.
func (d *dialogue) preface(payload []byte) {
	fields := strings.Split(string(payload), "\x00")
	service, repo, _ := strings.Cut(strings.TrimSuffix(fields[0], "\n"), " ")
	protocol := ""
	for i, f := range fields {
		if i > 1 && fields[i-1] == "" && f != "" {
			protocol = f
		}
	}
	d.startLocked(service, repo, protocol)
}

func (d *dialogue) answer(kind packetKind, payload []byte) {
	if len(d.waiting) == 0 {
		return
	}
	t := d.waiting[0]
	t.packet(kind, payload)
	t.bytes(packetSize(kind, payload))
	// Before v2 the answer to a fetch has flush packets within.
	if kind == flushPacket && d.command != Push && (d.version == 2 || t.e.Command == Capabilities) {
		t.over()
		d.waiting = d.waiting[1:]
	}
}

func packetSize(kind packetKind, payload []byte) int {
	if kind == rawBytes {
		return len(payload)
	}
	return 4 + len(payload)
}

// end records that no more bytes follow, even if a message is incomplete.
func (d *dialogue) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.over = true
	for i, t := range d.waiting {
		if cut := d.down.held; i == 0 && len(cut) > 0 {
			t.packets.held = cut // of it, too, something was sent
			t.bytes(len(cut))
		}
		t.over()
	}
	d.waiting = nil
}
