package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
	"github.com/artifactfs/artifactfs/server"
	"github.com/artifactfs/artifactfs/server/client"
)

// ask sends a request to a path below /artifactfs/v1, and returns the status and the body of the answer.
func ask(t *testing.T, s *server.Server, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/artifactfs/v1/accounts/"+s.Account+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+string(s.Admin))
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// types collects the types of received events.
type types struct {
	mu   sync.Mutex
	list []string
}

func (s *types) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, strings.TrimPrefix(name, "cf.artifacts.repo."))
}

// have reports whether exactly these types were collected, in any order.
func (s *types) have(want ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := slices.Clone(s.list)
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(got, want)
}

func (s *types) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.list)
}

// TestImportsEventsAndUsage imports a repository, clones it, pushes to it and deletes it, and checks that every step is
// reported by the stream of events and by a webhook, counted, and recorded in the audit log.
func TestImportsEventsAndUsage(t *testing.T) {
	dir := t.TempDir()
	up, err := gittest.New(filepath.Join(dir, "up", "r"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.Commit("trunk", map[string]gittest.File{"a": {Data: []byte("a")}}, "first"); err != nil {
		t.Fatal(err)
	}
	gittest.Must(t, up.Path, "symbolic-ref", "HEAD", "refs/heads/trunk")
	far, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Join(dir, "up"), Cheap: true})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	s, _ := start(t, server.Options{Data: filepath.Join(dir, "data"), ImportHTTP: true})
	c := connect(t, s.URL, string(s.Admin))
	if _, err := c.CreateNamespace(t.Context(), "team", ""); err != nil {
		t.Fatal(err)
	}

	var hooked, streamed types
	inbox :=
		httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			hooked.add(r.Header.Get("Artifactfs-Event"))
		}))
	defer inbox.Close()
	if status, text := ask(t, s, "POST", "/namespaces/team/webhooks", `{"url":"`+inbox.URL+`"}`); status != 201 ||
		!strings.Contains(text, `"secret":"whsec_`) {
		t.Fatalf("create webhook: %d %s", status, text)
	}
	r, _ := http.NewRequestWithContext(t.Context(), "GET",
		s.URL+"/artifactfs/v1/accounts/"+s.Account+"/namespaces/team/events", nil)
	r.Header.Set("Authorization", "Bearer "+string(s.Admin))
	stream, err := http.DefaultClient.Do(r)
	if err != nil || stream.StatusCode != 200 {
		t.Fatalf("stream of events: %v, %v", stream, err)
	}
	defer stream.Body.Close()
	go func() {
		for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				streamed.add(name)
			}
		}
	}()

	// The URL does not end in .git.
	created, err := c.Import(t.Context(), "team", "copy", client.Import{URL: far.URL("r")})
	if err != nil || created.DefaultBranch != "trunk" {
		t.Fatalf("import: %+v, %v", created, err)
	}
	await.Until(t, "the import has ended", func() bool {
		status, err := c.Extensions().ImportStatus(t.Context(), "team", "copy")
		if err == nil && status.State == "failed" {
			t.Fatalf("import failed: %+v", status)
		}
		return err == nil && status.State == "succeeded" && status.Bytes > 0
	})
	if repo, err := c.Repo(t.Context(), "team", "copy"); err != nil || repo.Source != "git:"+far.URL("r")+".git" {
		t.Errorf("imported repository: %+v, %v", repo, err)
	}
	if _, err := c.Import(t.Context(), "team", "none", client.Import{URL: far.URL("missing")}); err == nil ||
		!strings.Contains(err.Error(), "git remote URL") {
		t.Errorf("import of no repository: %v", err)
	}
	u, err := url.Parse(created.Remote)
	if err != nil {
		t.Fatal(err)
	}
	secret, _, _ := strings.Cut(created.Token, "?")
	u.User = url.UserPassword("x", secret)
	clone := filepath.Join(dir, "clone")
	gittest.Must(t, dir, "clone", "-q", u.String(), clone)
	gittest.Must(t, clone, "commit", "-q", "--allow-empty", "-m", "local")
	gittest.Must(t, clone, "push", "-q", "origin", "HEAD:refs/heads/new")
	gittest.Must(t, clone, "push", "-q", "origin", "HEAD~:refs/heads/old", "HEAD:refs/notes/x")
	if _, err := up.Commit("trunk", map[string]gittest.File{"a": {Data: []byte("b")}}, "second"); err != nil {
		t.Fatal(err)
	}
	if err := c.Extensions().RefreshImport(t.Context(), "team", "copy"); err != nil {
		t.Fatal(err)
	}
	want := []string{"token.created", "imported", "cloned", "pushed", "pushed", "pushed", "imported", "pushed"}
	await.Until(t, "the refresh has ended", func() bool { return streamed.have(want...) })
	gittest.Must(t, clone, "fetch", "-q")
	if got := gittest.Must(t, clone, "log", "-1", "--format=%s", "origin/trunk"); got != "second" {
		t.Errorf("trunk after the second import is %q", got)
	}
	if err := c.DeleteRepo(t.Context(), "team", "copy"); err != nil {
		t.Fatal(err)
	}
	want = append(want, "fetched", "deleted")
	for name, got := range map[string]*types{"stream": &streamed, "webhook": &hooked} {
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s", name, got)
			}
		}()
		await.Until(t, "all events have arrived by the "+name, func() bool { return got.have(want...) })
	}

	counted := map[string]int64{}
	await.Until(t, "the usage is written", func() bool {
		today := time.Now().UTC()
		use, err := c.Extensions().Usage(t.Context(), "team", "", today.AddDate(0, 0, -1).Format(time.DateOnly),
			today.Format(time.DateOnly))
		if err != nil {
			t.Fatal(err)
		}
		clear(counted)
		for _, o := range use.Operations {
			counted[o.Operation] += o.Count
		}
		return counted["import"] == 2 && counted["clone"] == 1 && counted["fetch"] == 1 && counted["push"] == 2
	})
	await.Until(t, "the audit log is written", func() bool {
		_, text := ask(t, s, "GET", "/audit", "")
		found := map[string]bool{}
		for line := range strings.Lines(text) {
			var e struct{ Method, Target string }
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("line of the audit log: %q: %v", line, err)
			}
			found[e.Method] = true
		}
		return found["import"] && found["DELETE"] && found["GET"]
	})
	const p = "artifactfs_server_"
	await.Until(t, "the webhook's deliveries are counted", func() bool {
		_, text := get(t, s.URL+"/metrics")
		return strings.Contains(text, p+`webhook_attempts_total{result="delivered"} 10`)
	})
	_, text := get(t, s.URL+"/metrics")
	all, err := metricstest.Parse(text)
	if err != nil {
		t.Fatalf("parse the metrics: %v\n%s", err, text)
	}
	for _, c := range []struct {
		name   string
		labels []string
		least  float64
	}{
		{"git_duration_seconds_count", []string{"command", "fetch"}, 2},
		{"git_duration_seconds_count", []string{"command", "receive-pack"}, 2},
		{"git_duration_seconds_count", []string{"command", "upload-pack"}, 2},
		{"ref_updates_total", []string{"result", "made"}, 3},
		{"database_duration_seconds_count", []string{"kind", "write"}, 5},
		{"object_store_duration_seconds_count", []string{"operation", "put"}, 6},
		{"replica_uses_total", []string{"replica", "made"}, 1},
		{"requests_total", []string{"class", "git-push", "status", "2xx"}, 2},
		{"event_clients", nil, 1},
	} {
		if got, _ := metricstest.Value(all, p+c.name, c.labels...); got < c.least {
			t.Errorf("%s%q = %v, want at least %v", c.name, c.labels, got, c.least)
		}
	}
	if strings.Contains(text, "team") || strings.Contains(text, "copy") {
		t.Error("the metrics contain names of repositories")
	}
}
