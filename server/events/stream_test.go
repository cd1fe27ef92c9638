package events

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/records"
)

// memory is a Store of events in memory. Events of other nodes do not close the channel that Changed returns.
type memory struct {
	mu      sync.Mutex
	events  []records.Event
	changed chan struct{}
	away    bool
	asked   int
}

func newMemory() *memory { return &memory{changed: make(chan struct{})} }

// add adds an event. Its number is the number of the previous event plus step.
func (m *memory) add(step int64, namespace, repo, kind string, here bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seq := step
	if n := len(m.events); n > 0 {
		seq += m.events[n-1].Seq
	}
	m.events = append(m.events, records.Event{Seq: seq, Type: kind, Namespace: namespace, Repo: repo,
		Body: []byte(`{"n":` + strconv.FormatInt(seq, 10) + `}`)})
	if here {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

func (m *memory) After(_ context.Context, seq int64, namespace, repo string,
	limit int) (page []records.Event, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.away {
		return nil, records.ErrUnavailable
	}
	for _, e := range m.events {
		if e.Seq > seq && (namespace == "" || e.Namespace == namespace) && (repo == "" || e.Repo == repo) &&
			len(page) < limit {
			page = append(page, e)
		}
	}
	return page, nil
}

func (m *memory) Last(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return 0, records.ErrUnavailable
	}
	if len(m.events) == 0 {
		return 0, nil
	}
	return m.events[len(m.events)-1].Seq, nil
}

func (m *memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func serve(t *testing.T, s *Stream) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /{namespace}/{repo}/events", s)
	mux.Handle("GET /{namespace}/events", s)
	mux.Handle("GET /events", s)
	server := httptest.NewServer(mux)
	t.Cleanup(func() { s.Close(); server.Close() })
	return server
}

// reader reads the ids of the events of a stream.
type reader struct {
	t     *testing.T
	lines chan string
}

func read(t *testing.T, url, last string) reader {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("stream %s: got %s, %s", url, answer.Status, answer.Header.Get("Content-Type"))
	}
	r := reader{t, make(chan string, 10_000)}
	go func() {
		defer close(r.lines)
		defer answer.Body.Close()
		for s := bufio.NewScanner(answer.Body); s.Scan(); {
			if s.Text() != "" {
				r.lines <- s.Text()
			}
		}
	}()
	if got := r.next(); got != "retry: 2000" {
		t.Fatalf("stream begins with %q", got)
	}
	return r
}

func (r reader) next() string { r.t.Helper(); return await.Receive(r.t, r.lines) }

// ids reads n events.
func (r reader) ids(n int) (all []int) {
	r.t.Helper()
	for range n {
		id, ok := strings.CutPrefix(r.next(), "id: ")
		seq, err := strconv.Atoi(id)
		if !ok || err != nil {
			r.t.Fatalf("line of an event: %q", id)
		}
		kind, data := r.next(), r.next()
		if !strings.HasPrefix(kind, "event: cf.artifacts.repo.") || data != `data: {"n":`+id+`}` {
			r.t.Fatalf("event %d: got %q, %q", seq, kind, data)
		}
		all = append(all, seq)
	}
	return all
}

func (r reader) want(ids ...int) {
	r.t.Helper()
	if got := r.ids(len(ids)); !slices.Equal(got, ids) {
		r.t.Errorf("events %v, want %v", got, ids)
	}
}

var quick = limits{poll: 5 * time.Millisecond, heartbeat: time.Hour, write: time.Hour, clients: 3, each: 3}

func TestEventsArriveOnceAndInOrder(t *testing.T) {
	m := newMemory()
	m.add(1, "n", "r", pushedType, true)
	s := newStream(m, zap.NewNop(), quick)
	server := serve(t, s)
	all := read(t, server.URL+"/events", "")
	one := read(t, server.URL+"/n/R/events?type=pushed,token.created", "")
	resumed := read(t, server.URL+"/n/events?after=0", "0")
	resumed.want(1)
	m.add(2, "n", "r", pushedType, true)        // number 3
	m.add(1, "n", "r", clonedType, false)       // number 4, by another node
	m.add(1, "n", "q", pushedType, false)       // number 5
	m.add(1, "o", "r", tokenCreatedType, true)  // number 6
	m.add(5, "n", "r", tokenCreatedType, false) // number 11
	all.want(3, 4, 5, 6, 11)
	one.want(3, 11)
	resumed.want(3, 4, 5, 11)
	if n := s.connected(); n != 3 {
		t.Errorf("%d clients, want 3", n)
	}
	answer, err := http.Get(server.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
		t.Errorf("client beyond the limit: got %s", answer.Status)
	}
	s.Close()
	for line := range all.lines {
		t.Errorf("line after Close: %q", line)
	}
}

// TestAClientResumes checks that a client that was disconnected reads all events that it has missed, including those
// that are no longer in memory, while new events are added.
func TestAClientResumes(t *testing.T) {
	m := newMemory()
	s := newStream(m, zap.NewNop(), quick)
	server := serve(t, s)
	keep := read(t, server.URL+"/events", "") // this client keeps the reader of the store running
	const n = maxRecent + 3*pageSize
	var all sync.WaitGroup
	all.Go(func() {
		for i := range n {
			m.add(1, "n", "r", pushedType, i%7 != 0)
		}
	})
	var want []int
	for i := range n {
		want = append(want, i+1)
	}
	keep.want(want...)
	read(t, server.URL+"/events", "10").want(want[10:]...)
	read(t, server.URL+"/events?after=3", strconv.Itoa(n-5)).want(want[n-5:]...)
	all.Wait()
}

func TestManyClientsAskOnce(t *testing.T) {
	m := newMemory()
	l := quick
	l.clients, l.poll = 200, time.Hour
	server := serve(t, newStream(m, zap.NewNop(), l))
	var clients []reader
	for range 100 {
		clients = append(clients, read(t, server.URL+"/events", ""))
	}
	for range 10 {
		m.add(1, "n", "r", pushedType, true)
	}
	for _, c := range clients {
		c.want(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked > 60 {
		t.Errorf("100 clients and 10 events needed %d questions", m.asked)
	}
}

func TestClientsWithoutEventsGetHeartbeats(t *testing.T) {
	l := quick
	l.heartbeat = time.Millisecond
	c := read(t, serve(t, newStream(newMemory(), zap.NewNop(), l)).URL+"/events", "")
	for range 3 {
		if got := c.next(); got != ":" {
			t.Errorf("line %q, want a comment", got)
		}
	}
}

// TestASlowClientIsDisconnected checks that a client that does not read is disconnected, and that other clients still
// receive events.
func TestASlowClientIsDisconnected(t *testing.T) {
	m := newMemory()
	l := quick
	l.write = 50 * time.Millisecond
	s := newStream(m, zap.NewNop(), l)
	server := serve(t, s)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
	await.Until(t, "the client is connected", func() bool { return s.connected() == 1 })
	m.mu.Lock()
	m.events = append(m.events, records.Event{Seq: 1, Type: pushedType,
		Body: append(append([]byte(`"`), bytes.Repeat([]byte("x"), 64<<20)...), '"')})
	m.mu.Unlock()
	await.Until(t, "the client is disconnected", func() bool { return s.connected() == 0 })
	fast := read(t, server.URL+"/events", "1")
	m.add(1, "n", "r", pushedType, true)
	fast.want(2)
}

func TestBadRequestsAreRefused(t *testing.T) {
	m := newMemory()
	s := newStream(m, zap.NewNop(), quick)
	server := serve(t, s)
	for _, c := range []struct {
		query, id string
		status    int
	}{
		{"?type=exploded", "", 400}, {"?after=x", "", 400}, {"?after=-1", "", 400}, {"", "1 2", 400},
		{"?after=1", "99999999999999999999", 400},
	} {
		request, _ := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/events"+c.query, nil)
		if c.id != "" {
			request.Header.Set("Last-Event-ID", c.id)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != c.status || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%+v: got %s", c, answer.Status)
		}
	}
	m.mu.Lock()
	m.away = true
	m.mu.Unlock()
	answer, err := http.Get(server.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != 503 {
		t.Errorf("without a database: got %s, want 503", answer.Status)
	}
}

// TestTheDatabaseComesBack checks that a stream continues after the database was unavailable: its clients connect again
// or wait.
func TestTheDatabaseComesBack(t *testing.T) {
	m := newMemory()
	server := serve(t, newStream(m, zap.NewNop(), quick))
	c := read(t, server.URL+"/events", "")
	m.add(1, "n", "r", pushedType, true)
	c.want(1)
	set := func(away bool) { m.mu.Lock(); m.away = away; m.mu.Unlock() }
	set(true)
	m.add(1, "n", "r", pushedType, true)
	set(false)
	c.want(2)
}

func FuzzParseRequest(f *testing.F) {
	f.Add("type=pushed&after=1", "2")
	f.Add("type=repo.created,cf.artifacts.repo.cloned&type=x", "")
	f.Add("after=%00;", "-9223372036854775808")
	f.Fuzz(func(t *testing.T, query, id string) {
		r := httptest.NewRequest("GET", "/events", nil)
		r.URL.RawQuery = query
		r.Header.Set("Last-Event-ID", id)
		filter, after, err := parseRequest(r)
		if err != nil {
			return
		}
		if after < -1 || len(filter.Types) > len(Types) {
			t.Errorf("after %d, types %q", after, filter.Types)
		}
	})
}

// FuzzFormat checks that a client reads exactly one event, whatever its body contains.
func FuzzFormat(f *testing.F) {
	f.Add(int64(1), "a", `{"a":1}`)
	f.Add(int64(-1), "a", "{\n\"a\":\r\n\r1}\n\n")
	f.Fuzz(func(t *testing.T, seq int64, kind, body string) {
		if strings.ContainsAny(kind, "\r\n") { // the types of events are constants of this package
			return
		}
		var b bytes.Buffer
		format(&b, records.Event{Seq: seq, Type: kind, Body: []byte(body)})
		text := b.String()
		if strings.Count(text, "\n\n") != 1 || !strings.HasSuffix(text, "\n\n") || strings.Contains(text, "\r") {
			t.Errorf("event is written as %q", text)
		}
	})
}
