package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	pollTime = time.Second // interval at which events of other nodes are read
	// interval at which a client without events gets an empty line, so that proxies keep the connection open
	heartbeat  = 15 * time.Second
	writeTime  = 20 * time.Second // time after which a client that does not read is disconnected
	maxClients = 2000             // maximum number of clients of one process; a namespace may have a quarter of them
	perClient  = 512 << 10        // maximum memory, in bytes, that a client needs which reads from the store
	maxRecent  = 2048             // maximum number of events that are kept in memory for all clients
	maxBytes   = 8 << 20          // maximum total size of the bodies of these events in bytes
	pageBytes  = 64 << 10         // size of bodies, in bytes, after which a page of events ends
	pageSize   = 256              // maximum number of events on a page
	typePrefix = "cf.artifacts.repo."
)

// Store contains events. *records.Events implements it.
type Store interface {
	After(ctx context.Context, seq int64, namespace, repo string, limit int) ([]records.Event, error)
	Last(ctx context.Context) (int64, error)
	Changed() <-chan struct{}
}

var _ Store = (*records.Events)(nil)

// Stream sends events to clients by server-sent events. One reader of the store serves all clients of the process. It
// reads when this process has added events, and once a second to find those of other nodes. A client that needs events
// which are not in memory any more, such as one that resumes, reads from the store itself.
//
// The id of an event in the stream is its number. A client that connects again sends the last number as Last-Event-ID,
// and gets all later events that the store still has. Events with another type, namespace or repository than the client
// has selected are left out.
type Stream struct {
	store Store
	log   *zap.Logger
	limit limits
	end   context.Context
	stop  context.CancelFunc
	first chan struct{} // receives a value when the first client connects
	done  chan struct{} // closed when the reader has ended

	mu      sync.Mutex // protects the fields below
	clients int
	of      map[string]int  // number of clients by namespace; clients of all namespaces together have no separate limit
	awake   bool            // whether the reader keeps recent up to date
	recent  []records.Event // all events with numbers greater than from, up to last
	bytes   int             // total size of the bodies of recent in bytes
	from    int64
	last    int64
	changed chan struct{} // closed when last changes, and replaced by a new channel
}

type limits struct {
	poll, heartbeat, write time.Duration
	clients, each          int // maximum number of clients, and of clients of one namespace
}

// NewStream returns a Stream that runs until Close. memory is the number of bytes that its clients may need together;
// 0: no limit.
func NewStream(store Store, memory int64, log *zap.Logger) *Stream {
	clients := maxClients
	if memory > 0 {
		clients = int(min(max(memory/perClient, 1), maxClients))
	}
	return newStream(store, log, limits{pollTime, heartbeat, writeTime, clients, max(clients/4, 1)})
}

func newStream(store Store, log *zap.Logger, l limits) *Stream {
	s := &Stream{
		store: store, log: log, limit: l, first: make(chan struct{}, 1), done: make(chan struct{}),
		changed: make(chan struct{}),
		of:      map[string]int{},
	}
	s.end, s.stop = context.WithCancel(context.Background())
	go s.run()
	return s
}

// Close disconnects all clients. They then connect again, to another node if there is one.
func (s *Stream) Close() error {
	s.stop()
	<-s.done
	return nil
}

// connected returns the number of connected clients.
func (s *Stream) connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients
}

// Metrics writes the metrics of a Stream.
func (s *Stream) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_event_clients", metrics.Gauge, "Clients that read the stream of events.")
	w.Sample(float64(s.connected()))
}

// run reads new events while clients are connected.
func (s *Stream) run() {
	defer close(s.done)
	failing := false
	for {
		select {
		case <-s.first:
		case <-s.end.Done():
			return
		}
		for s.connected() > 0 {
			changed := s.store.Changed() // taken before reading, so that no change is missed
			more, err := s.read()
			if err != nil && !failing && s.end.Err() == nil {
				s.log.Warn("could not read events", zap.Error(err))
			}
			failing = err != nil
			if more {
				continue
			}
			wait := time.NewTimer(s.limit.poll)
			if err != nil {
				changed = nil
			}
			select {
			case <-changed:
			case <-wait.C:
			case <-s.end.Done():
				wait.Stop()
				return
			}
			wait.Stop()
		}
		s.mu.Lock()
		s.awake, s.recent, s.bytes = false, nil, 0
		s.mu.Unlock()
	}
}

// read reads the next page of events. more reports whether there may be another page.
func (s *Stream) read() (more bool, err error) {
	s.mu.Lock()
	awake, last := s.awake, s.last
	s.mu.Unlock()
	if !awake {
		if last, err = s.store.Last(s.end); err != nil {
			return false, err
		}
		s.mu.Lock()
		s.awake, s.from, s.last, s.recent, s.bytes = true, last, last, nil, 0
		s.wakeClients()
		s.mu.Unlock()
		return true, nil
	}
	page, err := s.store.After(s.end, last, "", "", pageSize)
	if err != nil || len(page) == 0 {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent = append(s.recent, page...)
	s.last = page[len(page)-1].Seq
	for _, e := range page {
		s.bytes += len(e.Body)
	}
	extra := max(0, len(s.recent)-maxRecent)
	for _, e := range s.recent[:extra] {
		s.bytes -= len(e.Body)
	}
	for ; extra < len(s.recent) && s.bytes > maxBytes; extra++ {
		s.bytes -= len(s.recent[extra].Body)
	}
	if extra > 0 {
		s.from = s.recent[extra-1].Seq
		s.recent = slices.Clone(s.recent[extra:])
	}
	s.wakeClients()
	return true, nil
}

// wakeClients wakes the clients. The caller holds s.mu.
func (s *Stream) wakeClients() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Filter selects events. The zero value selects all.
type Filter struct {
	Namespace string
	Repo      string
	Types     []string
}

// Match reports whether the filter selects an event.
func (f Filter) Match(e records.Event) bool {
	return e.Matches(f.Namespace, f.Repo, f.Types)
}

// parseTypes returns the types of events in a list that is separated by commas. The prefix "cf.artifacts.repo." of a
// type may be missing.
func parseTypes(list string) (types []string, err error) {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		full := name
		if !slices.Contains(Types, name) && !strings.HasPrefix(name, typePrefix) {
			full = typePrefix + strings.TrimPrefix(name, "repo.")
		}
		if !slices.Contains(Types, full) {
			return nil, fmt.Errorf("unknown type %.64q of events", name)
		}
		if !slices.Contains(types, full) {
			types = append(types, full)
		}
	}
	return types, nil
}

var errInput = errors.New("must be the id of an event, which is a number")

// parseRequest returns the filter of a request, and the number of the event after which its events begin. The number is
// -1 if the client gets only new events.
func parseRequest(r *http.Request) (f Filter, after int64, err error) {
	f.Namespace, f.Repo = r.PathValue("namespace"), r.PathValue("repo")
	query := r.URL.Query()
	if f.Types, err = parseTypes(strings.Join(query["type"], ",")); err != nil {
		return f, 0, err
	}
	text := query.Get("after")
	// The header takes precedence over the parameter in the URL, because a client that connects again uses the same
	// URL.
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		text = id
	}
	if text == "" {
		return f, -1, nil
	}
	after, err = strconv.ParseInt(text, 10, 64)
	if err != nil || after < 0 {
		return f, 0, fmt.Errorf("Last-Event-ID %w", errInput)
	}
	return f, after, nil
}

// ServeHTTP sends events until the client goes away, the context of the request ends, or the Stream is closed. The
// caller has checked what the client may see. The path values "namespace" and "repo" and the query parameter "type"
// select events.
func (s *Stream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	filter, after, err := parseRequest(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, 10100, err.Error())
		return
	}
	if !s.enter(filter.Namespace) {
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, 10401, "too many clients read events")
		return
	}
	defer s.endClient(filter.Namespace)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.end, cancel)()
	if after < 0 {
		if after, err = s.store.Last(ctx); err != nil {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusServiceUnavailable, 10401, "database is unavailable")
			return
		}
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // without this header, nginx would collect the events before it passes them on
	w.WriteHeader(http.StatusOK)
	c := client{w: w, control: http.NewResponseController(w), limit: s.limit.write}
	if c.write([]byte("retry: 2000\n\n")) != nil {
		return
	}
	s.follow(ctx, c, filter, after)
}

// follow sends the events with numbers greater than after to a client, until ctx ends or the client does not read.
func (s *Stream) follow(ctx context.Context, c client, f Filter, after int64) {
	beat := time.NewTimer(s.limit.heartbeat)
	defer beat.Stop()
	for {
		page, next, changed, err := s.next(ctx, f, after)
		// end the stream, because the client then connects again, possibly to a node whose database answers
		if err != nil {
			return
		}
		var text bytes.Buffer // contains one event at a time, so that a client that reads slowly needs little memory
		sent := false
		for _, e := range page {
			if !f.Match(e) {
				continue
			}
			text.Reset()
			format(&text, e)
			if c.send(text.Bytes()) != nil {
				return
			}
			sent = true
		}
		after = next
		if sent {
			if c.control.Flush() != nil {
				return
			}
			beat.Reset(s.limit.heartbeat)
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-beat.C:
			if c.write([]byte(":\n\n")) != nil {
				return
			}
			beat.Reset(s.limit.heartbeat)
		case <-ctx.Done():
			return
		}
	}
}

// next returns events with numbers greater than after, including some that the filter does not select, and the number
// up to which events were read. If there are no further events, it also returns a channel that is closed when there may
// be more.
func (s *Stream) next(ctx context.Context, f Filter, after int64) ([]records.Event, int64, <-chan struct{}, error) {
	s.mu.Lock()
	awake, last, changed := s.awake, s.last, s.changed
	if !awake || after >= last {
		s.mu.Unlock()
		return nil, after, changed, ctx.Err()
	}
	if after >= s.from {
		i, found := slices.BinarySearchFunc(s.recent, after, func(e records.Event, seq int64) int { return int(e.Seq - seq) })
		if found {
			i++
		}
		page := s.recent[i:]
		size := 0
		for n, e := range page {
			if size += len(e.Body); size >= pageBytes && n+1 < len(page) {
				page, last, changed = page[:n+1], e.Seq, nil
				break
			}
		}
		// copy the page, so that the other events need not stay in memory while the client reads
		page = slices.Clone(page)
		s.mu.Unlock()
		return page, last, changed, ctx.Err()
	}
	s.mu.Unlock()
	page, err := s.store.After(ctx, after, f.Namespace, f.Repo, pageSize)
	if err != nil {
		return nil, 0, nil, err
	}
	if n := len(page); n > 0 {
		last = page[n-1].Seq
	}
	return page, last, nil, nil
}

func (s *Stream) enter(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients >= s.limit.clients || namespace != "" && s.of[namespace] >= s.limit.each || s.end.Err() != nil {
		return false
	}
	s.of[namespace]++
	if s.clients++; s.clients == 1 {
		signal.Send(s.first)
	}
	return true
}

func (s *Stream) endClient(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients--
	if s.of[namespace]--; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
}

// client is a connection to a client.
type client struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

// write sends a text at once.
func (c client) write(text []byte) error {
	if err := c.send(text); err != nil {
		return err
	}
	return c.control.Flush()
}

// send sends a text, of which a small part may stay in a buffer. It returns an error if the client does not read the
// text in time, so that a slow client does not occupy memory.
func (c client) send(text []byte) error {
	if err := c.control.SetWriteDeadline(time.Now().Add(c.limit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := c.w.Write(text)
	return err
}

// format appends an event in the format of server-sent events. A line break in the body, which JSON allows as white
// space, begins another line "data:".
func format(b *bytes.Buffer, e records.Event) {
	fmt.Fprintf(b, "id: %d\nevent: %s\n", e.Seq, e.Type)
	for line := range bytes.FieldsFuncSeq(e.Body, func(r rune) bool { return r == '\n' || r == '\r' }) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

// refuse answers with an error in the format of the REST API.
func refuse(w http.ResponseWriter, status, code int, message string) {
	type item struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(struct {
		Result   any    `json:"result"`
		Success  bool   `json:"success"`
		Errors   []item `json:"errors"`
		Messages []item `json:"messages"`
	}{nil, false, []item{{code, message}}, []item{}})
}
