package gittest

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dialogue parses one connection that carries several requests and answers, as git:// and ssh connections do, and
// assigns each answer to its request. With protocol v2, the server first sends its capabilities, and then one answer
// for each request; each message ends with a flush packet. Before v2, the server sends the refs, the client sends one
// request, and the answer lasts until the end of the connection. A push counts as one request.
type dialogue struct {
	s     *Server
	conn  int
	timed bool // the bytes are processed while they pass, so the times of the requests can be recorded

	mu       sync.Mutex // acquired before Log.mu; the other mutexes of the package are leaves
	repo     string
	version  int
	command  Command // Push, or "" for a fetch
	started  bool
	over     bool
	up, down packets
	ask      ask // the request that is being parsed
	asked    int64
	since    time.Time
	waiting  []*tally // requests whose answers are not complete yet, in order
}

func newDialogue(s *Server, conn int, timed bool) *dialogue {
	d := &dialogue{s: s, conn: conn, timed: timed}
	d.up.each, d.down.each = d.request, d.answer
	return d
}

// start records the service, the repository and the protocol version that the client has asked for.
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

// begin adds a request to the log. Its answer follows the answers to the requests in d.waiting.
func (d *dialogue) begin(r Request) {
	r.Conn, r.Repo, r.Version, r.At, r.BytesIn = d.conn, d.repo, d.version, d.since, d.asked
	d.waiting = append(d.waiting, d.s.newTally(d.s.log.begin(r), (&backend{s: d.s}).repoDir(d.repo)))
	d.ask, d.asked, d.since = ask{}, 0, time.Time{}
}

// fromClient parses the next bytes of the client.
func (d *dialogue) fromClient(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.up.feed(p)
	}
}

// fromServer parses the next bytes of the server.
func (d *dialogue) fromServer(p []byte) {
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
	case !d.started: // the client does not speak git's protocol; the server will close the connection
		d.over = true
		return
	}
	if d.timed && d.since.IsZero() {
		d.since = time.Now()
	}
	// Before v2, lines with "have" follow the flush packet, so they belong to the request that is already being
	// answered.
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
	case kind == flushPacket && d.ask.lines == 0: // the client has no further request
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

// preface parses the first packet on git:// (gitprotocol-pack). It contains the requested service, the host and, after
// an empty field, the protocol version.
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
	// Before v2, the answer to a fetch contains flush packets.
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

// end records the end of the connection. The last messages may be incomplete.
func (d *dialogue) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.over = true
	for i, t := range d.waiting {
		if cut := d.down.held; i == 0 && len(cut) > 0 {
			t.packets.held = cut // the part of the incomplete packet that was sent is counted
			t.bytes(len(cut))
		}
		t.over()
	}
	d.waiting = nil
}
