package gittest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// Command is the purpose of a request.
type Command string

const (
	// request for info/refs of git-upload-pack, or the first message of a server on git:// and ssh
	Capabilities Command = "caps"
	LsRefs       Command = "ls-refs"
	Fetch        Command = "fetch"
	ObjectInfo   Command = "object-info"
	Push         Command = "push"       // request to git-receive-pack, including its info/refs
	Other        Command = "other"      // any other request, including files of the dumb protocol
	Connection   Command = "connection" // whole connection; used only in Fault.Match of servers other than HTTP servers
)

// Uncounted is the value of Request.Blobs if the pack was not read (ServerOptions.Cheap).
const Uncounted = -1

// Request is one request and the progress of its answer. Numbers of bytes are those of bodies as they were sent,
// without headers. For ssh the times are zero, because the log is made from a recording.
type Request struct {
	Conn    int    // number of the connection, counted from 1
	Repo    string // name of the repository in the URL, without the leading slash
	Method  string // HTTP method
	Path    string // HTTP path with the query
	Version int    // protocol version that the client has requested; 0 if none
	Command Command

	Wants    []object.ID // objects that a fetch requests, or IDs in a request of object-info
	WantRefs []string
	Prefixes []string // values of ref-prefix in a request of ls-refs
	Haves    int
	Shallow  int // number of shallow commits that the client has sent
	Depth    int
	Filter   string

	Status int    // HTTP status
	Fault  string // kind of the fault that was applied; "" if none
	// number of objects according to the pack's header; if the pack is incomplete, number of objects that were sent
	// completely
	Objects  int
	Blobs    int    // number of blobs among the objects, or Uncounted
	PackErr  string // reason why the pack could not be read completely; "" if it could
	BytesIn  int64
	BytesOut int64

	At        time.Time
	FirstByte time.Duration // time from At until the first byte of the answer was passed to the link
	Duration  time.Duration // time from At until the last byte was passed to the link

	format object.Format
}

// Log contains the requests to a server since its start or the last call of Reset.
type Log struct {
	each  func(Request) // called for each complete request; may be nil
	renew func()        // called before the log is read, to add new requests; may be nil

	mu       sync.Mutex
	settled  sync.Cond
	counting int // number of packs that are being counted
	conns    int // number of connections that were opened, which is the number of the newest connection
	reset    int // value of conns at the last call of Reset
	entries  []*entry
}

// entry is a logged request; protected by Log.mu.
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

// count records that a pack is being counted. Readers of the log wait until done is called with the result.
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

// over records that the entry does not change any more.
func (l *Log) over(e *entry) {
	if l.each == nil {
		return
	}
	l.mu.Lock()
	r := e.Request
	l.mu.Unlock()
	l.each(r)
}

// view updates the log, locks it and calls f.
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

// Requests returns the requests in order of arrival, including those that are still being answered.
func (l *Log) Requests() []Request {
	var all []Request
	l.view(func() {
		for _, e := range l.entries {
			all = append(all, e.Request)
		}
	})
	return all
}

// Fetches returns the requests that fetch objects.
func (l *Log) Fetches() []Request {
	return slices.DeleteFunc(l.Requests(), func(r Request) bool { return r.Command != Fetch })
}

// Blobs returns how often each blob was sent, and the total number of blobs that were sent. It leaves out answers whose
// number of blobs is Uncounted.
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

// Connections returns the number of connections that were opened.
func (l *Log) Connections() int {
	var n int
	l.view(func() { n = l.conns - l.reset })
	return n
}

// RoundTrips returns the number of opened connections plus the number of requests. A client that waits for each of them
// waits for so many round trips. The handshake of ssh and the first message of a server on git:// and ssh are not
// counted.
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

// Reset removes all requests and connections from the log. Requests that are still being answered are removed too.
func (l *Log) Reset() {
	l.view(func() { l.entries, l.reset = nil, l.conns })
}

// String returns a table of the requests, followed by a line with sums.
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

// String returns the row of the request in the table of Log.String.
func (r Request) String() string { return strings.ReplaceAll(r.row(), "\t", " ") }

func (r Request) row() string {
	var asked []string
	for _, a := range []struct {
		format string
		value  any
		is     bool
	}{
		{"depth=%v", r.Depth, r.Depth > 0}, {"filter=%v", r.Filter, r.Filter != ""}, {"haves=%v", r.Haves, r.Haves > 0},
		{"prefixes=%v", len(r.Prefixes), len(r.Prefixes) > 0}, {"v%v", r.Version, r.Version != 2},
		{"%v", r.Path, r.Command == Other},
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
