package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
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
