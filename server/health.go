package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// readyTime is the maximum time for which readyz waits for the database and the object store.
const readyTime = 5 * time.Second

// healthz answers as long as the process can serve any request.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }

// readyz answers 200 if the server can serve requests: the database and the object store answer, and the server is not
// ending. The answer names the part that does not answer, and nothing else, because anyone may ask.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	for _, part := range []struct {
		name  string
		ready func(context.Context) error
	}{
		{"server", func(context.Context) error {
			if s.draining.Load() {
				return http.ErrServerClosed
			}
			return nil
		}},
		{"database", s.db.Ping}, {"object store", s.store.Ready},
	} {
		if part.ready(ctx) != nil {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "%s is unavailable\n", part.name)
			return
		}
	}
	_, _ = io.WriteString(w, "ok\n")
}

// metrics writes the metrics.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_ = s.meter.Write(r.Context(), w) // an error means that the client has closed the connection
}
