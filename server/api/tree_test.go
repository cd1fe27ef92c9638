package api_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/api"
)

// TestLargeDirectory checks that a directory with thirty thousand names is sent completely, and that the server never
// has more than a small part of it in memory.
func TestLargeDirectory(t *testing.T) {
	var o api.Options
	w := newWorld(t, func(given *api.Options) { o = *given })
	rest := api.New(o) // the checker of the world stores answers
	t.Cleanup(func() { rest.Close() })
	server := httptest.NewServer(rest)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "--bare", "-b", "main")
	const names = 30_000
	var commit strings.Builder
	commit.WriteString("blob\nmark :1\ndata 0\n\ncommit refs/heads/main\ncommitter a <a> 1 +0000\ndata 0\n")
	for i := range names {
		fmt.Fprintf(&commit, "M 100644 :1 big/f%06d\n", i)
	}
	commit.WriteString("M 100755 :1 small/\"quoted\n")
	load := gitcmd.Isolated(t.Context(), "--git-dir="+dir, "fast-import", "--quiet")
	load.Stdin = strings.NewReader(commit.String())
	if err := gitcmd.Run(load); err != nil {
		t.Fatal(err)
	}
	w.do(t, w.admin, http.MethodPost, "/client/v4/accounts/"+account+"/artifacts/namespaces/big/repos", `{"name":"files"}`)
	w.fill(t, "big", "files", dir)
	read := func(path string) (entries []map[string]string) {
		t.Helper()
		id := gittest.Must(t, dir, "rev-parse", "main:"+path)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet,
			server.URL+"/v1/api/namespaces/big/repos/files/tree/"+id, nil)
		r.Header.Set("Authorization", "Bearer "+w.admin)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var answer struct {
			Success bool
			Result  []map[string]string
		}
		text, err := io.ReadAll(res.Body)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil || res.StatusCode != 200 || !answer.Success || int64(len(text)) != res.ContentLength {
			t.Fatalf("tree of %s: got status %d, %d of %d bytes, %v", path, res.StatusCode, len(text), res.ContentLength, err)
		}
		return answer.Result
	}
	if got := read("small"); len(got) != 1 || got[0]["name"] != `"quoted` || got[0]["type"] != "exec" {
		t.Errorf("small directory: got %v", got)
	}
	if got := read("big"); len(got) != names || !slices.IsSortedFunc(got,
		func(a, b map[string]string) int { return strings.Compare(a["name"], b["name"]) }) {
		t.Errorf("large directory: got %d names", len(got))
	}
	// The answer has 3 MB.
	id := gittest.Must(t, dir, "rev-parse", "main:big")
	var before, after runtime.MemStats
	most := uint64(0)
	out := &onlyCounts{header: http.Header{}, each: func() {
		runtime.ReadMemStats(&after)
		most = max(most, after.HeapAlloc)
	}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/api/namespaces/big/repos/files/tree/"+id, nil)
	r.Header.Set("Authorization", "Bearer "+w.admin)
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that the measured memory contains little garbage
	runtime.GC()
	runtime.ReadMemStats(&before)
	rest.ServeHTTP(out, r)
	if out.bytes < 2<<20 || most > before.HeapAlloc+2<<20 {
		t.Errorf("large directory: sent %d bytes, the memory has grown from %d to %d bytes", out.bytes,
			before.HeapAlloc, most)
	}
}

// onlyCounts is an http.ResponseWriter that only counts the bytes.
type onlyCounts struct {
	header http.Header
	bytes  int
	each   func()
}

func (o *onlyCounts) Header() http.Header { return o.header }
func (o *onlyCounts) WriteHeader(int)     {}

func (o *onlyCounts) Write(p []byte) (int, error) {
	if o.bytes += len(p); o.bytes>>20 != (o.bytes-len(p))>>20 {
		o.each()
	}
	return len(p), nil
}
