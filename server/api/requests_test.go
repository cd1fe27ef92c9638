package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
	"github.com/artifactfs/artifactfs/server/records"
)

// testDatabaseAway checks that requests get status 503 while the database is unavailable, and are served as soon as it
// is back.
func testDatabaseAway(t *testing.T, w *world, s *pgtest.Server) {
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, ask := range []string{"GET /namespaces/team/repos/copy", "POST /namespaces/team/repos",
		"GET /namespaces/team/repos/copy/log"} {
		method, path, _ := strings.Cut(ask, " ")
		got := w.do(t, w.admin, method, "/v1/api"+path, `{"name":"x"}`)
		if got.status != 503 || got.header.Get("Retry-After") != "1" || got.body != fault(10401, "Storage is unavailable") {
			t.Errorf("%s: got %d %s, want 503", ask, got.status, got.body)
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the repository can be read again", func() bool {
		return w.do(t, w.admin, "GET", "/v1/api/namespaces/team/repos/copy/log", "").status == 200
	})
}

// TestNamesAreTakenOnce checks that exactly one of many concurrent requests that create the same name succeeds.
func TestNamesAreTakenOnce(t *testing.T) {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	for _, ask := range []string{"/namespaces", "/namespaces/team/repos", "/namespaces/team/repos/base/fork"} {
		var mu sync.Mutex
		var all sync.WaitGroup
		counts := map[int]int{}
		for i := range 20 {
			all.Go(func() {
				name := []string{"taken", "Taken"}[i%2]
				got := w.do(t, w.admin, "POST", "/v1/api"+ask,
					fmt.Sprintf(`{"name":"%s%d","namespace":"%s"}`, name, len(ask), name))
				mu.Lock()
				defer mu.Unlock()
				counts[got.status]++
			})
		}
		all.Wait()
		if counts[201] != 1 || counts[409] != 19 {
			t.Errorf("POST %s: got %v, want 201 once and 409 otherwise", ask, counts)
		}
	}
}

// TestContentsWithoutBody checks that file contents have an entity tag, and that a HEAD request returns only the
// header.
func TestContentsWithoutBody(t *testing.T) {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	url := w.url + "/v1/api" + at + "/raw/main/README.md"
	for _, test := range []struct {
		method, tag string
		status      int
		length      int64
	}{{"HEAD", "", 200, 8}, {"GET", `"` + w.vars["readme"] + `"`, 304, 0}, {"GET", `"other"`, 200, 8}} {
		req, err := http.NewRequestWithContext(t.Context(), test.method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.admin)
		req.Header.Set("If-None-Match", test.tag)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != test.status || res.ContentLength != test.length ||
			res.Header.Get("ETag") != `"`+w.vars["readme"]+`"` {
			t.Errorf("%s with tag %s: got %d, %d bytes, tag %s", test.method, test.tag, res.StatusCode, res.ContentLength,
				res.Header.Get("ETag"))
		}
	}
}

// TestWebhooksAreLimited checks that the number of webhooks of a namespace, and of the account, is limited.
func TestWebhooksAreLimited(t *testing.T) {
	w := newWorld(t, nil)
	for _, ns := range []string{"", "team", "other"} {
		if ns != "" {
			w.do(t, w.admin, "POST", "/v1/api/namespaces", `{"namespace":"`+ns+`"}`)
		}
		for i := range 100 {
			if ns == "other" {
				break
			}
			h := records.Webhook{ID: fmt.Sprint("hook", ns, i), Namespace: ns, URL: "https://example.com"}
			if err := w.db.Webhooks.Create(t.Context(), h, records.Cause{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for ns, want := range map[string]int{"": 409, "team": 409, "other": 201} {
		got := w.do(t, w.admin, "POST", "/artifactfs/v1/accounts/"+account+"/webhooks",
			`{"url":"https://example.com","namespace":"`+ns+`"}`)
		if got.status != want {
			t.Errorf("another webhook of namespace %q: got %d %s, want %d", ns, got.status, got.body, want)
		}
	}
}
