package s3test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// Front is a proxy in front of a Server. It counts requests and bytes, and can answer requests with errors.
type Front struct {
	URL string // URL of the proxy, without a path

	mu       sync.Mutex
	requests map[string]int // number of requests by HTTP method
	sent     int64
	received int64
	fault    func(w http.ResponseWriter, r *http.Request) bool
}

// Tally contains the numbers of requests and bytes that have passed through a Front.
type Tally struct {
	Requests map[string]int // number of requests by HTTP method
	Sent     int64          // bytes of the bodies of requests
	Received int64          // bytes of the bodies of answers
}

// NewFront starts a proxy in front of a server. The proxy ends when the test ends.
func NewFront(t testing.TB, s *Server) *Front {
	to := &url.URL{Scheme: "http", Host: s.Address}
	f := &Front{requests: map[string]int{}}
	proxy := &httputil.ReverseProxy{
		// The signature of a request covers the header Host, so the server must receive the header unchanged.
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests[r.Method]++
		fault := f.fault
		f.mu.Unlock()
		r.Body = &counter{ReadCloser: r.Body, f: f, n: &f.sent}
		if fault != nil && fault(w, r) {
			return
		}
		proxy.ServeHTTP(&answer{w, f}, r)
	}))
	f.URL = h.URL
	t.Cleanup(h.Close)
	return f
}

// StoreURL returns the URL of an object store behind the proxy, for objects.Open.
func (f *Front) StoreURL(prefix string) string {
	return "s3://" + Bucket + "/" + prefix + "?endpoint=" + f.URL
}

// Fault sets a function that is called for each request. If the function returns true, it has answered the request, and
// the proxy does not forward it. nil removes the function.
func (f *Front) Fault(fault func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Take returns the numbers since the previous call of Take.
func (f *Front) Take() Tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := Tally{f.requests, f.sent, f.received}
	f.requests, f.sent, f.received = map[string]int{}, 0, 0
	return t
}

// counter is the body of a request that counts the bytes that are read.
type counter struct {
	io.ReadCloser
	f *Front
	n *int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.f.mu.Lock()
	*c.n += int64(n)
	c.f.mu.Unlock()
	return n, err
}

// answer is a http.ResponseWriter that counts the bytes of the body.
type answer struct {
	http.ResponseWriter
	f *Front
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.f.mu.Lock()
	a.f.received += int64(n)
	a.f.mu.Unlock()
	return n, err
}
