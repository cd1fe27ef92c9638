package meter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// memory is a database in memory that can be made unavailable.
type memory struct {
	mu      sync.Mutex
	away    bool
	rows    map[records.UsageRow]int64 // count and bytes by row; the fields Count and Bytes of the keys are 0
	counts  map[records.UsageRow]int64
	entries []records.AuditEntry
}

func (m *memory) Add(_ context.Context, rows []records.UsageRow) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return records.ErrUnavailable
	}
	for _, r := range rows {
		k := r
		k.Count, k.Bytes = 0, 0
		m.rows[k] += r.Bytes
		m.counts[k] += r.Count
	}
	return nil
}

type audit struct{ *memory }

func (a audit) Add(_ context.Context, entries []records.AuditEntry) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away {
		return records.ErrUnavailable
	}
	for _, e := range entries {
		e.Seq = int64(len(a.entries) + 1)
		a.entries = append(a.entries, e)
	}
	return nil
}

func (a audit) After(_ context.Context, seq int64, limit int) ([]records.AuditEntry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	rest := a.entries[min(int(seq), len(a.entries)):]
	return slices.Clone(rest[:min(limit, len(rest))]), nil
}

func (m *memory) set(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = away
}

func newMemory() *memory {
	return &memory{rows: map[records.UsageRow]int64{}, counts: map[records.UsageRow]int64{}}
}

var day = time.Date(2026, 2, 3, 23, 59, 0, 0, time.UTC)

func TestCountsAreStored(t *testing.T) {
	db := newMemory()
	m := start(db, audit{db}, zap.NewNop(), func() time.Time { return day }, time.Millisecond)
	a, b := records.Repo{ID: "a", Namespace: "n"}, records.Repo{ID: "b", Namespace: "n"}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 250 {
				m.Count(a, Fetch, 10)
				m.Count(a, Clone, 1)
				m.Count(b, Fetch, 2)
				m.Audit(records.AuditEntry{Cause: records.Cause{TokenID: "t", Method: "GET", Target: "/x"}, Result: 200})
			}
		})
	}
	all.Wait()
	await.Until(t, "entries are written without Close", func() bool {
		db.mu.Lock()
		defer db.mu.Unlock()
		return len(db.entries) > 0
	})
	m.Close()
	for k, want := range map[records.UsageRow]int64{
		{Day: "2026-02-03", Namespace: "n", RepoID: "a", Operation: "fetch"}: 10_000,
		{Day: "2026-02-03", Namespace: "n", RepoID: "a", Operation: "clone"}: 1000,
		{Day: "2026-02-03", Namespace: "n", RepoID: "b", Operation: "fetch"}: 2000,
	} {
		if db.counts[k] != 1000 || db.rows[k] != want {
			t.Errorf("%+v: got %d operations of %d bytes, want 1000 of %d", k, db.counts[k], db.rows[k], want)
		}
	}
	if len(db.entries) != 1000 || !db.entries[0].Time.Equal(day) {
		t.Errorf("%d audit entries, want 1000", len(db.entries))
	}
	m.Close()
	m.Audit(records.AuditEntry{})
	if m.m.auditDropped.Load() != 1 {
		t.Errorf("an entry after Close is not counted as dropped")
	}
}

func TestEntriesSurviveAnAbsentDatabase(t *testing.T) {
	db := newMemory()
	db.away = true
	m := start(db, audit{db}, zap.NewNop(), func() time.Time { return day }, time.Hour)
	r := records.Repo{ID: "a", Namespace: "n"}
	m.Count(r, Push, 5)
	m.Audit(records.AuditEntry{Cause: records.Cause{TokenID: "t"}, Result: 1})
	if err := m.flush(t.Context()); !errors.Is(err, records.ErrUnavailable) {
		t.Errorf("write to an absent database: %v", err)
	}
	m.Count(r, Push, 6)
	for range maxEntries + 10 {
		m.Audit(records.AuditEntry{Cause: records.Cause{TokenID: "t"}, Result: 2})
	}
	m.flush(t.Context())
	if n := m.m.auditDropped.Load(); n != 11 {
		t.Errorf("%d entries beyond the limit were counted, want 11", n)
	}
	db.set(false)
	m.Close()
	k := records.UsageRow{Day: "2026-02-03", Namespace: "n", RepoID: "a", Operation: "push"}
	if db.counts[k] != 2 || db.rows[k] != 11 || len(db.entries) != maxEntries || db.entries[0].Result != 1 {
		t.Errorf("stored %d pushes of %d bytes and %d entries, want 2 of 11 and %d", db.counts[k], db.rows[k],
			len(db.entries), maxEntries)
	}
}

func TestAuditIsExportedInParts(t *testing.T) {
	db := newMemory()
	store := audit{db}
	for i := range batch + 7 {
		store.Add(t.Context(),
			[]records.AuditEntry{{Time: day, Cause: records.Cause{TokenID: "t", Method: "GET", Target: fmt.Sprint("/", i)},
				Result: 200}})
	}
	var b bytes.Buffer
	if err := Export(t.Context(), &b, store, 0, 0); err != nil || bytes.Count(b.Bytes(), []byte("\n")) != batch+7 {
		t.Errorf("exported %d lines (%v), want %d", bytes.Count(b.Bytes(), []byte("\n")), err, batch+7)
	}
	b.Reset()
	if err := Export(t.Context(), &b, store, batch+2, 3); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	want :=
		fmt.Sprintf(`{"seq":%d,"time":"2026-02-03T23:59:00Z","token_id":"t","method":"GET","target":"/%d","result":200}`,
			batch+3, batch+2)
	if len(lines) != 3 || lines[0] != want {
		t.Errorf("got %q, want 3 lines that begin with %s", lines, want)
	}
}

func TestRequestsAreMeasured(t *testing.T) {
	db := newMemory()
	m := New(db, audit{db}, zap.NewNop())
	defer m.Close()
	hold := make(chan struct{})
	server := httptest.NewServer(m.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("flush: %v", err)
			}
			<-hold
		case strings.HasSuffix(r.URL.Path, "/missing"):
			http.Error(w, "no", http.StatusNotFound)
		default:
			io.WriteString(w, "four")
		}
	})))
	defer server.Close()
	ask := func(method, path, body string) *http.Response {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/git/n/r.git/info/refs?service=git-upload-pack", ""}, {"POST", "/git/n/r.git/git-upload-pack", "1234567"},
		{"POST", "/git/n/r.git/git-receive-pack", ""}, {"GET", "/client/v4/accounts/a/artifacts/missing", ""},
		{"POST", "/v1/api/namespaces", "{}"}, {"GET", "/healthz", ""},
	} {
		ask(r.method, r.path, r.body).Body.Close()
	}
	stream := ask("GET", "/artifactfs/v1/namespaces/n/events", "")
	m.Git("upload-pack")(nil)
	m.Git("upload-pack")(io.EOF)
	running := m.Git("receive-pack")
	m.Refs(2, 1)
	m.Register(func(w *metrics.Writer) { w.Family("other", metrics.Gauge, "Other."); w.Sample(7) })
	store := m.Store(failing{})
	store.Put(t.Context(), "k", "p")
	store.Get(t.Context(), "k", "p")

	var b bytes.Buffer
	if err := m.Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	all, err := metricstest.Parse(b.String())
	if err != nil {
		t.Fatalf("parse the metrics: %v\n%s", err, b.String())
	}
	const p = "artifactfs_server_"
	for _, c := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"requests_total", []string{"class", "git-refs", "status", "2xx"}, 1},
		{"requests_total", []string{"class", "git-fetch"}, 1},
		{"requests_total", []string{"class", "git-push"}, 1},
		{"requests_total", []string{"class", "rest-read", "status", "4xx"}, 1},
		{"requests_total", []string{"class", "rest-write"}, 1}, {"requests_total", []string{"class", "other"}, 1},
		{"requests_open", []string{"class", "events"}, 1},
		{"request_duration_seconds_count", []string{"class", "git-fetch"}, 1},
		{"http_bytes_total", []string{"direction", "in"}, 9}, {"http_bytes_total", []string{"direction", "out"}, 23},
		{"git_processes", []string{"command", "receive-pack"}, 1},
		{"git_failures_total", []string{"command", "upload-pack"}, 1},
		{"git_duration_seconds_count", []string{"command", "upload-pack"}, 2},
		{"ref_updates_total", []string{"result", "made"}, 2},
		{"object_store_failures_total", []string{"operation", "put"}, 1},
		{"object_store_duration_seconds_count", []string{"operation", "get"}, 1},
	} {
		if got, ok := metricstest.Value(all, p+c.name, c.labels...); !ok || got != c.value {
			t.Errorf("%s%q = %v, want %v", c.name, c.labels, got, c.value)
		}
	}
	if got, _ := metricstest.Value(all, "other"); got != 7 {
		t.Errorf("a registered family has the value %v, want 7", got)
	}
	running(nil)
	close(hold)
	stream.Body.Close()
}

type failing struct{ objects.Store }

func (failing) Put(context.Context, string, string) error { return objects.ErrUnavailable }
func (failing) Get(context.Context, string, string) error { return nil }

func TestANilMeterCountsNothing(t *testing.T) {
	var m *Meter
	m.Count(records.Repo{}, Read, 1)
	m.Audit(records.AuditEntry{})
	m.Git("x")(nil)
	m.Refs(1, 1)
	m.Register(nil)
	h := http.NotFoundHandler()
	if m.Requests(h) == nil || m.Store(nil) != nil || m.Close() != nil {
		t.Error("a nil Meter does not pass its arguments through")
	}
}

func FuzzAuditExport(f *testing.F) {
	f.Add("t", "agent\n", "GET", "/a\x00b", "\xff")
	f.Fuzz(func(t *testing.T, token, actor, method, target, detail string) {
		db := newMemory()
		store := audit{db}
		store.Add(t.Context(),
			[]records.AuditEntry{{Time: day, Cause: records.Cause{TokenID: token, Actor: actor, Method: method, Target: target},
				Detail: detail}})
		var b bytes.Buffer
		if err := Export(t.Context(), &b, store, 0, 0); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(b.Bytes(), []byte("\n")) != 1 || !json.Valid(b.Bytes()) {
			t.Errorf("entry is no line of JSON: %q", b.String())
		}
	})
}
