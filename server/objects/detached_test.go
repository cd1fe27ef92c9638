package objects

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestBodyIsNotReadAfterAFailure checks that the body of a failed request can be read again at once. If the transport
// still read it, the race detector would report this.
func TestBodyIsNotReadAfterAFailure(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang up" {
			io.CopyN(io.Discard, r.Body, 1<<20)
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/refuse" {
			http.Error(w, "early answer", http.StatusServiceUnavailable)
			return
		}
		io.Copy(w, r.Body)
	}))
	defer server.Close()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	contents := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	reader := bytes.NewReader(contents)
	for _, path := range []string{"/hang%20up", "/refuse", "/echo"} {
		if _, err := reader.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+path, io.NopCloser(reader))
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = int64(len(contents))
		resp, err := detached{transport}.RoundTrip(r)
		if path != "/echo" {
			if err == nil {
				resp.Body.Close()
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !bytes.Equal(got, contents) {
			t.Errorf("the third attempt sent %d bytes, %v, want %d", len(got), err, len(contents))
		}
	}
}
