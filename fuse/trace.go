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

// Event is one answered request, for listeners of Trace.
type Event struct {
	Time    time.Time // when the request was read
	Took    time.Duration
	Op      string // the kernel's name of the request
	PID     int    // of the process that made it; 0: the kernel, which wrote back
	Command string // its name; "" if the process has ended
	Path    string // relative to the mount's root; "" is the root itself
	To      string // new path of a rename
	Offset  int64  // of the range that was read or written, in bytes
	Size    int64  // of the range that was read or written, in bytes
	Status  raw.Status

	Source       metrics.Source // where missing data came from
	Blobs, Bytes int64          // blobs requested, and bytes received, for this request
}

// event is an Event in progress. begin and the goroutine of the request write it, end reads it.
type event struct {
	Event
	unique    uint64
	node, tid uint64
	name      string
	toDir     uint64
	toName    string
	cost      metrics.Cost
}

// tracer reports requests to listeners. Without listeners a request costs one atomic load.
type tracer struct {
	tree     *worktree.Tree
	listened atomic.Bool
	open     sync.Map // unique id of a request -> *event

	mu        sync.RWMutex
	listeners map[*func(Event)]struct{}
}

// Trace calls listen with each request that begins from now on, just before it is answered, until
// stop is called. listen is called from many goroutines, and delays the caller of the request.
func (s *Server) Trace(listen func(Event)) (stop func()) {
	t := &s.fs.tracer
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.listeners == nil {
		t.listeners = map[*func(Event)]struct{}{}
	}
	t.listeners[&listen] = struct{}{}
	t.listened.Store(true)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.listeners, &listen)
		t.listened.Store(len(t.listeners) > 0)
	}
}

// begin starts the event of a request, and makes it available to cost.
func (t *tracer) begin(op op, h *raw.InHeader, start time.Time) *event {
	e := &event{Event: Event{Time: start, Op: op.String()}, unique: h.Unique, node: h.NodeId, tid: uint64(h.Pid)}
	t.open.Store(h.Unique, e)
	return e
}

// cost returns where the cost of a request is counted; nil without listeners.
func (t *tracer) cost(h *raw.InHeader) *metrics.Cost {
	if !t.listened.Load() {
		return nil
	}
	if e, ok := t.open.Load(h.Unique); ok {
		return &e.(*event).cost
	}
	return nil
}

// end reports a request. Its process still waits for the reply, so /proc has it.
func (t *tracer) end(e *event, took time.Duration, status raw.Status) {
	t.open.Delete(e.unique)
	e.Took, e.Status = took, status
	e.Source, e.Blobs, e.Bytes = e.cost.Total()
	e.Path = t.path(e.node, e.name)
	if e.toName != "" {
		e.To = t.path(e.toDir, e.toName)
	}
	if e.tid != 0 {
		e.PID, e.Command = process(e.tid)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for listen := range t.listeners {
		(*listen)(e.Event)
	}
}

// path returns a node's path, or that of a name in it. A node without a name is shown by its
// number.
func (t *tracer) path(node uint64, name string) string {
	at, err := t.tree.Path(worktree.Node(node))
	if err != nil {
		at = "(inode " + strconv.FormatUint(node, 10) + ")"
	}
	return path.Join(at, name)
}

// process returns the process of a thread and its name (proc(5), status). The command line is not
// shown, since it may hold a secret.
func process(tid uint64) (pid int, command string) {
	status, err := proc.Of(int(tid)).Status()
	if err != nil || status.PID == 0 {
		return int(tid), status.Name
	}
	return status.PID, status.Name
}
