// Package meter records what a server does: the usage of each repository for billing, the audit log of reads, and
// metrics in the text format of Prometheus.
//
// Usage and audit entries are collected in memory and written each second and when the Meter is closed, so a read costs
// no transaction. A process that is killed loses the last second of them; changes write their audit entries in their
// own transactions (package records) and lose none. While the database is away, entries are kept up to a limit; those
// beyond it are counted in the metrics as dropped.
//
// Metrics have no label for a repository, a namespace or a token, because there can be millions of them.
package meter

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	flushTime   = time.Second      // time between two writes
	closeTime   = 10 * time.Second // time limit for the last write
	maxEntries  = 50_000           // maximum number of audit entries in memory
	maxCounters = 200_000          // maximum number of counters in memory
	batch       = 500              // maximum number of entries in one transaction
	maxTarget   = 1 << 10          // maximum length of a path in an audit entry, in bytes
)

// The operations that usage counts.
const (
	Create = "create"
	Fork   = "fork"
	Import = "import"
	Delete = "delete"
	Push   = "push"
	Fetch  = "fetch"
	Clone  = "clone"
	Read   = "read" // reads of commits, trees and files by the REST API and by pages
	Info   = "info" // all other reads by the REST API, such as lists
	Token  = "token"
)

// UsageStore stores counters. *records.Usage implements it.
type UsageStore interface {
	Add(ctx context.Context, rows []records.UsageRow) error
}

// AuditStore stores audit entries. *records.Audit implements it.
type AuditStore interface {
	Add(ctx context.Context, entries []records.AuditEntry) error
	After(ctx context.Context, seq int64, limit int) ([]records.AuditEntry, error)
}

var (
	_ UsageStore = (*records.Usage)(nil)
	_ AuditStore = (*records.Audit)(nil)
)

// Meter counts. All methods may be called from any goroutine, and on a nil *Meter, where they do nothing.
type Meter struct {
	usage UsageStore
	audit AuditStore
	log   *zap.Logger
	now   func() time.Time
	stop  chan struct{} // closed by Close
	full  chan struct{} // receives a value if a batch of audit entries is complete
	done  chan struct{} // closed when the last write has ended
	m     metricsState

	mu       sync.Mutex // protects the fields below
	counters map[counterKey]count
	entries  []records.AuditEntry
	refused  refused
	closed   bool
}

type counterKey struct{ day, namespace, repo, operation string }

type count struct{ n, bytes int64 }

// New returns a Meter that writes until Close is called.
func New(usage UsageStore, audit AuditStore, log *zap.Logger) *Meter {
	return start(usage, audit, log, time.Now, flushTime)
}

func start(usage UsageStore, audit AuditStore, log *zap.Logger, now func() time.Time, every time.Duration) *Meter {
	m := &Meter{
		usage: usage, audit: audit, log: log, now: now, counters: map[counterKey]count{},
		stop: make(chan struct{}), full: make(chan struct{}, 1), done: make(chan struct{}),
	}
	m.m.start = now()
	go m.run(every)
	return m
}

// Count counts an operation on a repository, and the bytes that were sent and received for it.
func (m *Meter) Count(r records.Repo, operation string, bytes int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(counterKey{m.now().UTC().Format(time.DateOnly), r.Namespace, r.ID, operation}, count{1, bytes})
}

// add adds to a counter. The caller holds m.mu.
func (m *Meter) add(k counterKey, c count) {
	old, ok := m.counters[k]
	if !ok && len(m.counters) >= maxCounters {
		m.m.usageDropped.Add(c.n)
		return
	}
	m.counters[k] = count{old.n + c.n, old.bytes + c.bytes}
}

// Audit adds an entry on a call that changed no record.
func (m *Meter) Audit(e records.AuditEntry) {
	if m == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = m.now()
	}
	// Requests without a valid token are recorded too, and their paths can have any length.
	most := maxTarget
	if e.Cause.TokenID == "" {
		most = maxUnproved
	}
	e.Cause.Target = strings.Clone(e.Cause.Target[:min(len(e.Cause.Target), most)])
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) >= maxEntries || m.closed {
		m.m.auditDropped.Add(1)
		return
	}
	if e.Cause.TokenID == "" && !m.refused.add(e) {
		return
	}
	m.entries = append(m.entries, e)
	if len(m.entries) == batch {
		signal.Send(m.full)
	}
}

// Close writes the remaining counters and entries, for 10 s at most. Calls of Audit after it are counted as dropped.
func (m *Meter) Close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if !closed {
		close(m.stop)
	}
	<-m.done
	return nil
}

func (m *Meter) run(every time.Duration) {
	defer close(m.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-m.full:
		case <-m.stop:
			ctx, cancel := context.WithTimeout(ctx, closeTime)
			defer cancel()
			if err := m.flush(ctx); err != nil {
				m.log.Error("could not write usage and audit entries before the end", zap.Error(err))
			}
			return
		}
		err := m.flush(ctx)
		if err != nil && !failing {
			m.log.Warn("could not write usage and audit entries, which stay in memory", zap.Error(err))
		}
		failing = err != nil
	}
}

// flush writes the collected counters and entries. Those that cannot be written are kept for the next call. If the
// result of a transaction is unknown, its rows may be counted twice rather than lost.
func (m *Meter) flush(ctx context.Context) error {
	m.mu.Lock()
	if rest, ok := m.refused.rest(m.now(), m.closed); ok {
		m.entries = append(m.entries, rest)
	}
	counters, entries := m.counters, m.entries
	m.counters, m.entries = map[counterKey]count{}, nil
	m.mu.Unlock()
	var failed error
	rows := make([]records.UsageRow, 0, len(counters))
	for k, c := range counters {
		rows = append(rows, records.UsageRow{
			Day: k.day, Namespace: k.namespace, RepoID: k.repo, Operation: k.operation, Count: c.n, Bytes: c.bytes,
		})
	}
	for len(rows) > 0 {
		n := min(len(rows), batch)
		if failed = m.usage.Add(ctx, rows[:n]); failed != nil {
			break
		}
		rows = rows[n:]
	}
	for len(entries) > 0 && failed == nil {
		n := min(len(entries), batch)
		if failed = m.audit.Add(ctx, entries[:n]); failed != nil {
			break
		}
		entries = entries[n:]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range rows {
		m.add(counterKey{r.Day, r.Namespace, r.RepoID, r.Operation}, count{r.Count, r.Bytes})
	}
	if len(entries) > 0 {
		m.entries = append(entries, m.entries...)
		if extra := len(m.entries) - maxEntries; extra > 0 {
			m.m.auditDropped.Add(int64(extra))
			m.entries = m.entries[:maxEntries]
		}
	}
	return failed
}

// auditLine is an audit entry as Export writes it.
type auditLine struct {
	Seq     int64     `json:"seq"`
	Time    time.Time `json:"time"`
	TokenID string    `json:"token_id,omitempty"`
	Actor   string    `json:"actor,omitempty"`
	Remote  string    `json:"remote,omitempty"`
	Method  string    `json:"method"`
	Target  string    `json:"target"`
	Result  int       `json:"result"`
	Detail  string    `json:"detail,omitempty"`
}

// Export writes up to limit audit entries with a larger number than after, one JSON object on each line. A client
// continues with the number of the last line. A limit of 0 means all.
func Export(ctx context.Context, w io.Writer, store AuditStore, after int64, limit int) error {
	out := json.NewEncoder(w)
	for left := limit; limit == 0 || left > 0; {
		n := batch
		if limit > 0 {
			n = min(n, left)
		}
		page, err := store.After(ctx, after, n)
		if err != nil {
			return err
		}
		for _, e := range page {
			c := e.Cause
			err := out.Encode(auditLine{e.Seq, e.Time.UTC(), c.TokenID, c.Actor, c.Remote, c.Method, c.Target,
				e.Result, e.Detail})
			if err != nil {
				return err
			}
			after = e.Seq
		}
		if left -= len(page); len(page) < n {
			return nil
		}
	}
	return nil
}
