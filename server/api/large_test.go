package api_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestLargeFilesThatAreNotRead checks that clients that request large files and do not read them block neither other
// reads of their namespace nor large files of other namespaces, and that they lose their connections when the token is
// revoked.
func TestLargeFilesThatAreNotRead(t *testing.T) {
	var o api.Options
	w := newWorld(t, func(given *api.Options) { o = *given })
	rest := api.New(o) // without the checker of the world, which stores whole answers
	t.Cleanup(func() { rest.Close() })
	server := httptest.NewUnstartedServer(rest)
	server.Config.WriteTimeout = time.Minute
	server.Start()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "-b", "main")
	const size = 32 << 20 // more than the kernel buffers for a connection
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "small"), []byte("small"), 0o600); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, dir, "add", ".")
	if _, err := gittest.Git(t.Context(), dir, "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "-m",
		"c"); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"slow", "other"} {
		w.do(t, w.admin, http.MethodPost, "/client/v4/accounts/"+account+"/artifacts/namespaces/"+ns+"/repos",
			`{"name":"files"}`)
		w.fill(t, ns, "files", filepath.Join(dir, ".git"))
	}
	of := func(ns string) string { return server.URL + "/v1/api/namespaces/" + ns + "/repos/files" }
	slow, text := w.tokenOf(t, records.Token{Role: records.OwnerToken, Namespace: "slow", Scope: records.ReadScope})
	transport := &http.Transport{DisableKeepAlives: true}
	ask := func(token, url string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		return transport.RoundTrip(r)
	}
	const requests, places = 40, 8
	begun := make(chan struct{}, requests)
	revoking, revoked := make(chan struct{}), make(chan struct{})
	ended := make(chan int64, requests) // bytes received; -1 if the request was refused
	for range requests {
		go func() {
			res, err := ask(text, of("slow")+"/raw/main/large")
			switch {
			case err != nil:
				select {
				case <-revoking: // the request began at the moment of the revocation, so its connection was closed
				default:
					t.Error(err)
				}
				ended <- -1
				return
			case res.StatusCode == http.StatusUnauthorized:
				res.Body.Close()
				ended <- -1
				return
			case res.StatusCode != http.StatusOK:
				t.Errorf("large file: got status %d", res.StatusCode)
			}
			begun <- struct{}{}
			<-revoked
			n, _ := io.Copy(io.Discard, res.Body)
			res.Body.Close()
			ended <- n
		}()
	}
	for range places {
		await.Receive(t, begun)
	}
	for _, url := range []string{of("other") + "/log", of("slow") + "/log", of("slow") + "/raw/main/small",
		of("other") + "/raw/main/large"} {
		res, err := ask(w.admin, url)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || n == 0 {
			t.Errorf("GET %s: got status %d, %d bytes, %v", url, res.StatusCode, n, err)
		}
	}
	close(revoking)
	if err := o.Guard.Revoke(t.Context(), slow.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	close(revoked)
	refused := 0
	for range requests {
		switch n := await.Receive(t, ended); {
		case n == size:
			t.Error("a client received all of a file after its token was revoked")
		case n < 0:
			refused++
		}
	}
	if refused != requests-places {
		t.Errorf("requests that waited and were refused: got %d, want %d", refused, requests-places)
	}
}
