package fuse

import (
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree"
)

// Event describes one answered request to the listeners of Trace.
type Event struct {
	Weight int64         // number of requests for which the event stands: 1, or more in a sample
	Time   time.Time     // time at which the request was read
	Took   time.Duration // time between reading the request and answering the request
	Op     string        // the kernel's name of the request
	// id of the process that made the request; 0 in a sample, and if the kernel made the request itself to write back
	// its cache
	PID     int
	Command string     // name of that process; "" if it has ended, or in a sample
	Path    string     // path of the file, relative to the root of the mount; "" is the root itself
	To      string     // new path of a renamed entry; "" for other requests
	Offset  int64      // offset of the range that was read or written, in bytes
	Size    int64      // size of the range that was read or written, in bytes
	Status  raw.Status // status of the reply

	Source       metrics.Source // sources from which missing data was fetched
	Blobs, Bytes int64          // number of blobs requested, and number of bytes received, for this request
}

// event is the Event of a request in progress. tracer.begin and the goroutine that handles the request write it;
// tracer.end completes it.
type event struct {
	Event
	unique    uint64       // the kernel's id of the request
	node, tid uint64       // node that the request concerns, and id of the thread that made it
	name      string       // name of an entry in node; "" if the request concerns node itself
	toDir     uint64       // directory to which a rename moves the entry
	toName    string       // new name of a renamed entry; "" for other requests
	cost      metrics.Cost // data that the request had to wait for
}

// tracer reports requests to listeners. While it has no listeners, it costs each request one or two atomic loads.
type tracer struct {
	tree     *worktree.Tree
	listened atomic.Bool // true while Trace has listeners
	complete atomic.Bool // true while a listener wants all requests
	sampler  sampler
	open     sync.Map // event (*event) of each request in progress that is reported, by the unique id of the request

	mu sync.RWMutex
	// keys point to the functions that Trace was called with; true: for all requests; protected by mu
	listeners map[*func(Event)]bool
}

// Trace calls the function listen for each request that begins after the call of Trace, just before the request is
// answered, until stop is called. Many goroutines call listen concurrently, and each request waits until listen
// returns. If all is not set, listen is called for samples only, about 1,000 in a second, whose events do not name the
// process that made the request.
func (s *Server) Trace(listen func(Event), all bool) (stop func()) {
	t := &s.fs.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listeners == nil {
		t.listeners = map[*func(Event)]bool{}
	}
	t.listeners[&listen] = all
	t.changed()
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.listeners, &listen)
		t.changed()
	}
}

// changed updates listened and complete after a change of the listeners. The caller holds mu.
func (t *tracer) changed() {
	complete := false
	for _, all := range t.listeners {
		complete = complete || all
	}
	t.complete.Store(complete)
	t.listened.Store(len(t.listeners) > 0)
}

// begin returns the event of a request that begins, and stores it for tracer.cost. It returns nil if the request is not
// in the sample.
func (t *tracer) begin(op op, h *raw.InHeader, start time.Time) *event {
	weight := int64(1)
	if !t.complete.Load() {
		if weight = t.sampler.weight(start); weight == 0 {
			return nil
		}
	}
	e := &event{Event: Event{Weight: weight, Time: start, Op: op.String()}, unique: h.Unique, node: h.NodeId,
		tid: uint64(h.Pid)}
	t.open.Store(h.Unique, e)
	return e
}

// cost returns the Cost in the event of a request. It returns nil if there are no listeners.
func (t *tracer) cost(h *raw.InHeader) *metrics.Cost {
	if !t.listened.Load() {
		return nil
	}
	if e, ok := t.open.Load(h.Unique); ok {
		return &e.(*event).cost
	}
	return nil
}

// end completes the event of a request and reports it to the listeners. The process that made the request still waits
// for the reply, so its name can be read from /proc.
func (t *tracer) end(e *event, took time.Duration, status raw.Status) {
	t.open.Delete(e.unique)
	e.Took, e.Status = took, status
	e.Source, e.Blobs, e.Bytes = e.cost.Total()
	e.Path = t.path(e.node, e.name)
	if e.toName != "" {
		e.To = t.path(e.toDir, e.toName)
	}
	if e.tid != 0 && t.complete.Load() {
		e.PID, e.Command = process(e.tid)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for listen, all := range t.listeners {
		// listeners to all requests get no events of samples; a listener may have registered after this request began
		if !all || e.Weight == 1 {
			(*listen)(e.Event)
		}
	}
}

// path returns the path of an entry of the directory node, which has the name in the parameter name. If name is "", it
// returns the path of the node itself. For a node without a path it returns the inode number as text.
func (t *tracer) path(node uint64, name string) string {
	at, err := t.tree.Path(worktree.Node(node))
	if err != nil {
		at = "(inode " + strconv.FormatUint(node, 10) + ")"
	}
	return path.Join(at, name)
}

// process returns the id and name of the process to which a thread belongs (proc(5), status). It does not return the
// command line, which may contain a secret. If the status of the process cannot be read, pid is the id of the thread.
func process(tid uint64) (pid int, command string) {
	status, err := proc.Of(int(tid)).Status()
	if err != nil || status.PID == 0 {
		return int(tid), status.Name
	}
	return status.PID, status.Name
}
