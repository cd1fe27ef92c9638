package gittest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// Command is the purpose of a request.
type Command string

const (
	Capabilities Command = "caps" // info/refs of git-upload-pack, or the first message of a server on git:// and ssh
	LsRefs       Command = "ls-refs"
	Fetch        Command = "fetch"
	ObjectInfo   Command = "object-info"
	Push         Command = "push"       // git-receive-pack, its info/refs included
	Other        Command = "other"      // anything else, files of the dumb protocol included
	Connection   Command = "connection" // only seen by Fault.Match of servers that are not HTTP
)

// Uncounted stands for the number of blobs of an answer whose pack was not read (ServerOptions.Cheap).
const Uncounted = -1

// Request is one request and what became of it so far. Byte counts are of bodies: no headers, as encoded in transit.
// Over ssh the times are zero: the log is read back from a record of the dialogue.
type Request struct {
	Conn    int    // which connection it came on, from 1
	Repo    string // as in the URL, without the leading slash
	Method  string // of HTTP
	Path    string // of HTTP, with the query
	Version int    // of the protocol, as the client asked for; 0 if it asked for none
	Command Command

	Wants    []object.ID // of a fetch; of object-info the ids asked about
	WantRefs []string
	Prefixes []string // of ls-refs
	Haves    int
	Shallow  int // number of commits that the client reports as its shallow boundary
	Depth    int
	Filter   string

	Status   int    // of HTTP
	Fault    string // the kind of the fault that was done to it
	Objects  int    // in the answered pack by its header; if that was cut short: those that were sent whole
	Blobs    int    // of these; Uncounted, or exact
	PackErr  string // why not all of the pack could be read: it was cut short or damaged
	BytesIn  int64
	BytesOut int64

	At        time.Time
	FirstByte time.Duration // from At until the first byte of the answer left for the link
	Duration  time.Duration // until the latest one did

	format object.Format
}

// Log holds the requests of a server since its start or the last Reset.
type Log struct {
	each  func(Request) // called for each finished request, or nil
	renew func()        // brings the log up to date before it is read, or nil

	mu       sync.Mutex
	settled  sync.Cond
	counting int // packs being read
	conns    int // ever opened: numbers them
	reset    int // conns at the last Reset
	entries  []*entry
}

// entry is a request under way; Log.mu guards it.
type entry struct {
	Request
	blobs []object.ID
}

func newLog(each func(Request)) *Log {
	l := &Log{each: each}
	l.settled.L = &l.mu
	return l
}

func (l *Log) connection() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns++
	return l.conns
}

func (l *Log) begin(r Request) *entry {
	e := &entry{Request: r}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	return e
}

// update changes an entry.
func (l *Log) update(e *entry, change func(*entry)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(e)
}

// count starts reading a pack: what reads the log waits until the returned function brings the result.
func (l *Log) count() (done func(e *entry, c packCount)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counting++
	return func(e *entry, c packCount) {
		l.mu.Lock()
		defer l.mu.Unlock()
		e.Objects, e.Blobs, e.blobs = c.objects, len(c.blobs), c.blobs
		if c.err != nil {
			e.PackErr = c.err.Error()
		}
		l.counting--
		l.settled.Broadcast()
	}
}

// over records that e does not change any more.
func (l *Log) over(e *entry) {
	if l.each == nil {
		return
	}
	l.mu.Lock()
	r := e.Request
	l.mu.Unlock()
	l.each(r)
}

// view locks an up-to-date log for f.
func (l *Log) view(f func()) {
	if l.renew != nil {
		l.renew()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.counting > 0 {
		l.settled.Wait()
	}
	f()
}

// Requests lists the requests in order of arrival, those under way included.
func (l *Log) Requests() []Request {
	var all []Request
	l.view(func() {
		for _, e := range l.entries {
			all = append(all, e.Request)
		}
	})
	return all
}

// Fetches lists the requests that asked for objects.
func (l *Log) Fetches() []Request {
	return slices.DeleteFunc(l.Requests(), func(r Request) bool { return r.Command != Fetch })
}

// Blobs returns which blobs were sent and how often each, and how many that makes in all. Blobs of answers that are
// Uncounted are missing.
func (l *Log) Blobs() (sent map[object.ID]int, total int) {
	sent = map[object.ID]int{}
	l.view(func() {
		for _, e := range l.entries {
			for _, id := range e.blobs {
				sent[id]++
				total++
			}
		}
	})
	return sent, total
}

// Connections counts the connections opened.
func (l *Log) Connections() int {
	var n int
	l.view(func() { n = l.conns - l.reset })
	return n
}

// RoundTrips counts connections opened and requests: what a client that waits for each has waited for.
// The handshakes inside an ssh connection are not in it; nor is the first message of a server on git:// and ssh.
func (l *Log) RoundTrips() int {
	var n int
	l.view(func() {
		n = l.conns - l.reset
		for _, e := range l.entries {
			if e.Command != Capabilities || e.Method != "" {
				n++
			}
		}
	})
	return n
}

// Reset forgets the requests and connections so far. Requests under way are no longer seen.
func (l *Log) Reset() {
	l.view(func() { l.entries, l.reset = nil, l.conns })
}

// String is a table of the requests with a line of sums.
func (l *Log) String() string {
	requests := l.Requests()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "#\tconn\tcommand\tstatus\twants\tasked\tobjects\tblobs\tin\tout\tfirst\ttotal\tfault")
	var wants, objects, blobs int
	var in, out int64
	for i, r := range requests {
		fmt.Fprintf(w, "%d\t%s\n", i+1, r.row())
		wants, objects, blobs = wants+len(r.Wants), objects+r.Objects, blobs+max(r.Blobs, 0)
		in, out = in+r.BytesIn, out+r.BytesOut
	}
	w.Flush()
	fmt.Fprintf(&b, "%d requests on %d connections, %d round trips: %d wants, %d objects, %d blobs, %d bytes in, %d out\n",
		len(requests), l.Connections(), l.RoundTrips(), wants, objects, blobs, in, out)
	return b.String()
}

// String is one line of the table that Log.String prints.
func (r Request) String() string { return strings.ReplaceAll(r.row(), "\t", " ") }

func (r Request) row() string {
	var asked []string
	for _, a := range []struct {
		format string
		value  any
		is     bool
	}{
		{"depth=%v", r.Depth, r.Depth > 0}, {"filter=%v", r.Filter, r.Filter != ""}, {"haves=%v", r.Haves, r.Haves > 0},
		{"prefixes=%v", len(r.Prefixes), len(r.Prefixes) > 0}, {"v%v", r.Version, r.Version != 2}, {"%v", r.Path, r.Command == Other},
	} {
		if a.is {
			asked = append(asked, fmt.Sprintf(a.format, a.value))
		}
	}
	blobs := fmt.Sprint(r.Blobs)
	if r.Blobs == Uncounted {
		blobs = "?"
	}
	fault := strings.Trim(r.Fault+" "+r.PackErr, " ")
	return fmt.Sprintf("%d\t%s\t%d\t%d\t%s\t%d\t%s\t%d\t%d\t%.1fms\t%.1fms\t%s", r.Conn, r.Command, r.Status, len(r.Wants),
		strings.Join(asked, ","), r.Objects, blobs, r.BytesIn, r.BytesOut, ms(r.FirstByte), ms(r.Duration), fault)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
