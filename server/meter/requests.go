package meter

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// class is the kind of a request in metrics.
type class int

const (
	gitRefs class = iota // info/refs of either service
	gitFetch
	gitPush
	restRead
	restWrite
	eventStream
	pageView
	otherRequest
	classes
)

func (c class) String() string {
	switch c {
	case gitRefs:
		return "git-refs"
	case gitFetch:
		return "git-fetch"
	case gitPush:
		return "git-push"
	case restRead:
		return "rest-read"
	case restWrite:
		return "rest-write"
	case eventStream:
		return "events"
	case pageView:
		return "page"
	default:
		return "other"
	}
}

// classify returns the class of a request. It looks at the path only, so that it works for refused requests too.
func classify(r *http.Request) class {
	path := r.URL.Path
	switch {
	case strings.HasPrefix(path, "/git/"):
		switch path[strings.LastIndexByte(path, '/')+1:] {
		case "git-upload-pack":
			return gitFetch
		case "git-receive-pack":
			return gitPush
		}
		return gitRefs
	case strings.HasPrefix(path, "/client/v4/"), strings.HasPrefix(path, "/v1/api/"),
		strings.HasPrefix(path, "/artifactfs/v1/"):
		if strings.HasSuffix(path, "/events") {
			return eventStream
		}
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return restRead
		}
		return restWrite
	case path == "/", strings.HasPrefix(path, "/ui/"):
		return pageView
	}
	return otherRequest
}

// Requests returns a handler that measures the requests to next. The duration of a stream of events is not observed.
func (m *Meter) Requests(next http.Handler) http.Handler {
	if m == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, begin := classify(r), time.Now()
		answer := &answer{ResponseWriter: w, bytes: &m.m.sent}
		if r.Body != nil && r.Body != http.NoBody {
			// The http package looks at the body of its own request to decide what to do with one that was not read.
			r = r.WithContext(r.Context())
			r.Body = &body{r.Body, &m.m.received}
		}
		m.m.open[c].Add(1)
		defer func() {
			m.m.open[c].Add(-1)
			status := answer.status
			if status == 0 {
				status = http.StatusOK
			}
			m.m.answers[c][min(max(status/100, 1), 5)-1].Add(1)
			if c != eventStream {
				m.m.durations[c].Observe(time.Since(begin))
			}
		}()
		next.ServeHTTP(answer, r)
	})
}

// answer counts the bytes of an answer and stores its status.
type answer struct {
	http.ResponseWriter
	status int
	bytes  *atomic.Int64
}

func (a *answer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(b)
	a.bytes.Add(int64(n))
	return n, err
}

// Unwrap lets http.ResponseController find the methods of the wrapped writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush passes on what was written, for handlers that do not use http.ResponseController.
func (a *answer) Flush() {
	if f, ok := a.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// body counts the bytes of a request.
type body struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}
