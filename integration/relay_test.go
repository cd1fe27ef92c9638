package integration

import (
	"bufio"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
)

// relayed is a running relay.
type relayed struct {
	w   *world
	cmd *exec.Cmd
	url string
}

// relay starts a relay with a new data directory.
func (w *world) relay(flags ...string) *relayed {
	w.Helper()
	data := w.place("relay")
	cmd := w.command(context.Background(),
		append([]string{"relay", "--listen", "127.0.0.1:0", "--data", data, "--log-level", "warn"}, flags...)...)
	out := must[*os.File](w)(pipeOf(cmd))
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	r := &relayed{w: w, cmd: cmd}
	w.Cleanup(r.end)
	line, err := bufio.NewReader(out).ReadString('\n')
	at, ok := strings.CutPrefix(strings.TrimSpace(line), "relaying at ")
	if !ok {
		w.Fatalf("start of a relay: got %q, %v", line, err)
	}
	r.url = at
	return r
}

// pipeOf returns the reading end of a pipe that receives the output of a command.
func pipeOf(cmd *exec.Cmd) (*os.File, error) {
	r, w, err := os.Pipe()
	cmd.Stdout = w
	return r, err
}

// end ends the relay with SIGTERM, which must succeed.
func (r *relayed) end() {
	r.w.Helper()
	if r.cmd == nil {
		return
	}
	r.cmd.Process.Signal(syscall.SIGTERM)
	if err := r.cmd.Wait(); err != nil {
		r.w.Errorf("end of the relay: %v", err)
	}
	r.cmd = nil
}

// kill kills the relay.
func (r *relayed) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
	r.cmd = nil
}

// metric returns a metric of the relay.
func (r *relayed) metric(name string, labels ...string) float64 {
	r.w.Helper()
	res := must[*http.Response](r.w)(http.Get(r.url + "/metrics"))
	defer res.Body.Close()
	var text strings.Builder
	if _, err := bufio.NewReader(res.Body).WriteTo(&text); err != nil {
		r.w.Fatal(err)
	}
	all, err := metricstest.Parse(text.String())
	if err != nil {
		r.w.Fatalf("metrics of the relay: %v", err)
	}
	v, ok := metricstest.Value(all, "artifactfs_relay_"+name, labels...)
	if !ok {
		r.w.Fatalf("metric %s%q of the relay is missing", name, labels)
	}
	return v
}

// hosts returns n further worlds, which share the repositories and the server of w as hosts of a cluster do.
func (w *world) hosts(t *testing.T, n int) (all []*world) {
	for range n {
		h := newWorld(t)
		h.env = w.env
		all = append(all, h)
	}
	return all
}

// Hosts that mount the same commit through a relay cost the git server one acquisition and each blob once. The mount
// names the remote itself; the relay is kept by a takeover, and the mount works without it.
func TestRelay(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("app.git", 0)
	first := must[object.ID](t)(repo.Sized(10, 40))
	check(t, repo.Tag("v1", first))
	s :=
		w.serve(gittest.ServerOptions{Config: []string{tellSizes, "uploadpack.allowFilter=true",
			"uploadpack.allowAnySHA1InWant=true"}})
	clone := w.clone(s.URL("app.git"))
	var r *relayed
	var hosts []*world
	mounts := make([]mounted, 3)
	for try := range 3 {
		s.forget()
		r, hosts = w.relay(), w.hosts(t, len(mounts))
		var all sync.WaitGroup
		for i, h := range hosts {
			all.Go(func() {
				mounts[i] = h.bare(s.URL("app.git"), "--via", r.url)
				h.compareTrees(mounts[i].Dir, clone)
			})
		}
		all.Wait()
		// On a busy machine, a relay may be silent for so long that a host sends a request to the git server.
		left := slices.IndexFunc(mounts, func(m mounted) bool {
			got := m.status().Network.Relay
			return got != nil && got.FallThroughs > 0
		})
		if left < 0 {
			break
		}
		t.Logf("attempt %d: host %d has left the relay", try, left)
	}
	sent, _ := s.Log().Blobs()
	for id, n := range sent {
		if n > 1 {
			t.Errorf("blob %s was sent %d times", id, n)
		}
	}
	acquisitions := 0
	for _, f := range s.Log().Fetches() {
		if f.Filter == "blob:none" && f.Depth == 2 {
			acquisitions++
		}
	}
	if acquisitions != 1 || r.metric("requests_total", "kind", "snap", "outcome", "served") != 3 {
		t.Errorf("3 mounts: got %d acquisitions, want 1:\n%s", acquisitions, s.Log())
	}
	h, m := hosts[0], mounts[0]
	if got := h.git(m.Dir, "remote", "get-url", "origin"); got != s.URL("app.git") {
		t.Errorf("remote of the mount: got %s, want %s", got, s.URL("app.git"))
	}

	if got := m.status().Network.Relay; got == nil || got.URL != r.url || got.Answers == 0 || got.FallThroughs != 0 {
		t.Errorf("status of a mount with a relay: got %+v", got)
	}

	// After a takeover, the mount still uses the relay.
	next := must[object.ID](t)(repo.Commit("main", map[string]gittest.File{"new.txt": {Data: []byte("new\n")}}, "Change"))
	served := r.metric("requests_total", "kind", "snap", "outcome", "served")
	old := h.serving()
	check(t, syscall.Kill(old, syscall.SIGKILL))
	h.until("another worker serves", func() bool { pid := h.victim().Serving(); return pid != 0 && pid != old })
	h.ok("switch", "--detach", "-C", m.Dir, next.String())
	if got := r.metric("requests_total", "kind", "snap", "outcome", "served"); got != served+1 {
		t.Errorf("a switch after a takeover: got %v snaps from the relay, want %v", got, served+1)
	}
	if got := must[[]byte](t)(os.ReadFile(m.path("new.txt"))); string(got) != "new\n" {
		t.Errorf("file of the next commit: got %q", got)
	}

	// Without the relay, mounts and reads go to the git server.
	r.kill()
	late := w.hosts(t, 1)[0]
	m = late.bare(s.URL("app.git"), "--via", r.url, "--ref", "v1")
	late.compareTrees(m.Dir, clone)
	if got := m.status().Network.Relay; got == nil || got.Answers != 0 || got.FallThroughs == 0 ||
		!strings.Contains(got.LastFailure, "refused") {
		t.Errorf("status of a mount whose relay was killed: got %+v", got)
	}
	if got := late.ok("status", m.Dir); !strings.Contains(got, "sent to the git server instead; failed ") {
		t.Errorf("status of a mount whose relay was killed: got %s", got)
	}

	// Remotes that are no http or https URLs are mounted directly, and the status says so.
	late.bare(repo.Path, "--via", r.url)
	if got := late.ok("status"); !strings.Contains(got, "relay of --via is not used") {
		t.Errorf("status of a mount of a path with --via: got %s", got)
	}
	if got := late.afs("mount", s.URL("app.git"), late.place("m"), "--via", "relay:9428"); got.code != control.ExitUsage {
		t.Errorf("mount with an invalid --via: got %s", got)
	}
}

// A token that the git server refuses reads nothing through a relay that has stored everything.
func TestRelayRefusesForeignTokens(t *testing.T) {
	w := newWorld(t)
	s, _, _ := w.private("app.git")
	r := w.relay()
	url := asUser(s.URL("app.git"))
	hosts := w.hosts(t, 2)
	hosts[0].env = append(hosts[0].env, "ARTIFACTFS_TOKEN="+password, "ARTIFACTFS_VIA="+r.url)
	m := hosts[0].bare(url, "--prefetch", "all", "--wait", "all")
	must[[]byte](t)(os.ReadFile(m.path("known/a")))
	hosts[1].env = append(hosts[1].env, "ARTIFACTFS_TOKEN=wrong", "ARTIFACTFS_VIA="+r.url)
	if got := hosts[1].afs("mount", url, hosts[1].place("m")); got.code == 0 ||
		!strings.Contains(got.stderr, "authentication") {
		t.Errorf("mount with a wrong token: got %s", got)
	}
}

// A relay whose answers break off delays a mount, and nothing else: the commit is acquired from the git server with one
// more request, and not tree by tree.
func TestRelayBreaksOff(t *testing.T) {
	w := newWorld(t)
	repo := w.repo("app.git", 0)
	must[object.ID](t)(repo.Sized(60, 10))
	s := w.serve(gittest.ServerOptions{})
	clone := w.clone(s.URL("app.git"))
	s.forget()
	r := w.relay()
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(must[*url.URL](t)(url.Parse(r.url))) },
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(res *http.Response) error {
			if res.Request.Method == http.MethodPost {
				res.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(io.LimitReader(res.Body, 3000), iotest.ErrReader(io.ErrUnexpectedEOF)), res.Body}
			}
			return nil
		},
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	m := w.bare(s.URL("app.git"), "--via", front.URL)
	w.compareTrees(m.Dir, clone)
	for _, f := range s.Log().Fetches() {
		if f.Filter == "blob:none" && f.Depth != 2 {
			t.Errorf("trees were fetched one by one:\n%s", s.Log())
			break
		}
	}
}
