package server

import (
	"net/http"
	"time"
)

// times are the times that a client has, so that those who send or read nothing do not keep their connections.
type times struct {
	header time.Duration // for the header of a request
	idle   time.Duration // between two requests on a connection
	// body is the time for the body of a request that the server does not read, such as one without a valid token. What
	// reads a body sets a deadline of its own.
	body time.Duration
	// answer is the time from the header of a request to the end of the answer. Transfers of git, streams of events and
	// contents of files set deadlines of their own, before each write.
	answer time.Duration
}

var defaultTimes = times{header: 10 * time.Second, idle: 2 * time.Minute, body: 10 * time.Second,
	answer: 2 * time.Minute}

// server returns an HTTP server with these times.
func (t times) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: t.limitBody(h), ReadHeaderTimeout: t.header, WriteTimeout: t.answer, IdleTimeout: t.idle,
		MaxHeaderBytes: maxHeader,
		HTTP2:          &http.HTTP2Config{WriteByteTimeout: t.answer},
	}
}

// limitBody returns a handler that limits the time for the bodies of requests. Before the http package answers in
// HTTP/1, it reads the rest of a body that the handler has not read. HTTP/2 needs no limit, as one request does not
// wait for another.
func (t times) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 && r.ProtoMajor == 1 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(t.body)) // fails only if the connection is closed
		}
		next.ServeHTTP(w, r)
	})
}
