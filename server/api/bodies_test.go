package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// slowBody is a body of which nothing arrives until the function begun returns.
type slowBody struct {
	begun func() // called when the server begins to read
	rest  io.Reader
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.begun != nil {
		b.begun()
		b.begun = nil
	}
	return b.rest.Read(p)
}

// TestBodiesOfOneToken checks that a token cannot make the server read more than its share of large bodies, and that
// small bodies and those of other tokens do not wait for them.
func TestBodiesOfOneToken(t *testing.T) {
	var o api.Options
	w := newWorld(t, func(given *api.Options) { given.Memory = places.NewMemory(256<<20, 0); o = *given })
	rest := api.New(o) // without the checker of the world, which reads bodies itself
	t.Cleanup(func() { rest.Close() })
	const share = 3 // of the 8 places that a server with this memory has
	ended := make(chan int, share+3)
	post := func(token string, length int64, begun func()) {
		r := httptest.NewRequest(http.MethodPost, "/client/v4/accounts/"+account+"/artifacts/namespaces/ns/repos", nil)
		r.Body, r.ContentLength = io.NopCloser(&slowBody{begun, strings.NewReader("no JSON")}), length
		r.Header.Set("Authorization", "Bearer "+token)
		out := httptest.NewRecorder()
		rest.ServeHTTP(out, r.WithContext(t.Context()))
		ended <- out.Code
	}
	reading, arrive := make(chan struct{}, share), make(chan struct{})
	for range share {
		go post(w.admin, -1, func() { reading <- struct{}{}; <-arrive })
		await.Receive(t, reading)
	}
	var arrived atomic.Bool
	go post(w.admin, 1<<19, func() {
		if !arrived.Load() {
			t.Error("a token has more than its share of large bodies")
		}
	})
	post(w.admin, 100, nil)
	post(w.token(t, records.Token{Role: records.AdminToken}), -1, nil)
	arrived.Store(true)
	close(arrive)
	for range share + 3 {
		if code := await.Receive(t, ended); code != http.StatusBadRequest {
			t.Errorf("answer: got %d, want %d", code, http.StatusBadRequest)
		}
	}
}

// TestValuesOfOneNamespace checks that the values of cache entries get places before they are read, that a namespace
// cannot have all, and that a value that is too large is not read.
func TestValuesOfOneNamespace(t *testing.T) {
	var o api.Options
	w := newWorld(t, func(given *api.Options) { o = *given })
	rest := api.New(o) // without the checker of the world, which reads bodies itself
	t.Cleanup(func() { rest.Close() })
	for _, ns := range []string{"slow", "other"} {
		w.do(t, w.admin, http.MethodPost, "/client/v4/accounts/"+account+"/artifacts/namespaces/"+ns+"/repos",
			`{"name":"r"}`)
	}
	const share = 8
	ended := make(chan int, share+3)
	put := func(ns string, length int64, begun func()) {
		r := httptest.NewRequest(http.MethodPut,
			"/artifactfs/v1/accounts/"+account+"/namespaces/"+ns+"/repos/r/cache/value?key=k", nil)
		r.Body, r.ContentLength = io.NopCloser(&slowBody{begun, iotest.ErrReader(io.ErrUnexpectedEOF)}), length
		r.Header.Set("Authorization", "Bearer "+w.admin)
		out := httptest.NewRecorder()
		rest.ServeHTTP(out, r.WithContext(t.Context()))
		ended <- out.Code
	}
	reading, arrive := make(chan struct{}, share), make(chan struct{})
	for range share {
		go put("slow", -1, func() { reading <- struct{}{}; <-arrive })
		await.Receive(t, reading)
	}
	var arrived atomic.Bool
	go put("slow", 1, func() {
		if !arrived.Load() {
			t.Error("a namespace has more than its share of values")
		}
	})
	put("slow", cacheentry.MaxValue+1, func() { t.Error("a value that is too large is read") })
	put("other", 1, nil)
	for _, want := range []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest} {
		if code := await.Receive(t, ended); code != want {
			t.Errorf("answer beside %d slow values: got %d, want %d", share, code, want)
		}
	}
	arrived.Store(true)
	close(arrive)
	for range share + 1 {
		if code := await.Receive(t, ended); code != http.StatusBadRequest {
			t.Errorf("answer to a slow value: got %d, want %d", code, http.StatusBadRequest)
		}
	}
	if left, err := filepath.Glob(filepath.Join(w.dir, "*/scratch/*/*")); err != nil || len(left) > 0 {
		t.Errorf("values on the disk after all requests: %v, %v", left, err)
	}
}
