package meter

import (
	"context"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/server/objects"
)

// metricsState contains the counters of a Meter for metrics.
type metricsState struct {
	start                      time.Time
	open                       [classes]atomic.Int64
	answers                    [classes][5]atomic.Int64 // answers by the first digit of the status
	durations                  [classes]metrics.Histogram
	sent, received             atomic.Int64
	usageDropped, auditDropped atomic.Int64
	refs                       [2]atomic.Int64 // updates of refs by pushes: made, refused
	store                      [3]storeState   // operations of the object store, by storeOp

	mu       sync.Mutex // protects the fields below
	git      map[string]*gitState
	families []func(w *metrics.Writer)
}

type gitState struct {
	running  atomic.Int64
	failed   atomic.Int64
	duration metrics.Histogram
}

type storeState struct {
	duration metrics.Histogram
	failed   atomic.Int64
}

// Git counts a git process with this subcommand until the returned function is called with its error.
func (m *Meter) Git(command string) (ended func(err error)) {
	if m == nil {
		return func(error) {}
	}
	m.m.mu.Lock()
	g := m.m.git[command]
	if g == nil {
		g = &gitState{}
		if m.m.git == nil {
			m.m.git = map[string]*gitState{}
		}
		m.m.git[command] = g
	}
	m.m.mu.Unlock()
	begin := time.Now()
	g.running.Add(1)
	return func(err error) {
		g.running.Add(-1)
		g.duration.Observe(time.Since(begin))
		if err != nil {
			g.failed.Add(1)
		}
	}
}

// Refs counts the refs that a push has changed, and those that were refused.
func (m *Meter) Refs(made, refused int) {
	if m == nil {
		return
	}
	m.m.refs[0].Add(int64(made))
	m.m.refs[1].Add(int64(refused))
}

// Register adds a function that writes families of another package. It is called for each request of the metrics and
// must not block.
func (m *Meter) Register(write func(w *metrics.Writer)) {
	if m == nil {
		return
	}
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	m.m.families = append(m.m.families, write)
}

// Write writes all metrics.
func (m *Meter) Write(_ context.Context, out io.Writer) error {
	w := metrics.NewWriter(out)
	s := &m.m
	label := func(name, value string) metrics.Label { return metrics.Label{Name: name, Value: value} }
	w.Family("artifactfs_server_start_time_seconds", metrics.Gauge, "Time at which the server was started, since 1970.")
	w.Sample(float64(s.start.UnixMilli()) / 1000)
	if bytes, ok := proc.Self.ResidentBytes(); ok {
		w.Family("artifactfs_server_resident_bytes", metrics.Gauge, "Resident memory of the server, without git processes.")
		w.Sample(float64(bytes))
	}
	w.Family("artifactfs_server_requests_open", metrics.Gauge, "Requests that are being answered, by class.")
	for c := range classes {
		w.Sample(float64(s.open[c].Load()), label("class", c.String()))
	}
	w.Family("artifactfs_server_requests_total", metrics.Counter,
		"Requests that were answered, by class and by status (2xx, 4xx, ...).")
	for c := range classes {
		for i := range s.answers[c] {
			if n := s.answers[c][i].Load(); n > 0 {
				w.Sample(float64(n), label("class", c.String()), label("status", strconv.Itoa(i+1)+"xx"))
			}
		}
	}
	w.Family("artifactfs_server_request_duration_seconds", metrics.Histograms,
		"Duration of requests until the answer was complete, by class.")
	for c := range classes {
		if c != eventStream {
			w.Histogram(&s.durations[c], label("class", c.String()))
		}
	}
	w.Family("artifactfs_server_http_bytes_total", metrics.Counter, "Bytes of the bodies of requests and answers.")
	w.Sample(float64(s.received.Load()), label("direction", "in"))
	w.Sample(float64(s.sent.Load()), label("direction", "out"))
	w.Family("artifactfs_server_ref_updates_total", metrics.Counter, "Updates of refs by pushes.")
	w.Sample(float64(s.refs[0].Load()), label("result", "made"))
	w.Sample(float64(s.refs[1].Load()), label("result", "refused"))
	w.Family("artifactfs_server_dropped_total", metrics.Counter,
		"Audit entries and operations that were not recorded, because the database was away for too long.")
	w.Sample(float64(s.auditDropped.Load()), label("what", "audit"))
	w.Sample(float64(s.usageDropped.Load()), label("what", "usage"))
	m.writeGit(w)
	w.Family("artifactfs_server_object_store_duration_seconds", metrics.Histograms,
		"Duration of operations of the object store.")
	for op := range s.store {
		w.Histogram(&s.store[op].duration, label("operation", storeOps[op]))
	}
	w.Family("artifactfs_server_object_store_failures_total", metrics.Counter,
		"Operations of the object store that failed.")
	for op := range s.store {
		w.Sample(float64(s.store[op].failed.Load()), label("operation", storeOps[op]))
	}
	s.mu.Lock()
	families := slices.Clone(s.families)
	s.mu.Unlock()
	for _, write := range families {
		write(w)
	}
	return w.Flush()
}

func (m *Meter) writeGit(w *metrics.Writer) {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	names := make([]string, 0, len(m.m.git))
	for name := range m.m.git {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, f := range []struct {
		name, help string
		kind       metrics.Kind
		write      func(g *gitState, l metrics.Label)
	}{
		{"processes", "Git processes that run now, by subcommand.", metrics.Gauge,
			func(g *gitState, l metrics.Label) { w.Sample(float64(g.running.Load()), l) }},
		{"failures_total", "Git processes that failed.", metrics.Counter,
			func(g *gitState, l metrics.Label) { w.Sample(float64(g.failed.Load()), l) }},
		{"duration_seconds", "Duration of git processes.", metrics.Histograms,
			func(g *gitState, l metrics.Label) { w.Histogram(&g.duration, l) }},
	} {
		w.Family("artifactfs_server_git_"+f.name, f.kind, f.help)
		for _, name := range names {
			f.write(m.m.git[name], metrics.Label{Name: "command", Value: name})
		}
	}
}

// storeOps are the names of the operations in storeState.
var storeOps = [3]string{"put", "get", "delete"}

// Store returns an object store that measures the operations of s.
func (m *Meter) Store(s objects.Store) objects.Store {
	if m == nil {
		return s
	}
	return measured{s, &m.m.store}
}

type measured struct {
	objects.Store
	state *[3]storeState
}

func (m measured) observe(op int, begin time.Time, err error) error {
	m.state[op].duration.Observe(time.Since(begin))
	if err != nil {
		m.state[op].failed.Add(1)
	}
	return err
}

func (m measured) Put(ctx context.Context, key, path string) error {
	return m.observe(0, time.Now(), m.Store.Put(ctx, key, path))
}

func (m measured) Get(ctx context.Context, key, path string) error {
	return m.observe(1, time.Now(), m.Store.Get(ctx, key, path))
}

func (m measured) Delete(ctx context.Context, key string) error {
	return m.observe(2, time.Now(), m.Store.Delete(ctx, key))
}
