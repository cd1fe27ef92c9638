package objects

import (
	"io"
	"net/http"
	"sync"
)

// detached is an http.RoundTripper that does not read the body of a request that has failed any more after RoundTrip
// has returned. http.Transport may still read it, while minio-go already rewinds the same reader for the next attempt.
type detached struct{ transport *http.Transport }

// RoundTrip implements http.RoundTripper.
func (d detached) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return d.transport.RoundTrip(r)
	}
	body := &detachedBody{body: r.Body}
	sent := r.WithContext(r.Context())
	sent.Body = body
	sent.GetBody = nil // minio-go repeats requests, the transport does not
	answer, err := d.transport.RoundTrip(sent)
	if err != nil || answer.StatusCode >= 300 {
		body.detach()
	}
	return answer, err
}

// detachedBody is the body of a request until detach is called.
//
// Locks: mu is a leaf.
type detachedBody struct {
	mu   sync.Mutex
	body io.ReadCloser
	left bool // detach was called
}

// Read implements io.Reader.
func (b *detachedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return 0, io.ErrClosedPipe
	}
	return b.body.Read(p)
}

// Close implements io.Closer.
func (b *detachedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return nil
	}
	return b.body.Close()
}

// detach waits for the end of a read, and lets later ones fail.
func (b *detachedBody) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
}
